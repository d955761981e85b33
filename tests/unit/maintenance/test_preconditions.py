"""A job that an obstacle would stop changes nothing before it says so; a dry run says the same."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from builders.tiered_roots import TOPIC, append_rounds, tiered_root
from repository import FIXTURES

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.retention.delete import retain
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.tier import tier_segments
from pyspark_kafkalog.root.adopt.adopt import adopt
from pyspark_kafkalog.storage.artefacts.transaction_index import TXN_INDEX_ENTRY_BYTES
from pyspark_kafkalog.storage.names import LEADER_EPOCH_CHECKPOINT, TopicPartition
from pyspark_kafkalog.tools.main import main

P0 = TopicPartition(TOPIC, 0)
YEAR_MS = 365 * 86_400_000
NEW = "new"


def _root(tmp_path: Path) -> LogDir:
    """A root with a tiered topic of several segments, which are small by now, and a topic with four partitions."""
    (tmp_path / "store").mkdir()
    log_dir = tiered_root(tmp_path / "log", tmp_path / "store")
    append_rounds(log_dir, 20)
    log_dir.alter_topic(TOPIC, add={"internal.segment.bytes": "10000"})
    log_dir.create_topic("other", partitions=4)
    return LogDir.open(log_dir.path)


def _nothing(log_dir: LogDir) -> None:
    pass


def _nul_epochs(log_dir: LogDir) -> None:
    (Path(log_dir.path) / str(P0) / LEADER_EPOCH_CHECKPOINT).write_bytes(bytes(8))


def _nul_epochs_of_local_log(log_dir: LogDir) -> None:
    log_dir.alter_topic(TOPIC, add={"remote.log.copy.disable": "true"})
    _nul_epochs(log_dir)


def _no_epochs(log_dir: LogDir) -> None:
    (Path(log_dir.path) / str(P0) / LEADER_EPOCH_CHECKPOINT).unlink()


def _torn_segment(log_dir: LogDir) -> None:
    path = sorted((Path(log_dir.path) / str(P0)).glob("*.log"))[-3]
    path.write_bytes(path.read_bytes()[:-10])


def _flipped_segment(log_dir: LogDir) -> None:
    path = sorted((Path(log_dir.path) / str(P0)).glob("*.log"))[-3]
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def _compacted_with(damage: Callable[[LogDir], None]) -> Callable[[LogDir], None]:
    def obstruct(log_dir: LogDir) -> None:
        log_dir.alter_topic(TOPIC, add={"remote.storage.enable": "false", "remote.log.delete.on.disable": "true"})
        log_dir.alter_topic(TOPIC, add={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"})
        damage(log_dir)

    return obstruct


def _lost_directory(log_dir: LogDir) -> None:
    shutil.rmtree(Path(log_dir.path) / str(P0))


def _said(reports: list[PartitionReport]) -> str:
    return "; ".join(each.error for each in reports if each.error)


def _retention(log_dir: LogDir, dry_run: bool) -> str:
    return _said(retain(log_dir.root, now_ms=log_dir.root.native().clock() + YEAR_MS, dry_run=dry_run))


def _delete_records(log_dir: LogDir, dry_run: bool) -> str:
    return _said(delete_records(log_dir.root, {P0: 100}, dry_run=dry_run))


def _merge(log_dir: LogDir, dry_run: bool) -> str:
    return _said(merge_segments(log_dir.root, dry_run=dry_run))


def _tier(log_dir: LogDir, dry_run: bool) -> str:
    return _said(tier_segments(log_dir.root, dry_run=dry_run))


def _job(name: str) -> Callable[[LogDir, bool], str]:
    def run(log_dir: LogDir, dry_run: bool) -> str:
        assert main([name, "--path", str(log_dir.path), "--local", *(["--dry-run"] if dry_run else [])]) == 1
        return ""

    return run


def _clean(log_dir: LogDir, dry_run: bool) -> str:
    return _said([clean_partition(log_dir.root, TOPIC, 0, dry_run=dry_run)])


def _command(*arguments: str, place: str = "log") -> Callable[[LogDir, bool], str]:
    def run(log_dir: LogDir, dry_run: bool) -> str:
        main([arguments[0], "--path", str(Path(log_dir.path).parent / place), *arguments[1:]])
        return ""

    return run


def _demote(log_dir: LogDir, dry_run: bool) -> str:
    leader = Path(log_dir.path).parent / "leader"
    main(["follow", "--from", str(leader), "--path", str(log_dir.path), "--once", "--demote"])
    return ""


def _leader_with_another_topic(log_dir: LogDir) -> None:
    LogDir.create(Path(log_dir.path).parent / "leader").create_topic(TOPIC, partitions=1)


def _same_leader_and_nul_epochs(log_dir: LogDir) -> None:
    leader = Path(log_dir.path).parent / "leader"
    main(["follow", "--from", str(log_dir.path), "--path", str(leader), "--once"])
    main(["promote", "--path", str(leader)])
    _nul_epochs(log_dir)


CASES: list[tuple[Callable[[LogDir, bool], str], Callable[[LogDir], None], str]] = [
    (_retention, _nul_epochs_of_local_log, "leader-epoch-checkpoint at byte 0"),
    (_delete_records, _nul_epochs, "leader-epoch-checkpoint at byte 0"),
    (_merge, _torn_segment, "torn batch"),
    (_tier, _no_epochs, "found none"),
    (_command("topics", "--alter", "--topic", "o.*", "--partitions", "3"), _nothing, "has 4 partitions"),
    (_command("topics", "--alter", "--topic", TOPIC, "--partitions", "3", "--config", "flush.ms=x"), _nothing, "flush"),
    (_command("topics", "--create", "--topic", "t", "--config", "flush.ms=x", place=NEW), _nothing, "flush"),
    (_job("log-cleaner"), _compacted_with(_torn_segment), "torn"),
    (_job("log-cleaner"), _compacted_with(_flipped_segment), "expected CRC-32C"),
    (_job("log-cleaner"), _compacted_with(_lost_directory), "gone with all its records"),
    (_clean, _compacted_with(_flipped_segment), "expected CRC-32C"),
    (_job("merge-segments"), _lost_directory, "gone with all its records"),
    (_job("reindex"), _lost_directory, "gone with all its records"),
    (_command("export"), _lost_directory, "is missing, which holds committed records"),
    (_demote, _leader_with_another_topic, "still takes writes"),
    (_demote, _same_leader_and_nul_epochs, "leader-epoch-checkpoint at byte 0"),
]


def _files(root: Path) -> dict[str, bytes]:
    """All files but locks and what metrics show of runs of the cleaner."""
    paths = [path for path in root.rglob("*") if path.is_file() and not path.name.endswith("lock")]
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in paths
        if path.parent != root / "log" or path.suffix != ".json"
    }


@pytest.mark.parametrize(("job", "obstruct", "message"), CASES)
def test_obstacle_is_told_before_the_first_change(
    tmp_path: Path,
    job: Callable[[LogDir, bool], str],
    obstruct: Callable[[LogDir], None],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    log_dir = _root(tmp_path)
    obstruct(log_dir)
    before = _files(tmp_path)
    for dry_run in (True, False):
        capsys.readouterr()
        said = job(LogDir.open(log_dir.path), dry_run)
        printed = capsys.readouterr()
        assert message in said + printed.err + printed.out
        assert _files(tmp_path) == before
    assert not (tmp_path / NEW).exists()


@pytest.mark.parametrize("dry_run", [True, False])
def test_transaction_index_that_lacks_an_entry_is_not_merged(tmp_path: Path, dry_run: bool) -> None:
    root = tmp_path / "transactions"
    shutil.copytree(FIXTURES / "transactions", root, ignore=shutil.ignore_patterns("expected"))
    adopt(root)
    log_dir = LogDir.open(root)
    for path in root.glob("*/*.txnindex"):
        path.write_bytes(path.read_bytes()[TXN_INDEX_ENTRY_BYTES:])
    before = _files(root)
    reports = merge_segments(log_dir.root, topics=["transactions"], dry_run=dry_run)
    assert "abort marker" in _said(reports)
    assert _files(root) == before


def test_segments_are_not_merged_across_offsets_that_are_missing(tmp_path: Path) -> None:
    """A copy of the lost segment can still be put back."""
    log_dir = LogDir.create(tmp_path / "log")
    log_dir.create_topic("a", partitions=1, configs={"internal.segment.bytes": "200"})
    for number in range(8):
        log_dir.append("a", pa.table({"value": [f"{number}" * 100]}))
    log_dir.alter_topic("a", delete=["internal.segment.bytes"])
    directory = tmp_path / "log" / "a-0"
    lost = sorted(directory.glob("*.log"))[3]
    kept = lost.rename(tmp_path / "kept")
    for dry_run in (True, False):
        (report,) = merge_segments(LogDir.open(log_dir.path).root, dry_run=dry_run)
        assert (report.error, report.segments_dropped) == (None, 4)
    kept.rename(lost)
    assert LogDir.open(log_dir.path).read("a").num_rows == 8
    assert merge_segments(LogDir.open(log_dir.path).root)[0].segments_dropped == 2
    assert LogDir.open(log_dir.path).read("a").num_rows == 8
