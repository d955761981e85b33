"""Damaged files in the directories of three brokers: reads and verification succeed, or raise an error of their own."""

from __future__ import annotations

import logging
import random
import shutil
from pathlib import Path

import pytest
from builders.broker_disks import cluster

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.verify import findings
from pyspark_kafkalog.maintenance.verify.verify import verify

__all__ = ["cluster"]

ROUNDS = 12


def damage(file: Path, other: Path, rng: random.Random) -> None:
    """Change, cut, extend, remove or replace a file."""
    data = bytearray(file.read_bytes())
    kind = rng.randrange(6)
    if kind == 0:
        file.unlink()
    elif kind == 1:
        file.write_bytes(data[: rng.randint(0, len(data))])
    elif kind == 2:
        for _ in range(rng.randint(1, 8) if data else 0):
            data[rng.randrange(len(data))] = rng.randrange(256)
        file.write_bytes(data)
    elif kind == 3:
        file.write_bytes(rng.randbytes(rng.randint(0, 200)))
    elif kind == 4:
        file.write_bytes(data + rng.randbytes(50))
    else:
        shutil.copyfile(other, file)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_damage_in_any_directory_is_an_error_with_a_message_or_harmless(
    cluster: list[Path], seed: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(findings, "_BETWEEN_CHECKS_S", 0)
    caplog.set_level(logging.CRITICAL, logger="pyspark_kafkalog")
    rng = random.Random(seed)
    calls = 0
    for number in range(ROUNDS):
        root = Path(shutil.copytree(cluster[0].parent, tmp_path / f"round-{number}"))
        files = sorted(path for path in root.rglob("*") if path.is_file())
        for file in rng.sample(files, rng.randint(1, 4)):
            other = rng.choice(files)
            if other.exists() and other != file:
                damage(file, other, rng)
        try:
            log_dir = LogDir.open([root / name for name in ("1", "2", "3")])
        except (KafkalogError, OSError):
            continue
        for topic in log_dir.topics():
            for call in (log_dir.topic, log_dir.read):
                calls += _succeeds_or_raises_its_own(lambda: call(topic))  # noqa: B023
        calls += _succeeds_or_raises_its_own(lambda: verify(log_dir.root))  # noqa: B023
    assert calls > ROUNDS


def _succeeds_or_raises_its_own(call: object) -> bool:
    assert callable(call)
    try:
        call()
    except (KafkalogError, OSError):
        return False
    return True
