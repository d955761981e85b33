"""What a follower's root must have in common with the brokers' disks once both have come to rest.

Logs that no cleaner has touched are compared byte by byte; those of compacted topics by what the cleaner must keep.

Batches, leader epochs, aborted transactions and producers follow from what the leader has committed, so every replica
has the same. Offset and time indexes also depend on what happened to a replica: Kafka's LogSegment counts the bytes to
the next entry from where it last truncated or opened the segment. See `check_same_indexes`.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from builders.followers import StoredBatch, split_batches
from builders.leader_reads import log_bytes

from kafka_processes.clients import consume
from kafka_processes.cluster import Cluster
from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.storage.names import TopicPartition

_CATCH_UP_SECONDS_MAX: Final = 150
_PLACE_INDEXES: Final = (".index", ".timeindex")
#: An entry of an offset index: the offset relative to the segment's, and the position.
_INDEX_ENTRY: Final = struct.Struct(">ii")


def ends_of(
    bootstrap: str, topics: Collection[str], isolation: str = "read_uncommitted"
) -> dict[TopicPartition, tuple[int, int]]:
    """Log start and high watermark of all partitions of these topics, as consumers see them.

    With read_committed, the last stable offset instead of the high watermark.
    """
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as ClientPartition

    settings = {"group.id": "ends", "isolation.level": isolation, "log_level": 0}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    try:
        known = consumer.list_topics(timeout=30).topics
        return {
            TopicPartition(topic, number): consumer.get_watermark_offsets(ClientPartition(topic, number), timeout=30)
            for topic in topics
            for number in known[topic].partitions
        }
    finally:
        consumer.close()


def log_ends_of(bootstrap: str, topics: Collection[str]) -> dict[TopicPartition, int]:
    """The high watermarks of all partitions of these topics."""
    return {name: end for name, (_, end) in ends_of(bootstrap, topics).items()}


def wait_until_caught_up(copy: Path, bootstrap: str, topics: Collection[str], alive: Any) -> dict[TopicPartition, int]:
    """Wait until the copy has what the leader has, and the leader gets no more; returns the ends. `alive` may raise.

    The leader gets more as long as a transaction is open: the marker that ends it.
    """
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + _CATCH_UP_SECONDS_MAX
    late: object = "no partition of the leader is known"
    while time.monotonic() < deadline:
        alive()
        try:
            before = ends_of(bootstrap, topics)
            time.sleep(0.5)
            stable = ends_of(bootstrap, topics, "read_committed")
            after = ends_of(bootstrap, topics)
            log_dir = LogDir.open(copy)
        except (KafkaException, LogDirError) as error:
            late = error
            continue
        found = {
            TopicPartition(topic, each.partition): each.log_end_offset
            for topic in log_dir.topics()
            for each in log_dir.topic(topic).partitions
        }
        wanted = {name: end for name, (_, end) in after.items()}
        ends = {str(name): (before[name][1], stable[name][1], end, found.get(name)) for name, end in wanted.items()}
        late = {name: each for name, each in ends.items() if len(set(each)) > 1}
        if not late:
            return wanted
    raise AssertionError(f"not at rest: the leader's end before, its last stable offset, its end, and ours of {late}")


def check_same_log(copy: Path, disk: Path, name: TopicPartition) -> int:
    """The batches of the copy are those of the broker's `.log` files; the number of those that were compared.

    Leader epochs, and of segments with the same batches indexes and producer snapshots, are the same too.
    """
    of = LogDir.open(copy).partition(name.topic, name.partition)
    ours = _between(split_batches(log_bytes([copy], name)), of.log_start_offset, of.log_end_offset)
    theirs = _between(split_batches(log_bytes([disk], name)), of.log_start_offset, of.log_end_offset)
    differing = next((a.base_offset for a, b in zip(ours, theirs, strict=False) if a.data != b.data), None)
    assert differing is None, f"{name} differs from offset {differing} on"
    assert len(ours) == len(theirs), f"{name}: {len(ours)} batches, and {len(theirs)} at the leader"
    assert not ours or ours[-1].next_offset == of.log_end_offset
    within = of.log_start_offset, of.log_end_offset
    assert _epochs(copy, name, *within) == _epochs(disk, name, *within)
    return len(ours)


def check_same_segments(copy: Path, disk: Path, name: TopicPartition) -> int:
    """Segments that are closed on both sides and have the same bytes have the same transaction indexes and producers.

    Returns the number of those that also have all entries of their offset and time indexes in common.
    """
    whole = 0
    their_last = max((disk / str(name)).glob("*.log")).name
    for path in sorted((copy / str(name)).glob("*.log"))[:-1]:
        other = disk / str(name) / path.name
        if not other.exists() or other.name == their_last or other.read_bytes() != path.read_bytes():
            continue
        assert _bytes_of(path.with_suffix(".txnindex")) == _bytes_of(other.with_suffix(".txnindex")), path
        one, two = path.with_suffix(".snapshot"), other.with_suffix(".snapshot")
        if one.exists() and two.exists():  # each side deletes old ones when it likes
            assert one.read_bytes() == two.read_bytes(), one
        whole += check_same_indexes(path, other)
    return whole


def check_same_indexes(path: Path, other: Path) -> bool:
    """The indexes of a segment are a broker's as far as they follow from the segment's bytes; whether they are whole.

    A replica truncates its log where a new leader's epoch begins, if it has records there that the new leader lacks.
    The segment's later bytes are the same afterwards, but the entries for them are counted from there on: they say
    nothing about the copy, which ends at the high watermark and keeps its records. So a segment with several leader
    epochs is compared below its second one, any other completely. `test_cluster.py` shows that the copy then has the
    indexes of the leader, and a truncated replica others.
    """
    batches = split_batches(path.read_bytes())
    second = next((each for each in batches if each.leader_epoch != batches[0].leader_epoch), None)
    if second is None:
        for suffix in _PLACE_INDEXES:
            assert _bytes_of(path.with_suffix(suffix)) == _bytes_of(other.with_suffix(suffix)), path.with_suffix(suffix)
        return True
    relative = second.base_offset - batches[0].base_offset
    ours, theirs = (
        [entry for entry in _INDEX_ENTRY.iter_unpack(_bytes_of(each.with_suffix(".index"))) if entry[0] < relative]
        for each in (path, other)
    )
    assert ours == theirs, path
    return False


def _bytes_of(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _between(batches: Sequence[StoredBatch], start_offset: int, end_offset: int) -> list[StoredBatch]:
    return [each for each in batches if each.next_offset > start_offset and each.next_offset <= end_offset]


def _epochs(root: Path, name: TopicPartition, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
    """The epochs with records of the partition's leader-epoch-checkpoint, from the one at the log start on."""
    file = root / str(name) / "leader-epoch-checkpoint"
    lines = file.read_text().splitlines()[2:] if file.exists() else []
    entries = [(int(epoch), int(offset)) for epoch, offset in map(str.split, lines)]
    ends = [*(offset for _, offset in entries[1:]), end_offset][: len(entries)]
    return [
        (epoch, max(offset, start_offset))
        for (epoch, offset), end in zip(entries, ends, strict=True)
        if offset < end_offset and end > start_offset
    ]


