"""Units of appends in one commit of a server, for both kinds of root: all or nothing each, refused ones alone."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from builders.leader_writers import T0, Served, append, batch, mark, marker
from builders.root_places import RootPlace, is_object_place
from open_files import descriptors, descriptors_before
from patience import PATIENCE_S

from pyspark_kafkalog.errors import (
    CorruptRecordError,
    InvalidRecordError,
    InvalidTimestampError,
    InvalidTransactionStateError,
    KafkalogError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RecordBatchTooLargeError,
    RecordTooLargeError,
    UnknownTopicError,
    UnsupportedCompressionError,
)
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.image import MetadataImage, partition_state_record
from pyspark_kafkalog.metadata.local.backend import list_snapshots
from pyspark_kafkalog.metadata.messages.metadata_records import ConfigRecord, MetadataRecord
from pyspark_kafkalog.metadata.root_lock import root_lock
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.header import ATTRIBUTES_AT, RECORDS_AT, BatchHeader, crc32c
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit
from pyspark_kafkalog.root.commit.open_logs import OPEN_LOGS
from pyspark_kafkalog.storage.filesystem import TEMPORARY, UNFLUSHED_MARKER, FileSystem
from pyspark_kafkalog.storage.log.isolation import indexed_transactions
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import LOG_SUFFIX


@pytest.fixture
def serve(root_place: RootPlace) -> Iterator[Callable[[], Served]]:
    """Starts another server process's worth of writer on the same root."""
    log_dir = LogDir.open_or_create(root_place)
    log_dir.create_topic("a", 2)
    log_dir.create_topic("b", 1)
    served: list[Served] = []

    def start() -> Served:
        served.append(Served(root_place))
        return served[-1]

    yield start
    for each in served:
        each.writer.close()


def offsets(result: object) -> tuple[int, int, bool]:
    assert isinstance(result, AppendedRange), result
    return result.first_offset, result.last_offset, result.is_duplicate


def test_units_of_one_commit_get_following_offsets_and_are_one_commit(serve: Callable[[], Served]) -> None:
    server = serve()
    before = server.root.version
    units = [CommitUnit.of(append(batch([b"%d" % at, b"x"]))) for at in range(3)]
    results = server.commit(*units, CommitUnit.of(append(batch(), "b")))
    assert [offsets(result[0]) for result in results if not isinstance(result, KafkalogError)] == [
        (0, 1, False), (2, 3, False), (4, 5, False), (0, 2, False),
    ]  # fmt: skip
    assert server.values() == [b"0", b"x", b"1", b"x", b"2", b"x"]
    commits = [entry for entry in server.root.history() if entry.offset >= before]
    assert len(commits) == 1


@pytest.mark.file_roots
def test_commit_at_once_is_made_when_nothing_is_to_be_waited_for(serve: Callable[[], Served]) -> None:
    server = serve()
    units = [CommitUnit.of(append(batch([b"1"]))), CommitUnit.of(append(batch([b"2"])))]
    assert server.writer.commit_at_once(units) is None  # the log is not open
    assert server.values() == []
    server.writer.commit(units)
    results = server.writer.commit_at_once(units)
    assert results is not None
    assert [offsets(result[0]) for result in results if not isinstance(result, KafkalogError)] == [
        (2, 2, False), (3, 3, False),
    ]  # fmt: skip
    assert server.values() == [b"1", b"2"] * 2


@pytest.mark.file_roots
def test_nothing_is_committed_at_once_while_another_process_has_the_lock(serve: Callable[[], Served]) -> None:
    server = serve()
    unit = CommitUnit.of(append(batch([b"1"])))
    server.writer.commit([unit])
    with root_lock(Path(str(server.root.path))):
        assert server.writer.commit_at_once([unit]) is None
    assert server.values() == [b"1"]


