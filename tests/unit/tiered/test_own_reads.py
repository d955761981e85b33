"""Reads of a native root that has copied segments: across the seam, with old plans, beside deletions."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builders.tiered_fixtures import ISOLATIONS, rows_of
from builders.tiered_logs import (
    OF,
    T0,
    bases,
    copy_closed,
    delete_local,
    file_root,
    fill,
    image_of,
    move_local_start,
    move_log_start,
    remove_files,
    rows,
    tiering_root,
)
from fakes.faulty_store import FaultyStore
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import CorruptRecordError, DataLossError, OffsetOutOfRangeError, UnsupportedFormatError
from pyspark_kafkalog.object_store.store import StoreNotFoundError
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.spark.data_source import read_schema
from pyspark_kafkalog.spark.options.parse import parse_read_options
from pyspark_kafkalog.spark.read.reader import (
    KafkalogBatchReader,
    OffsetRangePartition,
    read_offset_range,
    read_same_topic,
)
from pyspark_kafkalog.tiered import objects as remote_objects
from pyspark_kafkalog.tiered import remote_storage
from pyspark_kafkalog.tools.main import main


@pytest.fixture(params=["aiven", "local"])
def log_dir(request: pytest.FixtureRequest, tmp_path: Path) -> LogDir:
    """A root whose partition has some 35 segments, none of them remote, and two leader epochs."""
    made = tiering_root(tmp_path / "root", tmp_path / "tier", layout=request.param)
    rng = random.Random(7)
    fill(made, rng, 60)
    fill(made, rng, 60)
    return made


def small(tmp_path: Path) -> LogDir:
    made = tiering_root(tmp_path / "root", tmp_path / "tier")
    fill(made, random.Random(3), 12)
    return made


def planned(log_dir: LogDir, **options: str) -> list[OffsetRangePartition]:
    """The tasks of a batch read, as they arrive on an executor."""
    given = {"path": str(log_dir.path), "assign": '{"orders":[0]}', "includeHeaders": "true", **options}
    reader = KafkalogBatchReader(parse_read_options(given), read_schema(include_headers=True))
    return pickle.loads(pickle.dumps(list(reader.partitions())))  # type: ignore[no-any-return]


def task_rows(tasks: list[OffsetRangePartition]) -> list[tuple[Any, ...]]:
    schema = to_arrow_schema(read_schema(include_headers=True), timezone="UTC")
    read = (read_same_topic(task, read_offset_range(task, schema)) for task in tasks)
    return [row for batches in read for batch in batches for row in rows_of(batch)]


def middle(log_dir: LogDir) -> int:
    """The base offset of a segment in the middle of the log."""
    found = bases(log_dir)
    return found[len(found) // 2]


def test_remote_and_local_rows_are_those_of_the_untiered_log(log_dir: LogDir) -> None:
    before = {isolation: rows(log_dir, isolation=isolation) for isolation in ISOLATIONS}
    assert before["read_uncommitted"] != before["read_committed"]
    copied = copy_closed(log_dir)
    delete_local(log_dir, middle(log_dir))
    found = log_dir.partition(*_of())
    assert (found.log_start_offset, found.readable_start_offset) == (0, 0)
    assert found.local_log_start_offset == bases(log_dir)[0] > 0
    assert found.latest_tiered_offset == copied - 1
    assert {isolation: rows(log_dir, isolation=isolation) for isolation in ISOLATIONS} == before


def _of() -> tuple[str, int]:
    return OF.topic, OF.partition


def test_every_range_across_the_seam_has_its_rows(tmp_path: Path) -> None:
    log_dir = small(tmp_path)
    before = {isolation: rows(log_dir, isolation=isolation) for isolation in ISOLATIONS}
    copy_closed(log_dir)
    delete_local(log_dir, middle(log_dir))
    end = log_dir.partition(*_of()).high_watermark
    schema = KAFKA_SCHEMA
    for isolation in ISOLATIONS:
        reader = log_dir.reader(*_of())
        for start in range(0, end, 2):
            for stop in range(start + 1, end + 1, 2):
                batches = reader.read(start, stop, schema=schema, committed=isolation == "read_committed")
                found = [row for batch in batches for row in batch.to_pylist()]
                assert found == [row for row in before[isolation] if start <= row["offset"] < stop]


def test_time_look_ups_give_what_they_gave_before(log_dir: LogDir) -> None:
    end = log_dir.partition(*_of()).high_watermark
    times = [T0 - 30_000, *(T0 + 1000 * at for at in range(0, end + 40, 3))]

    def look_ups() -> list[Any]:
        log_dir.refresh()
        reader = log_dir.reader(*_of())
        return [reader.offset_for_timestamp(each, 0, end) for each in times] + [reader.offset_of_max_timestamp(0, end)]

    before = look_ups()
    copy_closed(log_dir)
    delete_local(log_dir, middle(log_dir))
    assert look_ups() == before


def test_offset_that_is_local_is_read_without_a_request(log_dir: LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_closed(log_dir)
    monkeypatch.setattr(remote_storage, "open_objects", lambda location, settings: pytest.fail("the store was opened"))
    assert rows(log_dir)
    move_local_start(log_dir, middle(log_dir))  # the files are still there
    assert rows(log_dir, isolation="read_committed")


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_plan_made_before_anything_was_copied_reads_on_remotely(log_dir: LogDir, isolation: str) -> None:
    options = {"isolationLevel": isolation, "maxBytesPerPartition": "2000"}
    tasks = planned(log_dir, **options)
    assert len(tasks) > 4
    before = task_rows(tasks)
    copy_closed(log_dir)
    delete_local(log_dir, bases(log_dir)[-3])
    assert task_rows(tasks) == before
    assert task_rows(planned(log_dir, **options)) == before


def test_plan_made_while_half_was_remote_reads_what_became_remote_later(log_dir: LogDir) -> None:
    copy_closed(log_dir, 10)
    delete_local(log_dir, bases(log_dir)[5])
    tasks = planned(log_dir, isolationLevel="read_committed", maxBytesPerPartition="2000")
    before = task_rows(tasks)
    copy_closed(log_dir)
    delete_local(log_dir, bases(log_dir)[-2])
    assert task_rows(tasks) == before


def test_reader_whose_next_file_is_deleted_goes_on_remotely(log_dir: LogDir) -> None:
    before = rows(log_dir)
    copy_closed(log_dir)
    reader = log_dir.reader(*_of())
    runs = reader.runs(0, log_dir.partition(*_of()).high_watermark)
    seen = [int(run.batches["last_offset"][-1]) for run in _some(runs, 3)]
    delete_local(log_dir, bases(log_dir)[-2])
    seen += [int(run.batches["last_offset"][-1]) for run in runs]
    assert seen == sorted(set(seen))
    assert seen[-1] >= before[-1]["offset"]


def _some(runs: Iterator[Any], count: int) -> Iterator[Any]:
    for _ in range(count):
        yield next(runs)


def test_tasks_carry_no_segments_that_they_do_not_read(log_dir: LogDir) -> None:
    copy_closed(log_dir)
    delete_local(log_dir, bases(log_dir)[-2])
    tasks = planned(log_dir, maxBytesPerPartition="1500")
    segments = len(image_of(log_dir).segments)
    sizes = [len(each.planned.remote.log.segments) for each in tasks]  # type: ignore[attr-defined]
    assert segments > 20
    assert max(sizes) <= 6


def test_log_start_in_the_remote_part_cuts_inside_a_segment(log_dir: LogDir) -> None:
    before = rows(log_dir)
    copy_closed(log_dir)
    delete_local(log_dir, bases(log_dir)[-2])
    tasks = planned(log_dir, failOnDataLoss="false")
    move_log_start(log_dir, 101)
    expected = [row for row in before if row["offset"] >= 101]
    assert rows(log_dir) == expected
    assert [row[1] for row in task_rows(tasks)] == [row["offset"] for row in expected]
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 100 of orders-0 is not in \[101"):
        rows(log_dir, 100)


def test_missing_object_that_is_named_is_data_loss_that_names_it(log_dir: LogDir) -> None:
    copy_closed(log_dir)
    delete_local(log_dir, bases(log_dir)[-2])
    segment = image_of(log_dir).segments[4]
    storage = file_root(log_dir).remote_storage
    assert storage is not None
    remote_objects._cache.cache_clear()
    _delete_log(log_dir, segment.base_offset)
    with pytest.raises(OffsetOutOfRangeError, match=f"are in the remote segment {segment.segment_id}, and an object"):
        rows(log_dir)
    assert rows(log_dir, segment.end_offset)
    with pytest.raises(DataLossError, match=f"records of offsets {segment.base_offset} to {segment.end_offset} are"):
        task_rows(planned(log_dir))


def test_storage_that_is_not_mounted_is_an_error_and_no_loss_of_data(log_dir: LogDir) -> None:
    copy_closed(log_dir)
    delete_local(log_dir, bases(log_dir)[-2])
    tasks = planned(log_dir, failOnDataLoss="false")
    remote_objects._cache.cache_clear()
    location = Path(log_dir.broker_configs()["rsm.config.location"])
    location.rename(location.with_name("not-mounted"))
    with pytest.raises(StoreNotFoundError, match="no such directory"):
        task_rows(tasks)
    with pytest.raises(StoreNotFoundError, match="no such directory"):
        rows(log_dir)
    assert rows(log_dir, image_of(log_dir).state.local_log_start_offset)


def _delete_log(log_dir: LogDir, base_offset: int) -> None:
    location = Path(log_dir.broker_configs()["rsm.config.location"])
    (path,) = location.rglob(f"{base_offset:020d}-*.log")
    path.unlink()


def test_objects_that_retention_drops_and_deletes_are_out_of_range(log_dir: LogDir) -> None:
    copy_closed(log_dir)
    delete_local(log_dir, bases(log_dir)[-2])
    tasks = planned(log_dir)
    first, second = image_of(log_dir).segments[:2]
    move_log_start(log_dir, second.base_offset)
    _delete_log(log_dir, first.base_offset)
    with pytest.raises(DataLossError, match=f"0 to {second.base_offset}"):
        task_rows(tasks)
    assert rows(log_dir)[0]["offset"] >= second.base_offset


def test_file_that_is_gone_without_a_commit_is_no_gap(log_dir: LogDir) -> None:
    """A local file that was lost, of which there is no copy, must not be skipped."""
    copy_closed(log_dir, 3)
    delete_local(log_dir, image_of(log_dir).segments[-1].end_offset)
    remove_files(log_dir, bases(log_dir)[2])
    with pytest.raises(OffsetOutOfRangeError, match="is in no segment"):
        rows(log_dir)


def test_deleted_and_recreated_topic_is_not_read_with_the_old_segments(log_dir: LogDir) -> None:
    copy_closed(log_dir)
    tasks = planned(log_dir)
    log_dir.delete_topic("orders")
    log_dir.create_topic("orders", partitions=1)
    fill(log_dir, random.Random(1), 5)
    with pytest.raises(DataLossError):
        task_rows(tasks)


def test_plan_and_reads_of_a_store_take_few_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FaultyStore()
    monkeypatch.setattr(remote_storage, "open_objects", lambda location, settings: store)
    log_dir = tiering_root(tmp_path / "root", "s3://bucket/tier")
    fill(log_dir, random.Random(7), 60)
    before = rows(log_dir)
    copy_closed(log_dir)
    delete_local(log_dir, bases(log_dir)[-2])
    store.requests.clear()
    tasks = planned(log_dir, isolationLevel="read_committed")
    assert store.requests == {}
    remote_objects._cache.cache_clear()
    assert rows(log_dir) == before
    segments = len(image_of(log_dir).segments)
    assert store.requests["get_range"] <= 2 * segments
    assert set(store.requests) == {"get_range"}
    assert len(tasks) == 1


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_plan_of_many_segments_carries_few_to_each_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: str
) -> None:
    """More segments with aborted transactions follow a task's range than travel with it: the rest is looked up."""
    store = FaultyStore()
    monkeypatch.setattr(remote_storage, "open_objects", lambda location, settings: store)
    log_dir = tiering_root(tmp_path / "root", "s3://bucket/tier")
    for seed in range(9):
        fill(log_dir, random.Random(seed), 120)
    before = rows(log_dir, isolation=isolation)
    copy_closed(log_dir)
    delete_local(log_dir, bases(log_dir)[-1])
    indexed = [each for each in image_of(log_dir).segments if each.transaction_index_bytes]
    assert len(indexed) > 80
    tasks = planned(log_dir, isolationLevel=isolation, maxBytesPerPartition="3000")
    logs = [each.planned.remote.log for each in tasks]  # type: ignore[attr-defined]
    assert max(len(each.segments) for each in logs) < 80
    assert {each.is_whole for each in logs} == ({True, False} if isolation == "read_committed" else {True})
    assert [row[1] for row in task_rows(tasks)] == [row["offset"] for row in before]


