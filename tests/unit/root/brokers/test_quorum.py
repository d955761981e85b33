"""The quorum described from a broker's disk: what its files say, and None where they do not say it."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from repository import FIXTURES

from pyspark_kafkalog.errors import DiskFormatError, LogDirError
from pyspark_kafkalog.record.control import (
    ControlRecord,
    KRaftVersion,
    KRaftVoters,
    LeaderChange,
    LeaderChangeVoter,
    SnapshotFooter,
    SnapshotHeader,
    Voter,
    VoterEndpoint,
    build_control_record,
)
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.brokers.quorum import QuorumReplica, read_broker_quorum
from pyspark_kafkalog.storage.names import encode_uuid

BROKER = FIXTURES / "cluster-metadata"
LOG_END_OFFSET: Final = 338
DIRECTORY_IDS: Final = [uuid.UUID(int=number << 64 | 5) for number in range(5)]
#: What a controller of kraft.version 1 leaves, and one of kraft.version 0 with its voters configured.
DYNAMIC: Final = {"leaderId": 2, "leaderEpoch": 4, "votedId": -1, "votedDirectoryId": "A" * 22, "data_version": 1}
STATIC: Final = {
    "clusterId": "",
    "leaderId": 2,
    "leaderEpoch": 4,
    "votedId": -1,
    "appliedOffset": 0,
    "currentVoters": [{"voterId": 3}, {"voterId": 2}],
    "data_version": 0,
}


def control(offset: int, *said: ControlRecord, epoch: int = 4) -> bytes:
    records = [
        Record(offset=offset + at, timestamp_ms=5, key=key, value=value)
        for at, (key, value) in enumerate(map(build_control_record, said))
    ]
    return encode_batch(records, leader_epoch=epoch, is_control=True)


def noop(offset: int, *, epoch: int = 4) -> bytes:
    value = b"\x01\x14\x00\x00"
    return encode_batch([Record(offset=offset, timestamp_ms=5, key=None, value=value)], leader_epoch=epoch)


def voters(*node_ids: int, host: str = "127.0.0.1") -> KRaftVoters:
    return KRaftVoters(
        voters=tuple(
            Voter(
                voter_id=each,
                directory_id=DIRECTORY_IDS[each],
                endpoints=(VoterEndpoint(name="CONTROLLER", host=host, port=9093),),
                min_supported_version=0,
                max_supported_version=1,
            )
            for each in node_ids
        )
    )


def elected(*node_ids: int) -> LeaderChange:
    return LeaderChange(leader_id=2, voters=tuple(LeaderChangeVoter(voter_id=each) for each in node_ids))


def replica(node_id: int, log_end_offset: int | None = None, *, host: str = "127.0.0.1") -> QuorumReplica:
    directory_id = encode_uuid(DIRECTORY_IDS[node_id].bytes)
    return QuorumReplica(node_id, directory_id, (f"CONTROLLER://{host}:9093",), log_end_offset)


class Node:
    """A node's directory with what one names in it; the node is number 2."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.directory = path / "__cluster_metadata-0"
        self.directory.mkdir(parents=True)
        self.identify(2, DIRECTORY_IDS[2])

    def identify(self, node_id: int, directory_id: uuid.UUID) -> None:
        text = f"version=1\ncluster.id=c\nnode.id={node_id}\ndirectory.id={encode_uuid(directory_id.bytes)}\n"
        (self.path / "meta.properties").write_text(text)

    def state(self, tree: Mapping[str, Any]) -> None:
        (self.directory / "quorum-state").write_text(json.dumps(tree))

    def snapshot(self, end_offset: int, *said: ControlRecord) -> None:
        data = control(0, SnapshotHeader(last_contained_log_timestamp_ms=5), KRaftVersion(kraft_version=1), *said)
        data += noop(2 + len(said)) + control(3 + len(said), SnapshotFooter())
        (self.directory / f"{end_offset:020}-0000000004.checkpoint").write_bytes(data)

    def log(self, *batches: bytes, base_offset: int = 0) -> Path:
        path = self.directory / f"{base_offset:020}.log"
        path.write_bytes(b"".join(batches))
        return path


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "node")


def test_single_voter_is_described_as_by_kafkas_tool() -> None:
    quorum = read_broker_quorum(BROKER)
    (voter,) = quorum.voters or ()
    assert (quorum.leader_id, quorum.leader_epoch, quorum.high_watermark) == (1, 3, LOG_END_OFFSET)
    assert (quorum.max_follower_lag(), quorum.lag(voter), quorum.observers) == (0, 0, ())
    assert voter == QuorumReplica(1, "_QARJNWmQP-0INo7jTDE6w", ("CONTROLLER://127.0.0.1:23063",), LOG_END_OFFSET)


def test_high_watermark_of_several_voters_is_none(node: Node) -> None:
    node.state(DYNAMIC)
    node.log(control(0, elected(1, 2, 3), voters(3, 1, 2)), noop(2))
    quorum = read_broker_quorum(node.path)
    assert quorum.voters == (replica(1), replica(2, 3), replica(3))
    assert (quorum.leader_id, quorum.leader_epoch) == (2, 4)
    assert (quorum.high_watermark, quorum.max_follower_lag()) == (None, None)
    assert [quorum.lag(each) for each in quorum.voters] == [None, 0, None]


