"""`kafkalog verify` and `kafkalog reindex` over Spark tasks find and report the same as in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from builders.verify_roots import findings_in, flip, make_root
from kafkalog_command import Command
from repository import FIXTURES

from pyspark_kafkalog.maintenance.verify import job as verify_job

if TYPE_CHECKING:
    pass

pytestmark = pytest.mark.usefixtures("spark")


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path / "log").path


@pytest.fixture
def verify(root: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    return Command("verify", root, capsys)


def test_damage_is_found_and_repaired_only_with_repair(
    root: Path, verify: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_job, "_TASK_UNITS", 4)
    code, out, _ = verify.try_to()
    told = lines(out)
    assert (code, {each["action"] for each in told}) == (0, {"verify"})
    assert sum(each["bytesRead"] for each in told) == sum(
        path.stat().st_size for path in root.rglob("*.log") if not path.parent.name.startswith("__")
    )
    index = sorted((root / "orders-1").glob("*.index"))[0]
    index.unlink()
    log = sorted((root / "transactions-0").glob("*.log"))[1]
    flip(log, 80)
    expected = [(each.what, each.file, each.position) for each in findings_in(root)]
    code, out, _ = verify.try_to()
    found = [each for each in lines(out) if each["action"] == "finding" and each["severity"] != "info"]
    assert code == 1
    assert sorted((each["what"], each["file"], each.get("position")) for each in found) == sorted(expected)
    code, out, _ = verify.try_to("--topic", "orders", "--repair", "--dry-run")
    assert (code, [each["state"] for each in lines(out) if each["action"] == "repair"]) == (1, ["planned"])
    assert not index.exists()
    code, out, _ = verify.try_to("--repair")
    states = [(each["step"], each["topic"], each["state"]) for each in lines(out) if each["action"] == "repair"]
    assert ("reindex", "orders", "done") in states
    assert code == 1  # records are damaged still
    assert index.exists()
    assert {(each["topic"], each["partition"]) for each in lines(out) if each.get("errorsFound")} == {
        ("transactions", 0)
    }


def test_reindex_writes_indexes_of_named_partitions_only(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reindex = Command("reindex", root, capsys)
    indexes = [sorted((root / f"orders-{number}").glob("*.index"))[0] for number in (0, 1)]
    for index in indexes:
        index.unlink()
    code, out, _ = reindex.try_to("--topic", "orders", "--partition", "1")
    assert (code, [(each["partition"], each["filesWritten"]) for each in lines(out)]) == (0, [(1, 1)])
    assert [index.exists() for index in indexes] == [False, True]
    assert reindex.try_to("--partition", "1")[0] == 2
    assert "no partition 7" in reindex.try_to("--topic", "orders", "--partition", "7")[2]


def test_root_that_cannot_be_loaded_is_reported_with_damaged_commit(root: Path, verify: Command) -> None:
    commit = min((root / "__cluster_metadata-0").glob("*.log"))
    flip(commit, 70)
    from builders.metadata_roots import forget_images

    forget_images()
    code, out, err = verify.try_to()
    assert code == 1
    assert ("commit", str(commit)) in {(each["what"], each["file"]) for each in lines(out)}
    assert "cannot be loaded" in err


def test_broker_directory_is_verified_and_never_repaired(capsys: pytest.CaptureFixture[str]) -> None:
    verify = Command("verify", FIXTURES / "cluster-metadata", capsys)
    code, out, _ = verify.try_to()
    assert (code, [(each["topic"], each["partition"]) for each in lines(out)]) == (0, [("__cluster_metadata", 0)])
    code, out, err = verify.try_to("--repair")
    assert (code, out) == (1, "")
    assert "read-only" in err or "broker" in err