@pytest.mark.file_roots
def test_nothing_is_committed_at_once_to_a_log_that_another_server_has_written(serve: Callable[[], Served]) -> None:
    first, second = serve(), serve()
    first.writer.commit([CommitUnit.of(append(batch([b"1"])))])
    second.writer.commit([CommitUnit.of(append(batch([b"2"])))])
    unit = CommitUnit.of(append(batch([b"3"])))
    assert first.writer.commit_at_once([unit]) is None
    first.writer.commit([unit])
    assert first.values() == [b"1", b"2", b"3"]


def test_nothing_is_committed_at_once_that_waits_for_the_disk(tmp_path: Path) -> None:
    LogDir.open_or_create(tmp_path / "root").create_topic("a", 1)
    server = Served(tmp_path / "root", flush="fsync")
    unit = CommitUnit.of(append(batch([b"1"])))
    server.writer.commit([unit])
    assert server.writer.commit_at_once([unit]) is None


@pytest.mark.file_roots
def test_commit_that_a_snapshot_follows_is_not_made_at_once(serve: Callable[[], Served]) -> None:
    server = serve()
    directory = server.root.store.log.directory
    unit = CommitUnit.of(append(batch([b"1"])))
    server.writer.commit([unit])
    before = list_snapshots(directory)
    made = 0
    while server.writer.commit_at_once([unit]) is not None:
        made += 1
        assert made < 5_000
    assert made
    assert list_snapshots(directory) == before
    for _ in range(20):  # the writer does not know the size of a commit before it is made
        server.writer.commit([unit])
    assert list_snapshots(directory) != before


def test_refused_unit_leaves_no_trace_and_the_others_are_committed(serve: Callable[[], Served]) -> None:
    server = serve()
    bad = CommitUnit.of(append(batch([b"half"])), append(batch(producer=(1, 0, 0))[:-1] + b"?", "b"))
    unknown = CommitUnit.of(append(batch([b"half"], producer=(1, 0, 0))), append(batch(), "unknown"))
    good = [CommitUnit.of(append(batch([value], producer=(1, 0, at)))) for at, value in enumerate((b"1", b"2"))]
    results = server.commit(unknown, good[0], bad, good[1])  # the refused sequence 0 does not count
    assert isinstance(results[0], UnknownTopicError)
    assert isinstance(results[2], KafkalogError)
    assert server.values() == [b"1", b"2"]
    assert server.state("b").log_end_offset == 0


def test_unit_that_refuses_itself_by_the_image_is_refused_alone(serve: Callable[[], Served]) -> None:
    server = serve()

    def refuse(image: MetadataImage) -> list[object]:
        raise InvalidRecordError(f"the end is {image.partition('a', 0).state.log_end_offset}")

    results = server.commit(CommitUnit(appends=refuse), CommitUnit.of(append(batch([b"1"]))))
    assert isinstance(results[0], InvalidRecordError)
    assert server.values() == [b"1"]


@pytest.mark.parametrize("is_known", [True, False], ids=["lower end", "unknown topic"])
def test_unit_whose_records_break_an_invariant_is_refused_alone(serve: Callable[[], Served], is_known: bool) -> None:
    server = serve()
    server.append(append(batch(), "b"))
    changed = server.root.topic("b").topic_id if is_known else "AAAAAAAAAAAAAAAAAAAAAQ"

    def lower(image: MetadataImage, appended: object) -> list[MetadataRecord]:
        return [partition_state_record(changed, 0, LogState())]

    bad = CommitUnit(appends=lambda image: [append(batch([b"no"]))], records=lower)
    results = server.commit(CommitUnit.of(append(batch([b"1"]))), bad, CommitUnit.of(append(batch([b"2"]))))
    assert isinstance(results[1], InvalidRecordError)
    assert server.values() == [b"1", b"2"]
    assert server.state("b").log_end_offset == 3


def test_records_of_a_unit_are_committed_with_its_appends(serve: Callable[[], Served]) -> None:
    def records(image: MetadataImage, appended: Sequence[AppendedRange]) -> list[MetadataRecord]:
        (one,) = appended
        return [ConfigRecord(resource_type=2, resource_name="a", name="x", value=str(one.last_offset))]

    unit = CommitUnit(appends=lambda image: [append(batch([b"2"]))], records=records)
    server = serve()
    server.commit(CommitUnit.of(append(batch([b"1"]))), unit)
    assert server.root.store.refresh().topic("a").configs["x"] == "1"


