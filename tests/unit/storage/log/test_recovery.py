"""Recovery of partition directories: torn tails truncated, indexes rebuilt, leftovers deleted, damage reported."""

from __future__ import annotations

import shutil
import struct
import zlib
from pathlib import Path

import pytest
from builders.engine_fixtures import LATE_MS, FixturePartition, checkpoint, files_of
from builders.indexes import rebuild_indexes
from builders.log_reads import offset_for_timestamp, read
from open_files import descriptors, descriptors_before

from pyspark_kafkalog.errors import CorruptIndexError, CorruptRecordError, UnsupportedFormatError
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog

UNCLEAN = ("unclean-killed", "unclean-torn", "unclean-badcrc", "unclean-garbage", "unclean-noindex")
CARS = FixturePartition("cars", "cars", 0)
TRANSACTIONS = FixturePartition("transactions", "transactions", 0)


def copied(part: FixturePartition, tmp_path: Path) -> Path:
    directory = tmp_path / part.directory.name
    shutil.copytree(part.directory, directory)
    return directory


def opened(part: FixturePartition, directory: Path, *, clean: bool, recovery_point: int = 0) -> UnifiedLog:
    return UnifiedLog.open(
        directory, part.config, recovery_point=recovery_point, clean_shutdown=clean, clock=lambda: LATE_MS
    )


@pytest.mark.parametrize("topic", UNCLEAN)
def test_recovery_of_unclean_partition_produces_files_of_broker(topic: str, tmp_path: Path) -> None:
    part = FixturePartition("unclean", topic, 0)
    recovered = FixturePartition("unclean-recovered", topic, 0)
    directory = copied(part, tmp_path)
    expected = recovered.offsets
    log = UnifiedLog.open(
        directory,
        part.config,
        recovery_point=checkpoint(part.root / "recovery-point-offset-checkpoint")[topic, 0],
        clock=lambda: int(expected["max_timestamp"]["timestamp"]),  # later, its producers would have expired
    )
    assert (log.log_start_offset, log.log_end_offset) == (expected["earliest"], expected["latest"])
    log.close()
    found, wanted = files_of(directory), files_of(recovered.directory)
    # The directory is new to the other broker, which gives it its own topic id and leader epoch.
    for name in ("partition.metadata", "leader-epoch-checkpoint"):
        del found[name], wanted[name]
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if found[name] != wanted[name]] == []


def test_clean_start_after_clean_shutdown_changes_no_byte(tmp_path: Path) -> None:
    directory = copied(CARS, tmp_path)
    opened(CARS, directory, clean=True).close()
    assert files_of(directory) == files_of(CARS.directory)


@pytest.mark.parametrize("part", [CARS, TRANSACTIONS], ids=str)
def test_full_recovery_rebuilds_indexes_and_snapshots_byte_for_byte(part: FixturePartition, tmp_path: Path) -> None:
    directory = copied(part, tmp_path)
    wanted = files_of(directory)
    for path in directory.iterdir():
        if path.suffix in (".index", ".timeindex", ".txnindex", ".snapshot"):
            path.unlink()
    log = UnifiedLog.open(directory, part.config, clock=lambda: int(part.offsets["max_timestamp"]["timestamp"]) + 1000)
    assert log.log_end_offset == part.offsets["latest"]
    assert log.last_stable_offset == part.offsets["last_stable"]
    log.close()
    found = files_of(directory)
    # Recovery takes a snapshot at the base of each segment that it re-reads, so none is missing.
    assert found.keys() == wanted.keys()
    assert [name for name in wanted if found[name] != wanted[name]] == []


@pytest.mark.parametrize("cut", [1, 30, 61, 100])
def test_recovery_truncates_torn_batch(cut: int, tmp_path: Path) -> None:
    directory = copied(CARS, tmp_path)
    last = directory / "00000000000000000333.log"
    data = last.read_bytes()
    last.write_bytes(data[:-cut])
    log = opened(CARS, directory, clean=False)
    assert 333 < log.log_end_offset < 400
    assert read(log, log.log_end_offset).batches.size == 0
    log.close()
    with last.open("rb") as file:
        assert data.startswith(file.read())


def message_v1(offset: int) -> bytes:
    body = struct.pack(">bbqi1si1s", 1, 0, 1_700_000_000_000, 1, b"k", 1, b"v")
    return struct.pack(">qiI", offset, 4 + len(body), zlib.crc32(body)) + body


