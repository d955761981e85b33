"""Copies of brokers' directories to adopt, what is in them, and metadata logs that a broker might have left."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from repository import FIXTURES

from builders.controlled import open_log_dir
from pyspark_kafkalog.metadata.messages.metadata_records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    TopicRecord,
)
from pyspark_kafkalog.metadata.messages.records import encode_record
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
    write_offset_checkpoint,
)
from pyspark_kafkalog.storage.filesystem import LOCAL

#: Soon after the fixtures were made: no producer has expired yet.
NOW_MS = 1_760_000_000_000
ISOLATIONS = ("read_uncommitted", "read_committed")
METADATA_DIR = "__cluster_metadata-0"
ID_A, ID_B, ID_C = "AAAAAAAAAAAAAAAAAAAAQQ", "AAAAAAAAAAAAAAAAAAAAQg", "AAAAAAAAAAAAAAAAAAAAQw"


def clock() -> int:
    return NOW_MS


def copy_of(fixture: str, tmp_path: Path) -> Path:
    root = tmp_path / fixture
    # Before recovery the one with a bad CRC below its last index entry cannot be read.
    shutil.copytree(FIXTURES / fixture, root, ignore=shutil.ignore_patterns("expected", "unclean-badcrc-0"))
    return root


Contents = dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], list[tuple[int, int, int]]]]


def contents(root: Path) -> Contents:
    """All rows in both isolations, and log start, high watermark and last stable offset of each partition."""
    log_dir = open_log_dir(root, clock=clock)
    found: Contents = {}
    for topic in log_dir.topics():
        uncommitted, committed = (log_dir.read(topic, isolation=each).to_pylist() for each in ISOLATIONS)
        offsets = [
            (each.log_start_offset, each.high_watermark, log_dir.last_stable_offset(topic, each.partition))
            for each in log_dir.topic(topic).partitions
        ]
        found[topic] = (uncommitted, committed, offsets)
    return found


def topic_records(name: str, topic_id: str, *partitions: Mapping[str, Any], **configs: str) -> list[MetadataRecord]:
    return [
        TopicRecord(name=name, topic_id=topic_id),
        *(
            PartitionRecord(**{"partition_id": n, "topic_id": topic_id, "replicas": (1,), "isr": (1,), **each})
            for n, each in enumerate(partitions)
        ),
        *(config_record(2, name, key.replace("_", "."), value) for key, value in configs.items()),
    ]


def config_record(resource_type: int, resource: str, name: str, value: str | None) -> MetadataRecord:
    return ConfigRecord(resource_type=resource_type, resource_name=resource, name=name, value=value)


def write_metadata_log(root: Path, records: Sequence[MetadataRecord]) -> Path:
    directory = root / METADATA_DIR
    directory.mkdir()
    batch = [
        Record(offset=offset, timestamp_ms=0, key=None, value=encode_record(each))
        for offset, each in enumerate(records)
    ]
    (directory / "00000000000000000000.log").write_bytes(encode_batch(batch, leader_epoch=1))
    (directory / "quorum-state").write_text('{"data_version":1}')
    return directory


def append_to_metadata_log(root: Path, first_offset: int, records: Sequence[MetadataRecord | bytes]) -> None:
    """Append one batch; bytes are the value of a record that this package cannot read."""
    batch = [
        Record(
            offset=first_offset + at,
            timestamp_ms=0,
            key=None,
            value=each if isinstance(each, bytes) else encode_record(each),
        )
        for at, each in enumerate(records)
    ]
    with (root / METADATA_DIR / "00000000000000000000.log").open("ab") as log:
        log.write(encode_batch(batch, leader_epoch=1))


def transactions_with_coordinator(tmp_path: Path) -> Path:
    """A broker's directory with a transaction open in each partition of a topic, and with `__transaction_state`.

    tx-0, of producer 0, is open in transactions-0 since offset 162; tx-1, of producer 1, in transactions-1 since 218.
    """
    root = copy_of("transactions", tmp_path)
    coordinator = FIXTURES / "transaction-state"
    shutil.copytree(coordinator / "__transaction_state-0", root / "__transaction_state-0")
    for name in (RECOVERY_POINT_CHECKPOINT, REPLICATION_OFFSET_CHECKPOINT):
        offsets = {**read_offset_checkpoint(root / name), **read_offset_checkpoint(coordinator / name)}
        write_offset_checkpoint(root / name, offsets, fs=LOCAL)
    return root