def test_topic_that_was_created_anew_is_unknown_by_its_former_id(serve: Callable[[], Served]) -> None:
    server = serve()
    former = server.root.topic("b").topic_id
    assert offsets(server.append(append(batch(), "b", topic_id=former))) == (0, 2, False)
    server.log_dir.delete_topic("b")
    assert isinstance(server.append(append(batch(), "b")), UnknownTopicError)
    server.log_dir.create_topic("b", 1)
    assert isinstance(server.append(append(batch(), "b", topic_id=former)), UnknownTopicError)
    assert offsets(server.append(append(batch(), "b", topic_id=server.root.topic("b").topic_id))) == (0, 2, False)


def test_appends_of_a_unit_to_one_partition_are_stored_in_order(serve: Callable[[], Served]) -> None:
    server = serve()
    unit = [append(batch([b"%d" % at], producer=(7, 0, at))) for at in range(7)]
    assert offsets(server.append(*unit)) == (6, 6, False)
    assert server.values() == [b"%d" % at for at in range(7)]


@pytest.mark.parametrize("same_process", [True, False])
def test_retry_gets_the_original_offsets_also_in_another_process(
    same_process: bool, serve: Callable[[], Served]
) -> None:
    server = serve()
    for at in range(6):
        server.append(append(batch([b"x", b"y"], producer=(7, 0, 2 * at))))
    again = server if same_process else serve()
    before = server.root.version
    assert offsets(again.append(append(batch([b"x", b"y"], producer=(7, 0, 8))))) == (8, 9, True)
    server.root.refresh()
    assert server.root.version == before
    if same_process:
        assert offsets(again.append(append(batch([b"x", b"y"], producer=(7, 0, 2))))) == (2, 3, True)
        assert isinstance(again.append(append(batch([b"x", b"y"], producer=(7, 0, 0)))), OutOfOrderSequenceError)
    assert again.state().log_end_offset == 12
    assert offsets(again.append(append(batch([b"z"], producer=(7, 0, 12))))) == (12, 12, False)


@pytest.mark.file_roots
def test_each_of_the_last_five_batches_is_known_to_a_new_process_after_a_roll(serve: Callable[[], Served]) -> None:
    server = serve()
    server.log_dir.alter_topic("a", add={"internal.segment.bytes": "800", "index.interval.bytes": "100"})
    for at in range(9):
        server.append(append(batch([b"%d" % at], producer=(7, 0, at))), append(batch([b"other"], producer=(8, 0, at))))
    snapshots = [int(each.stem) for each in (server.root.path / "a-0").glob("*.snapshot")]
    assert 10 < max(snapshots) < 16
    for at in range(4, 9):
        assert offsets(serve().append(append(batch([b"%d" % at], producer=(7, 0, at))))) == (2 * at, 2 * at, True)
    assert isinstance(serve().append(append(batch([b"3"], producer=(7, 0, 3)))), OutOfOrderSequenceError)


@pytest.mark.file_roots
def test_last_batches_of_a_producer_are_known_though_another_has_filled_segments_since(
    serve: Callable[[], Served],
) -> None:
    server = serve()
    server.log_dir.alter_topic("a", add={"internal.segment.bytes": "800", "index.interval.bytes": "100"})
    for at in range(6):
        server.append(append(batch([b"%d" % at], producer=(7, 0, at))))
    for at in range(40):
        server.append(append(batch([b"other"], producer=(8, 0, at))))
    assert len(list((server.root.path / "a-0").glob("*.log"))) > 4
    for at in range(1, 6):
        assert offsets(serve().append(append(batch([b"%d" % at], producer=(7, 0, at))))) == (at, at, True)