def test_recovery_refuses_older_record_format_and_keeps_logs(tmp_path: Path) -> None:
    directory = copied(CARS, tmp_path)
    first = directory / "00000000000000000000.log"
    first.write_bytes(message_v1(0) + message_v1(1))
    before = {path.name: path.read_bytes() for path in directory.glob("*.log")}
    files_open = descriptors_before()
    with pytest.raises(UnsupportedFormatError, match=rf"{first} at byte 16: .* magic 1"):
        opened(CARS, directory, clean=False)
    assert descriptors() == files_open
    assert {path.name: path.read_bytes() for path in directory.glob("*.log")} == before


@pytest.mark.parametrize("damage", [slice(-1, None), slice(16, 17)])
def test_damaged_batch_with_older_magic_is_truncated_by_recovery(damage: slice, tmp_path: Path) -> None:
    directory = copied(CARS, tmp_path)
    last = directory / "00000000000000000333.log"
    data = last.read_bytes()
    message = bytearray(message_v1(400))
    message[damage] = b"\x00"
    last.write_bytes(data + message)
    log = opened(CARS, directory, clean=False)
    assert log.log_end_offset == 400
    log.close()
    assert last.read_bytes() == data


@pytest.mark.parametrize("tail", [b"\0" * 100, b"\0" * 9])
def test_torn_tail_after_clean_shutdown_is_reported(tail: bytes, tmp_path: Path) -> None:
    directory = copied(CARS, tmp_path)
    with (directory / "00000000000000000333.log").open("ab") as file:
        file.write(tail)
    with pytest.raises(CorruptRecordError, match=r"torn batch|batch length|magic"):
        opened(CARS, directory, clean=True)


def test_recovery_deletes_segments_after_bad_batch(tmp_path: Path) -> None:
    directory = copied(CARS, tmp_path)
    path = directory / "00000000000000000106.log"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    log = opened(CARS, directory, clean=False)
    assert log.log_end_offset == 106
    assert [segment.base_offset for segment in log.segments] == [0, 106]
    log.close()
    assert sorted(path.name for path in directory.glob("*.log")) == [
        "00000000000000000000.log",
        "00000000000000000106.log",
    ]
    assert not (directory / "00000000000000000214.snapshot").exists()


def test_recovery_keeps_segments_below_recovery_point_unchecked(tmp_path: Path) -> None:
    directory = copied(CARS, tmp_path)
    path = directory / "00000000000000000106.log"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    log = opened(CARS, directory, clean=False, recovery_point=214)
    assert log.log_end_offset == 400
    log.suspend()


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".log", ".snapshot", ".txnindex"])
@pytest.mark.parametrize("keep", [0, 1, 7])
def test_truncated_index_or_snapshot_is_rebuilt_and_torn_log_truncated(suffix: str, keep: int, tmp_path: Path) -> None:
    part = TRANSACTIONS
    directory = copied(part, tmp_path)
    path = directory / f"00000000000000000085{suffix}"
    path.write_bytes(path.read_bytes()[:keep])
    log = UnifiedLog.open(directory, part.config, clock=lambda: int(part.offsets["max_timestamp"]["timestamp"]) + 1000)
    # To a broker, too, an empty .log in the middle is a segment like any other: a gap in the offsets.
    assert log.log_end_offset == (85 if suffix == ".log" and keep else 165)
    log.close()
    if suffix != ".log":
        assert files_of(directory) == files_of(part.directory)


def test_damaged_leader_epoch_checkpoint_is_reported_by_name(tmp_path: Path) -> None:
    directory = copied(CARS, tmp_path)
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n0")
    with pytest.raises(CorruptIndexError, match="leader-epoch-checkpoint"):
        opened(CARS, directory, clean=True)


def test_leftovers_of_deletion_and_cleaning_are_deleted(tmp_path: Path) -> None:
    directory = copied(CARS, tmp_path)
    for suffix in (".log", ".index", ".timeindex"):
        shutil.copy(directory / f"00000000000000000106{suffix}", directory / f"00000000000000000050{suffix}.deleted")
        shutil.copy(directory / f"00000000000000000106{suffix}", directory / f"00000000000000000106{suffix}.cleaned")
        shutil.copy(directory / f"00000000000000000214{suffix}", directory / f"00000000000000000214{suffix}.swap")
    (directory / "00000000000000000777.index").write_bytes(b"")
    (directory / "00000000000000000300-0000000001.checkpoint.deleted").write_bytes(b"")
    opened(CARS, directory, clean=True).close()
    names = files_of(directory).keys()
    # The .swap is at or above the .cleaned, so it belongs to a split that was not finished.
    assert names - files_of(CARS.directory).keys() == {"00000000000000000300-0000000001.checkpoint.deleted"}


