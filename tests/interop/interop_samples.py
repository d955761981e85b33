"""Records with every corner that Kafka allows, and what Kafka's dump tool says of files, in a form to assert on."""

from __future__ import annotations

import random
import re
from pathlib import Path

from kafka_oracle import ConsumedRecord, dump_log

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
BASE_TIMESTAMP_MS = 1_700_000_000_000

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


def assert_dumps_clean(directory: Path, *, batches_min: int = 1) -> None:
    """Kafka's dump tool finds each batch under `directory` valid, offsets and indexes in agreement, indexes sane."""
    logs = sorted(directory.rglob("*.log"))
    assert logs
    deep = dump_log(logs, "--deep-iteration")
    assert deep.returncode == 0, deep.stderr
    assert deep.stderr == "", deep.stderr
    verdicts = re.findall(r"isvalid: (\w+)", deep.stdout)
    assert len(verdicts) >= batches_min
    assert set(verdicts) == {"true"}
    assert "invalid bytes" not in deep.stdout
    assert_indexes_sane(directory)


def assert_indexes_sane(directory: Path) -> None:
    """Each index passes Kafka's sanity check, and each of its entries points at the batch that it names."""
    indexes = sorted([*directory.rglob("*.index"), *directory.rglob("*.timeindex")])
    if not indexes:
        return
    sanity = dump_log(indexes, "--index-sanity-check")
    assert sanity.returncode == 0, sanity.stderr
    for index in indexes:
        assert f"{index} passed sanity check." in sanity.stdout
    verified = dump_log(indexes, "--verify-index-only")
    assert verified.returncode == 0, verified.stderr
    assert verified.stderr == "", verified.stderr
    assert not re.search("Mismatch|mismatch|not found", verified.stdout), verified.stdout