def check_same_latest(copy: Path, bootstrap: str, topic: str) -> int:
    """Of a compacted topic, the copy has every record that the leader still has; the number of those.

    And each key's last record in the copy is the leader's, or a tombstone that the leader has dropped.
    """
    theirs = consume(bootstrap, topic)
    table = LogDir.open(copy).read(topic, isolation="read_uncommitted")
    columns = (table[column].to_pylist() for column in ("partition", "offset", "key", "value"))
    ours = {(partition, offset): (key, value) for partition, offset, key, value in zip(*columns, strict=True)}
    for each in theirs:
        assert ours.get((each.partition, each.offset)) == (each.key, each.value)
    last: dict[tuple[int, bytes | None], tuple[int, bytes | None]] = {}
    for (partition, offset), (key, value) in sorted(ours.items()):
        last[partition, key] = offset, value
    left = {(each.partition, each.key): (each.offset, each.value) for each in theirs}
    assert left.items() <= last.items()
    assert all(value is None for name, (_, value) in last.items() if name not in left)
    return len(theirs)


def check_same_rows(copy: Path, bootstrap: str, topic: str, isolation: str) -> int:
    """`LogDir` reads what a consumer of the cluster reads; the number of records."""
    theirs = [
        (each.partition, each.offset, each.timestamp_ms, each.key, each.value)
        for each in consume(bootstrap, topic, isolation=isolation)
    ]
    table = LogDir.open(copy).read(topic, isolation=isolation)
    stamps = [int(each.timestamp() * 1000 + 0.5) for each in table["timestamp"].to_pylist()]
    columns = [table[column].to_pylist() for column in ("partition", "offset", "key", "value")]
    ours = sorted(zip(columns[0], columns[1], stamps, columns[2], columns[3], strict=True), key=lambda row: row[:2])
    assert ours == theirs
    return len(ours)