@pytest.mark.parametrize(
    ("time", "offset"),
    [
        ("earliest", 0),
        ("earliest-local", 2),
        ("latest-tiered", 1),
        ("-6", 4),
        ("earliest-pending-upload", 4),
        ("latest", 3),
    ],
)
def test_get_offsets_tells_where_each_part_begins_and_ends(
    log_dir: LogDir, capsys: pytest.CaptureFixture[str], time: str, offset: int
) -> None:
    copied = copy_closed(log_dir, 20)
    delete_local(log_dir, bases(log_dir)[8])
    log_dir.refresh()
    offsets = [0, copied - 1, bases(log_dir)[0], log_dir.partition(*_of()).high_watermark, copied]
    assert main(["get-offsets", "--path", str(log_dir.path), "--topic", "orders", "--time", time]) == 0
    said = capsys.readouterr()
    assert said.out == f"orders:0:{offsets[offset]}\n"
    assert said.err == ""


def test_consumer_reads_from_a_remote_offset_on(log_dir: LogDir, capsys: pytest.CaptureFixture[str]) -> None:
    before = rows(log_dir)
    copy_closed(log_dir)
    delete_local(log_dir, bases(log_dir)[-2])
    where = ["--path", str(log_dir.path), "--topic", "orders", "--partition", "0", "--offset", "7"]
    assert main(["console-consumer", *where, "--timeout-ms", "200", "-f", "%o\\n"]) == 0
    assert [int(line) for line in capsys.readouterr().out.splitlines()] == [
        row["offset"] for row in before if row["offset"] >= 7
    ]


