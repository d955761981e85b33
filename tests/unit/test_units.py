"""Numbers in texts: sizes with their units, nouns in the right number."""

from __future__ import annotations

import pytest

from pyspark_kafkalog.units import plural, size_text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (150 << 20, "150 MiB"),
        (5 << 30, "5.0 GiB"),
        (3 << 50, "3.0 PiB"),
        (3 << 60, "3072 PiB"),
    ],
)
def test_size_is_written_with_unit(size_bytes: int, text: str) -> None:
    assert size_text(size_bytes) == text


def test_noun_agrees_with_its_number() -> None:
    assert [plural(1, "batch", "batches"), plural(2, "batch", "batches"), plural(1200, "file")] == [
        "1 batch",
        "2 batches",
        "1,200 files",
    ]