#: Topic, partition, offset, key and value.
Row: TypeAlias = tuple[str, int, int, bytes | None, bytes | None]


def check_rows_are_a_beginning(rows: Iterable[Row], bootstrap: str, topics: Collection[str]) -> int:
    """What was read of a copy some time ago is what the cluster has from the log starts up to some offsets.

    `rows` were read with read_uncommitted. Returns their number.
    """
    found = {row[:3]: row[3:] for row in rows}
    ends: dict[tuple[str, int], int] = {}
    for topic, partition, offset in found:
        ends[topic, partition] = max(ends.get((topic, partition), 0), offset + 1)
    theirs = {
        (topic, each.partition, each.offset): (each.key, each.value)
        for topic in topics
        for each in consume(bootstrap, topic)
        if each.offset < ends.get((topic, each.partition), 0)
    }
    assert found == theirs
    return len(found)


def check_same_group(copy: Path, bootstrap: str, group: str, partitions: Collection[TopicPartition]) -> None:
    """The group's offsets in the copy are the cluster's."""
    from confluent_kafka import Consumer
    from confluent_kafka import TopicPartition as ClientPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    asked = [ClientPartition(each.topic, each.partition) for each in partitions]
    theirs = {(each.topic, each.partition): each.offset for each in consumer.committed(asked, timeout=30)}
    consumer.close()
    fetched = LogDir.open(copy).group(group).fetch()
    ours = {(each.topic, each.partition): found.offset for each, found in fetched.items()}
    assert ours == {name: offset for name, offset in theirs.items() if offset >= 0}
    assert ours


def check_replica(
    copy: Path,
    cluster: Cluster,
    topics: Collection[str],
    *,
    compacted: Collection[str] = (),
    steady_nodes: Collection[int] = (),
) -> int:
    """All partitions of these topics are as at their leaders; the number of batches that were compared.

    Indexes are compared with those of `steady_nodes`, which have not been started again.
    """
    compared = whole_segments = 0
    for topic in topics:
        if topic in compacted:
            check_same_latest(copy, cluster.bootstrap, topic)
            continue
        for name in ends_of(cluster.bootstrap, [topic]):
            # A replica that is not in sync may still lack records, or have some of an earlier leader.
            cluster.wait_for_replicas(name)
            compared += check_same_log(copy, cluster.disk(cluster.partition(name.topic, name.partition).leader), name)
            whole_segments += sum(check_same_segments(copy, cluster.disk(node), name) for node in steady_nodes)
    assert whole_segments or not steady_nodes
    return compared
