"""Adoption looks for what would stop it before its first change, also in a dry run, and takes idle partitions."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.adopted_roots import clock, copy_of, topic_records, write_metadata_log
from builders.controlled import open_log_dir

from pyspark_kafkalog.errors import CorruptRecordError, KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.export.export import export_new_broker
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.adopt import adopt as adoption
from pyspark_kafkalog.root.adopt.adopt import adopt
from pyspark_kafkalog.root.adopt.plan import KEPT_METADATA_DIR, WORK_DIR
from pyspark_kafkalog.root.brokers.broker_root import BrokerRoot
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CHECKPOINTS
from pyspark_kafkalog.storage.artefacts.marker_files import CLEAN_SHUTDOWN_FILE
from pyspark_kafkalog.tools.main import main

UNKNOWN_TYPE = bytes([1, 0xB7, 0x1F, 0])
IDLE = {"t": (100, None), "tiered": (40, 0)}


def _nul_leader_epochs(root: Path) -> None:
    (root / "cars-0" / "leader-epoch-checkpoint").write_bytes(bytes(8))


def _shared_topic_id(root: Path) -> None:
    shutil.copytree(root / "cars-0", root / "cars.bak-0")


def _log_start_beyond_end(root: Path) -> None:
    (root / "log-start-offset-checkpoint").write_text("0\n1\ncars 0 999\n")


def _empty_meta_properties(root: Path) -> None:
    (root / "meta.properties").write_bytes(b"")


def _emptied_segment(root: Path) -> None:
    max((root / "cars-0").glob("*.log")).write_bytes(b"")


def _linked_directory(root: Path) -> None:
    (root / "cars-0").rename(root.parent / "elsewhere")
    (root / "cars-0").symlink_to(root.parent / "elsewhere")


def _older_format(root: Path) -> None:
    path = min((root / "cars-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[16] = 1
    path.write_bytes(data)


def _wide_offsets(root: Path) -> None:
    path = max((root / "cars-0").glob("*.log"))
    far = Record(offset=3_000_000_000, timestamp_ms=0, key=None, value=b"x")
    path.write_bytes(path.read_bytes() + encode_batch([far]))


def _unknown_metadata_record(root: Path) -> None:
    topic_id = LogDir.open(root).topic("cars").topic_id
    assert topic_id is not None
    log = write_metadata_log(root, topic_records("cars", topic_id, {})) / "00000000000000000000.log"
    known = log.read_bytes()
    log.write_bytes(known + encode_batch([Record(offset=2, timestamp_ms=0, key=None, value=UNKNOWN_TYPE)]))


def _damaged_segment_without_index(root: Path) -> None:
    path = min((root / "cars-0").glob("*.log"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    path.with_suffix(".index").unlink()


def _torn_segment_without_index(root: Path) -> None:
    path = sorted((root / "cars-0").glob("*.log"))[1]
    path.write_bytes(path.read_bytes()[:-9])
    path.with_suffix(".index").unlink()


OBSTACLES: list[tuple[Callable[[Path], None], str]] = [
    (_nul_leader_epochs, "leader-epoch-checkpoint at byte 0"),
    (_shared_topic_id, "topics cars and cars.bak have the same topic id"),
    (_log_start_beyond_end, "would delete all records, offsets 0 to 399"),
    (_empty_meta_properties, "meta.properties"),
    (_emptied_segment, "expected batches up to offset 399"),
    (_linked_directory, "symbolic link"),
    (_older_format, r"magic 0 or 1"),
    (_wide_offsets, "found 3000000000"),
    (_unknown_metadata_record, "found type 4023"),
    (_damaged_segment_without_index, "00000000000000000000.log at byte"),
    (_torn_segment_without_index, "found a torn batch"),
]


def _files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.all_cases
@pytest.mark.parametrize(("obstruct", "message"), OBSTACLES)
def test_obstacle_is_told_before_the_first_change(
    tmp_path: Path, obstruct: Callable[[Path], None], message: str
) -> None:
    root = copy_of("cars", tmp_path)
    obstruct(root)
    before = _files(root)
    for dry_run in (True, False):
        with pytest.raises(KafkalogError, match=message):
            adopt(root, dry_run=dry_run, clock=clock)
    with pytest.raises((KafkalogError, OSError)):
        export_new_broker(BrokerRoot(root, clock=clock), tmp_path / "new", metadata_partitions=1)
    assert not (tmp_path / "new").exists()
    assert _files(root) == before
    assert (root / CLEAN_SHUTDOWN_FILE).exists()


def test_damage_that_only_the_conversion_finds_leaves_a_clean_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = copy_of("cars", tmp_path)
    marker = (root / CLEAN_SHUTDOWN_FILE).read_bytes()

    def fail(*_: object, **__: object) -> None:
        raise CorruptRecordError(file="x", position=0, expected="sound bytes", found="others", advice="")

    monkeypatch.setattr(adoption, "adopt_log", fail)
    with pytest.raises(CorruptRecordError):
        adopt(root, clock=clock)
    assert (root / CLEAN_SHUTDOWN_FILE).read_bytes() == marker
    assert not (root / WORK_DIR).exists()


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_damaged_checkpoint_of_a_broker_is_not_used_and_stays_in_no_native_root(tmp_path: Path, name: str) -> None:
    root = copy_of("cars", tmp_path)
    (root / name).write_bytes(bytes(15))
    if name == "log-start-offset-checkpoint":
        found = LogDir.open(root).partition("cars", 0)
        assert (found.log_start_offset, found.high_watermark) == (0, 400)
    outcome = adopt(root, clock=clock)
    assert f"{name} is damaged" in " ".join(outcome.notes)
    assert LogDir.open(root).read("cars").num_rows == 400
    assert verify(LogDir.open(root).root).is_sound


@pytest.mark.parametrize("name", [WORK_DIR, KEPT_METADATA_DIR])
def test_half_a_conversion_is_found_by_verify(tmp_path: Path, name: str) -> None:
    root = copy_of("cars", tmp_path)
    (root / name).mkdir()
    found = verify(LogDir.open(root).root)
    assert [each.what for each in found.findings if each.severity == "error"] == ["unfinished-adoption"]


def test_undecodable_metadata_record_is_found_by_verify(tmp_path: Path) -> None:
    root = copy_of("cars", tmp_path)
    _unknown_metadata_record(root)
    assert "metadata-log" in [each.what for each in verify(LogDir.open(root).root).findings]


def _idle_broker(root: Path) -> Path:
    """A cleanly stopped broker's directory: partition t-0 has expired, all local segments of tiered-0 are tiered."""
    root.mkdir()
    for topic, (base, _) in IDLE.items():
        (root / f"{topic}-0").mkdir()
        for suffix in ("log", "index", "timeindex"):
            (root / f"{topic}-0" / f"{base:020}.{suffix}").touch()
        first = 0 if topic == "tiered" else base
        (root / f"{topic}-0" / "leader-epoch-checkpoint").write_text(f"0\n1\n0 {first}\n")
    lines = "".join(f"{topic} 0 {base}\n" for topic, (base, _) in IDLE.items())
    for name in ("replication-offset-checkpoint", "recovery-point-offset-checkpoint"):
        (root / name).write_text(f"0\n{len(IDLE)}\n{lines}")
    (root / "log-start-offset-checkpoint").write_text("0\n1\ntiered 0 0\n")
    (root / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=R0JkeCVISIe35JZEHmS7gA\n")
    (root / CLEAN_SHUTDOWN_FILE).touch()
    return root


def _ends(root: Path) -> dict[str, tuple[int, int]]:
    log_dir = LogDir.open(root)
    found = {topic: log_dir.partition(topic, 0) for topic in IDLE}
    return {topic: (each.local_log_start_offset, each.high_watermark) for topic, each in found.items()}


def test_idle_expired_and_wholly_tiered_partitions_of_a_stopped_broker_are_adopted(tmp_path: Path) -> None:
    root = _idle_broker(tmp_path / "broker")
    ends = {"t": (100, 100), "tiered": (40, 40)}
    assert _ends(root) == ends
    assert verify(LogDir.open(root).root).is_sound
    adopt(root, local_only=True, dry_run=True, clock=clock)
    adopt(root, local_only=True, clock=clock)
    assert _ends(root) == ends
    assert LogDir.open(root).read("t", isolation="read_committed").num_rows == 0
    assert verify(LogDir.open(root).root).is_sound


def test_idle_expired_partition_of_a_stopped_broker_is_exported(tmp_path: Path) -> None:
    root = BrokerRoot(_idle_broker(tmp_path / "broker"), clock=clock)
    exported = export_new_broker(root, tmp_path / "copy", ["t"], metadata_partitions=1)
    assert [(each.log_start_offset, each.high_watermark) for each in exported.partitions] == [(100, 100)]
    assert _ends_of(tmp_path / "copy") == (100, 100)


def _ends_of(root: Path) -> tuple[int, int]:
    found = LogDir.open(root).partition("t", 0)
    return found.log_start_offset, found.high_watermark


def test_transaction_indexes_lost_before_the_adoption_are_rebuilt_by_the_command_of_its_note(tmp_path: Path) -> None:
    root = copy_of("transactions", tmp_path)
    lost = [path for path in root.rglob("*.txnindex") if path.stat().st_size]
    assert lost
    for path in lost:
        path.unlink()
    before = _files(root)
    planned = adopt(root, dry_run=True, clock=clock).notes
    assert _files(root) == before
    notes = [note for note in adopt(root, clock=clock).notes if ".txnindex" in note]
    assert [note for note in planned if ".txnindex" in note] == notes
    [note] = notes
    assert f"topic transactions: {len(lost) + 4} segments with transactions" in note
    assert {finding.what for finding in verify(open_log_dir(root, clock=clock).root).findings} == {"txn-index-missing"}

    command = shlex.split(note.partition("adoption: ")[2])
    assert command[0] == "kafkalog"
    assert main(command[1:]) == 0
    assert all(path.exists() for path in lost)
    assert not verify(open_log_dir(root, clock=clock).root).findings


def test_adoption_without_transactions_has_no_note_on_their_indexes(tmp_path: Path) -> None:
    assert not [note for note in adopt(copy_of("cars", tmp_path), clock=clock).notes if ".txnindex" in note]
