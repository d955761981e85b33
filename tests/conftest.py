"""Fixtures that every kind of test shares."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import inspect
import os
import sys
import threading
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from builders.root_places import KINDS, RootPlace, forget, memory_root
from fakes.clock import Clock
from hypothesis import HealthCheck, settings
from kafka_processes.s3_proxy import S3Proxy
from left_open import close_what_is_left_open
from patience import PATIENCE_S
from repository import FIXTURES, TESTS
from tiers import SEED, TIER, chosen_cases

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Folders with long tests, in the order in which they are to begin.
_BEGIN_WITH = ("spark", "soak", "notebooks")
#: Folders whose tests belong to the full tier alone (tiers.py).
_FULL_ONLY = ("soak", "browser")
#: Delta is for one version of Spark, the oldest that this package supports (`make test-spark`).
HAS_DELTA = importlib.util.find_spec("delta") is not None
_WITH_DELTA = TESTS / "spark" / "delta"


if TIER != "full":
    # A third of the time of the quick tests is the wait for the disk, which no assertion needs: what a crash leaves is
    # tested with a file system that loses what was not flushed. Processes that a test starts do flush.
    os.fsync = os.fdatasync = lambda fd: None


# How long an example takes depends on what else the machine does.
settings.register_profile("kafkalog", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("kafkalog")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the thousands of modules, tests and functions, which live as long as the process, from garbage collection.

    Each collection would walk through all of them, and in a forked process copy them.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # xdist reads the marks in the same hook
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Say what may run side by side (`-n 3 --dist loadgroup`): the tests of the Spark session, others module by module.

    What takes longest comes first: who waits for it at the end would have nothing else to do.
    """

    if TIER != "full":
        markers = ("full", "slow") if TIER == "check" else ("full",)
        named = _named_modules(config)
        marked = {item for item in items if any(map(item.get_closest_marker, markers))}
        others = [item for item in items if item not in marked and _folder(item.path) not in _FULL_ONLY]
        sampled = set(_sampled([item for item in others if item.path not in named]))
        kept = [item for item in items if item.path in named or item in sampled]
        left_out = set(items).difference(kept)
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = kept
    for item in items:
        if not HAS_DELTA and (_WITH_DELTA in item.path.parents or item.get_closest_marker("delta")):
            item.add_marker(pytest.mark.skip(reason="needs Delta, which is not installed: it is for another Spark"))
        if config.pluginmanager.hasplugin("xdist"):
            module = str(item.path.relative_to(TESTS))
            item.add_marker(pytest.mark.xdist_group("spark" if _is_in_session(item) else module))
    order = {folder: at for at, folder in enumerate(_BEGIN_WITH)}
    items.sort(key=lambda item: order.get(_folder(item.path), len(order)))


def _is_in_session(item: pytest.Item) -> bool:
    """Whether the test belongs to those of the Spark session."""
    return _folder(item.path) == "spark" or "spark" in getattr(item, "fixturenames", ())


@pytest.fixture(autouse=True)
def _jobs_run_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have jobs run in this process, also if other tests have started a Spark session in it.

    Spark's tasks know neither what a test has replaced, nor its environment, nor its stores in memory.
    """
    if "pyspark.sql" in sys.modules and not _is_in_session(request.node):
        monkeypatch.setattr("pyspark_kafkalog.tools.maintenance.jobs.has_session", lambda: False)


@cache
def _folder(path: Path) -> str:
    return path.relative_to(TESTS).parts[0]


def _named_modules(config: pytest.Config) -> frozenset[Path]:
    """The modules that the run names, or names tests of: no tier leaves out a test of these, or a case."""
    named = (Path(argument.partition("::")[0]) for argument in config.args)
    return frozenset((config.invocation_params.dir / path).resolve() for path in named if path.suffix == ".py")


def _sampled(items: list[pytest.Item]) -> list[pytest.Item]:
    """The cases of each test that this tier tries (tiers.py)."""
    by_test: dict[str, list[pytest.Item]] = {}
    for item in items:
        by_test.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept: set[pytest.Item] = set()
    for test, cases in by_test.items():
        if cases[0].get_closest_marker("all_cases") is not None:
            kept.update(cases)
        else:
            kept.update(cases[at] for at in chosen_cases(test, len(cases)))
    return [item for item in items if item in kept]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own, for as long as our patience lasts."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}

    async def bounded() -> None:
        # By the machine's clock: tests move that of the loop.
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        timer = threading.Timer(PATIENCE_S, lambda: loop.call_soon_threadsafe(task.cancel))
        timer.start()
        try:
            await pyfuncitem.obj(**arguments)
        finally:
            timer.cancel()

    asyncio.run(bounded())
    return True


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    close_what_is_left_open()


def pytest_report_header() -> str:
    return f"tier {TIER} (KAFKALOG_TIER), seed {SEED} (KAFKALOG_SEED)"


@pytest.fixture
def one_commit_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit of a root on a file system begins a file, as if the last one were full."""
    monkeypatch.setattr("pyspark_kafkalog.metadata.local.log.COMMIT_FILE_BYTES", 0)


@pytest.fixture(scope="session")
def kafka_fixtures() -> Path:
    """Directories that real brokers left, each with `expected/manifest.json` beside the partition folders."""
    return FIXTURES


@pytest.fixture(scope="session")
def s3_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Proxy]:
    """A server for S3's protocol, one for all tests of a process; each test takes a `new_location()`."""
    with S3Proxy(tmp_path_factory.mktemp("s3_proxy")) as server:
        yield server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Tests that take `root_place` run for both kinds of root, those marked `file_roots` for one."""
    if "root_place" in metafunc.fixturenames:
        is_of_files = metafunc.definition.get_closest_marker("file_roots") is not None
        metafunc.parametrize("root_place", KINDS[:1] if is_of_files else KINDS, indirect=True)


@pytest.fixture
def root_place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RootPlace]:
    """A directory that does not exist yet, or an empty place in an object store in memory."""
    if request.param == "file":
        yield tmp_path / "log"
        return
    url = memory_root()
    yield url
    forget(url)


@pytest.fixture
def clock() -> Clock:
    """A clock for a root, in November 2023."""
    return Clock(1_700_000_000_000)


@pytest.fixture
def without_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have verification look at once again at damage that could be a writer's work."""
    from builders.verify_roots import check_again_at_once

    check_again_at_once(monkeypatch)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session: local, two cores, UTC, Arrow batches small enough that a test's rows fill several.

    Other kinds of sessions are in spark/test_source_sessions.py. If Delta is installed, this one has its jars and SQL
    extension, but not its catalog, which knows no Python data sources (spark/delta/conftest.py).
    """
    from pyspark.sql import SparkSession

    from pyspark_kafkalog.maintenance.jobs.tasks import EXTENSION

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder
    if HAS_DELTA:
        from delta import configure_spark_with_delta_pip

        builder = configure_spark_with_delta_pip(builder).config("spark.sql.extensions", EXTENSION)
    session = (
        builder.master("local[2]")
        .appName("kafkalog-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()
