"""verify names what is missing of a broker's directory, and of the root that it becomes, beside other findings."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from repository import FIXTURES

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.root.adopt.adopt import adopt


def _logs(root: Path, partition: str) -> list[Path]:
    return sorted((root / partition).glob("*.log"))


def _remove_segment(root: Path, partition: str, at: int) -> None:
    base = _logs(root, partition)[at].stem
    for path in (root / partition).glob(f"{base}.*"):
        path.unlink()


def _lose_last_of_compacted(root: Path) -> None:
    _remove_segment(root, "compacted-plain-0", -1)


def _lose_log_of_compacted(root: Path) -> None:
    _logs(root, "compacted-plain-0")[1].unlink()


def _write_file_for_directory(root: Path) -> None:
    (root / "x-0").mkdir()
    shutil.rmtree(root / "cars-0")
    (root / "cars-0").write_bytes(b"a file")


def _lose_first(root: Path) -> None:
    _remove_segment(root, "cars-0", 0)


def _empty_last(root: Path) -> None:
    _logs(root, "cars-0")[-1].write_bytes(b"")


def _empty_middle(root: Path) -> None:
    _logs(root, "cars-0")[1].write_bytes(b"")


def _lose_directory(root: Path) -> None:
    (root / "x-0").mkdir()
    shutil.rmtree(root / "cars-0")


def _write_nul_checkpoint(root: Path) -> None:
    (root / "replication-offset-checkpoint").write_bytes(bytes(15))
    (root / "cars-0" / "00000000000000000000.index").write_bytes(b"\xff" * 16)


def _start_beyond_end(root: Path) -> None:
    (root / "log-start-offset-checkpoint").write_text("0\n1\ncars 0 999\n")


def _copy_folder(root: Path) -> None:
    shutil.copytree(root / "cars-0", root / "cars.bak-0")


CASES = [
    ("cars", _empty_last, {"log-too-short", "offset-index-entry"}),
    ("compacted-4-cleaned", _lose_last_of_compacted, {"log-too-short"}),
    ("compacted-4-cleaned", _lose_log_of_compacted, {"segment-missing"}),
    ("cars", _lose_first, {"segment-missing"}),
    ("cars", _empty_middle, {"offset-index-entry"}),
    ("cars", _lose_directory, {"directory-missing"}),
    ("cars", _write_file_for_directory, {"directory-missing"}),
    ("cars", _write_nul_checkpoint, {"checkpoint", "index-order"}),
    ("cars", _start_beyond_end, {"log-start-beyond-end"}),
    ("cars", _copy_folder, {"topic-id-twice"}),
]


def _errors(root: Path) -> set[str]:
    found = verify(LogDir.open(root).root)
    return {each.what for each in found.findings if each.severity == "error"}


@pytest.mark.parametrize(("fixture", "lose", "expected"), CASES)
def test_whatever_is_missing_of_a_brokers_directory_is_an_error(
    tmp_path: Path, fixture: str, lose: Callable[[Path], None], expected: set[str]
) -> None:
    root = tmp_path / "broker"
    shutil.copytree(FIXTURES / fixture, root, ignore=shutil.ignore_patterns("expected"))
    assert _errors(root) == set()
    lose(root)
    assert expected <= _errors(root)


@pytest.mark.parametrize(
    ("fixture", "lose", "expected"),
    [
        ("cars", _empty_last, {"log-too-short", "log-state"}),
        ("compacted-4-cleaned", _lose_last_of_compacted, {"segment-missing"}),
        ("compacted-4-cleaned", _lose_log_of_compacted, {"segment-missing"}),
        ("cars", _lose_first, {"segment-missing"}),
        ("cars", _empty_middle, {"offset-index-entry"}),
        ("cars", _lose_directory, {"directory-missing"}),
    ],
)
def test_whatever_is_missing_of_an_own_root_is_an_error(
    tmp_path: Path, fixture: str, lose: Callable[[Path], None], expected: set[str]
) -> None:
    root = tmp_path / "root"
    shutil.copytree(FIXTURES / fixture, root, ignore=shutil.ignore_patterns("expected"))
    adopt(root)
    assert _errors(root) == set()
    lose(root)
    assert expected <= _errors(root)


def test_advice_on_a_brokers_directory_names_no_command_that_refuses_it(tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(FIXTURES / "cars", root, ignore=shutil.ignore_patterns("expected"))
    _write_nul_checkpoint(root)
    (root / "cars-0" / "partition.metadata").write_bytes(b"\0")
    (root / "cars-0" / "leader-epoch-checkpoint").write_bytes(bytes(8))
    for path in (root / "cars-0").glob("*.snapshot"):
        path.write_bytes(b"\xff" * 40)
    findings = verify(LogDir.open(root).root).findings
    assert len(findings) > 3
    assert not [each for each in findings if "--repair" in each.advice or "reindex" in each.advice]
