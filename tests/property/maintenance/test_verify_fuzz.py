"""Any one changed byte in a root is found by verification, or changes no record that is read."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.controlled import create_log_dir
from builders.metadata_roots import forget_images
from builders.verify_roots import T0, findings_in, flip
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import KafkalogError

ROUNDS = 150


pytestmark = pytest.mark.usefixtures("without_waits")


def own_root(root: Path) -> None:
    log_dir = create_log_dir(root, clock=lambda: T0)
    log_dir.create_topic(
        "orders", partitions=1, configs={"internal.segment.bytes": "1500", "index.interval.bytes": "100"}
    )
    for number in range(6):
        log_dir.append(
            "orders",
            pa.table({"value": [b"%d" % (number * 10 + at) for at in range(10)]}),
            partition=0,
            compression_type="gzip" if number % 3 == 1 else "none",
        )


def brokers_root(root: Path) -> None:
    shutil.copytree(FIXTURES / "transactions", root)
    shutil.rmtree(root / "expected")


def adopted_root(root: Path) -> None:
    brokers_root(root)
    LogDir.adopt(root, create_missing=True)


def read_all(root: Path) -> Any:
    forget_images()
    results: list[Any] = []
    try:
        log_dir = LogDir.open(root)
        for topic in log_dir.topics():
            for isolation in ("read_uncommitted", "read_committed"):
                results.append(log_dir.read(topic, isolation=isolation).to_pydict())  # type: ignore[arg-type]
    except (KafkalogError, OSError) as error:
        results.append(type(error))
    return results


def is_found(root: Path) -> bool:
    try:
        return bool(findings_in(root))
    except (KafkalogError, OSError):
        return True  # the root cannot even be opened, and says why


@pytest.mark.slow
@pytest.mark.parametrize("make", [own_root, brokers_root, adopted_root])
def test_flipped_byte_is_found_or_changes_no_record(make: Any, tmp_path: Path) -> None:
    root = tmp_path / "log"
    make(root)
    expected = read_all(root)
    assert not is_found(root)
    chosen = random.Random(5)
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    for _ in range(ROUNDS):
        path = chosen.choice(files)
        at, bits = chosen.randrange(path.stat().st_size), 1 << chosen.randrange(8)
        flip(path, at, bits)
        if not is_found(root):
            assert read_all(root) == expected, (path.relative_to(root), at, bits)
        flip(path, at, bits)
    assert read_all(root) == expected
    assert not is_found(root)
