"""An offset hint reads as the last offset written or as None, never as another number."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_kafkalog.metadata.root_format import OffsetHint
from pyspark_kafkalog.storage.filesystem import LOCAL


@pytest.fixture
def hint(tmp_path: Path) -> OffsetHint:
    return OffsetHint(tmp_path / "hint", LOCAL)


def test_hint_reads_as_last_offset_written(hint: OffsetHint) -> None:
    assert hint.read() is None
    for offset in (0, 7, 2**63 - 1, 12):
        hint.write(offset)
        assert hint.read() == offset
    assert hint.path.read_bytes() == b"00000000000000000012 be42e728\n"


def test_damaged_hint_reads_as_none(hint: OffsetHint) -> None:
    hint.write(194)
    good = hint.path.read_bytes()
    cuts = [good[:length] for length in range(len(good))]
    changes = [good[:at] + bytes([byte]) + good[at + 1 :] for at in range(len(good)) for byte in (0, 0x31, 0xFF)]
    for data in (*cuts, *(change for change in changes if change != good), good + b"\n", b"\0" * len(good)):
        hint.path.write_bytes(data)
        assert hint.read() is None


def test_torn_write_over_older_hint_reads_as_none(hint: OffsetHint) -> None:
    hint.write(199_999)
    old = hint.path.read_bytes()
    hint.write(200_000)
    new = hint.path.read_bytes()
    for at in range(16, len(new)):
        mixed = new[:at] + old[at:]
        hint.path.write_bytes(mixed)
        assert hint.read() == (199_999 if mixed == old else 200_000 if mixed == new else None)
