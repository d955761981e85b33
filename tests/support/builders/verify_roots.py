"""Small roots with something of everything, for tests of verification and repair."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from repository import FIXTURES

from builders.controlled import adopt_log_dir
from builders.metadata_roots import forget_images
from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.maintenance.verify import findings as verify_findings
from pyspark_kafkalog.maintenance.verify import segment as verify_segment
from pyspark_kafkalog.maintenance.verify.findings import Finding, Severity
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.storage.names import TopicPartition

T0 = 1_700_000_000_000


def check_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody changes anything there is nothing to wait for between two looks."""
    for module in (verify_findings, verify_segment):
        monkeypatch.setattr(module, "_BETWEEN_CHECKS_S", 0.0)


def make_root(root: Path) -> LogDir:
    """Transactions that a broker wrote, adopted, and topics of our own: segments, codecs, a log start, no records."""
    shutil.copytree(FIXTURES / "transactions", root)
    shutil.rmtree(root / "expected")
    log_dir = adopt_log_dir(root, create_missing=True, clock=lambda: T0)
    small = {"internal.segment.bytes": "1500", "index.interval.bytes": "100"}
    log_dir.create_topic("orders", partitions=2, configs=small)
    for number in range(16):
        values = [b"%d" % (number * 10 + at) + b"." * 30 for at in range(10)]
        timestamps = pa.array([T0 + number * 10 + at for at in range(10)], pa.timestamp("ms"))
        log_dir.append(
            "orders",
            pa.table({"value": values, "timestamp": timestamps}),
            partition=number % 2,
            compression_type="zstd" if number > 13 else None,
        )
    delete_records(log_dir.root, {TopicPartition("orders", 0): 5})
    log_dir.create_topic("empty", partitions=2)
    log_dir.refresh()
    return log_dir


def findings_in(root: Path, *, are_records_checked: bool = True) -> list[Finding]:
    """What a verification by a new process would find, leftovers left out."""
    forget_images()
    found = verify(LogDir.open(root).root, are_records_checked=are_records_checked).findings
    return [finding for finding in found if finding.severity is not Severity.INFO]


def flip(path: Path, at: int, bits: int = 1) -> None:
    """Change one byte."""
    content = bytearray(path.read_bytes())
    content[at] ^= bits
    path.write_bytes(content)
