"""What `verify` advises on a broker's directory: no command that refuses such a directory."""

from __future__ import annotations

import shutil
from pathlib import Path

from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.verify.findings import REINDEX, REPAIR
from pyspark_kafkalog.maintenance.verify.verify import verify, verify_without_batches

FIXTURE = FIXTURES / "transactions"
REFUSING = ("reindex", "--repair", "retention", "merge-segments", "log-cleaner", "delete-records", "kafkalog tier")


def test_advice_names_no_command_that_refuses_the_directory(tmp_path: Path) -> None:
    root = Path(shutil.copytree(FIXTURE, tmp_path / "broker", ignore=shutil.ignore_patterns("expected")))
    directory = root / "transactions-0"
    for path in directory.iterdir():
        if path.suffix == ".index":
            path.unlink()
        elif path.suffix in (".timeindex", ".txnindex", ".snapshot"):
            path.write_bytes(b"\x01" * 7)
    (directory / "leader-epoch-checkpoint").write_text("0\n1\n9 0\n")
    (root / "recovery-point-offset-checkpoint").write_bytes(bytes(9))
    opened = LogDir.open(root).root
    findings = [*verify(opened).findings, *verify_without_batches(opened)]
    assert {"index-missing", "leader-epoch", "producer-snapshot", "index-length"} <= {each.what for each in findings}
    assert not [each for each in findings if each.advice in (REINDEX, REPAIR)]
    assert not [each.advice for each in findings if any(name in each.advice for name in REFUSING)]