def test_retry_within_one_commit_is_a_duplicate(serve: Callable[[], Served]) -> None:
    server = serve()
    unit = CommitUnit.of(append(batch(producer=(7, 0, 0))))
    other = CommitUnit.of(append(batch([b"z"], producer=(8, 0, 0))))
    results = server.commit(other, unit, unit, CommitUnit.of(append(batch(producer=(7, 0, 9)))))
    assert [offsets(result[0]) for result in results[:3] if not isinstance(result, KafkalogError)] == [
        (0, 0, False), (1, 3, False), (1, 3, True),
    ]  # fmt: skip
    assert isinstance(results[3], OutOfOrderSequenceError)
    assert server.state().log_end_offset == 4


def test_sequences_wrap_and_new_epochs_begin_at_zero(serve: Callable[[], Served]) -> None:
    first, second = serve(), serve()
    assert offsets(first.append(append(batch(producer=(7, 0, 2**31 - 2))))) == (0, 2, False)
    assert offsets(second.append(append(batch(producer=(7, 0, 1))))) == (3, 5, False)
    for server in (first, second):
        assert isinstance(server.append(append(batch(producer=(7, 0, 5)))), OutOfOrderSequenceError)
        assert isinstance(server.append(append(batch(producer=(7, 1, 4)))), OutOfOrderSequenceError)
    assert offsets(first.append(append(batch(producer=(7, 1, 0))))) == (6, 8, False)
    for server in (first, second):
        assert isinstance(server.append(append(batch(producer=(7, 0, 4)))), ProducerFencedError)


def test_processes_take_turns_and_each_knows_what_the_other_stored(serve: Callable[[], Served]) -> None:
    first, second = serve(), serve()
    for at in range(8):
        server = (first, second)[at % 2]
        assert offsets(server.append(append(batch([b"%d" % at], producer=(7, 0, at))))) == (at, at, False)
        server.log_dir.append("a", pa.table({"value": [b"other"]}), partition=1)
    assert offsets(first.append(append(batch([b"7"], producer=(7, 0, 7))))) == (7, 7, True)
    assert first.values() == [b"%d" % at for at in range(8)]


def test_write_of_spark_between_two_appends_is_followed_by_the_next(serve: Callable[[], Served]) -> None:
    server = serve()
    server.append(append(batch([b"1"], producer=(7, 0, 0))))
    LogDir.open(server.root.path).append("a", pa.table({"value": [b"2"]}), partition=0)
    assert offsets(server.append(append(batch([b"3"], producer=(7, 0, 1))))) == (2, 2, False)
    assert server.values() == [b"1", b"2", b"3"]


def test_open_transaction_holds_the_last_stable_offset_until_a_marker_ends_it(
    serve: Callable[[], Served], root_place: RootPlace
) -> None:
    server = serve()
    server.append(append(batch([b"plain"])))
    server.append(append(batch([b"t1"], producer=(7, 0, 0), is_transactional=True)))
    server.append(append(batch([b"after"])))
    assert (server.state().first_unstable_offset, server.state().last_stable_offset) == (1, 1)
    other = serve()
    assert isinstance(other.append(append(batch(producer=(7, 0, 1)))), InvalidTransactionStateError)
    other.append(append(batch([b"t2"], producer=(7, 0, 1), is_transactional=True)))
    assert other.values(isolation="read_committed") == [b"plain"]
    assert offsets(server.append(mark(marker(7, 0, is_commit=False)))) == (4, 4, False)
    assert (server.state().first_unstable_offset, server.state().last_stable_offset) == (-1, 5)
    assert other.values(isolation="read_committed") == [b"plain", b"after"]
    if is_object_place(root_place):
        return
    aborted = indexed_transactions(server.root.path / "a-0", 0, 9)
    assert [(each.producer_id, each.first_offset, each.last_offset) for each in aborted] == [(7, 1, 4)]


