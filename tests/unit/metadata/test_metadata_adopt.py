"""Adopting a broker's directory: what is taken over, what is refused, and what a crash in the middle leaves."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from stopping_filesystem import Killed, StoppingFileSystem, broken_disk

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import CorruptRecordError, LogDirError
from pyspark_kafkalog.metadata import adopt_lock
from pyspark_kafkalog.metadata.adopt import Adoption, adopt
from pyspark_kafkalog.metadata.adopt_plan import KEPT_METADATA_DIR, WORK_DIR
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.image_delta import ImageDelta
from pyspark_kafkalog.metadata.image_records import image_records
from pyspark_kafkalog.metadata.records import MetadataRecord, encode_record, record
from pyspark_kafkalog.metadata.store import MetadataStore, is_ours
from pyspark_kafkalog.record.plain import Record, encode_batch
from pyspark_kafkalog.storage.filesystem import FileSystem

FIXTURES = Path(__file__).parents[2] / "data" / "fixtures"
ROOTS = sorted(path.parent.parent.name for path in FIXTURES.glob("*/expected/manifest.json"))
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
    log_dir = LogDir.open(root, clock=clock)
    found: Contents = {}
    for topic in log_dir.topics():
        uncommitted, committed = (log_dir.read(topic, isolation=each).to_pylist() for each in ISOLATIONS)
        offsets = [
            (each.log_start_offset, each.high_watermark, log_dir.last_stable_offset(topic, each.partition))
            for each in log_dir.topic(topic).partitions
        ]
        found[topic] = (uncommitted, committed, offsets)
    return found


def identity(root: Path) -> dict[str, tuple[str | None, list[int]]]:
    log_dir = LogDir.open(root, clock=clock)
    described = [log_dir.topic(name) for name in log_dir.topics()]
    return {each.name: (each.topic_id, [one.leader_epoch for one in each.partitions]) for each in described}


@pytest.mark.parametrize("fixture", ROOTS)
def test_adopted_root_reads_differently(fixture: str, tmp_path: Path) -> None:
    root = copy_of(fixture, tmp_path)
    before, before_identity = contents(root), identity(root)
    was_clean = (root / ".kafka_cleanshutdown").exists()
    logs = {path: path.stat().st_ino for path in root.glob("*/*.log")}
    log_dir = LogDir.adopt(root, clock=clock)
    assert not log_dir.is_foreign
    assert contents(root) == before
    after_identity = identity(root)
    assert {name: topic_id for name, (topic_id, _) in after_identity.items()} == {
        name: topic_id for name, (topic_id, _) in before_identity.items()
    }
    for name, (_, epochs) in before_identity.items():
        assert after_identity[name][1] == [epoch if was_clean else epoch + 1 for epoch in epochs]
    for path, inode in logs.items():
        if path.parent.name != METADATA_DIR:
            assert path.stat().st_ino == inode, "a log was copied"


@pytest.mark.parametrize("fixture", ROOTS)
def test_adopted_partitions_do_not_take_records(fixture: str, tmp_path: Path) -> None:
    root = copy_of(fixture, tmp_path)
    before = contents(root)
    log_dir = LogDir.adopt(root, clock=clock)
    adopted_identity = identity(root)
    values = [b"x" * 100] * 100
    for topic in log_dir.topics():
        if log_dir.log_config(topic).compact:
            continue
        log_dir.alter_topic(topic, add={"internal.segment.bytes": "6000"})
        for each in log_dir.topic(topic).partitions:
            for _ in range(3):
                log_dir.append(topic, pa.table({"value": pa.array(values, pa.binary())}), partition=each.partition)
    for topic, (uncommitted, _, offsets) in contents(root).items():
        if log_dir.log_config(topic).compact:
            continue
        was_uncommitted, _, was_offsets = before[topic]
        partitions = range(len(offsets))
        for partition in partitions:
            old = [row for row in was_uncommitted if row["partition"] == partition]
            new = [row for row in uncommitted if row["partition"] == partition]
            assert new[: len(old)] == old
            assert [row["value"] for row in new[len(old) :]] == values * 3
            (start, end, stable), (was_start, was_end, was_stable) = offsets[partition], was_offsets[partition]
            assert (start, end) == (was_start, was_end + 300)
            assert stable == (was_stable if was_stable < was_end else end), "an open transaction was forgotten"
    assert identity(root) == adopted_identity, "a log that was closed cleanly was taken for a crashed writer's"
    image = MetadataStore.open(root).image
    snapshot = ImageDelta(MetadataImage(), commit_offset=0, timestamp_ms=0)
    snapshot.replay(image_records(image))
    assert snapshot.build(image.next_offset).topics == image.topics


def test_recovery_ends_elsewhere_than_kafkas(tmp_path: Path) -> None:
    root = tmp_path / "unclean"
    shutil.copytree(FIXTURES / "unclean", root)
    outcome = adopt(root, clock=clock)
    assert contents(root) == contents(FIXTURES / "unclean-recovered")
    cut = {each.topic_partition.topic: each.cut_bytes for each in outcome.partitions if each.cut_bytes}
    assert cut.keys() == {"unclean-badcrc", "unclean-garbage", "unclean-torn"}


def test_clean_shutdown_file_outlives_adoption(tmp_path: Path) -> None:
    root = copy_of("cars", tmp_path)
    adopt(root, clock=clock)
    assert not (root / ".kafka_cleanshutdown").exists()
    assert {path.name for path in root.iterdir()} >= {
        "replication-offset-checkpoint",
        "recovery-point-offset-checkpoint",
    }
    assert not (root / WORK_DIR).exists()


def test_producer_ids_are_handed_out_twice(tmp_path: Path) -> None:
    root = copy_of("idempotent", tmp_path)
    outcome = adopt(root, clock=clock)
    seen = {
        int(line.split("producerId: ")[1].split()[0])
        for dump in (FIXTURES / "idempotent" / "expected").rglob("*.log.txt")
        for line in dump.read_text().splitlines()
        if "producerId: " in line
    }
    assert max(seen) > 0
    assert outcome.next_producer_id > max(seen)
    assert MetadataStore.open(root).image.next_producer_id == outcome.next_producer_id


def test_second_adoption_changes_or_fails(tmp_path: Path) -> None:
    root = copy_of("transactions", tmp_path)
    adopt(root, clock=clock)
    before = contents(root)
    again = adopt(root, clock=clock)
    assert again.was_ours
    assert not again.partitions
    assert contents(root) == before


# What stands in the way

_HOLD_LOCK = """
import fcntl, sys
lock = open(sys.argv[1], "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def test_running_brokers_directory_is_adopted(tmp_path: Path) -> None:
    root = copy_of("cars", tmp_path)
    before = sorted(path.name for path in root.rglob("*"))
    holder = subprocess.Popen(
        [sys.executable, "-c", _HOLD_LOCK, str(root / ".lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(LogDirError, match="a Kafka broker is running on"):
            adopt(root, clock=clock)
        with pytest.raises(LogDirError, match="a Kafka broker is running on"):
            adopt(root, clock=clock, dry_run=True)
    finally:
        holder.communicate("")
    assert sorted(path.name for path in root.rglob("*") if path.name != ".lock") == before
    adopt(root, clock=clock)


def test_broker_can_start_while_its_directory_is_adopted(tmp_path: Path) -> None:
    try_lock = (
        "import fcntl, sys\n"
        "try: fcntl.lockf(open(sys.argv[1], 'w'), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
        "except BlockingIOError: print('held')\n"
        "else: print('free')\n"
    )

    def ask() -> str:
        return subprocess.run(
            [sys.executable, "-c", try_lock, str(tmp_path / ".lock")], check=True, capture_output=True, text=True
        ).stdout.strip()

    with adopt_lock.adoption_lock(tmp_path, fs=FileSystem()):
        assert ask() == "held"
        with (
            pytest.raises(LogDirError, match="held by another process"),
            adopt_lock.adoption_lock(tmp_path, fs=FileSystem()),
        ):
            pass
    assert ask() == "free"


def test_writer_of_a_checkpoint_without_locks_is_overlooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = copy_of("unclean", tmp_path)
    checkpoint = root / "replication-offset-checkpoint"
    os.utime(checkpoint)
    monkeypatch.setattr(adopt_lock, "WATCH_S", 5.0)
    monkeypatch.setattr(adopt_lock, "_POLL_S", 0.01)
    timer = threading.Timer(0.2, os.utime, (checkpoint, (1, 1)))
    timer.start()
    with pytest.raises(LogDirError, match="replication-offset-checkpoint has just been written"):
        adopt(root, clock=clock)
    timer.join()
    adopt(root, clock=clock)  # now the file is old


def test_fresh_copy_that_nobody_writes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = copy_of("unclean", tmp_path)
    os.utime(root / "replication-offset-checkpoint")
    monkeypatch.setattr(adopt_lock, "WATCH_S", 0.1)
    assert not adopt(root, clock=clock).was_ours


def test_directory_of_something_else_is_adopted(tmp_path: Path) -> None:
    with pytest.raises(LogDirError, match="is not a directory"):
        adopt(tmp_path / "nothing", clock=clock)
    with pytest.raises(LogDirError, match="is not a log directory"):
        adopt(tmp_path, clock=clock)


def test_partition_between_others_is_missing_and_nobody_says_so(tmp_path: Path) -> None:
    root = copy_of("codecs-none", tmp_path)
    shutil.rmtree(root / "codecs-none-1")
    with pytest.raises(LogDirError, match=r"missing are codecs-none: 1 of 3: .*--create-missing"):
        adopt(root, clock=clock)
    assert not is_ours(root)
    assert (root / ".kafka_cleanshutdown").exists()
    log_dir = LogDir.adopt(root, create_missing=True, clock=clock)
    offsets = [(each.log_start_offset, each.high_watermark) for each in log_dir.topic("codecs-none").partitions]
    assert offsets[1] == (0, 0)
    assert offsets[0][1] > 0
    log_dir.append("codecs-none", pa.table({"value": ["a"]}), partition=1)
    assert log_dir.read("codecs-none", partition=1)["value"].to_pylist() == [b"a"]


def test_directory_that_only_looks_like_a_partition_fills_memory(tmp_path: Path) -> None:
    root = copy_of("cars", tmp_path)
    (root / "backup-2147483647").mkdir()
    for create_missing in (False, True):
        with pytest.raises(LogDirError, match="holds backup-2147483647, but only 1 of 2147483648 partitions"):
            adopt(root, create_missing=create_missing, clock=clock)


def test_topic_gets_partitions_of_another_with_its_name(tmp_path: Path) -> None:
    root = copy_of("codecs-none", tmp_path)
    (root / "codecs-none-2" / "partition.metadata").write_text(f"version: 0\ntopic_id: {ID_A}")
    with pytest.raises(LogDirError, match="have different topic ids"):
        adopt(root, clock=clock)


def test_lost_topic_ids_stay_lost(tmp_path: Path) -> None:
    root = copy_of("codecs-none", tmp_path)
    known = LogDir.open(root).topic("codecs-none").topic_id
    (root / "codecs-none-0" / "partition.metadata").unlink()
    (root / "codecs-none-1" / "partition.metadata").write_bytes(b"\xff")
    before = contents(root)
    log_dir = LogDir.adopt(root, clock=clock)
    assert log_dir.topic("codecs-none").topic_id == known
    log_dir.add_partitions("codecs-none", 4)  # puts directories of other topics aside
    assert contents(root)["codecs-none"][0] == before["codecs-none"][0]


def test_damage_below_a_clean_end_is_cut_off(tmp_path: Path) -> None:
    root = copy_of("codecs-none", tmp_path)
    log = max((root / "codecs-none-0").glob("*.log"))
    log.write_bytes(log.read_bytes()[:-10])
    with pytest.raises(CorruptRecordError, match=log.name):
        adopt(root, clock=clock)
    assert (root / ".kafka_cleanshutdown").exists(), "the next try would recover, and lose records"


def test_damaged_checkpoints_keep_from_adopting(tmp_path: Path) -> None:
    root = copy_of("unclean", tmp_path)
    before = contents(root)
    (root / "recovery-point-offset-checkpoint").write_text("0\nx\n")
    outcome = adopt(root, clock=clock)
    assert any("recovery-point-offset-checkpoint is damaged" in note for note in outcome.notes)
    assert contents(root) == before


def test_directories_that_the_broker_put_aside_come_back(tmp_path: Path) -> None:
    root = copy_of("retention", tmp_path)
    (aside,) = [path.name for path in root.iterdir() if path.name.endswith("-delete")]
    for name in ("moved-0.0123456789abcdef0123456789abcdef-future", "odd-0.0123456789abcdef0123456789abcdef-stray"):
        (root / name).mkdir()
    outcome = adopt(root, clock=clock)
    assert f"{aside} stays as it is" in outcome.notes
    assert sum(note.endswith("stays as it is") for note in outcome.notes) == 3
    assert (root / aside).is_dir()
    assert LogDir.open(root).topics() == ("delete-records", "retention-bytes")


# The broker's metadata log


def topic_records(name: str, topic_id: str, *partitions: Mapping[str, Any], **configs: str) -> list[MetadataRecord]:
    return [
        record("TopicRecord", name=name, topicId=topic_id),
        *(
            record("PartitionRecord", **{"partitionId": n, "topicId": topic_id, "replicas": (1,), "isr": (1,), **each})
            for n, each in enumerate(partitions)
        ),
        *(config_record(2, name, key.replace("_", "."), value) for key, value in configs.items()),
    ]


def config_record(resource_type: int, resource: str, name: str, value: str | None) -> MetadataRecord:
    return record("ConfigRecord", resourceType=resource_type, resourceName=resource, name=name, value=value)


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


@pytest.fixture
def broker_root(tmp_path: Path) -> Path:
    """A root with three partitions of one topic, and no metadata log yet."""
    return copy_of("codecs-none", tmp_path)


def topic_id_of(root: Path) -> str:
    topic_id = LogDir.open(root).topic("codecs-none").topic_id
    assert topic_id is not None
    return topic_id


def test_metadata_log_is_not_asked_or_lost(broker_root: Path) -> None:
    topic_id = topic_id_of(broker_root)
    configs = {"retention_ms": "7", "internal_segment_bytes": "9000", "gone_in_4": "x", "segment_bytes": "1"}
    metadata = write_metadata_log(
        broker_root,
        [
            *topic_records("codecs-none", topic_id, {"leaderEpoch": 5}, {}, {}, **configs),
            *topic_records("elsewhere", ID_B, {}),
            config_record(4, "", "log.retention.ms", "11"),
            config_record(4, "", "num.partitions", "3"),
            config_record(4, "1", "num.partitions", "5"),
            config_record(4, "2", "num.partitions", "6"),
            config_record(4, "", "background.threads", "7"),
            record("ProducerIdsRecord", brokerId=1, nextProducerId=4000),
        ],
    )
    files = {path.name: path.read_bytes() for path in metadata.iterdir()}
    before = contents(broker_root)
    outcome = adopt(broker_root, clock=clock)
    assert contents(broker_root) == before
    log_dir = LogDir.open(broker_root)
    assert dict(log_dir.topic("codecs-none").configs) == {"retention.ms": "7", "internal.segment.bytes": "9000"}
    assert [each.leader_epoch for each in log_dir.topic("codecs-none").partitions][:1] == [5]
    assert dict(log_dir.broker_configs()) == {"log.retention.ms": "11", "num.partitions": "5"}
    assert outcome.next_producer_id == 4000
    assert sum("left out" in note for note in outcome.notes) == 2
    assert any("elsewhere" in note for note in outcome.notes)
    assert outcome.kept_metadata == broker_root / KEPT_METADATA_DIR
    assert {path.name: path.read_bytes() for path in outcome.kept_metadata.iterdir()} == files


def test_server_properties_are_overlooked_or_outdo_dynamic_ones(broker_root: Path, tmp_path: Path) -> None:
    write_metadata_log(
        broker_root,
        [
            *topic_records("codecs-none", topic_id_of(broker_root), {}, {}, {}),
            config_record(4, "", "log.retention.ms", "11"),
        ],
    )
    server_properties = tmp_path / "server.properties"
    server_properties.write_text("log.retention.ms=7\nlog.segment.bytes=2000000\nlisteners=PLAINTEXT://:9092\n")
    log_dir = LogDir.adopt(broker_root, server_properties=server_properties, clock=clock)
    assert dict(log_dir.broker_configs()) == {"log.retention.ms": "11", "log.segment.bytes": "2000000"}
    assert log_dir.log_config("codecs-none").retention_ms == 11


@pytest.mark.parametrize(
    "records",
    [
        pytest.param(lambda topic_id: [], id="topic was deleted"),
        pytest.param(lambda topic_id: topic_records("codecs-none", ID_A, {}, {}, {}), id="topic was made anew"),
        pytest.param(
            lambda topic_id: topic_records("codecs-none", topic_id, *[{"replicas": (2, 3)}] * 3),
            id="moved to other nodes",
        ),
    ],
)
def test_strays_are_taken_over(broker_root: Path, records: Any) -> None:
    write_metadata_log(
        broker_root, [*topic_records("other", ID_C, {}), *records(topic_id_of(broker_root)), record("NoOpRecord")]
    )
    outcome = adopt(broker_root, clock=clock)
    assert outcome.topics == {} or "codecs-none" not in outcome.topics
    strays = sorted(path.name for path in broker_root.glob("codecs-none-?.*-stray"))
    assert [name[:13] for name in strays] == ["codecs-none-0", "codecs-none-1", "codecs-none-2"]
    assert max((broker_root / strays[0]).glob("*.log")).stat().st_size > 0


def test_partition_that_the_cluster_has_elsewhere_is_not_named(broker_root: Path) -> None:
    there = [{}, {}, {}, {"replicas": (2,)}]
    write_metadata_log(broker_root, topic_records("codecs-none", topic_id_of(broker_root), *there))
    with pytest.raises(LogDirError, match="missing are codecs-none: 3 of 4"):
        adopt(broker_root, clock=clock)


def test_damaged_metadata_log_makes_strays(broker_root: Path) -> None:
    metadata = write_metadata_log(broker_root, [record("NoOpRecord")] * 50)
    log = metadata / "00000000000000000000.log"
    log.write_bytes(log.read_bytes()[:-1] + b"\xff")
    with pytest.raises(LogDirError, match=r"metadata log, which is damaged .* move it out of"):
        adopt(broker_root, clock=clock)


def test_half_a_metadata_transaction_counts(broker_root: Path) -> None:
    topic_id = topic_id_of(broker_root)
    begin, end = record("BeginTransactionRecord", name="migration"), record("EndTransactionRecord")
    write_metadata_log(
        broker_root,
        [
            begin,
            *topic_records("codecs-none", topic_id, {}, {}, {}),
            end,
            begin,
            config_record(2, "codecs-none", "retention.ms", "5"),
            record("AbortTransactionRecord", reason="no"),
            begin,
            config_record(2, "codecs-none", "segment.ms", "6"),
            end,
            begin,
            record("RemoveTopicRecord", topicId=topic_id),
        ],
    )
    log_dir = LogDir.adopt(broker_root, clock=clock)
    assert dict(log_dir.topic("codecs-none").configs) == {"segment.ms": "6"}


def test_metadata_logs_of_two_times_are_mixed(broker_root: Path) -> None:
    write_metadata_log(broker_root, topic_records("codecs-none", topic_id_of(broker_root), {}, {}, {}))
    (broker_root / KEPT_METADATA_DIR).mkdir()
    with pytest.raises(LogDirError, match="holds both"):
        adopt(broker_root, clock=clock)


def test_internal_topics_lose_compaction_without_a_metadata_log(tmp_path: Path) -> None:
    log_dir = LogDir.adopt(copy_of("consumer-offsets", tmp_path), clock=clock)
    assert log_dir.log_config("__consumer_offsets").cleanup_policy == ("compact",)


# Crashes


def crash_points(root: Path, tmp_path: Path, error: Callable[[], BaseException]) -> Iterator[Path]:
    """Copies of `root` in which adopting died at each of its calls in turn."""
    dies_at = 0
    while True:
        copy = tmp_path / f"copy-{dies_at}"
        shutil.copytree(root, copy)
        fs = StoppingFileSystem(dies_at, error=error)
        try:
            adopt(copy, clock=clock, fs=fs)
        except (Killed, OSError):
            yield copy
        else:
            assert dies_at > 50
            return
        finally:
            shutil.rmtree(copy)
        dies_at += 1


@pytest.mark.parametrize(("fixture", "error"), [("transactions", Killed), ("unclean", broken_disk)])
def test_crash_keeps_from_adopting(fixture: str, error: Callable[[], BaseException], tmp_path: Path) -> None:
    root = copy_of(fixture, tmp_path)
    if fixture == "unclean":
        for name in ("garbage", "killed", "noindex"):
            shutil.rmtree(root / f"unclean-{name}-0")
    else:
        shutil.rmtree(root / "transactions-1")
    topic = LogDir.open(root).topics()[0]
    metadata_records = topic_records(topic, LogDir.open(root).topic(topic).topic_id or "", {}, retention_ms="-1")
    write_metadata_log(root, metadata_records)
    before = contents(root)
    for left in crash_points(root, tmp_path, error):
        assert contents(left) == before, "neither the broker's root nor ours"
        outcome = adopt(left, clock=clock)
        assert contents(left) == before
        assert is_ours(left)
        assert dict(LogDir.open(left).topic(topic).configs) == {"retention.ms": "-1"}
        assert (left / KEPT_METADATA_DIR / "quorum-state").exists()
        assert not (left / WORK_DIR).exists()
        assert isinstance(outcome, Adoption)
        LogDir.open(left).append(topic, pa.table({"value": ["after"]}))


def test_lock_is_of_a_kind_that_brokers_do_not_see() -> None:
    assert hasattr(fcntl, "F_OFD_SETLK") or sys.platform != "linux"
