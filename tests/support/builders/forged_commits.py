"""Object roots whose commits are forged, and the commands that meet them.

A forged commit is what somebody who may write to the store could put as the next commit: it is encoded as any other,
and names what the root must not use.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import google_crc32c
import pyarrow as pa

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.metadata.commit_log import encode_commit
from pyspark_kafkalog.metadata.messages.metadata_records import (
    ConfigRecord,
    DroppedObjectsRecord,
    DroppedSegment,
    MetadataRecord,
    PartitionRecord,
    PartitionStateRecord,
    SegmentObject,
    SegmentObjectsRecord,
    TopicRecord,
)
from pyspark_kafkalog.metadata.objects.log import commit_key
from pyspark_kafkalog.object_store.address import StoreAddress

TOPIC_ID: Final = "AQAAAAAAAAAAAAAAAAAACQ"
SEGMENT_ID: Final = "AAAAAAAAAAAAAAAAAAAACQ"
#: What belongs to somebody else in the same store.
FOREIGN: Final = {"other/invoices-2026.parquet": b"money", "meta.properties.old": b"kept"}


def fill(place: str | StoreAddress, put: Callable[[str, bytes], None]) -> LogDir:
    """Make a root with a segment, runs, inline data, a group and a deleted topic, and objects of others beside them.

    `put` writes one of those.
    """
    log_dir = LogDir.create(place)
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "1"})
    log_dir.create_topic("orders", partitions=2, configs={"internal.segment.bytes": "2000"})
    log_dir.create_topic("compacted", partitions=1, configs={"cleanup.policy": "compact"})
    for number in range(4):
        log_dir.append("orders", pa.table({"value": [f"{number}" * 300] * 4}), partition=0)
    merge_segments(log_dir.root)
    log_dir.append("orders", pa.table({"value": ["x" * 1500] * 100}), partition=1)
    log_dir.append("compacted", pa.table({"key": ["a", "b"], "value": ["1", "2"]}))
    log_dir.group("readers").commit({("orders", 0): 3})
    log_dir.create_topic("gone", partitions=1)
    log_dir.append("gone", pa.table({"value": ["y" * 200_000]}))
    log_dir.delete_topic("gone")
    for key, body in FOREIGN.items():
        put(key, body)
    return log_dir


def lines(url: str, home: Path) -> Iterator[list[str]]:
    """The commands that work on an object root, those that only read first."""
    records = home / "records.json"
    records.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": "orders", "partition": 0, "offset": 1}]}), encoding="utf-8"
    )
    topic = ["--entity-type", "topics", "--entity-name", "compacted"]
    consume = ["console-consumer", "--from-beginning", "--max-messages", "1", "--timeout-ms", "0", "--topic"]
    for name, *rest in (
        ["verify"],
        ["du"],
        ["log-dirs", "--describe"],
        ["topics", "--list"],
        ["topics", "--describe"],
        ["get-offsets"],
        ["configs", "--describe", *topic],
        ["consumer-groups", "--list"],
        ["consumer-groups", "--describe", "--group", "readers"],
        [*consume, "compacted"],
        [*consume, "orders"],
        ["history"],
        ["metrics", "--once"],
        ["report", "--file", str(home / "report.html")],
        ["export", "--to", str(home / "copy")],
        ["topics", "--create", "--topic", "new", "--partitions", "2"],
        ["retention"],
        ["log-cleaner"],
        ["merge-segments"],
        ["reindex"],
        ["verify", "--repair"],
        ["delete-records", "--offset-json-file", str(records)],
        ["topics", "--delete", "--topic", "orders"],
        ["retention"],
    ):
        yield [name, "--path", url, *rest]


#: The name of `big_commit`.
BIG: Final = "two billion records"


def topic_named(name: str) -> list[MetadataRecord]:
    return [
        TopicRecord(name=name, topic_id=TOPIC_ID),
        PartitionRecord(partition_id=0, topic_id=TOPIC_ID, leader_epoch=0),
        PartitionStateRecord(topic_id=TOPIC_ID, partition=0, log_end_offset=30, active_size_bytes=4_000),
        ConfigRecord(resource_type=2, resource_name=name, name="retention.ms", value="1"),
    ]


def segment_of(**changes: object) -> list[MetadataRecord]:
    known: dict[str, object] = {
        "segment_id": SEGMENT_ID,
        "base_offset": 0,
        "end_offset": 30,
        "size_bytes": 100,
        "max_timestamp_ms": 1,
    }
    segment = SegmentObject(**(known | changes))  # type: ignore[arg-type]
    topic = topic_named("forged")[:2]
    record = SegmentObjectsRecord(topic_id=TOPIC_ID, partition=0, planned_at=1, segments=(segment,))
    return [*topic, PartitionStateRecord(topic_id=TOPIC_ID, partition=0, log_end_offset=30), record]


def dropped(*keys: str, topic: str = "", segment_id: str = "") -> list[MetadataRecord]:
    segments = (DroppedSegment(topic=topic, topic_id=TOPIC_ID, segment_id=segment_id),) if segment_id else ()
    return [DroppedObjectsRecord(commit_offset=1, data_keys=keys, segments=segments)]


#: What a forged commit holds.
FORGED: Final[dict[str, Callable[[], list[MetadataRecord]]]] = {
    "topic above": lambda: topic_named("../victim/secret"),
    "absolute topic": lambda: topic_named("/etc/secret"),
    "topic of two lines": lambda: topic_named("a\nb"),
    "segment of a negative size": lambda: segment_of(size_bytes=-1),
    "segment of no offsets": lambda: segment_of(end_offset=0),
    "dropped properties": lambda: dropped("meta.properties"),
    "dropped key of others": lambda: dropped("other/invoices-2026.parquet"),
    "dropped key above": lambda: dropped("../x"),
    "dropped key of a commit": lambda: dropped(commit_key(0)),
    "dropped segment above": lambda: dropped(topic="../..", segment_id=SEGMENT_ID),
}


def big_commit(offset: int) -> bytes:
    """A commit that claims two billion records, with a CRC that fits."""
    data = bytearray(encode_commit(offset, topic_named("many"), 1))
    struct.pack_into(">i", data, 23, 2_147_483_000)
    struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
    return bytes(data)


def forged_body(name: str, offset: int) -> bytes:
    """The commit of that name at `offset`."""
    return big_commit(offset) if name == BIG else encode_commit(offset, FORGED[name](), 1)