def test_marker_with_newer_epoch_fences_the_producer_for_every_process(serve: Callable[[], Served]) -> None:
    server = serve()
    server.append(append(batch([b"t"], producer=(7, 0, 0), is_transactional=True)))
    assert isinstance(server.append(append(marker(7, 0, is_commit=True))), InvalidRecordError)  # a client's
    server.append(mark(marker(7, 1, is_commit=True)))
    assert isinstance(serve().append(mark(marker(7, 0, is_commit=True))), ProducerFencedError)
    for each in (server, serve()):
        result = each.append(append(batch([b"late"], producer=(7, 0, 1), is_transactional=True)))
        assert isinstance(result, ProducerFencedError)
    assert offsets(serve().append(append(batch([b"u"], producer=(7, 1, 0), is_transactional=True)))) == (2, 2, False)


def test_markers_of_several_partitions_are_one_commit(serve: Callable[[], Served]) -> None:
    server = serve()
    places = [("a", 0), ("a", 1), ("b", 0)]
    for place in places:
        server.append(append(batch([b"t"], producer=(7, 0, 0), is_transactional=True), *place))
    before = server.root.version
    server.append(*(mark(marker(7, 0, is_commit=True), *place) for place in places))
    assert len([entry for entry in server.root.history() if entry.offset >= before]) == 1
    for place in places:
        assert server.values(*place, isolation="read_committed") == [b"t"]


def test_log_append_time_is_told_also_of_a_duplicate(serve: Callable[[], Served]) -> None:
    server = serve()
    server.log_dir.alter_topic("b", add={"message.timestamp.type": "LogAppendTime"})
    for _ in range(2):
        result = server.append(append(batch(producer=(7, 0, 0)), "b"))
        assert isinstance(result, AppendedRange)
        assert result.log_append_time_ms == T0 + 60_000
        server.now_ms += 5
    server.log_dir.refresh()
    assert server.log_dir.read("b")["timestamp"].cast("int64").to_pylist() == [T0 + 60_000] * 3


@pytest.mark.file_roots
@pytest.mark.parametrize("is_append", [True, False], ids=["duplicate", "nothing-to-append"])
def test_success_by_an_earlier_commit_is_told_when_that_is_on_disk(
    serve: Callable[[], Served], root_place: Path, is_append: bool
) -> None:
    retried = CommitUnit.of(append(batch(producer=(7, 0, 0)))) if is_append else CommitUnit(appends=lambda image: ())
    serve().append(append(batch(producer=(7, 0, 0))))
    marker_file = root_place / UNFLUSHED_MARKER
    assert marker_file.exists()
    durable = Served(root_place, flush="fsync")
    (result,) = durable.commit(retried)
    assert not isinstance(result, KafkalogError)
    assert not marker_file.exists()
    durable.writer.close()


def test_empty_commit_publishes_nothing(serve: Callable[[], Served]) -> None:
    server = serve()
    before = server.root.version
    assert server.commit() == []
    assert server.commit(CommitUnit.of()) == [()]
    server.root.refresh()
    assert server.root.version == before


@pytest.mark.file_roots
def test_segment_rolls_within_a_commit_and_in_the_next(serve: Callable[[], Served]) -> None:
    server = serve()
    server.log_dir.alter_topic("a", add={"internal.segment.bytes": "300", "index.interval.bytes": "60"})
    for at in range(6):
        unit = [append(batch([b"%d" % (3 * at + each)], producer=(7, 0, 3 * at + each))) for each in range(3)]
        assert offsets(server.append(*unit)) == (3 * at + 2, 3 * at + 2, False)
    assert len(list((server.root.path / "a-0").glob("*.log"))) == 5
    assert offsets(serve().append(append(batch([b"17"], producer=(7, 0, 17))))) == (17, 17, True)
    assert server.values() == [b"%d" % at for at in range(18)]


