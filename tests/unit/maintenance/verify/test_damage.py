"""Verification finds damage of each kind, and names its file and position."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.metadata_roots import forget_images
from builders.verify_roots import findings_in, flip
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.verify.findings import Finding
from pyspark_kafkalog.maintenance.verify.root import check_metadata
from pyspark_kafkalog.metadata.local.log import LocalCommitLog
from pyspark_kafkalog.record.header import CRC_AT, crc32c
from pyspark_kafkalog.storage.artefacts.checkpoint_file import write_offset_checkpoint
from pyspark_kafkalog.storage.artefacts.marker_files import write_topic_id
from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry, read_snapshot, write_snapshot
from pyspark_kafkalog.storage.names import TopicPartition

pytestmark = pytest.mark.usefixtures("without_waits")

METADATA = "__cluster_metadata-0"


def logs(root: Path, partition: str = "orders-1") -> list[Path]:
    return sorted((root / partition).glob("*.log"))


def with_txn_index(root: Path) -> Path:
    return min(path for path in (root / "transactions-0").glob("*.txnindex") if path.stat().st_size > 34)


def put(path: Path, at: int, content: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + len(content)] = content
    path.write_bytes(data)


def malform(path: Path) -> None:
    """Make the last record longer than its batch, with a CRC that agrees."""
    data = bytearray(path.read_bytes())
    second = 12 + int.from_bytes(data[8:12], "big") if len(data) > 12 + int.from_bytes(data[8:12], "big") else 0
    size = 12 + int.from_bytes(data[second + 8 : second + 12], "big")
    data[second + 61] += 2
    data[second + 17 : second + 21] = crc32c(bytes(data[second + 21 : second + size])).to_bytes(4, "big")
    path.write_bytes(data)


def change_snapshot(path: Path) -> None:
    entries = list(read_snapshot(path))
    last = entries[-1]
    entries[-1] = ProducerStateEntry(last.producer_id, last.producer_epoch, 7, 0, 0, last.last_timestamp_ms)
    write_snapshot(path, entries)


def snapshot_with_producers(root: Path) -> Path:
    bases = {path.stem for path in logs(root, "transactions-0")}
    found = [path for path in sorted((root / "transactions-0").glob("*.snapshot")) if path.stem in bases]
    return next(path for path in found if len(read_snapshot(path)) > 1)


Damage = tuple[str, Callable[[Path], Path], Callable[[Path], None]]

#: What is to be found, in which file, after what has been done to it.
DAMAGES: list[Damage] = [
    ("batch-crc", lambda r: logs(r)[0], lambda p: flip(p, -3)),
    ("batch-crc", lambda r: logs(r)[0], lambda p: flip(p, 61)),
    ("batch-header", lambda r: logs(r)[0], lambda p: flip(p, 16, 3)),
    ("batch-header", lambda r: logs(r)[0], lambda p: put(p, 8, b"\0\0\0\x05")),
    ("torn-batch", lambda r: logs(r)[0], lambda p: p.write_bytes(p.read_bytes()[:-7])),
    ("torn-batch", lambda r: logs(r)[0], lambda p: put(p, 8, b"\x20\0\0\0")),
    ("offset-order", lambda r: logs(r)[0], lambda p: flip(p, 7, 4)),
    ("offset-past-segment", lambda r: logs(r)[0], lambda p: flip(p, 5, 64)),
    ("record", lambda r: logs(r)[0], malform),
    ("leader-epoch-falls", lambda r: logs(r)[0], lambda p: flip(p, 15, 8)),
    ("offsets-missing", lambda r: logs(r)[0], lambda p: logs(p.parents[1])[1].unlink()),
    ("segment-missing", lambda r: logs(r)[0], Path.unlink),
    ("segment-missing", lambda r: logs(r)[-1], Path.unlink),
    ("log-too-short", lambda r: logs(r)[-1], lambda p: p.write_bytes(p.read_bytes()[:-1])),
    ("index-missing", lambda r: logs(r)[0].with_suffix(".index"), Path.unlink),
    ("index-missing", lambda r: logs(r)[0].with_suffix(".timeindex"), Path.unlink),
    ("index-length", lambda r: logs(r)[0].with_suffix(".index"), lambda p: p.write_bytes(p.read_bytes() + b"\1")),
    ("index-zeros", lambda r: logs(r)[0].with_suffix(".index"), lambda p: p.write_bytes(p.read_bytes() + b"\0" * 64)),
    ("index-order", lambda r: logs(r)[0].with_suffix(".timeindex"), lambda p: p.write_bytes(p.read_bytes() * 2)),
    ("offset-index-entry", lambda r: logs(r)[0].with_suffix(".index"), lambda p: flip(p, 7)),
    ("time-index-entry", lambda r: logs(r)[0].with_suffix(".timeindex"), lambda p: flip(p, 7)),
    ("time-index-end", lambda r: logs(r)[0].with_suffix(".timeindex"), lambda p: p.write_bytes(b"")),
    ("offset-index-end", lambda r: logs(r)[-1].with_suffix(".index"), lambda p: p.write_bytes(p.read_bytes()[:-8])),
    ("txn-index-missing", with_txn_index, Path.unlink),
    ("txn-index-missing", with_txn_index, lambda p: p.write_bytes(p.read_bytes()[:-34])),
    ("txn-index-entry", with_txn_index, lambda p: flip(p, 1)),
    ("txn-index-entry", with_txn_index, lambda p: flip(p, 9)),
    ("txn-index-entry", with_txn_index, lambda p: flip(p, 17)),
    ("txn-index-entry", with_txn_index, lambda p: flip(p, 33)),
    ("txn-index-entry", with_txn_index, lambda p: p.write_bytes(p.read_bytes() * 2)),
    ("producer-snapshot", lambda r: logs(r)[1].with_suffix(".snapshot"), lambda p: flip(p, 9)),
    ("producer-snapshot-missing", lambda r: logs(r)[1].with_suffix(".snapshot"), Path.unlink),
    ("producer-snapshot-differs", snapshot_with_producers, change_snapshot),
    ("leader-epochs", lambda r: r / "orders-1" / "leader-epoch-checkpoint", lambda p: p.write_text("0\n2\n0 0\n")),
    ("leader-epochs", lambda r: r / "orders-1" / "leader-epoch-checkpoint", lambda p: p.write_text("0\n2\n5 0\n4 9\n")),
    ("leader-epochs", lambda r: r / "orders-1" / "leader-epoch-checkpoint", lambda p: p.write_text("0\n1\n0 9\n")),
    ("leader-epochs", lambda r: r / "orders-1" / "leader-epoch-checkpoint", Path.unlink),
    ("leader-epoch", lambda r: r / "orders-1" / "leader-epoch-checkpoint", lambda p: p.write_text("0\n1\n3 0\n")),
    ("topic-id", lambda r: r / "orders-1" / "partition.metadata", Path.unlink),
    ("topic-id", lambda r: r / "orders-1" / "partition.metadata", lambda p: p.write_text("version: 0\n")),
    (
        "topic-id-differs",
        lambda r: r / "orders-1" / "partition.metadata",
        lambda p: write_topic_id(p, "SF4fLBrsTsCBKkm_tBhcKg"),
    ),
    ("directory-missing", lambda r: r / "orders-1", shutil.rmtree),
    ("unfinished-swap", lambda r: r / "orders-1" / f"{0:020d}.index.swap", lambda p: p.write_bytes(b"")),
    ("stray-directory", lambda r: r / "other-4", Path.mkdir),
    ("meta-properties", lambda r: r / "meta.properties", Path.unlink),
    ("meta-properties", lambda r: r / "meta.properties", lambda p: p.write_text("version=9\n")),
    ("checkpoint", lambda r: r / "recovery-point-offset-checkpoint", lambda p: p.write_text("0\n7\n")),
    (
        "checkpoint-entry",
        lambda r: r / "replication-offset-checkpoint",
        lambda p: write_offset_checkpoint(p, {TopicPartition("orders", 1): 81}),
    ),
    (
        "checkpoint-entry",
        lambda r: r / "cleaner-offset-checkpoint",
        lambda p: write_offset_checkpoint(p, {TopicPartition("orders", 1): 81}),
    ),
    ("checkpoint-entry", lambda r: r / "log-start-offset-checkpoint", Path.unlink),
    ("metadata-hint", lambda r: r / METADATA / "kafkalog-head", lambda p: flip(p, 3)),
    ("topic-id", lambda r: r / METADATA / "partition.metadata", Path.unlink),
]


@pytest.mark.parametrize(
    ("what", "where", "damage"), DAMAGES, ids=[f"{at}-{what}" for at, (what, _, _) in enumerate(DAMAGES)]
)
def test_damaged_file_is_reported(
    root: Path, what: str, where: Callable[[Path], Path], damage: Callable[[Path], None]
) -> None:
    path = where(root)
    damage(path)
    assert (what, str(path)) in {(finding.what, finding.file) for finding in findings_in(root)}


@pytest.mark.parametrize("is_broker_directory", [False, True])
def test_partition_that_is_link_is_reported_and_not_followed(root: Path, is_broker_directory: bool) -> None:
    if is_broker_directory:
        shutil.rmtree(root / METADATA)
    outside = root.parent / "outside"
    (root / "orders-1").rename(outside)
    (root / "orders-1").symlink_to(outside)
    of_partition = [each for each in findings_in(root) if each.partition == TopicPartition("orders", 1)]
    assert [(each.what, each.file) for each in of_partition] == [("directory-is-a-link", str(root / "orders-1"))]


def only(findings: list[Finding], what: str) -> Finding:
    [found] = [finding for finding in findings if finding.what == what]
    return found


def test_damaged_batch_is_reported_with_position_and_offset(root: Path) -> None:
    path = logs(root)[0]
    data = path.read_bytes()
    second = 12 + int.from_bytes(data[8:12], "big")
    flip(path, second + 100)
    found = only(findings_in(root), "batch-crc")
    assert (found.position, found.offset) == (second + 17, int.from_bytes(data[second : second + 8], "big"))
    assert found.partition == TopicPartition("orders", 1)


def test_batches_after_damage_are_checked(root: Path) -> None:
    path = logs(root, "transactions-1")[0]
    first = int.from_bytes(path.read_bytes()[8:12], "big")
    put(path, 12 + first + 16, b"\x7f")  # the second batch cannot be framed; the index leads on behind it
    flip(path, -1)
    whats = [finding.what for finding in findings_in(root) if finding.file == str(path)]
    assert whats == ["batch-header", "batch-crc"]


@pytest.fixture
def several(tmp_path: Path, one_commit_a_file: None) -> Path:
    """A root with several files of commits."""
    log_dir = LogDir.create(tmp_path / "several")
    for topic in "abcde":
        log_dir.create_topic(topic, 1)
    return tmp_path / "several"


def test_missing_commit_is_reported(several: Path) -> None:
    commits = sorted((several / METADATA).glob("*.log"))
    commits[3].unlink()
    assert "commit-missing" in [finding.what for finding in check_metadata(several)]


def test_missing_last_commit_is_reported(several: Path) -> None:
    sorted((several / METADATA).glob("*.log"))[-1].unlink()
    [found] = check_metadata(several)
    assert (found.what, Path(found.file).suffix) == ("commit-missing", ".log")


def test_damaged_commit_is_reported_with_its_file(several: Path) -> None:
    path = sorted((several / METADATA).glob("*.log"))[3]
    flip(path, 70)
    found = check_metadata(several)
    assert ("commit", str(path)) in {(finding.what, finding.file) for finding in found}
    forget_images()
    with pytest.raises(KafkalogError):
        LogDir.open(several)


def test_damaged_commit_is_reported_with_its_place_in_the_file(root: Path) -> None:
    path = min((root / METADATA).glob("*.log"))
    place = [*LocalCommitLog(root / METADATA).read_file(0)][3].place
    assert place is not None
    flip(path, place.position + 70)
    [found, *_] = check_metadata(root)
    crc_at = place.position + CRC_AT
    assert (found.what, found.file, found.position) == ("commit", str(path), crc_at)
    forget_images()
    with pytest.raises(KafkalogError, match=f"{path.name} at byte {crc_at}"):
        LogDir.open(root)


def test_snapshot_that_differs_from_commits_is_reported(root: Path) -> None:
    from pyspark_kafkalog.metadata.local.backend import LocalSnapshots
    from pyspark_kafkalog.storage.filesystem import LOCAL

    forget_images()
    log_dir = LogDir.open(root)
    image = log_dir.root.native().store.image
    LocalSnapshots(root / METADATA, LOCAL).write(image)
    assert check_metadata(root) == []
    path = next((root / METADATA).glob("*.checkpoint"))
    flip(path, -90)
    assert [finding.what for finding in check_metadata(root)] == ["metadata-snapshot"]


def test_compressed_batches_are_decompressed_only_on_request(root: Path) -> None:
    path = logs(root)[-1]
    data = bytearray(path.read_bytes())
    at = 0
    while data[at + 22] & 7 == 0:
        at += 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    size = 12 + int.from_bytes(data[at + 8 : at + 12], "big")
    data[at + 60] -= 1  # a record fewer than there are
    data[at + 17 : at + 21] = crc32c(bytes(data[at + 21 : at + size])).to_bytes(4, "big")
    path.write_bytes(data)
    assert findings_in(root, are_records_checked=False) == []
    assert only(findings_in(root), "record").file == str(path)


def test_broker_damage_below_high_watermark_is_an_error(tmp_path: Path) -> None:
    root = shutil.copytree(FIXTURES / "unclean", tmp_path / "log")
    path = logs(root, "unclean-torn-0")[0]
    flip(path, 80)
    found = [finding for finding in findings_in(root) if finding.file == str(path)]
    assert [(finding.what, finding.severity.value) for finding in found] == [("batch-crc", "error")]


def test_findings_of_one_kind_are_limited(root: Path) -> None:
    path = logs(root, "transactions-0")[1]
    index = path.with_suffix(".txnindex")
    index.write_bytes(index.read_bytes()[:34] * 150)
    path.write_bytes(path.read_bytes() + bytes(150 * 61))  # room for as many markers
    found = [finding for finding in findings_in(root) if finding.what == "txn-index-entry"]
    assert len(found) == 101
    assert "more of this kind" in found[-1].found
