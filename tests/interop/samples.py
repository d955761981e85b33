"""Records with every corner that Kafka allows, and what Kafka's dump tool says of files, in a form to assert on."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from kafka_processes.clients import ConsumedRecord
from kafka_processes.oracle import dump_log

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BASE_TIMESTAMP_MS = 1_700_000_000_000

_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

Headers = tuple[tuple[str, bytes | None], ...]

_CORNERS: tuple[tuple[bytes | None, bytes | None, Headers], ...] = (
    (None, None, ()),
    (b"", b"", (("", b""),)),
    (b"key", None, (("null", None),)),
    (None, b"value", (("twice", b"1"), ("twice", b"2"))),
    (b"\x00\xff\xfe", bytes(range(256)), (("umlaut ä €", "Ω".encode()), ("empty", b""))),
    ("schlüssel".encode(), b"x" * 127, ()),
    (b"k" * 64, b"y" * 8192, tuple((f"h{i}", b"v" * i) for i in range(20))),
    (b"long and dull", b"z" * 80_000, ()),
)


def sample_records(count: int, *, seed: int, partition: int = 0) -> list[ConsumedRecord]:
    """`count` records: the corner cases, then random ones, some compressible; times jump back now and then."""
    rng = random.Random(seed)
    records = []
    for offset in range(count):
        key, value, headers = _CORNERS[offset] if offset < len(_CORNERS) else _random_content(rng)
        timestamp_ms = BASE_TIMESTAMP_MS + offset * 10 - (rng.randrange(5000) if rng.random() < 0.1 else 0)
        records.append(ConsumedRecord(partition, offset, timestamp_ms, 0, key, value, headers))
    return records


def _random_content(rng: random.Random) -> tuple[bytes | None, bytes | None, Headers]:
    key = None if rng.random() < 0.2 else b"key-%d" % rng.randrange(50)
    size = rng.choice((0, 1, 63, 64, 100, 1000))
    value = rng.randbytes(size) if rng.random() < 0.5 else b"orders " * (size // 7)
    headers = tuple((f"h{i}", rng.randbytes(3)) for i in range(rng.choice((0, 0, 0, 2))))
    return key, value, headers


def to_table(records: Sequence[ConsumedRecord]) -> pa.Table:
    """The columns that a write takes, `partition` apart."""
    return pa.table(
        {
            "key": pa.array([record.key for record in records], pa.binary()),
            "value": pa.array([record.value for record in records], pa.binary()),
            "headers": pa.array(
                [[{"key": key, "value": value} for key, value in record.headers] for record in records], _HEADERS
            ),
            "timestamp": pa.array([record.timestamp_ms * 1000 for record in records], pa.timestamp("us", "UTC")),
        }
    )


def assert_dumps_clean(directories: Sequence[Path], *, batches_min: int, has_gaps: bool = False) -> None:
    """Kafka's dump tool finds each batch in `directories` valid, offsets and indexes in agreement, indexes sane.

    With `has_gaps` it may tell of gaps between offsets, as it does of logs that Kafka's own cleaner has cleaned.
    """
    logs = sorted(log for directory in directories for log in directory.glob("*.log"))
    assert logs
    deep = dump_log(logs, "--deep-iteration")
    assert deep.returncode == 0, deep.stderr
    told = deep.stderr
    if has_gaps:
        told = re.sub(r"Non-consecutive offsets in .*\n|  \d+ is followed by \d+\n", "", told)
    assert told == "", told
    verdicts = re.findall(r"isvalid: (\w+)", deep.stdout)
    assert len(verdicts) >= batches_min
    assert set(verdicts) == {"true"}
    assert "invalid bytes" not in deep.stdout
    indexes = sorted(index for directory in directories for index in directory.glob("*index"))
    indexes = [each for each in indexes if each.suffix != ".txnindex"]  # of which the tool checks nothing
    if indexes:
        assert_indexes_sane(indexes)


def assert_indexes_sane(indexes: Sequence[Path]) -> None:
    """Each index passes Kafka's sanity check, and each of its entries points at the batch that it names."""
    sanity = dump_log(indexes, "--index-sanity-check")
    assert sanity.returncode == 0, sanity.stderr
    for index in indexes:
        verdict = "passed sanity check" if index.stat().st_size or index.suffix == ".timeindex" else "is empty"
        assert f"{index} {verdict}." in sanity.stdout
    verified = dump_log(indexes, "--verify-index-only")
    assert verified.returncode == 0, verified.stderr
    assert verified.stderr == "", verified.stderr
    assert not re.search("Mismatch|mismatch|not found", verified.stdout), verified.stdout


def reports_of(*arguments: str) -> list[dict[str, object]]:
    """The reports of `kafkalog` with these arguments in a process of its own, by partition."""
    tool = str(Path(sys.executable).parent / "kafkalog")
    command = [tool, *arguments, "--local", "--output", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return sorted(map(json.loads, done.stdout.splitlines()), key=lambda each: each["partition"])
