"""Schedule of snapshots: due by bytes or by time, written by one process for all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from builders.metadata_roots import add_topic, forget_images, settings_of, snapshot_files, write_to
from fakes.clock import Clock

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.errors import InvalidConfigError
from pyspark_kafkalog.metadata.backend import CurrentMetadataLogConfig, MetadataLogConfig, snapshot_is_due
from pyspark_kafkalog.metadata.commit_log import CommitLogTail, KnownSnapshot
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.root.bootstrap import create_root

KIB = 1 << 10
DEFAULTS = MetadataLogConfig.from_properties({})


def tail(bytes_since: int, *, snapshot_bytes: int | None = None, since_ms: int = 0) -> CommitLogTail:
    known = None if snapshot_bytes is None else KnownSnapshot(5, snapshot_bytes, since_ms, is_sound=True)
    return CommitLogTail(Path("x"), known, since_ms, bytes_since)


@pytest.mark.parametrize(
    ("there", "config", "due"),
    [
        (tail(64 * KIB - 1), DEFAULTS, False),
        (tail(64 * KIB), DEFAULTS, True),
        (tail(64 * KIB, snapshot_bytes=65 * KIB), DEFAULTS, False),
        (tail(65 * KIB, snapshot_bytes=65 * KIB), DEFAULTS, True),
        (tail(64 * KIB, snapshot_bytes=1), DEFAULTS, True),
        (tail(20 * KIB * KIB, snapshot_bytes=1 << 40), DEFAULTS, True),
        (tail(1), MetadataLogConfig(1, 0, 0), True),
        (tail(0), MetadataLogConfig(1, 1, 0), False),
        (tail(1), MetadataLogConfig(1 << 40, 5000, 0), True),
        (tail(1, since_ms=1), MetadataLogConfig(1 << 40, 5000, 0), False),
        (tail(1), MetadataLogConfig(1 << 40, 0, 0), False),
    ],
)
def test_snapshot_is_due_by_bytes_or_by_time(there: CommitLogTail, config: MetadataLogConfig, due: bool) -> None:
    assert snapshot_is_due(there, config, now_ms=5000) is due


def test_settings_are_parsed_again_only_after_they_were_changed() -> None:
    current = CurrentMetadataLogConfig()
    image = MetadataImage()
    assert current.of(image) == DEFAULTS
    assert current.of(replace(image, next_offset=1)) is current.of(image)
    changed = replace(image, broker_configs={"": {"metadata.max.retention.ms": "7"}})
    assert current.of(changed).max_retention_ms == 7


def test_defaults_and_limits_are_kafkas() -> None:
    assert MetadataLogConfig.from_properties({}) == MetadataLogConfig(20_971_520, 3_600_000, 604_800_000)
    bytes_between = "metadata.log.max.record.bytes.between.snapshots"
    interval = "metadata.log.max.snapshot.interval.ms"
    config = BrokerConfig.from_properties({bytes_between: "7", interval: "0", "metadata.max.retention.ms": "-1"})
    assert config.metadata_log_max_record_bytes_between_snapshots == 7
    assert config.metadata_log_max_snapshot_interval_ms == 0
    assert config.metadata_max_retention_ms == -1
    for name, bad in ((bytes_between, "0"), (interval, "-1"), ("metadata.max.retention.ms", "a week")):
        with pytest.raises(InvalidConfigError, match=name):
            BrokerConfig.from_properties({name: bad})


def test_first_commit_after_the_interval_is_followed_by_a_snapshot(tmp_path: Path) -> None:
    clock = Clock()
    store = create_root(tmp_path / "root", clock=clock)
    topic_id = add_topic(store, "orders", 1)
    clock.now_ms += 3_599_999
    write_to(store, topic_id, 1)
    assert snapshot_files(store.root) == []
    clock.now_ms += 1
    write_to(store, topic_id, 2)
    write_to(store, topic_id, 3)
    assert len(snapshot_files(store.root)) == 1
    clock.now_ms += 3_600_000
    forget_images()
    write_to(LocalMetadataStore.open(store.root, clock=clock), topic_id, 4)
    assert len(snapshot_files(store.root)) == 2


def test_log_tail_of_opened_root_starts_at_its_snapshot(tmp_path: Path) -> None:
    store = create_root(tmp_path / "root", clock=Clock())
    topic_id = add_topic(store, "orders", 1)
    settings_of(store, {"metadata.log.max.record.bytes.between.snapshots": "1000"})
    for end in range(1, 40):
        write_to(store, topic_id, end)
        forget_images()
        assert LocalMetadataStore.open(store.root)._loaded == store._loaded or not store._loaded.tail.bytes_since
    assert len(snapshot_files(store.root)) >= 3


def test_one_snapshot_serves_all_processes(tmp_path: Path) -> None:
    one = create_root(tmp_path / "root", clock=Clock())
    topic_id = add_topic(one, "orders", 1)
    settings_of(one, {"metadata.log.max.record.bytes.between.snapshots": "2000"})
    forget_images()
    other = LocalMetadataStore.open(one.root, clock=Clock())
    for end in range(1, 60):
        write_to(one if end % 2 else other, topic_id, end)
    sizes = sum(path.stat().st_size for path in (tmp_path / "root").rglob("*.log"))
    assert sizes // 2000 - 2 <= len(snapshot_files(one.root)) <= sizes // 2000 + 1


def test_lagging_process_leaves_pointer_at_newer_snapshot(tmp_path: Path) -> None:
    store = create_root(tmp_path / "root", clock=Clock())
    topic_id = add_topic(store, "orders", 1)
    settings_of(store, {"metadata.log.max.record.bytes.between.snapshots": "1"})
    behind = store._loaded
    for end in range(1, 5):
        write_to(store, topic_id, end)
    before = store._backend.snapshots.pointed_to()
    assert store._backend.after_commit(behind, now_ms=2_000) is None
    assert store._backend.snapshots.pointed_to() == before
