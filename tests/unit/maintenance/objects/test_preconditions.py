"""A job on an object root that an obstacle would stop changes nothing before it says so; a dry run says the same."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from builders.metadata_roots import forget_images
from builders.root_places import memory_root, store_of

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.tiered import objects as remote_objects
from pyspark_kafkalog.tiered.own_segments import segment_keys
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.tools.main import main

NOW_MS = 1_795_400_000_000
SMALL = {"internal.segment.bytes": "1500", "index.interval.bytes": "200"}


@pytest.fixture
def log_dir() -> LogDir:
    """A compacted topic with cleaned and dirty segments, and another one with a data object of runs."""
    log_dir = LogDir.create(memory_root())
    configs = {**SMALL, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}
    log_dir.create_topic("orders", partitions=1, configs=configs)
    append(log_dir, 20, "old")
    merge_segments(log_dir.root)
    command("log-cleaner", log_dir)
    append(log_dir, 20, "new")
    merge_segments(log_dir.root)
    log_dir.create_topic("runs", partitions=1)
    log_dir.append("runs", pa.table({"value": ["x" * 1200] * 120}))
    return log_dir


def append(log_dir: LogDir, count: int, mark: str) -> None:
    for number in range(count):
        values = [f"{mark}{number}-{at}" + "." * 40 for at in range(4)]
        log_dir.append("orders", pa.table({"key": [f"{mark}{number % 7}"] * 4, "value": values}))


def command(name: str, log_dir: LogDir, *arguments: str) -> int:
    forget_images()
    remote_objects._cache.cache_clear()
    try:
        return main([name, "--path", str(log_dir.path), *arguments])
    except SystemExit as ended:
        return int(str(ended.code))


def object_root(log_dir: LogDir) -> ObjectRoot:
    root = log_dir.root.native()
    assert isinstance(root, ObjectRoot)
    root.refresh()
    return root


def segment_log(log_dir: LogDir, number: int) -> str:
    image = object_root(log_dir).store.image
    of = TopicIdPartition("orders", image.topic("orders").topic_id, 0)
    segment = image.partition("orders", 0).segments[number]
    return segment_keys(of, segment.base_offset, segment.segment_id)[0]


def _last_cleaned(log_dir: LogDir) -> str:
    cleaned = [each.is_cleaned for each in object_root(log_dir).store.image.partition("orders", 0).segments]
    assert sum(cleaned) > 1
    return segment_log(log_dir, sum(cleaned) - 1)


def _last_dirty(log_dir: LogDir) -> str:
    return segment_log(log_dir, -2)


def _data_object(log_dir: LogDir) -> str:
    [found] = [each.key for each in object_root(log_dir).store.image.objects if not each.is_inline]
    return found


def _lose(log_dir: LogDir, key: str) -> None:
    del store_of(str(log_dir.path)).bucket.objects[key]


def _flip(log_dir: LogDir, key: str) -> None:
    bucket = store_of(str(log_dir.path)).bucket
    body = bytearray(bucket.body(key))
    body[len(body) // 2] ^= 1
    bucket.write(key, bytes(body))


def _cut(log_dir: LogDir, key: str) -> None:
    bucket = store_of(str(log_dir.path)).bucket
    bucket.write(key, bucket.body(key)[:-400])


CASES = [("merge-segments", _data_object), ("log-cleaner", _last_cleaned), ("log-cleaner", _last_dirty)]


@pytest.mark.parametrize("harm", [_lose, _flip, _cut])
@pytest.mark.parametrize(("job", "find"), CASES)
def test_obstacle_is_told_before_the_first_change(
    log_dir: LogDir,
    job: str,
    find: Callable[[LogDir], str],
    harm: Callable[[LogDir, str], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    key = find(log_dir)
    harm(log_dir, key)
    root, bucket = object_root(log_dir), store_of(str(log_dir.path)).bucket
    before, named = root.store.image, set(bucket.keys(""))
    for dry_run in (["--dry-run"], []):
        capsys.readouterr()
        assert command(job, log_dir, *dry_run) == 1
        printed = capsys.readouterr()
        said = printed.err + printed.out
        assert key.rpartition("/")[2] in said or "an object of it is missing" in said
        assert root.store.refresh().topics == before.topics
        assert not {each for each in named if each not in bucket.objects}


def test_dry_run_of_sound_logs_finds_nothing_and_changes_nothing(log_dir: LogDir) -> None:
    root = object_root(log_dir)
    before = root.store.image
    for job in ("merge-segments", "log-cleaner", "reindex", "retention"):
        assert command(job, log_dir, "--dry-run") == 0
    assert root.store.refresh().topics == before.topics
    for job in ("merge-segments", "log-cleaner", "reindex", "retention"):
        assert command(job, log_dir) == 0
