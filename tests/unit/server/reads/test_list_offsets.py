"""ListOffsets and OffsetForLeaderEpoch: what real brokers answered about their directories, and every error."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from builders.engine_fixtures import FixturePartition, partitions_with_offsets
from builders.root_places import RootPlace, is_object_place
from builders.tiered_roots import SMALL_SEGMENTS, TOPIC, append_rounds, tiered_root
from fakes.server_calls import ReadServer

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.tier import tier_segments
from pyspark_kafkalog.metadata.acl import AclOperation
from pyspark_kafkalog.protocol.api import ApiKey, find_api
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderEpochResponseEpochEndOffset,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from pyspark_kafkalog.root.reads import UNDEFINED, end_of_epoch, epoch_at
from pyspark_kafkalog.server.reads.offsets import (
    EARLIEST,
    EARLIEST_LOCAL,
    EARLIEST_PENDING_UPLOAD,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
)
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry
from pyspark_kafkalog.storage.names import TopicPartition

#: The largest timestamp of their first segments is that of batches that the cleaner has emptied. A broker then finds
#: nothing at all for it; here the first record in a later segment is found.
EMPTIED_SEGMENTS = {f"compacted-{state}/compacted-idempotent-0" for state in ("2-cleaned", "3-dirty", "4-cleaned")}
NEWEST = find_api(ApiKey.LIST_OFFSETS).versions[-1]


@pytest.fixture
def log_dir(root_place: RootPlace) -> LogDir:
    """Sixty records in partition 0."""
    log_dir = LogDir.create(root_place)
    log_dir.create_topic(TOPIC, partitions=2, configs={} if is_object_place(root_place) else SMALL_SEGMENTS)
    append_rounds(log_dir, 3)
    return log_dir


@pytest.fixture
def server(log_dir: LogDir) -> Iterator[ReadServer]:
    with ReadServer(log_dir) as server:
        yield server


def list_offsets(
    server: ReadServer,
    times_ms: Sequence[int],
    *,
    topic: str = TOPIC,
    partition: int = 0,
    isolation: int = 0,
    version: int = NEWEST,
    current_leader_epoch: int = -1,
) -> list[ListOffsetsPartitionResponse]:
    """One request for each time."""
    found = []
    for time_ms in times_ms:
        wanted = ListOffsetsPartition(
            partition_index=partition, timestamp=time_ms, current_leader_epoch=current_leader_epoch
        )
        request = ListOffsetsRequest(
            replica_id=-1, isolation_level=isolation, topics=(ListOffsetsTopic(name=topic, partitions=(wanted,)),)
        )
        response = server.call(ApiKey.LIST_OFFSETS, version, request, ListOffsetsResponse)
        found += response.topics[0].partitions
    return found


@pytest.mark.parametrize("part", partitions_with_offsets(), ids=str)
def test_offsets_of_brokers_directories_are_those_that_the_broker_answered(part: FixturePartition) -> None:
    known = part.offsets
    with ReadServer(LogDir.open(part.root)) as server:

        def ask(*times_ms: int, isolation: int = 0) -> list[ListOffsetsPartitionResponse]:
            found = list_offsets(server, times_ms, topic=part.topic, partition=part.partition, isolation=isolation)
            assert all(each.error_code == ErrorCode.NONE for each in found)
            return found

        earliest, latest, largest = ask(EARLIEST, LATEST, MAX_TIMESTAMP)
        assert (earliest.offset, latest.offset) == (known["earliest"], known["latest"])
        assert (earliest.timestamp, latest.timestamp) == (-1, -1)
        assert ask(LATEST, isolation=1)[0].offset == known["last_stable"]
        if known["max_timestamp"] is not None:
            assert {"offset": largest.offset, "timestamp": largest.timestamp} == known["max_timestamp"]
        for each in known["by_time"]:
            for isolation, name in ((0, "read_uncommitted"), (1, "read_committed")):
                [found] = ask(each["target"], isolation=isolation)
                expected = each[name] or {"offset": -1, "timestamp": -1, "leaderEpoch": -1}
                if expected["offset"] < 0 and str(part) in EMPTIED_SEGMENTS:
                    assert found.timestamp >= each["target"]
                    continue
                assert found.offset == expected["offset"], (each["target"], name)
                if found.offset >= 0:
                    assert (found.timestamp, found.leader_epoch) == (expected["timestamp"], expected["leaderEpoch"])


def test_special_times_need_the_version_that_brought_them(server: ReadServer) -> None:
    since = {LATEST: 1, EARLIEST: 1, MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9}
    since |= {EARLIEST_PENDING_UPLOAD: 11, -7: 99}
    for version in find_api(ApiKey.LIST_OFFSETS).versions:
        for found, from_version in zip(list_offsets(server, list(since), version=version), since.values(), strict=True):
            expected = ErrorCode.NONE if version >= from_version else ErrorCode.UNSUPPORTED_VERSION
            assert found.error_code == expected


def test_offsets_of_a_native_root(server: ReadServer, log_dir: LogDir) -> None:
    delete_records(log_dir.root, {TopicPartition(TOPIC, 0): 25})
    server.context.root.refresh()
    latest, earliest, local, tiered, pending, late, early = list_offsets(
        server, [LATEST, EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD, 1 << 60, 0]
    )
    found = [each.offset for each in (latest, earliest, local, tiered, pending, late, early)]
    assert found == [60, 25, 25, -1, -1, -1, 25]
    assert early.timestamp > 0
    assert (latest.leader_epoch, tiered.leader_epoch, late.leader_epoch) == (early.leader_epoch, -1, -1)


@pytest.mark.parametrize(("codec", "error"), [("uncompressed", ErrorCode.NONE), ("zstd", ErrorCode.INVALID_RECORD)])
def test_lookup_by_time_fails_at_a_compressed_record_larger_than_the_topic_allows(
    server: ReadServer, log_dir: LogDir, codec: str, error: ErrorCode
) -> None:
    log_dir.alter_topic(TOPIC, add={"compression.type": codec, "message.timestamp.after.max.ms": str(1 << 50)})
    at = pa.array([1, 1 << 42, 1 << 41], pa.timestamp("ms"))
    log_dir.append(TOPIC, pa.table({"value": ["a", "b" * 1000, "c"], "timestamp": at}), partition=1)
    times = [0, 1 << 41, MAX_TIMESTAMP, LATEST]
    assert [each.offset for each in list_offsets(server, times, partition=1)] == [0, 1, 1, 3]
    log_dir.alter_topic(TOPIC, add={"max.decompressed.message.bytes": "1000"})
    found = list_offsets(server, times, partition=1)
    assert [each.error_code for each in found] == [ErrorCode.NONE, error, error, ErrorCode.NONE]


def test_offsets_of_a_tiered_partition(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "remote", local_retention_bytes="2000")
    append_rounds(log_dir, 8)
    tier_segments(log_dir.root)
    apply_retention(log_dir.root)
    found = log_dir.partition(TOPIC, 0)
    with ReadServer(log_dir) as server:
        answers = list_offsets(server, [EARLIEST, EARLIEST_LOCAL, LATEST_TIERED, EARLIEST_PENDING_UPLOAD])
        expected = [0, found.local_log_start_offset, found.latest_tiered_offset, found.latest_tiered_offset + 1]
        assert [each.offset for each in answers] == expected
        assert found.local_log_start_offset > 0
        assert all(each.leader_epoch == found.leader_epoch for each in answers)


def test_errors_of_list_offsets_are_those_of_each_partition(server: ReadServer, log_dir: LogDir) -> None:
    [unknown] = list_offsets(server, [LATEST], partition=9)
    [epoch] = list_offsets(server, [LATEST], current_leader_epoch=7)
    assert (unknown.error_code, unknown.offset) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)
    assert epoch.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    twice = ListOffsetsPartition(partition_index=0, timestamp=LATEST)
    once = ListOffsetsPartition(partition_index=1, timestamp=LATEST)
    request = ListOffsetsRequest(topics=(ListOffsetsTopic(name=TOPIC, partitions=(twice, once, twice)),))
    response = server.call(ApiKey.LIST_OFFSETS, NEWEST, request, ListOffsetsResponse)
    errors = [(each.partition_index, each.error_code) for each in response.topics[0].partitions]
    assert errors == [(0, ErrorCode.INVALID_REQUEST), (1, ErrorCode.NONE)]
    server.rights.denied.add((AclOperation.DESCRIBE, TOPIC))
    [denied] = list_offsets(server, [LATEST], partition=9)
    assert denied.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_records_that_another_process_committed_are_counted(server: ReadServer, log_dir: LogDir) -> None:
    other = LogDir.open(log_dir.path)
    other.add_partitions(TOPIC, 3)
    append_rounds(other, 1, partition=2)
    [found] = list_offsets(server, [LATEST], partition=2)
    assert (found.error_code, found.offset) == (ErrorCode.NONE, 20)
    append_rounds(other, 1, partition=2)
    [later] = list_offsets(server, [LATEST], partition=2)
    assert later.offset == 40


def test_last_stable_offset_does_not_go_back_at_another_server(server: ReadServer, log_dir: LogDir) -> None:
    other = LogDir.open(log_dir.path)
    with ReadServer(other) as ahead:
        for _ in range(3):
            append_rounds(LogDir.open(log_dir.path), 1)
            [first] = list_offsets(ahead, [LATEST], isolation=1)
            [then] = list_offsets(server, [LATEST], isolation=1)
            assert then.offset == first.offset == log_dir.partition(TOPIC, 0).high_watermark


# Leader epochs


def end_of(
    server: ReadServer, *epochs: int, topic: str = TOPIC, partition: int = 0, current: int = -1
) -> list[OffsetForLeaderEpochResponseEpochEndOffset]:
    wanted = tuple(
        OffsetForLeaderPartition(partition=partition, leader_epoch=each, current_leader_epoch=current)
        for each in epochs
    )
    request = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic(topic=topic, partitions=wanted),))
    response = server.call(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, request, OffsetForLeaderEpochResponse)
    return list(response.topics[0].partitions)


def test_epochs_of_a_brokers_directory_end_where_the_next_begins() -> None:
    part = next(each for each in partitions_with_offsets() if each.fixture == "leader-epochs")
    lines = (part.directory / "leader-epoch-checkpoint").read_text().splitlines()[2:]
    epochs = [tuple(map(int, line.split())) for line in lines]
    assert len(epochs) > 1
    with ReadServer(LogDir.open(part.root)) as server:
        for (epoch, _), (_, following) in zip(epochs, [*epochs[1:], (0, part.offsets["latest"])], strict=True):
            [found] = end_of(server, epoch, topic=part.topic, partition=part.partition)
            assert (found.error_code, found.leader_epoch, found.end_offset) == (0, epoch, following)


def test_present_epoch_ends_at_the_log_end_and_later_ones_are_undefined(server: ReadServer, log_dir: LogDir) -> None:
    epoch = log_dir.partition(TOPIC, 0).leader_epoch
    present, later = end_of(server, epoch, epoch + 1)
    assert (present.leader_epoch, present.end_offset) == (epoch, 60)
    assert (later.error_code, later.leader_epoch, later.end_offset) == (0, -1, -1)
    [empty] = end_of(server, log_dir.partition(TOPIC, 1).leader_epoch, partition=1)
    assert empty.end_offset == 0


def test_epoch_ends_where_another_process_has_written(server: ReadServer, log_dir: LogDir) -> None:
    """A client that has read this at another server would else believe that the log was truncated."""
    epoch = log_dir.partition(TOPIC, 0).leader_epoch
    append_rounds(LogDir.open(log_dir.path), 1)
    [found] = end_of(server, epoch)
    assert (found.leader_epoch, found.end_offset) == (epoch, 80)


def test_errors_of_leader_epochs_are_those_of_each_partition(server: ReadServer) -> None:
    assert end_of(server, 0, partition=5)[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert end_of(server, 0, current=9)[0].error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    server.rights.denied.add((AclOperation.DESCRIBE, TOPIC))
    assert end_of(server, 0)[0].error_code == ErrorCode.NONE  # a broker
    server.rights.denied.add((AclOperation.CLUSTER_ACTION, "kafka-cluster"))
    assert end_of(server, 0)[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_end_of_epoch_is_that_of_the_largest_epoch_not_above() -> None:
    epochs = [EpochEntry(2, 10), EpochEntry(4, 30), EpochEntry(7, 50)]
    found = {each: end_of_epoch(epochs, each, 80) for each in (-1, 0, 2, 3, 4, 6, 7, 8)}
    assert found == {
        -1: UNDEFINED,
        0: EpochEntry(0, 10),
        2: EpochEntry(2, 30),
        3: EpochEntry(2, 30),
        4: EpochEntry(4, 50),
        6: EpochEntry(4, 50),
        7: EpochEntry(7, 80),
        8: UNDEFINED,
    }
    assert end_of_epoch([], 0, 80) == UNDEFINED
    assert [epoch_at(epochs, each) for each in (0, 10, 29, 30, 99)] == [-1, 2, 2, 4, 7]
