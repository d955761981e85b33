"""Roots of each format version with every kind of state in them, and what such a root holds.

    tests/data/roots/format-<version>/root/            the log directory
    tests/data/roots/format-<version>/expected.json    `contents` of it, as the package that made it read it
    tests/data/tiered-root/                            the same of a root that tiers (TIERED_FORMAT_VERSION), and
                                                       `remote`: the objects of its remote storage, s3://bucket/tier

    PYTHONPATH=tests/support python -m builders.format_roots    makes those that do not exist

Made once for each format version and kept: every later version of the package must read and write it (docs/FORMAT.md,
"Versions"). So one that exists is never replaced.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
from fakes.clock import Clock
from repository import DATA

from builders.controlled import adopt_log_dir
from builders.tiered_logs import fill, tiering_root
from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.export.export import export_in_place
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.tier import tier_segments
from pyspark_kafkalog.metadata.acl import Acl, AclOperation, PatternType, PermissionType, ResourceType
from pyspark_kafkalog.metadata.root_format import FORMAT_VERSION
from pyspark_kafkalog.storage.artefacts.checkpoint_file import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.storage.names import LEADER_EPOCH_CHECKPOINT, TopicPartition
from pyspark_kafkalog.storage.staged_file import StagingTask
from pyspark_kafkalog.storage.stager import stage_table
from pyspark_kafkalog.tiered import remote_storage
from pyspark_kafkalog.tiered.objects import DirectoryObjects

ROOTS = DATA / "roots"
TIERED_ROOT = DATA / "tiered-root"
T0 = 1_760_000_000_000
HOUR_MS = 3_600_000
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SMALL_SEGMENTS = {"internal.segment.bytes": "1500", "index.interval.bytes": "200"}


def rows(first: int, count: int, *, keys: int | None = None, is_tombstone: bool = False) -> pa.Table:
    """Records with keys, nulls, headers and timestamps; of `keys` different keys, if given."""
    numbers = range(first, first + count)
    names = [f"key {n % keys}" if keys else f"key {n}" if n % 7 else None for n in numbers]
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.table(
        {
            "key": pa.array(names, pa.string()),
            "value": pa.array([None if is_tombstone else f"value {n} " * 3 for n in numbers], pa.string()),
            "timestamp": pa.array([T0 + 1000 * n for n in numbers], pa.timestamp("ms")),
            "headers": pa.array([[{"key": "n", "value": b"%d" % n}] if n % 3 == 0 else [] for n in numbers], headers),
        }
    )


def make_root(root: Path) -> None:
    """A root with all the kinds of state that one can have."""
    clock = Clock(T0)
    # From a killed broker: a transaction that is open, aborted ones, producers, leader epochs.
    shutil.copytree(DATA / "fixtures" / "transactions", root, ignore=shutil.ignore_patterns("expected"))
    (root / ".kafka_cleanshutdown").unlink()
    log_dir = adopt_log_dir(root, clock=clock)
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "3", "log.retention.hours": "1000"})
    _write_topics(log_dir)
    for version in (1, 2):
        log_dir.append("orders", rows(90, 2), partition=0, transactional_id="nightly", transaction_version=version)
    for incarnation in ("first run", "second run"):
        log_dir.init_transaction("query", incarnation)
    group = log_dir.group("readers")
    group.commit({("orders", 0): 12, ("orders", 1): 7}, "a note")
    group.commit({("orders", 0): 20})
    log_dir.group("others").commit({("codecs", 4): 3})
    log_dir.access_control().add(
        [
            _acl("orders", PatternType.LITERAL, "User:ann", AclOperation.READ, PermissionType.ALLOW),
            _acl("cod", PatternType.PREFIXED, "User:bob", AclOperation.ALL, PermissionType.DENY),
        ]
    )
    export_in_place(log_dir.root.native())
    clock.now_ms += 2 * HOUR_MS
    log_dir.append("orders", rows(92, 1), partition=0)  # followed by the snapshot, which is due by time
    log_dir.append("orders", rows(93, 1), partition=1)
    _leave_staged_file(log_dir)


def _write_topics(log_dir: LogDir) -> None:
    log_dir.create_topic("codecs", partitions=len(CODECS), configs={"retention.ms": "-1"})
    for partition, codec in enumerate(CODECS):
        log_dir.append("codecs", rows(100 * partition, 30), partition=partition, compression_type=codec)
    log_dir.create_topic("orders", partitions=2, configs={**SMALL_SEGMENTS, "retention.ms": "-1"})
    for turn in range(8):
        log_dir.append("orders", rows(10 * turn, 10), partition=turn % 2)
    delete_records(log_dir.root, {TopicPartition("orders", 0): 5})
    # A killed writer left bytes above the high watermark: the next one cuts them off and begins a leader epoch.
    log_dir.refresh()
    active = log_dir.partition("orders", 1)
    with (active.directory / f"{active.active_base_offset:020d}.log").open("ab") as file:
        file.write(b"\0" * 40)
    log_dir.append("orders", rows(80, 10), partition=1)
    log_dir.create_topic("aged", partitions=1, configs={**SMALL_SEGMENTS, "retention.bytes": "1000"})
    for turn in range(6):
        log_dir.append("aged", rows(10 * turn, 10), partition=0)
    apply_retention(log_dir.root, topics=["aged"])
    log_dir.create_topic("cleaned", partitions=1, configs={**SMALL_SEGMENTS, "cleanup.policy": "compact"})
    for turn in range(6):
        log_dir.append("cleaned", rows(10 * turn, 10, keys=4, is_tombstone=turn == 3), partition=0)
    assert clean_partition(log_dir.root, "cleaned", 0, force=True).error is None
    log_dir.create_topic("empty", partitions=1)
    log_dir.append("gone", rows(0, 3))
    log_dir.delete_topic("gone")


def _acl(name: str, pattern: PatternType, principal: str, operation: AclOperation, permission: PermissionType) -> Acl:
    return Acl(ResourceType.TOPIC, name, pattern, principal, "*", operation, permission)


def _leave_staged_file(log_dir: LogDir) -> None:
    """What is left of a write whose driver was killed before the commit."""
    stage_table(
        StagingTask(root=log_dir.path, write_id="0" * 32, task=0),
        "orders",
        rows(1000, 5),
        partitions_count=2,
        partition=1,
        config=log_dir.log_config("orders"),
        asked_compression=None,
        batch_size_bytes=16_384,
        clock_ms=lambda: T0,
        fs=LOCAL,
    )


def remote_in(directory: Path) -> Any:
    """Patches remote storage, wherever it is said to be, to be in that directory."""
    return mock.patch.object(remote_storage, "open_objects", return_value=DirectoryObjects(directory))


def make_tiered_root(target: Path) -> None:
    """A root whose log begins in remote storage, inside a segment, with transactions and several leader epochs."""
    (target / "remote").mkdir(parents=True)
    with remote_in(target / "remote"):
        log_dir = tiering_root(target / "root", "s3://bucket/tier")
        rng = random.Random(1)
        for turn in range(3):
            fill(log_dir, rng, 25)
            assert [report.error for report in tier_segments(log_dir.root)] == [None]
            log_dir.alter_topic("orders", add={"local.retention.bytes": str(4000 - 1000 * turn)})
            assert [report.error for report in apply_retention(log_dir.root, topics=["orders"])] == [None]
        delete_records(log_dir.root, {TopicPartition("orders", 0): 31})
        fill(log_dir, rng, 10)


def contents(log_dir: LogDir) -> dict[str, Any]:
    """All that a root holds, as a JSON tree."""
    image = log_dir.root.native().store.image
    return {
        "formatVersion": image.format_version,
        "brokerConfigs": dict(log_dir.broker_configs()),
        "nextProducerId": image.next_producer_id,
        "topics": {name: _topic(log_dir, name) for name in log_dir.topics()},
        "transactionalIds": {
            each.transactional_id: {
                "version": each.version,
                "producer": [each.producer_id, each.producer_epoch],
                "fenced": len(each.fenced),
            }
            for each in image.transactional_ids.values()
        },
        "groups": {
            name: {str(where): [at.offset, at.metadata] for where, at in log_dir.group(name).fetch().items()}
            for name in log_dir.groups()
        },
        "acls": sorted(
            [each.resource_name, each.pattern_type.name, each.principal, each.operation.name, each.permission.name]
            for each in log_dir.access_control().entries()
        ),
        "operations": sorted({entry.operation for entry in log_dir.history()}),
    }


def _topic(log_dir: LogDir, name: str) -> dict[str, Any]:
    topic = log_dir.topic(name)
    return {
        "topicId": topic.topic_id,
        "configs": dict(topic.configs),
        "partitions": [_partition(log_dir, name, each.partition) for each in topic.partitions],
    }


def _partition(log_dir: LogDir, topic: str, number: int) -> dict[str, Any]:
    found = log_dir.partition(topic, number)
    uncommitted = log_dir.read(topic, partition=number)
    committed = log_dir.read(topic, partition=number, isolation="read_committed", columns=["offset"])
    epochs = LeaderEpochCheckpoint.open(found.directory / LEADER_EPOCH_CHECKPOINT).entries
    return {
        "offsets": [found.log_start_offset, log_dir.last_stable_offset(topic, number), found.high_watermark],
        "leaderEpochs": [[each.epoch, each.start_offset] for each in epochs],
        "committed": committed["offset"].to_pylist(),
        "records": [_record(row) for row in uncommitted.to_pylist()],
    }


def _record(row: dict[str, Any]) -> list[Any]:
    timestamp_ms = round(row["timestamp"].timestamp() * 1000)
    headers = [[each["key"], _text(each["value"])] for each in row["headers"] or ()]
    return [row["offset"], timestamp_ms, _text(row["key"]), _text(row["value"]), headers]


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("latin-1")


def main() -> int:
    """Make the roots that do not exist: those of released versions are never replaced."""
    kept: dict[Path, Callable[[Path], None]] = {
        ROOTS / f"format-{FORMAT_VERSION}": lambda target: make_root(target / "root"),
        TIERED_ROOT: make_tiered_root,
    }
    for target, make in kept.items():
        if target.exists():
            sys.stderr.write(f"{target} exists\n")
            continue
        target.mkdir(parents=True)
        make(target)
        with remote_in(target / "remote"):
            tree = contents(LogDir.open(target / "root"))
        (target / "expected.json").write_text(json.dumps(tree, ensure_ascii=True, separators=(",", ":")) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
