"""Work in a process in which no thread starts, and in one with a limit of address space; imports that are frozen."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pyarrow as pa
import pytest
from fakes.faulty_store import FaultyStore, MemoryBucket
from kafka_processes.served import serve
from tiers import TIER

from pyspark_kafkalog import LogDir, threads
from pyspark_kafkalog.maintenance.cleaner.record_chunks import work_ahead
from pyspark_kafkalog.maintenance.jobs.tasks import LocalTasks, TaskFailedError
from pyspark_kafkalog.object_store.retries import check_store
from pyspark_kafkalog.storage.filesystem import beside, in_parallel
from pyspark_kafkalog.threads import NoThreadError, Workers, freeze_imports, keep_freed_memory, side_by_side

_PARTITIONS = 3000 if TIER == "full" else 100
#: A megabyte less than glibc's arenas of two threads, and Arrow's reserve, would take beside the libraries.
_LIMIT_BYTES = 1 << 30 if TIER == "full" else 600 << 20

_WITHIN_LIMIT = """
import resource, sys
path, partitions, limit = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
from pyspark_kafkalog import LogDir
import pyarrow as pa
log_dir = LogDir.open_or_create(path)
log_dir.create_topic("t", partitions=partitions)
keys = [b"%d" % number for number in range(3 * partitions)]
log_dir.append("t", pa.table({"key": keys, "value": [b"x" * 100] * len(keys)}))
print(log_dir.read("t").num_rows)
"""


@pytest.fixture
def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)


def _fail() -> int:
    raise OSError("disk")


@pytest.mark.usefixtures("without_threads")
class TestWithoutThreads:
    def test_pools_call_in_the_callers_thread(self) -> None:
        with Workers(3) as workers:
            assert workers.submit(threading.get_ident).result() == threading.get_ident()
            assert list(workers.map(lambda number: number + 1, range(5))) == [1, 2, 3, 4, 5]
            with pytest.raises(OSError, match="disk"):
                workers.submit(_fail).result()
        assert side_by_side([lambda: 1, lambda: 2]) == [1, 2]
        assert list(work_ahead(iter(range(5)), lambda number: -number, threads=2)) == [0, -1, -2, -3, -4]

    def test_file_operations_are_done(self) -> None:
        done: list[int] = []
        assert in_parallel([lambda: 1, lambda: in_parallel([lambda: 2, lambda: 3])[1]]) == [1, 3]
        with beside([lambda: done.append(1), lambda: done.append(2)]) as wait_for_all:
            wait_for_all()
        assert done == [1, 2]

    def test_jobs_call_where_they_wait(self) -> None:
        tasks = LocalTasks(slots=4)
        futures = [tasks.submit(lambda: 7), tasks.submit(_fail)]
        assert list(tasks.as_completed(futures)) == futures
        tasks.close()
        assert futures[0].result() == 7
        with pytest.raises(TaskFailedError, match="disk"):
            futures[1].result()

    def test_a_store_is_probed(self) -> None:
        check_store(FaultyStore(MemoryBucket()), "probe")

    def test_a_log_directory_is_written_and_read(self, tmp_path: Path) -> None:
        log_dir = LogDir.open_or_create(tmp_path / "log")
        log_dir.create_topic("t", partitions=12)
        keys = [b"%d" % number for number in range(100)]
        log_dir.append("t", pa.table({"key": keys, "value": keys}))
        assert log_dir.read("t").num_rows == 100

    def test_a_server_says_what_limits_it(self, tmp_path: Path) -> None:
        LogDir.open_or_create(tmp_path / "log")
        with (
            pytest.raises(NoThreadError, match=r"kafkalog-server.*limit of address space.*ulimit -v"),
            serve(tmp_path / "log"),
        ):
            pass


def test_a_call_is_made_once_when_only_some_threads_start(monkeypatch: pytest.MonkeyPatch) -> None:
    start, calls = threading.Thread.start, []

    def start_first(thread: threading.Thread) -> None:
        if thread.name.endswith("_0"):
            start(thread)
        else:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start_first)
    with Workers(8, "some") as workers:
        futures = [workers.submit(calls.append, number) for number in range(200)]
        assert [each.result() for each in futures] == [None] * 200
    assert sorted(calls) == list(range(200))


def test_partitions_are_written_and_read_within_a_limit_of_address_space(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "ARROW_"))}
    done = subprocess.run(
        [sys.executable, "-c", _WITHIN_LIMIT, str(tmp_path / "log"), str(_PARTITIONS), str(_LIMIT_BYTES)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 3 * _PARTITIONS


@pytest.fixture
def thawed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing frozen before and after."""
    gc.unfreeze()
    monkeypatch.setattr(threads, "_modules_frozen", 0)
    yield
    gc.unfreeze()


def pretend_main(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    main = ModuleType("__main__")
    main.__spec__ = None if name is None else ModuleSpec(name, None)
    monkeypatch.setitem(sys.modules, "__main__", main)


@pytest.mark.usefixtures("thawed")
def test_spark_worker_freezes_once_for_same_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_main(monkeypatch, "pyspark.daemon")
    freeze_imports()
    frozen = gc.get_freeze_count()
    assert frozen > 1000
    kept = [[] for _ in range(1000)]
    freeze_imports()
    assert gc.get_freeze_count() <= frozen
    monkeypatch.setitem(sys.modules, "kafkalog_test_imported_later", ModuleType("later"))
    freeze_imports()
    assert gc.get_freeze_count() >= frozen + len(kept) // 2


@pytest.mark.usefixtures("thawed")
@pytest.mark.parametrize("name", ["pyspark.sql.worker.lookup_data_sources", "my_job", None])
def test_other_processes_freeze_nothing(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    pretend_main(monkeypatch, name)
    freeze_imports()
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize(
    ("name", "setting", "is_kept"),
    [("pyspark.daemon", None, True), ("pyspark.daemon", "MALLOC_TRIM_THRESHOLD_", False), ("my_job", None, False)],
)
def test_spark_worker_keeps_freed_memory_once(
    monkeypatch: pytest.MonkeyPatch, name: str, setting: str | None, is_kept: bool
) -> None:
    calls: list[tuple[int, int]] = []
    library = SimpleNamespace(mallopt=lambda *arguments: calls.append(arguments))
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    monkeypatch.setattr(threads, "_keeps_freed", False)
    for each in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"):
        monkeypatch.delenv(each, raising=False)
    if setting is not None:
        monkeypatch.setenv(setting, "131072")
    pretend_main(monkeypatch, name)
    keep_freed_memory()
    keep_freed_memory()
    assert calls == ([(-1, 64 << 20), (-3, 32 << 20)] if is_kept else [])