def test_voters_are_those_of_newest_record_or_snapshot(node: Node) -> None:
    node.state(DYNAMIC)
    node.snapshot(10, voters(1, 2))
    node.log(*map(noop, range(8, 10)), base_offset=8)
    assert [each.node_id for each in read_broker_quorum(node.path).voters or ()] == [1, 2]
    node.log(
        *(control(8, voters(4), elected(4)), control(10, voters(1, 2, 3)), control(11, voters(2, 3, host="::1"))),
        *(control(12, elected(1)), noop(13)),
        base_offset=8,
    )
    assert read_broker_quorum(node.path).voters == (replica(2, 14, host="[::1]"), replica(3, host="[::1]"))


def test_static_voters_come_from_quorum_state_until_leader_change(node: Node) -> None:
    node.state(STATIC)
    node.log(noop(0))
    assert read_broker_quorum(node.path).voters == (QuorumReplica(2, log_end_offset=1), QuorumReplica(3))
    node.log(control(0, elected(1, 2)), control(1, elected(2)), noop(2))
    quorum = read_broker_quorum(node.path)
    assert quorum.voters == (QuorumReplica(2, log_end_offset=3),)
    assert quorum.high_watermark == 3


def test_voters_without_any_record_are_none(node: Node) -> None:
    node.state(DYNAMIC)
    quorum = read_broker_quorum(node.path)
    assert (quorum.voters, quorum.observers, quorum.high_watermark, quorum.max_follower_lag()) == (None, (), None, None)


def test_leader_is_unknown_when_log_or_state_has_newer_epoch(node: Node) -> None:
    node.log(control(0, voters(2), epoch=1), noop(1, epoch=5))
    quorum = read_broker_quorum(node.path)
    assert (quorum.leader_id, quorum.leader_epoch) == (-1, 5), "without quorum-state"
    node.state(DYNAMIC)
    quorum = read_broker_quorum(node.path)
    assert (quorum.leader_id, quorum.leader_epoch) == (-1, 5)
    node.state({**DYNAMIC, "leaderId": -1, "leaderEpoch": 6})
    quorum = read_broker_quorum(node.path)
    assert (quorum.leader_id, quorum.leader_epoch) == (-1, 6)


def test_log_of_node_that_is_no_voter_counts_as_observer(node: Node) -> None:
    node.state(DYNAMIC)
    node.log(control(0, voters(2)), noop(1))
    assert read_broker_quorum(node.path).high_watermark == 2
    for node_id, directory_id in ((3, DIRECTORY_IDS[3]), (2, DIRECTORY_IDS[4])):
        node.identify(node_id, directory_id)
        quorum = read_broker_quorum(node.path)
        assert quorum.voters == (replica(2),)
        assert quorum.high_watermark is None
        assert quorum.observers == (QuorumReplica(node_id, encode_uuid(directory_id.bytes), log_end_offset=2),)
    (node.path / "meta.properties").unlink()
    quorum = read_broker_quorum(node.path)
    assert (quorum.cluster_id, quorum.high_watermark, quorum.observers) == (None, None, ())


def test_torn_batch_does_not_count_for_high_watermark(node: Node) -> None:
    node.state(DYNAMIC)
    whole = control(0, voters(2)) + noop(1)
    for torn in (b"", noop(2)[:-1], noop(2)[:30], b"\0"):
        node.log(whole, torn)
        assert read_broker_quorum(node.path).high_watermark == 2


def test_damaged_metadata_log_is_reported(node: Node) -> None:
    node.state(DYNAMIC)
    damaged = bytearray(noop(1))
    damaged[-1] ^= 1
    path = node.log(control(0, voters(2)), bytes(damaged), noop(2))
    with pytest.raises(LogDirError, match=r"metadata log is damaged: .*CRC"):
        read_broker_quorum(node.path)
    bad = Record(offset=0, timestamp_ms=5, key=b"\0\0\0\6", value=b"\0\0\xff\xff\xff\x7f\0")
    path.write_bytes(encode_batch([bad], leader_epoch=4, is_control=True))
    with pytest.raises(DiskFormatError, match="KRAFT_VOTERS"):
        read_broker_quorum(node.path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "5",
        "[" * 30_000,
        "\xff",
        '{"a":' + "9" * 10_000 + "}",
        " " * 70_000,
        *(
            json.dumps({**DYNAMIC, **changed})
            for changed in (
                {"data_version": 2},
                {"data_version": None},
                {"data_version": 0},
                {"leaderId": True},
                {"leaderId": "1"},
                {"leaderId": 1 << 31},
                {"leaderId": -2},
                {"leaderEpoch": 1.0},
                {"leaderEpoch": float("nan")},
                {"data_version": 0, "currentVoters": [1]},
                {"data_version": 0, "currentVoters": [{"voterId": -1}]},
            )
        ),
    ],
)
def test_damaged_quorum_state_is_reported(node: Node, text: str) -> None:
    node.log(control(0, voters(2)))
    (node.directory / "quorum-state").write_text(text, encoding="latin-1")
    with pytest.raises(DiskFormatError, match="quorum-state") as raised:
        read_broker_quorum(node.path)
    assert len(str(raised.value)) < 1000


def test_directory_without_metadata_log_is_refused(tmp_path: Path) -> None:
    shutil.copytree(BROKER.with_name("cars"), tmp_path / "cars")
    with pytest.raises(LogDirError, match=r"holds no copy .*metadata\.log\.dir"):
        read_broker_quorum(tmp_path / "cars")
