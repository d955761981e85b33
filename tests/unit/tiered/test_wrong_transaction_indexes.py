"""read_committed over copies in remote storage and object stores whose transaction indexes are whole and wrong."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from builders.controlled import create_log_dir
from builders.leader_writers import Served, mark, marker
from builders.object_roots import imported
from builders.tiered_logs import OF, SMALL_SEGMENTS, T0, bases, copy_closed, delete_local, fill, rows, tiering_root
from fakes.server_calls import ReadServer, kept_batches
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_kafkalog.errors import CorruptIndexError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from pyspark_kafkalog.spark.data_source import read_schema
from pyspark_kafkalog.spark.options.parse import parse_read_options
from pyspark_kafkalog.spark.read.reader import (
    KafkalogBatchReader,
    OffsetRangePartition,
    read_offset_range,
    read_same_topic,
)
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn, parse_aborted
from pyspark_kafkalog.tiered import remote_log

Damage = Callable[[list[AbortedTxn]], list[AbortedTxn]]


def _without_entries(found: list[AbortedTxn]) -> list[AbortedTxn]:
    return []


def _of_another_producer(found: list[AbortedTxn]) -> list[AbortedTxn]:
    return [replace(each, producer_id=each.producer_id + 64) for each in found]


def _from_the_marker(found: list[AbortedTxn]) -> list[AbortedTxn]:
    return [replace(each, first_offset=each.last_offset) for each in found]


def _from_the_first_offset(found: list[AbortedTxn]) -> list[AbortedTxn]:
    return [replace(each, first_offset=0) for each in found]


def _with_committed(found: list[AbortedTxn]) -> list[AbortedTxn]:
    """Also transactions that no marker aborts."""
    return [*found, *(replace(each, producer_id=number, first_offset=0) for each in found for number in (1, 2, 3))]


def _with_later_markers(found: list[AbortedTxn]) -> list[AbortedTxn]:
    """Transactions that reach beyond the segment, and the part of the log that has indexes."""
    return [replace(each, last_offset=1 << 40) for each in found]


def _tiered(folder: Path) -> LogDir:
    """A root whose closed segments, with transactions over several of them, are in remote storage only."""
    made = tiering_root(folder / "root", folder / "tier")
    fill(made, random.Random(7), 60)
    copy_closed(made)
    delete_local(made, bases(made)[-1])
    return made


def _stored(folder: Path) -> LogDir:
    """An object root with the same segments, and markers of transactions in runs after them."""
    files = create_log_dir(folder / "files", clock=lambda: T0)
    files.create_topic(OF.topic, partitions=1, configs=SMALL_SEGMENTS)
    fill(files, random.Random(7), 60, ends_all=False, rolls=True)
    made = imported(files, OF.topic, clock=lambda: T0)
    served = Served(str(made.path))
    for producer_id in (1, 2, 3):
        ended = served.append(mark(marker(producer_id, 0, is_commit=producer_id == 2), OF.topic))
        assert not isinstance(ended, Exception)
    return made


@pytest.fixture(params=[_tiered, _stored])
def log_dir(request: pytest.FixtureRequest, tmp_path: Path) -> LogDir:
    make: Callable[[Path], LogDir] = request.param
    made = make(tmp_path)
    made.refresh()
    return made


def _fetch(server: ReadServer, offset: int) -> PartitionData:
    asked = FetchPartition(partition=OF.partition, fetch_offset=offset, partition_max_bytes=400)
    topic = FetchTopic(topic=OF.topic, partitions=(asked,))
    request = FetchRequest(max_wait_ms=0, min_bytes=0, isolation_level=1, topics=(topic,))
    [answer] = server.call(ApiKey.FETCH, 12, request, FetchResponse).responses[0].partitions
    return answer


def _tasks(log_dir: LogDir) -> list[OffsetRangePartition]:
    """The tasks of a batch read, as they arrive on an executor."""
    given = {"path": str(log_dir.path), "assign": '{"orders":[0]}', "isolationLevel": "read_committed"}
    options = parse_read_options({**given, "maxBytesPerPartition": "900"})
    reader = KafkalogBatchReader(options, read_schema(include_headers=False))
    tasks: list[OffsetRangePartition] = pickle.loads(pickle.dumps(list(reader.partitions())))
    assert len(tasks) > 5
    return tasks


def _offsets(task: OffsetRangePartition) -> list[int]:
    schema = to_arrow_schema(read_schema(include_headers=False), timezone="UTC")
    return [
        offset
        for batch in read_same_topic(task, read_offset_range(task, schema))
        for offset in batch.column(batch.schema.get_field_index("offset")).to_pylist()
    ]


@pytest.mark.parametrize(
    "damage",
    [
        _without_entries,
        _of_another_producer,
        _from_the_marker,
        _from_the_first_offset,
        _with_committed,
        _with_later_markers,
    ],
)
def test_no_aborted_record_is_read_and_no_committed_one_left_out(
    log_dir: LogDir, monkeypatch: pytest.MonkeyPatch, damage: Damage
) -> None:
    committed = [row["offset"] for row in rows(log_dir, isolation="read_committed")]
    end = log_dir.partition(OF.topic, OF.partition).last_stable_offset
    assert len(committed) < len(rows(log_dir))
    ranges = [(start, min(start + size, end)) for start in range(0, end, 5) for size in (3, 17)]
    with ReadServer(LogDir.open(log_dir.path)) as server:
        kept_before = {start: kept_batches(_fetch(server, start)) for start in range(0, end, 5)}

    def changed(data: bytes, *, file: str, offsets: range) -> list[AbortedTxn]:
        found = damage(parse_aborted(data, file=file, offsets=offsets))
        return parse_aborted(b"".join(each.pack() for each in found), file=file, offsets=offsets)

    monkeypatch.setattr(remote_log, "parse_aborted", changed)
    refused = 0
    for start, stop in ranges:
        try:
            found = [row["offset"] for row in rows(log_dir, start, stop, isolation="read_committed")]
        except CorruptIndexError:
            refused += 1
        else:
            assert found == [offset for offset in committed if start <= offset < stop]
    assert damage is _with_later_markers or 0 < refused <= len(ranges)
    for task in _tasks(log_dir):
        try:
            found = _offsets(task)
        except CorruptIndexError:
            refused += 1
        else:
            wanted = range(task.start_offset, task.end_offset)
            assert found == [offset for offset in committed if offset in wanted]
    with ReadServer(LogDir.open(log_dir.path)) as server:
        answers = {start: _fetch(server, start) for start in range(0, end, 5)}
    for start, answer in answers.items():
        assert answer.error_code or kept_batches(answer) == kept_before[start]
    assert damage is _with_later_markers or any(each.error_code for each in answers.values())


def test_missing_transaction_index_of_a_named_segment_means_a_scan(
    log_dir: LogDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed = [row["offset"] for row in rows(log_dir, isolation="read_committed")]
    asked = []

    def missing(data: bytes, *, file: str, offsets: range) -> list[AbortedTxn]:
        asked.append(file)
        raise FileNotFoundError(file)

    monkeypatch.setattr(remote_log, "parse_aborted", missing)
    assert [row["offset"] for row in rows(log_dir, isolation="read_committed")] == committed
    assert [offset for task in _tasks(log_dir) for offset in _offsets(task)] == committed
    assert asked
