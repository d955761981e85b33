"""`dump-log` of what is not in files of its own: runs in an object store, tiered segments, objects by URL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.root_places import forget, memory_root, open_as, store_of
from builders.tiered_roots import append_rounds, tiered_root
from fakes.faulty_store import FaultyStore, MemoryBucket

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.object_store.store import ByteRange
from pyspark_kafkalog.tools.main import main

_WHERE = ("--topic", "orders", "--partition", "0")
_JSON = ("--print-data-log", "--output", "json")


@pytest.fixture
def url() -> Iterator[str]:
    url = memory_root()
    yield url
    forget(url)


def dumped(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    """The records that the command prints."""
    assert main(["dump-log", *arguments, *_JSON]) == 0, capsys.readouterr().err
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [each for each in found if "payload" in each]


def payloads(records: list[dict[str, Any]]) -> list[str]:
    return [each["payload"] for each in records]


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["dump-log", *arguments]) in (1, 2)
    return capsys.readouterr().err


def test_runs_are_dumped_with_the_offsets_of_the_log(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    log_dir = LogDir.create(url)
    log_dir.create_topic("orders", partitions=1)
    large = [f"{number} {'x' * 1000}" for number in range(300)]  # in a data object; the others are in their commits
    for values in (["a", "b"], large, ["c"]):
        log_dir.append("orders", pa.table({"value": values}))
    found = dumped(capsys, "--path", url, *_WHERE, "--offset", "100")
    assert [each["offset"] for each in found] == list(range(303))
    assert payloads(found) == ["a", "b", *large, "c"]


@pytest.mark.parametrize("layout", ["aiven", "local"])
def test_tiered_and_local_segments_are_found_by_offset_and_by_name(
    url: str, layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_dir = tiered_root(tmp_path / "log", url, layout=layout, local_retention_bytes="1")
    append_rounds(log_dir, 10)
    path = ("--path", str(log_dir.path))
    assert main(["tier", *path, "--local"]) == 0
    assert main(["retention", *path, "--local"]) == 0
    capsys.readouterr()
    partition = LogDir.open(log_dir.path).partition("orders", 0)
    assert 0 < partition.local_log_start_offset < 200
    offset, seen = 0, []
    while offset < 200:
        found = dumped(capsys, *path, *_WHERE, "--offset", str(offset))
        assert found[0]["offset"] == offset
        seen += found
        offset = found[-1]["offset"] + 1
    assert payloads(seen) == [f"record {number} of partition 0" for number in range(200)]
    folder, (first, second, *_) = opened_folder(url)
    assert dumped(capsys, "--files", f"{folder}/{first}") == [
        each for each in seen if each["offset"] < int(second[:20])
    ]
    if layout == "local":
        index = f"{folder}/{second.removesuffix('.log')}.index"
        assert main(["dump-log", "--files", index]) == 0
        captured = capsys.readouterr()
        assert f"Dumping {index}" in captured.out
        assert captured.err == ""
    forget(folder)


def opened_folder(url: str) -> tuple[str, list[str]]:
    """The URL of the partition's folder, as a place that can be opened, and the names of the segments' logs there."""
    objects = store_of(url).bucket.objects
    logs = sorted(key for key in objects if key.endswith(".log"))
    folder, _, _ = logs[0].rpartition("/")
    store = FaultyStore(MemoryBucket())
    store.bucket.objects.update(
        {key.removeprefix(f"{folder}/"): each for key, each in objects.items() if key.startswith(f"{folder}/")}
    )
    return open_as(f"{url}/{folder}", store), [each.rpartition("/")[2] for each in logs]


def test_wrong_arguments_say_what_is_expected(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    log_dir = LogDir.create(url)
    log_dir.create_topic("orders", partitions=1)
    log_dir.append("orders", pa.table({"value": ["a"]}))
    assert "--files, or --path" in refused(capsys)
    assert "required with --path: --topic" in refused(capsys, "--path", url, "--offset", "0")
    assert "--files cannot be used with" in refused(capsys, "--files", "a.log", "--offset", "0")
    assert "expected one in [0, 1)" in refused(capsys, "--path", url, *_WHERE, "--offset", "1")
    assert "no such object" in refused(capsys, "--files", f"{url}/{0:020}.log")


def test_object_that_gives_fewer_bytes_than_its_size_ends_the_dump(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_of(url)
    store.put(f"{0:020}.log", b"x" * 100)

    def get_less(key: str, wanted: ByteRange) -> bytes:
        return b"x" * 60 if wanted.start == 0 else b""

    monkeypatch.setattr(store, "get_range", get_less)
    assert "at byte 60: expected 100 bytes" in refused(capsys, "--files", f"{url}/{0:020}.log")
