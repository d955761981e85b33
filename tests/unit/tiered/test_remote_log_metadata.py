"""The records of `__remote_log_metadata` are replayed as a broker does; Kafka's own formatter says what they are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from builders.tiered_fixtures import ALL, TieredFixture

from pyspark_kafkalog.errors import CorruptRecordError, UnsupportedFormatError
from pyspark_kafkalog.metadata.messages.internal_records import (
    RemoteLogRecord,
    RemoteLogSegmentIdEntry,
    RemoteLogSegmentMetadataRecord,
    RemoteLogSegmentMetadataUpdateRecord,
    RemotePartitionDeleteMetadataRecord,
    SegmentLeaderEpochEntry,
    TopicIdPartitionEntry,
)
from pyspark_kafkalog.metadata.messages.schema import write_unsigned_varint
from pyspark_kafkalog.root.brokers.remote_logs import read_remote_log_metadata
from pyspark_kafkalog.storage.artefacts.checkpoint_file import EpochEntry
from pyspark_kafkalog.tiered.remote_log_metadata import RemoteLogMetadata
from pyspark_kafkalog.tiered.segments import RemoteSegment, RemoteSegmentState

TOPIC_ID = "ub7nht-nQm-AWIiVV-G6Zg"
OF = TopicIdPartitionEntry(name="orders", id=TOPIC_ID, partition=3)
ADDED = re.compile(
    r"value: RemoteLogSegmentMetadata\{.*topicIdPartition=(?P<topic_id>.{22}):.+-(?P<partition>\d+), "
    r"id=(?P<id>.{22})\}, startOffset=(?P<start>\d+), endOffset=(?P<end>\d+), .*maxTimestampMs=(?P<max>-?\d+), .*"
    r"segmentLeaderEpochs=\{(?P<epochs>.*)\}, segmentSizeInBytes=(?P<size>\d+), .*txnIdxEmpty=(?P<empty>\w+)"
)
UPDATED = re.compile(r"value: RemoteLogSegmentMetadataUpdate\{.*, id=(?P<id>.{22})\}, .*state=(?P<state>\w+), event")


def printed(fixture: TieredFixture) -> dict[tuple[str, int], dict[str, RemoteSegment]]:
    """The segments left at the end of what the console formatter printed."""
    found: dict[tuple[str, int], dict[str, RemoteSegment]] = {}
    for line in (fixture.log_dir.parent / "expected" / "remote-log-metadata.txt").read_text().splitlines():
        if match := ADDED.search(line):
            epochs = (each.split("=") for each in match["epochs"].split(", "))
            of = found.setdefault((match["topic_id"], int(match["partition"])), {})
            of[match["id"]] = RemoteSegment(
                segment_id=match["id"],
                start_offset=int(match["start"]),
                last_offset=int(match["end"]),
                size_bytes=int(match["size"]),
                leader_epochs=tuple(EpochEntry(int(epoch), int(offset)) for epoch, offset in epochs),
                state=RemoteSegmentState.COPY_SEGMENT_STARTED,
                max_timestamp_ms=int(match["max"]),
                has_transaction_index=match["empty"] == "false",
            )
        elif match := UPDATED.search(line):
            of = next((each for each in found.values() if match["id"] in each), None)
            if of is None:
                continue  # of a segment whose deletion was noted before
            state = RemoteSegmentState[match["state"]]
            known = of.pop(match["id"])
            if state is not RemoteSegmentState.DELETE_SEGMENT_FINISHED:
                of[match["id"]] = RemoteSegment(
                    **{name: getattr(known, name) for name in known.__slots__} | {"state": state}
                )
        else:
            raise AssertionError(line)
    return found


@pytest.mark.parametrize("fixture", ALL, ids=lambda fixture: fixture.name)
def test_replayed_segments_are_those_that_kafka_prints(fixture: TieredFixture) -> None:
    replayed = read_remote_log_metadata([fixture.log_dir]).partitions
    expected = printed(fixture)
    assert {of: each.segments for of, each in replayed.items()} == expected
    assert sum(map(len, expected.values())) > 5


def framed(record: RemoteLogRecord) -> bytes:
    out = bytearray()
    for number in (1, record.schema().api_key, 0):
        write_unsigned_varint(out, number)
    record.encode_to(out, 0)
    return bytes(out)


def segment_id(name: str) -> RemoteLogSegmentIdEntry:
    return RemoteLogSegmentIdEntry(topic_id_partition=OF, id=name.ljust(21, "x") + "A")


def started(name: str, **fields: object) -> bytes:
    values = {
        "start_offset": 10,
        "end_offset": 19,
        "segment_leader_epochs": (SegmentLeaderEpochEntry(leader_epoch=2, offset=10),),
        "segment_size_in_bytes": 100,
    }
    return framed(RemoteLogSegmentMetadataRecord(remote_log_segment_id=segment_id(name), **(values | fields)))


def updated(name: str, state: int) -> bytes:
    return framed(
        RemoteLogSegmentMetadataUpdateRecord(remote_log_segment_id=segment_id(name), remote_log_segment_state=state)
    )


def states(*values: bytes) -> dict[str, RemoteSegmentState]:
    metadata = RemoteLogMetadata()
    for value in values:
        metadata.apply(value, file="file", file_position=7)
    partition = metadata.partitions.get((TOPIC_ID, 3))
    return {} if partition is None else {name[0]: each.state for name, each in partition.segments.items()}


def test_states_follow_each_other_as_kafka_allows_and_other_updates_are_dropped() -> None:
    assert states(started("a")) == {"a": 0}
    assert states(started("a"), updated("a", 1)) == {"a": 1}
    assert states(started("a"), updated("a", 1), updated("a", 2), updated("a", 2)) == {"a": 2}
    assert states(started("a"), updated("a", 1), updated("a", 2), updated("a", 3)) == {}
    assert states(started("a"), updated("a", 2)) == {"a": 2}
    assert states(started("a"), updated("a", 3)) == {"a": 0}
    assert states(started("a"), updated("a", 1), updated("a", 3)) == {"a": 1}
    assert states(started("a"), updated("a", 2), updated("a", 1)) == {"a": 2}
    assert states(updated("a", 1), started("b")) == {"b": 0}
    assert states(started("a"), updated("a", 1), started("a")) == {"a": 1}


def test_deleted_partition_loses_its_segments_when_the_deletion_is_finished() -> None:
    def deleted(state: int) -> bytes:
        return framed(RemotePartitionDeleteMetadataRecord(topic_id_partition=OF, remote_partition_delete_state=state))

    assert states(started("a"), deleted(0), deleted(1)) == {"a": 0}
    assert states(started("a"), deleted(2)) == {}


def test_highest_offset_of_an_epoch_stays_when_the_segment_is_deleted() -> None:
    metadata = RemoteLogMetadata()
    epochs = (SegmentLeaderEpochEntry(leader_epoch=2, offset=10), SegmentLeaderEpochEntry(leader_epoch=4, offset=15))
    for value in (started("a", segment_leader_epochs=epochs), updated("a", 1), updated("a", 2), updated("a", 3)):
        metadata.apply(value, file="file", file_position=0)
    assert metadata.partitions[TOPIC_ID, 3].highest_by_epoch == {2: 14, 4: 19}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"end_offset": 9}, "first and last offset, found 10 and 9"),
        ({"start_offset": -1}, "first and last offset"),
        ({"segment_size_in_bytes": -5}, "a size of 0 or more bytes, found -5"),
        ({"segment_leader_epochs": ()}, "rising leader epochs .*found none"),
        ({"segment_leader_epochs": (SegmentLeaderEpochEntry(leader_epoch=1, offset=20),)}, "found 1 from 20"),
        ({"remote_log_segment_state": 9}, "from 0 to 3, found 9"),
        ({"remote_log_segment_state": 1}, "COPY_SEGMENT_STARTED"),
    ],
)
def test_impossible_segments_are_errors_with_file_and_position(fields: dict[str, object], expected: str) -> None:
    with pytest.raises(CorruptRecordError, match=f"file at byte 7: .*{expected}"):
        states(started("a", **fields))


def test_unknown_records_and_torn_ones_are_errors() -> None:
    with pytest.raises(UnsupportedFormatError, match=r"remote log metadata record type.*found type 77"):
        states(b"\x01\x4d\x00")
    value = started("a")
    for size in range(len(value)):
        with pytest.raises((CorruptRecordError, UnsupportedFormatError)):
            states(value[:size])


def test_second_reading_reads_only_new_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fixture = ALL[0]
    first = read_remote_log_metadata([fixture.log_dir])
    read: list[object] = []
    monkeypatch.setattr(RemoteLogMetadata, "apply", lambda *values, **places: read.append(values))
    assert read_remote_log_metadata([fixture.log_dir]) is first
    assert read == []
