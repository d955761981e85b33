"""What has to hold of a root after a crash: what a reader sees, and what the files hold once somebody wrote again."""

from __future__ import annotations

import contextlib
import hashlib
import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from builders.controlled import open_log_dir

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.record.scan import scan_batches, verify_crcs
from pyspark_kafkalog.storage.artefacts.checkpoint_file import LeaderEpochCheckpoint
from pyspark_kafkalog.storage.artefacts.index_file import OffsetIndex, TimeIndex
from pyspark_kafkalog.storage.artefacts.producer_snapshot import read_snapshot
from pyspark_kafkalog.storage.names import LEADER_EPOCH_CHECKPOINT
from tests.crash.faults import ReadOnlyFileSystem

_INDEX_BYTES = 10 << 20
_SEGMENT_NAME = re.compile(r"\d{20}\.(log|index|timeindex|txnindex|snapshot)")
_OTHER_NAME = re.compile(
    r"partition\.metadata|leader-epoch-checkpoint|[0-9a-z-]+\.staged"
    # Of maintenance: its lock, and what the next run removes, makes again or puts in place.
    r"|\.maintenance-lock|\d{20}\.(log|index|timeindex|txnindex|snapshot)\.(deleted|cleaned|swap)"
    # What a crash in a whole-file write leaves; the next writer of the partition removes it.
    r"|(partition\.metadata|leader-epoch-checkpoint|\d{20}\.(snapshot|index|timeindex))\.[0-9a-f]{16}\.tmp"
)


@dataclass(frozen=True)
class TopicSeen:
    """A topic as a reader sees it: `rows` has all columns of all partitions."""

    configs: Mapping[str, str]
    bounds: tuple[tuple[int, int], ...]
    rows: pa.Table


Seen = dict[str, TopicSeen]


def look(root: Path) -> Seen:
    """All that a reader without lock or repair sees in `root`; nothing where no root has been made yet.

    What it sees must hold together: offsets without gaps from each log start to the high watermark, and, since nothing
    here is compacted, no offset twice.
    """
    try:
        log_dir = open_log_dir(root, fs=ReadOnlyFileSystem())
    except LogDirError:
        return {}
    return {topic: _look_at(log_dir, topic) for topic in log_dir.topics()}


def _look_at(log_dir: LogDir, topic: str) -> TopicSeen:
    described = log_dir.topic(topic)
    bounds = tuple((each.log_start_offset, each.high_watermark) for each in described.partitions)
    for each in described.partitions:
        # A crash between a topic's commit and its directories leaves some out.
        assert each.directory.exists() or each.log_start_offset == each.high_watermark
    rows = log_dir.read(topic)
    found = list(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    assert found == [(number, offset) for number, (start, end) in enumerate(bounds) for offset in range(start, end)]
    return TopicSeen(dict(described.configs), bounds, rows)


def same(one: Seen, other: Seen) -> bool:
    """Whether two readers saw the same records at the same offsets in the same topics."""
    if one.keys() != other.keys():
        return False
    pairs = [(one[topic], other[topic]) for topic in one]
    return all(a.configs == b.configs and a.bounds == b.bounds and a.rows.equals(b.rows) for a, b in pairs)


def describe(seen: Seen) -> str:
    return "; ".join(f"{topic} {each.bounds} {dict(each.configs)}" for topic, each in sorted(seen.items())) or "nothing"


class FileChecks:
    """Checks partition directories file by file, each content once, and keeps a copy of each for Kafka's own tool."""

    def __init__(self, corpus: Path, seen: Collection[bytes] = ()) -> None:
        self.corpus = corpus
        self.seen = set(seen)

    @property
    def directories(self) -> list[Path]:
        """The copies kept so far."""
        return sorted(self.corpus.iterdir())

    def check(self, root: Path) -> None:
        """Check all partitions of `root`, all of which have been written to since the crash."""
        log_dir = LogDir.open(root)
        for topic in log_dir.topics():
            for partition in log_dir.topic(topic).partitions:
                digest = _digest(partition.directory)
                if digest in self.seen:
                    continue
                self.seen.add(digest)
                check_partition(partition.directory, partition.log_start_offset, partition.high_watermark)
                with contextlib.suppress(FileExistsError):  # from another lane
                    shutil.copytree(partition.directory, self.corpus / f"{digest.hex()}-{topic}-{partition.partition}")


def _digest(directory: Path) -> bytes:
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(directory.iterdir()):
        if _SEGMENT_NAME.fullmatch(path.name) or path.name == LEADER_EPOCH_CHECKPOINT:
            digest.update(b"%s %d " % (path.name.encode(), path.stat().st_size) + path.read_bytes())
        else:
            assert _OTHER_NAME.fullmatch(path.name), path
    return digest.digest()


def check_partition(directory: Path, log_start_offset: int, high_watermark: int) -> None:
    """Batches, indexes, leader epochs and snapshots agree with each other and with the committed offsets."""
    logs = sorted(directory.glob("*.log"))
    epochs = LeaderEpochCheckpoint.open(directory / LEADER_EPOCH_CHECKPOINT)
    next_offset = int(logs[0].stem) if logs else 0
    assert next_offset <= log_start_offset
    for log in logs:
        data = np.fromfile(log, dtype=np.uint8)
        scanned = scan_batches(data, file=str(log))
        assert scanned.fault is None
        assert scanned.consumed_bytes == len(data), f"{log} has a tail that is no batch"
        batches = scanned.batches
        verify_crcs(data, batches, data_position=0, file=str(log))
        # A roll in the middle of a commit names the segment by the next batch; nothing here leaves a gap.
        assert next_offset == int(log.stem), f"{log} does not follow offset {next_offset}"
        for base, last, epoch in zip(
            batches["base_offset"].tolist(),
            batches["last_offset"].tolist(),
            batches["leader_epoch"].tolist(),
            strict=True,
        ):
            assert base == next_offset
            if last >= log_start_offset:  # epochs begin at the log start, files may begin below it
                known = epochs.epoch_for_offset(max(base, log_start_offset))
                assert epoch == known, f"{log}, offset {base}: epoch {epoch} of {epochs.entries}"
            next_offset = last + 1
        _check_indexes(log, batches)
    assert next_offset == high_watermark
    for snapshot in directory.glob("*.snapshot"):
        read_snapshot(snapshot)
        assert int(snapshot.stem) <= high_watermark


def _check_indexes(log: Path, batches: np.ndarray) -> None:
    base_offset = int(log.stem)
    positions = dict(zip(batches["last_offset"].tolist(), batches["position"].tolist(), strict=True))
    largest = dict(zip(batches["last_offset"].tolist(), batches["max_timestamp_ms"].tolist(), strict=True))
    with OffsetIndex.open(log.with_suffix(".index"), base_offset, max_index_bytes=_INDEX_BYTES) as index:
        entries = index.entries_array().tolist()
        assert all(positions.get(offset) == position for offset, position in entries), (log, entries)
        assert entries == sorted(entries)
    with TimeIndex.open(log.with_suffix(".timeindex"), base_offset, max_index_bytes=_INDEX_BYTES) as index:
        entries = index.entries_array().tolist()
        assert all(largest.get(offset) == timestamp_ms for timestamp_ms, offset in entries), (log, entries)
        assert entries == sorted(entries)