def test_segment_renamed_for_deletion_is_deleted_at_next_start(tmp_path: Path) -> None:
    directory = copied(CARS, tmp_path)
    for suffix in (".log", ".index", ".timeindex"):
        path = directory / f"00000000000000000000{suffix}"
        path.rename(f"{path}.deleted")
    log = opened(CARS, directory, clean=True)
    assert (log.log_start_offset, log.log_end_offset) == (106, 400)
    assert not list(directory.glob("*.deleted"))
    log.suspend()


def test_swap_of_finished_cleaning_replaces_cleaned_segments(tmp_path: Path) -> None:
    directory = copied(CARS, tmp_path)
    whole = b"".join((directory / f"{base:020d}.log").read_bytes() for base in (0, 106, 214))
    (directory / "00000000000000000000.log.swap").write_bytes(whole)
    (directory / "00000000000000000000.index.swap").write_bytes(b"")
    (directory / "00000000000000000000.timeindex.swap").write_bytes(b"")
    log = opened(CARS, directory, clean=True)
    assert [segment.base_offset for segment in log.segments] == [0, 333]
    assert (log.log_start_offset, log.log_end_offset) == (0, 400)
    assert log.segments.first.size_bytes == len(whole)
    log.close()


def test_missing_time_index_is_created_empty(tmp_path: Path) -> None:
    directory = copied(CARS, tmp_path)
    (directory / "00000000000000000106.timeindex").unlink()
    opened(CARS, directory, clean=True).close()
    assert (directory / "00000000000000000106.timeindex").read_bytes() == b""


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_lookups_with_wrong_index_answer_right(suffix: str, tmp_path: Path) -> None:
    directory = copied(CARS, tmp_path)
    for path in directory.glob(f"*{suffix}"):
        data = path.read_bytes()
        width = 8 if suffix == ".index" else 12
        entries = [data[at : at + width] for at in range(0, len(data), width)]
        # Every key with what belongs to a later one: to believe it would be to read past what is looked for.
        keys = 4 if suffix == ".index" else 8
        later = [*entries[3:], *entries[:3]]
        path.write_bytes(b"".join(key[:keys] + value[keys:] for key, value in zip(entries, later, strict=True)))
    log = opened(CARS, directory, clean=True)
    for question in CARS.offsets["by_time"]:
        found = offset_for_timestamp(log, question["target"])
        wanted = question["read_uncommitted"]
        assert (None if found is None else found.offset) == (None if wanted["offset"] < 0 else wanted["offset"])
    for offset in range(400):
        batch = read(log, offset, max_bytes=1).batches[0]
        assert batch["base_offset"] <= offset <= batch["last_offset"]
    log.suspend()


def test_missing_offset_index_rebuilds_all_indexes_of_segment(tmp_path: Path) -> None:
    directory = copied(TRANSACTIONS, tmp_path)
    for suffix in (".index", ".timeindex", ".txnindex"):
        (directory / f"00000000000000000085{suffix}").unlink()
    opened(TRANSACTIONS, directory, clean=True).suspend()
    for suffix in (".index", ".timeindex", ".txnindex"):
        name = f"00000000000000000085{suffix}"
        assert (directory / name).read_bytes() == (TRANSACTIONS.directory / name).read_bytes()


def test_log_start_above_log_end_starts_empty_log(tmp_path: Path) -> None:
    directory = copied(CARS, tmp_path)
    log = UnifiedLog.open(directory, CARS.config, log_start_offset=500, clean_shutdown=True, clock=lambda: LATE_MS)
    assert (log.log_start_offset, log.log_end_offset) == (500, 500)
    log.close()
    assert [path.name for path in directory.glob("*.log")] == ["00000000000000000500.log"]


def test_rebuild_of_indexes_leaves_torn_log_unchanged(tmp_path: Path) -> None:
    directory = copied(CARS, tmp_path)
    path = directory / "00000000000000000333.log"
    torn = path.read_bytes() + b"\0" * 100
    path.write_bytes(torn)
    assert rebuild_indexes(directory, 333, CARS.config) == len(torn) - 100
    assert path.read_bytes() == torn
    assert (directory / "00000000000000000333.index").read_bytes() == (
        CARS.directory / "00000000000000000333.index"
    ).read_bytes()
