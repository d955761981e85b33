"""Logs that staged files are appended to, one commit after the other, and whether they are whole."""

from __future__ import annotations

from pathlib import Path

from engine_fixtures import files_of
from rebuilt_indexes import rebuild_indexes
from staged_writes import ORDERS, T0, check_batches

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.record.scan import scan_batches
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.staging.staged_file import StagedFile, StagedFileWriter

NOW = T0 + 1_000_000


def make_directory(root: Path) -> Path:
    """An empty partition directory."""
    result = root / str(ORDERS)
    result.mkdir()
    return result


def config(**overrides: str) -> LogConfig:
    names = {name.replace("_", "."): value for name, value in overrides.items()}
    return LogConfig.from_properties({"internal.segment.bytes": "5000", "index.interval.bytes": "300", **names})


def staged(
    directory: Path,
    batches: int,
    *,
    task: int = 0,
    records: int = 5,
    producer_id: int = -1,
    epoch: int = -1,
    at_ms: int = T0,
) -> StagedFile:
    writer = StagedFileWriter(directory.parent, ORDERS, write_id="w", task=task)
    for batch in range(batches):
        first = batch * records
        data = encode_batch(
            [
                Record(offset=first + at, timestamp_ms=at_ms + first + at, key=b"k", value=b"value %d" % (first + at))
                for at in range(records)
            ],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=first if producer_id >= 0 else -1,
        )
        writer.append(data, scan_batches(data, file="staged").batches)
    return writer.finish()


def resumed(directory: Path, state: LogState, log_config: LogConfig, fs: FileSystem = LOCAL) -> UnifiedLog:
    return UnifiedLog.resume(directory, log_config, state, clock=lambda: NOW, fs=fs)


def committed(directory: Path, state: LogState, file: StagedFile, log_config: LogConfig, epoch: int = 0) -> LogState:
    with resumed(directory, state, log_config) as log:
        log.append_staged(file, leader_epoch=epoch)
        log.flush()
        after = log.state()
    (directory / file.name).unlink()
    return after


def check_whole(directory: Path, log_config: LogConfig, end_offset: int) -> list[int]:
    """Every batch is valid, offsets have no gap, indexes are those of a rebuild; returns the base offsets."""
    next_offset = 0
    bases = []
    for path in sorted(directory.glob("*.log")):
        base_offset = int(path.stem)
        bases.append(base_offset)
        next_offset, _ = check_batches(path, next_offset)
        before = files_of(directory)
        rebuild_indexes(directory, base_offset, log_config)
        after = files_of(directory)
        assert before[f"{base_offset:020d}.index"] == after[f"{base_offset:020d}.index"]
        # Between commits the active segment has no closing time index entry.
        assert after[f"{base_offset:020d}.timeindex"].startswith(before[f"{base_offset:020d}.timeindex"])
        (directory / f"{base_offset:020d}.timeindex").write_bytes(before[f"{base_offset:020d}.timeindex"])
    assert next_offset == end_offset
    return bases


class Syncs(FileSystem):
    """Notes what is waited for."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def fsync(self, fd: int) -> None:
        self.names.append(Path(f"/proc/self/fd/{fd}").readlink().name)
        super().fsync(fd)

    def fsync_dir(self, directory: Path) -> None:
        self.names.append(directory.name)
        super().fsync_dir(directory)
