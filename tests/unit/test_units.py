"""Numbers in texts: sizes with their units, nouns in the right number."""

from __future__ import annotations

import json

import pytest

from pyspark_kafkalog.units import content_text, json_line, plural, printable, size_text


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


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("grün 日本", "grün 日本"),
        ("a\nINFO b\r\x1b[2J\x9b\u2028\u202e\x00", r"a\nINFO b\r\x1b[2J\x9b\u2028\u202e\x00"),
        ("\ud800", r"\ud800"),
    ],
)
def test_characters_that_are_not_printable_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_kept_characters_are_not_escaped() -> None:
    assert printable("a\tb\n\r", kept="\n\t") == "a\tb\n\\r"


def test_line_of_json_is_printable_and_read_back_as_it_was() -> None:
    tree = {"name\x9b": ["grün \x7f\x9b2J\u2028\u202e\u200f", "\U000e0001", 1, None, "\ud800"]}
    line = json_line(tree)
    assert line[:-1].isprintable()
    assert line.endswith("\n")
    assert "grün" in line
    assert json.loads(line) == tree


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"", "b''"),
        ("cars 0 x", "'cars 0 x'"),
        ("\0", "1 NUL byte"),
        (bytes(5000), "5,000 NUL bytes"),
        ("cars 0" + "\0" * 30, "'cars 0', 30 NUL bytes"),
        (bytes(3) + b"a" * 100, f"3 NUL bytes, b'{'a' * 80}'"),
        ("a\0b\0" * 50, "'a', 1 NUL byte, 'b', 1 NUL byte"),
    ],
)
def test_content_of_a_file_is_shown_with_its_nul_bytes_counted(content: str | bytes, shown: str) -> None:
    assert content_text(content) == shown