def _objects(log_dir: LogDir, suffixes: tuple[str, ...]) -> list[Path]:
    location = Path(log_dir.broker_configs()["rsm.config.location"])
    return sorted(path for path in location.rglob("*-*") if path.suffix in suffixes)


def test_garbage_in_indexes_changes_no_row(log_dir: LogDir) -> None:
    """Offset and time indexes are hints. Without a whole transaction index the log itself is read."""
    copy_closed(log_dir)
    delete_local(log_dir, bases(log_dir)[-2])
    before = {isolation: rows(log_dir, isolation=isolation) for isolation in ISOLATIONS}
    times = [T0 + 9000 * at for at in range(40)]
    reader = log_dir.reader(*_of())
    offsets = [reader.offset_for_timestamp(each, 0, 300) for each in times]
    for path in _objects(log_dir, (".indexes", ".index", ".timeindex")):
        data = path.read_bytes()
        path.write_bytes(bytes(each ^ 0x5A for each in data))
    remote_objects._cache.cache_clear()
    assert rows(log_dir) == before["read_uncommitted"]
    assert [log_dir.reader(*_of()).offset_for_timestamp(each, 0, 300) for each in times] == offsets
    assert rows(log_dir, isolation="read_committed") == before["read_committed"]


def test_every_flipped_byte_of_a_remote_log_is_an_error_that_names_the_object(log_dir: LogDir) -> None:
    copy_closed(log_dir)
    delete_local(log_dir, bases(log_dir)[-2])
    before = rows(log_dir)
    path = _objects(log_dir, (".log",))[3]
    data = path.read_bytes()
    for at in range(0, len(data), 13):
        path.write_bytes(data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :])
        found = _rows_or_error(log_dir)
        assert found == before or str(path) in found  # no CRC covers some bytes, and no row has them


def _rows_or_error(log_dir: LogDir) -> list[Any] | str:
    try:
        return rows(log_dir)
    except (CorruptRecordError, UnsupportedFormatError) as error:
        return str(error)


@pytest.mark.parametrize("cut_bytes", [1, 61, 400])
def test_object_that_is_shorter_than_committed_is_an_error_that_names_it(log_dir: LogDir, cut_bytes: int) -> None:
    copy_closed(log_dir)
    delete_local(log_dir, bases(log_dir)[-2])
    path = _objects(log_dir, (".log",))[3]
    path.write_bytes(path.read_bytes()[:-cut_bytes])
    with pytest.raises(CorruptRecordError, match=str(path)):
        rows(log_dir)