def test_refused_records_are_named_by_their_index_in_the_append(serve: Callable[[], Served]) -> None:
    server = serve()
    server.log_dir.alter_topic("b", add={"cleanup.policy": "compact"})
    records = [Record(offset=at, timestamp_ms=T0, key=None if at in (1, 3) else b"k", value=b"v") for at in range(5)]
    error = server.append(append(encode_batch(records), "b"))
    assert type(error) is InvalidRecordError
    assert [index for index, _ in error.record_errors] == [1, 3]
    late = [replace(each, key=b"k", timestamp_ms=T0 + (at == 4) * 10**9) for at, each in enumerate(records)]
    error = server.append(append(encode_batch(late, compression=CompressionType.LZ4), "b"))
    assert type(error) is InvalidTimestampError
    assert [index for index, _ in error.record_errors] == [4]


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"base_offset": 5}, InvalidRecordError),
        ({"attributes": 0x20}, InvalidRecordError),
        ({"attributes": 6}, UnsupportedCompressionError),
        ({"producer_id": 4, "producer_epoch": 0}, InvalidRecordError),
        ({"records_count": 2}, InvalidRecordError),
        ({"magic": 1}, InvalidRecordError),
        ({"crc": 5}, CorruptRecordError),
        ({"size_bytes": 2**31 + 11}, CorruptRecordError),
    ],
    ids=str,
)
def test_header_that_no_client_may_send_is_refused(
    change: dict[str, int], kind: type[KafkalogError], serve: Callable[[], Served]
) -> None:
    data = batch()
    header = replace(BatchHeader.unpack(data), **change)
    sent = header.pack() + data[RECORDS_AT:]
    if "crc" not in change:
        sent = replace(header, crc=crc32c(sent[ATTRIBUTES_AT:])).pack() + data[RECORDS_AT:]
    error = serve().append(append(sent))
    assert type(error) is kind


def test_batches_over_the_limits_are_refused_by_their_own_errors(serve: Callable[[], Served]) -> None:
    server = serve()
    server.log_dir.alter_topic("a", add={"max.message.bytes": "200"})
    assert type(server.append(append(batch([b"x" * 200])))) is RecordTooLargeError
    server.log_dir.alter_topic("b", add={"internal.segment.bytes": "150"})
    assert type(server.append(append(batch([b"x" * 100]), "b"))) is RecordBatchTooLargeError


@pytest.mark.file_roots
def test_unusable_directory_of_one_partition_refuses_only_its_units(serve: Callable[[], Served]) -> None:
    server = serve()
    server.append(append(batch([b"1"]), "a", 1))
    (server.root.path / "a-1" / f"{0:020}.log").unlink()
    results = server.commit(CommitUnit.of(append(batch([b"2"]), "a", 1)), CommitUnit.of(append(batch([b"3"]))))
    assert isinstance(results[0], KafkalogError)
    assert server.values() == [b"3"]


def test_many_more_partitions_than_stay_open_are_one_commit(tmp_path: Path) -> None:
    LogDir.open_or_create(tmp_path / "root").create_topic("wide", OPEN_LOGS + 9)
    server = Served(tmp_path / "root")
    before = descriptors_before()
    for sequence in range(3):
        appends = [append(batch(producer=(7, 0, 3 * sequence)), "wide", at) for at in range(OPEN_LOGS + 9)]
        assert offsets(server.append(*appends)) == (3 * sequence, 3 * sequence + 2, False)
    assert descriptors() - before <= 3 * OPEN_LOGS + 16 + 1  # some of their directories, and the lock
    server.writer.close()
    assert descriptors() == before


def test_failed_close_is_logged_and_what_was_committed_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(FileSystem):
        fails = False

        def close(self, fd: int, path: Path | None = None) -> None:
            super().close(fd, path)
            if self.fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    LogDir.open_or_create(tmp_path / "root").create_topic("a", 1)
    server = Served(tmp_path / "root", fs=(fs := Failing()))
    server.append(append(batch([b"1"])))
    fs.fails = True
    server.writer.close()
    assert "could not be closed" in caplog.text
    assert server.values() == [b"1"]


