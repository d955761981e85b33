"""Damaged partition directories: an error that names a file, or a recovery; never a crash, never a wrong record."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

from builders.engine_fixtures import LATE_MS, FixturePartition
from builders.log_reads import Isolation, read
from hypothesis import given, settings
from hypothesis import strategies as st
from tiers import examples

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.record.reference import decode_batch
from pyspark_kafkalog.storage.log.read_only import last_stable_offset, load_read_only
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog

PART = FixturePartition("transactions", "transactions", 0)
NAMES = sorted(path.name for path in PART.directory.iterdir())


@cache
def known_records(isolation: Isolation) -> frozenset[tuple[int, bytes | None, bytes | None]]:
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / PART.directory.name
        shutil.copytree(PART.directory, directory)
        return frozenset(read_all(directory, clean=True, isolation=isolation))


def read_all(directory: Path, *, clean: bool, isolation: Isolation) -> list[tuple[int, bytes | None, bytes | None]]:
    """Every data record that a reader sees, by timestamp, key and value: offsets are outside of the CRC."""
    log = UnifiedLog.open(directory, PART.config, clean_shutdown=clean, clock=lambda: LATE_MS)
    try:
        found = []
        position = log.log_start_offset
        while (fetched := read(log, position, isolation=isolation, max_bytes=4096)).next_offset != position:
            position = fetched.next_offset
            for at in (fetched.batches["position"] - fetched.position).tolist():
                batch = decode_batch(fetched.data, at, file=fetched.file, file_position=at)
                if not batch.header.is_control:
                    found += [(record.timestamp_ms, record.key, record.value) for record in batch.records]
        return found
    finally:
        log.suspend()


@settings(max_examples=examples(250), deadline=None)
@given(
    name=st.sampled_from(NAMES),
    place=st.floats(0, 1),
    damage=st.one_of(
        st.tuples(st.just("flip"), st.integers(0, 7)),
        st.tuples(st.just("cut"), st.just(0)),
        st.tuples(st.just("zero"), st.integers(1, 40)),
        st.tuples(st.just("grow"), st.integers(1, 40)),
    ),
    clean=st.booleans(),
)
def test_any_damage_is_reported_with_file_or_recovered(
    name: str, place: float, damage: tuple[str, int], clean: bool
) -> None:
    with tempfile.TemporaryDirectory() as parent:
        directory = Path(parent) / PART.directory.name
        shutil.copytree(PART.directory, directory)
        path = directory / name
        data = bytearray(path.read_bytes())
        at = min(int(place * len(data)), max(len(data) - 1, 0))
        kind, size = damage
        if kind == "flip" and data:
            data[at] ^= 1 << size
        elif kind == "cut":
            del data[at:]
        elif kind == "zero":
            data[at : at + size] = bytes(len(data[at : at + size]))
        elif kind == "grow":
            data += bytes(range(size))
        path.write_bytes(data)
        named = []
        try:
            state = load_read_only(directory)
            last_stable_offset(directory, log_start_offset=0, high_watermark=state.log_end_offset, now_ms=LATE_MS)
        except DiskFormatError as error:
            named.append(error.file)
        try:
            found = read_all(directory, clean=clean, isolation=Isolation.LOG_END)
        except DiskFormatError as error:
            named.append(error.file)
        else:
            assert set(found) <= known_records(Isolation.LOG_END)
        assert all(Path(file).parent == directory for file in named)
