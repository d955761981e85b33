"""What the report says of damage, and of what it has not read, on each kind of root."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.controlled import create_log_dir
from builders.metadata_roots import forget_images
from builders.report_roots import HOUR_MS, NOW_MS, records
from builders.root_places import RootPlace, forget, memory_root, store_of
from builders.verify_roots import check_again_at_once
from fakes.clock import Clock
from kafkalog_command import Command

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.cleaner.run_record import CleanerRun, write_last_run
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.report.facts import Advice, RootFacts
from pyspark_kafkalog.report.findings import all_well
from pyspark_kafkalog.report.gather import GatherOptions, gather
from pyspark_kafkalog.storage.names import LOG_SUFFIX, segment_file

_PARTLY = "Nothing stands out in what was read; the bytes of batches were not checked."


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    check_again_at_once(monkeypatch)


@pytest.fixture
def sound(root_place: RootPlace) -> LogDir:
    return sound_root(root_place)


def sound_root(place: RootPlace) -> LogDir:
    """A root that no finding fits: one partition of several segments, all young."""
    log_dir = create_log_dir(place, clock=Clock(NOW_MS))
    log_dir.create_topic("orders", partitions=1, configs={"internal.segment.bytes": "200000"})
    for _ in range(4):
        log_dir.append("orders", records(100, start_ms=NOW_MS - 10, end_ms=NOW_MS, value_bytes=1500), flush="os")
    return log_dir


def look(place: RootPlace, *, verify: bool = False, now_ms: int = NOW_MS) -> RootFacts:
    forget_images()
    options = GatherOptions(sample_bytes=0, verify=verify)
    return gather(LogDir.open(place).root, options, clock=lambda: now_ms)


def problems(root: RootFacts) -> set[str]:
    return {each.title for each in root.findings if each.severity == "problem"}


def finding(root: RootFacts, title: str) -> Advice:
    return next(each for each in root.findings if each.title == title)


def test_sound_root_is_called_sound_only_after_its_batches_were_checked(sound: LogDir) -> None:
    partly, wholly = look(sound.path), look(sound.path, verify=True)

    assert (partly.findings, wholly.findings) == ((), ())
    assert (all_well(partly), all_well(wholly)) == (_PARTLY, "Nothing stands out.")
    assert any("kafkalog report --verify" in each for each in partly.coverage.unread)
    assert any("as by kafkalog verify" in each for each in wholly.coverage.read)


def test_damaged_batch_is_found_by_verification_and_not_denied_without(root_place: RootPlace) -> None:
    sound_root(root_place)
    if isinstance(root_place, Path):
        path = segment_file(root_place / "orders-0", 0, LOG_SUFFIX)
        path.write_bytes(flipped(path.read_bytes()))
    else:
        bucket = store_of(root_place).bucket
        bucket.write(bucket.keys("data")[0], flipped(bucket.body(bucket.keys("data")[0])))

    partly, wholly = look(root_place), look(root_place, verify=True)

    assert all_well(partly) == _PARTLY
    assert finding(wholly, "Batch CRC" if isinstance(root_place, Path) else "Damaged object").severity == "problem"


def flipped(data: bytes) -> bytes:
    return data[:300] + bytes([data[300] ^ 1]) + data[301:]


def first_segment_gone(root: Path) -> None:
    segment_file(root / "orders-0", 0, LOG_SUFFIX).unlink()


def last_segment_cut(root: Path) -> None:
    os.truncate(max((root / "orders-0").glob("*.log")), 10)


def last_segment_gone(root: Path) -> None:
    max((root / "orders-0").glob("*.log")).unlink()


def folder_gone(root: Path) -> None:
    shutil.rmtree(root / "orders-0")


def folder_is_a_link(root: Path) -> None:
    (root / "orders-0").rename(root.parent / "elsewhere")
    (root / "orders-0").symlink_to(root.parent / "elsewhere")


def checkpoint_of_zeros(root: Path) -> None:
    (root / "recovery-point-offset-checkpoint").write_bytes(bytes(15))


def epochs_of_zeros(root: Path) -> None:
    (root / "orders-0" / "leader-epoch-checkpoint").write_bytes(bytes(8))


def properties_gone(root: Path) -> None:
    (root / "meta.properties").unlink()


@pytest.mark.parametrize(
    ("damage", "title"),
    [
        (first_segment_gone, "Segment missing"),
        (last_segment_cut, "Log too short"),
        (last_segment_gone, "Segment missing"),
        (folder_gone, "Directory missing"),
        (folder_is_a_link, "Directory is a link"),
        (checkpoint_of_zeros, "Checkpoint"),
        (epochs_of_zeros, "Leader epochs"),
        (properties_gone, "Meta properties"),
    ],
)
def test_damage_that_names_and_sizes_show_is_found_in_a_file_root(
    tmp_path: Path, damage: Callable[[Path], None], title: str
) -> None:
    sound_root(tmp_path / "root")
    damage(tmp_path / "root")

    assert title in problems(look(tmp_path / "root"))


@pytest.mark.parametrize(
    ("damage", "title"),
    [
        (lambda root: os.truncate(root / "cars-0" / f"{333:020d}.log", 0), "Log too short"),
        (lambda root: shutil.rmtree(root / "cars-0"), "Directory missing"),
        (lambda root: (root / "replication-offset-checkpoint").write_bytes(bytes(15)), "Checkpoint"),
        (lambda root: (root / "log-start-offset-checkpoint").write_text("0\n1\ncars 0 999\n"), "Log start beyond end"),
        (lambda root: shutil.copytree(root / "cars-0", root / "cars.bak-0"), "Topic id twice"),
        (lambda root: (root / "meta.properties").write_bytes(b""), "Meta properties"),
    ],
)
def test_damage_that_names_and_sizes_show_is_found_in_a_brokers_directory(
    tmp_path: Path, kafka_fixtures: Path, damage: Callable[[Path], object], title: str
) -> None:
    root = shutil.copytree(kafka_fixtures / "cars", tmp_path / "cars")
    (root / "other-0").mkdir()
    damage(root)

    assert title in problems(look(root))


def test_lost_object_is_found_without_reading_any() -> None:
    stored = memory_root()
    sound_root(stored)
    bucket = store_of(stored).bucket
    key = bucket.keys("data")[0]
    store_of(stored).delete([key])

    assert key in finding(look(stored), "Missing object").text
    forget(stored)


@pytest.mark.usefixtures("one_commit_a_file")
def test_root_that_cannot_be_opened_has_a_page_of_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound_root(tmp_path / "root")
    commit = sorted((tmp_path / "root" / "__cluster_metadata-0").glob("*.log"))[2]
    commit.write_bytes(flipped(commit.read_bytes()) if commit.stat().st_size > 300 else b"\xff" * 100)
    forget_images()
    page = tmp_path / "page.html"

    status, said, why = Command("report", tmp_path / "root", capsys).try_to("-o", str(page))

    assert status == 1
    assert "cannot be loaded" in why
    assert "not read: topics, partitions, groups and batches" in said
    assert commit.name in page.read_text()


def test_damaged_partition_of_groups_hides_no_group_of_another(tmp_path: Path) -> None:
    log_dir = sound_root(tmp_path / "root")
    for name in ("billing", "shipping", "search"):
        log_dir.group(name).commit({("orders", 0): 5})
    topic = log_dir.root.native().store.image.topic("__consumer_offsets")
    written = [each.partition for each in topic.partitions if each.state.log_end_offset]
    segment_file(tmp_path / "root" / f"__consumer_offsets-{written[0]}", 0, LOG_SUFFIX).write_bytes(b"\xff" * 200)

    root = look(tmp_path / "root")

    assert finding(root, "Groups cannot be read").topic == "__consumer_offsets"
    assert len({each.group for each in root.groups}) == 2


def test_lag_is_a_note_and_a_warning_once_the_group_is_quiet(sound: LogDir) -> None:
    sound.group("billing").commit({("orders", 0): 390})

    young, quiet = look(sound.path), look(sound.path, now_ms=NOW_MS + 25 * HOUR_MS)

    assert (finding(young, "Lag").severity, finding(quiet, "Behind, and quiet").severity) == ("note", "warning")
    assert finding(young, "Lag").text.startswith("group billing has 10 offsets of 1 partition left to read")


def test_jobs_that_never_ran_are_named_until_they_run(root_place: RootPlace) -> None:
    log_dir = sound_root(root_place)
    compacted = {"cleanup.policy": "compact", "internal.segment.bytes": "8000", "min.cleanable.dirty.ratio": "0"}
    log_dir.create_topic("users", partitions=1, configs=compacted)
    for _ in range(4):
        log_dir.append("users", records(100, start_ms=NOW_MS - 10, end_ms=NOW_MS), flush="os")
    later_ms = NOW_MS + 8 * 24 * HOUR_MS

    before = {each.title for each in look(root_place, now_ms=later_ms).findings}
    apply_retention(log_dir.root, now_ms=later_ms)
    write_last_run(log_dir.root.native(), CleanerRun(began_ms=later_ms, ended_ms=later_ms))
    after = {each.title for each in look(root_place, now_ms=later_ms + 60_000).findings}

    assert {"Retention never ran", "Cleaner never ran"} <= before
    assert not {"Retention never ran", "Cleaner never ran"} & after


def test_staged_files_that_retention_should_have_removed_are_a_warning(tmp_path: Path) -> None:
    sound_root(tmp_path / "root")
    staged = tmp_path / "root" / "orders-0" / "0123456789abcdef0123456789abcdef-7.staged"
    staged.write_bytes(bytes(100))
    os.utime(staged, (0, NOW_MS // 1000 - 1))

    young, old = look(tmp_path / "root"), look(tmp_path / "root", now_ms=NOW_MS + 25 * HOUR_MS)

    assert "Staged files left" not in {each.title for each in young.findings}
    assert finding(old, "Staged files left").severity == "warning"
    assert finding(young, "Staged, not committed").severity == "note"


def test_damage_in_sampled_records_is_one_finding_after_batches_were_checked(tmp_path: Path) -> None:
    log_dir = sound_root(tmp_path / "root")
    path = segment_file(tmp_path / "root" / "orders-0", 0, LOG_SUFFIX)
    path.write_bytes(flipped(path.read_bytes()))

    partly, wholly = (gather(log_dir.root, GatherOptions(verify=each), clock=lambda: NOW_MS) for each in (False, True))

    assert [each.title for each in partly.findings] == ["Records cannot be read"]
    assert [each.title for each in wholly.findings] == ["Batch CRC"]


def test_open_transaction_of_a_broker_says_since_when(kafka_fixtures: Path) -> None:
    found = finding(look(kafka_fixtures / "transactions"), "Open transaction")

    assert found.severity == "problem"
    assert "since 2023-11-14 22:14 UTC" in found.text
    assert "find-hanging" in found.text