@pytest.mark.file_roots
def test_segments_that_were_rolled_are_closed(serve: Callable[[], Served]) -> None:
    server = serve()
    server.log_dir.alter_topic("a", add={"internal.segment.bytes": "300"})
    server.append(append(batch([b"x" * 200])))
    before = descriptors_before()
    for _ in range(10):
        server.append(append(batch([b"x" * 200])), append(batch([b"x" * 200])))
    assert len(list((server.root.path / "a-0").glob("*.log"))) == 21
    assert descriptors() == before


@pytest.mark.file_roots
def test_log_that_cannot_be_looked_at_again_is_closed(serve: Callable[[], Served]) -> None:
    server = serve()
    assert offsets(server.append(append(batch([b"0"])))) == (0, 0, False)
    before = descriptors_before()
    for sequence in range(1, 4):
        loop = server.root.path / "a-0" / f"{sequence:020}.log"
        loop.symlink_to(loop)  # the next segment of another writer, were it readable
        assert isinstance(server.append(append(batch([b"lost"]))), KafkalogError)
        loop.unlink()
        assert offsets(server.append(append(batch([b"%d" % sequence])))) == (sequence, sequence, False)
        assert descriptors() == before


class SlowFlushes(FileSystem):
    """The log's flush takes until `release`."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.is_flushing = threading.Event()
        self.error: OSError | None = None

    def fsync(self, fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.parent.name == "a-0" and path.suffix == LOG_SUFFIX:
            self.is_flushing.set()
            assert self.release.wait(PATIENCE_S)
            if self.error is not None:
                raise self.error
        super().fsync(fd)


@pytest.mark.file_roots
@pytest.mark.parametrize("fails", [False, True])
def test_commit_is_visible_when_the_log_is_on_disk_and_is_not_made_if_that_fails(
    serve: Callable[[], Served], root_place: Path, fails: bool
) -> None:
    other = serve().root.store
    before = other.image
    fs = SlowFlushes()
    writer = Served(root_place, flush="fsync", fs=fs)
    fs.error = OSError(errno.EIO, "no disk") if fails else None
    with ThreadPoolExecutor(1) as thread:
        committing = thread.submit(writer.commit, CommitUnit.of(append(batch([b"1"]))))
        assert fs.is_flushing.wait(PATIENCE_S)
        assert not committing.done()
        assert other.refresh() is before
        fs.release.set()
        if fails:
            with pytest.raises(OSError, match="no disk"):
                committing.result()
        else:
            committing.result()
    assert (other.refresh() is before) == fails
    fs.error = None
    writer.commit(CommitUnit.of(append(batch([b"2"]))))
    assert writer.values() == ([b"2"] if fails else [b"1", b"2"])
    writer.writer.close()


def test_commit_to_new_partitions_waits_for_their_files_only_side_by_side(tmp_path: Path) -> None:
    caller = threading.get_ident()
    waited: set[str] = set()
    one_by_one: list[str] = []

    class Watched(FileSystem):
        def fsync(self, fd: int) -> None:
            self._note(Path(os.readlink(f"/proc/self/fd/{fd}")))
            super().fsync(fd)

        def fsync_dir(self, directory: Path) -> None:
            self._note(directory)
            super().fsync_dir(directory)

        def _note(self, path: Path) -> None:
            if "many-" in str(path):
                waited.add(TEMPORARY.sub(".tmp", str(path.relative_to(tmp_path / "root"))))
                if threading.get_ident() == caller:
                    one_by_one.append(str(path))

    partitions = OPEN_LOGS + 2  # the first ones are opened twice
    LogDir.open_or_create(tmp_path / "root").create_topic("many", partitions)
    server = Served(tmp_path / "root", flush="fsync", fs=Watched())
    (result,) = server.commit(CommitUnit.of(*[append(batch(), "many", each) for each in range(partitions)]))
    assert not isinstance(result, KafkalogError)
    assert one_by_one == []
    for each in range(partitions):
        files = ("partition.metadata", "leader-epoch-checkpoint.tmp", f"{0:020d}.log")
        assert waited >= {f"many-{each}", *(f"many-{each}/{name}" for name in files)}
        assert (tmp_path / f"root/many-{each}/leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"
