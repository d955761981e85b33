"""`kafkalog verify --remote-storage`: what is wrong with the objects of remote storage, and what is only left over."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
from builders.tiered_fixtures import ALL, TieredFixture

from pyspark_kafkalog.tools.main import main

TIERED, RECOVERED, UNCLEAN = ALL
FOLDER: Final = "kafka-tiered-storage/tiered-0-ub7nht-nQm-AWIiVV-G6Zg"
SECOND: Final = "00000000000000000113-nC7UUOzYRgeCVagqhCOXow"


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TIERED.remote, tmp_path / "remote"))


def verified(
    capsys: pytest.CaptureFixture[str], remote: Path, fixture: TieredFixture | None
) -> tuple[int, list[dict[str, Any]]]:
    """The exit status, and the findings."""
    path = () if fixture is None else ("--path", str(fixture.log_dir))
    status = main(["verify", "--remote-storage", str(remote), *path, "--output", "json"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return status, [line for line in lines if line["action"] == "finding"]


def kinds(findings: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return sorted((each["severity"], each["what"]) for each in findings)


def test_sound_storage_has_no_findings(capsys: pytest.CaptureFixture[str]) -> None:
    assert verified(capsys, TIERED.remote, TIERED) == (0, [])
    assert verified(capsys, TIERED.remote, None) == (0, [])


def test_interrupted_copies_are_no_errors(capsys: pytest.CaptureFixture[str]) -> None:
    status, findings = verified(capsys, UNCLEAN.remote, UNCLEAN)
    assert (status, kinds(findings)) == (0, [("info", "incomplete-copy")] * 2)
    assert "state COPY_SEGMENT_STARTED" in findings[0]["found"]
    status, findings = verified(capsys, UNCLEAN.remote, None)
    assert (status, kinds(findings)) == (0, [("warning", "incomplete-copy")] * 2)


def test_missing_object_is_an_error_with_segment_and_offset(remote: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (remote / FOLDER / f"{SECOND}.log").unlink()
    status, findings = verified(capsys, remote, TIERED)
    assert status == 1
    assert ("error", "missing-objects") in kinds(findings)
    assert (findings[0]["topic"], findings[0]["partition"], findings[0]["offset"]) == ("tiered", 0, 113)
    assert "nC7UUOzYRgeCVagqhCOXow" in findings[0]["file"]
    status, findings = verified(capsys, remote, None)
    assert kinds(findings) == [("error", "gap"), ("warning", "incomplete-copy")]


def test_deleted_segment_is_a_gap_in_the_objects(remote: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (remote / FOLDER).glob(f"{SECOND}.*"):
        path.unlink()
    status, (gap,) = verified(capsys, remote, None)
    assert (status, gap["what"], gap["offset"]) == (1, "gap", 113)
    assert gap["found"] == "the next one begins at 268"


def test_copy_that_nobody_names_is_a_warning(remote: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in list((remote / FOLDER).glob(f"{SECOND}.*")):
        shutil.copy(path, path.with_name(path.name.replace("nC7UUO", "orphan")))
    status, (finding,) = verified(capsys, remote, TIERED)
    assert (status, finding["severity"], finding["what"]) == (0, "warning", "unnamed-objects")
    assert "orphan" in finding["file"]


def test_damaged_batch_is_an_error_with_object_and_position(remote: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = remote / FOLDER / f"{SECOND}.log"
    body = bytearray(log.read_bytes())
    body[100] ^= 1
    log.write_bytes(body)
    for fixture in (TIERED, None):
        status, (finding,) = verified(capsys, remote, fixture)
        assert (status, finding["what"], finding["position"]) == (1, "damaged-segment", 17)
        assert finding["file"].endswith(f"{SECOND}.log")


def test_damaged_producer_snapshot_is_an_error(remote: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (remote / FOLDER / f"{SECOND}.snapshot").write_bytes(b"x")
    status, (finding,) = verified(capsys, remote, TIERED)
    assert (status, finding["what"]) == (1, "damaged-segment")
    assert finding["file"].endswith(f"{SECOND}.snapshot")


def test_overlapping_copies_are_a_note(remote: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A new leader has copied the end of one segment and all of the next as one."""
    folder = remote / FOLDER
    first, second = sorted(folder.glob("*.log"))[:2]
    joined = "00000000000000000000-overlapping0000000000A"
    for suffix in (".index", ".timeindex", ".leader_epoch_checkpoint", ".snapshot"):
        shutil.copy(second.with_suffix(suffix), folder / f"{joined}{suffix}")
    (folder / f"{joined}.index").write_bytes(b"")
    (folder / f"{joined}.log").write_bytes(first.read_bytes() + second.read_bytes())
    status, findings = verified(capsys, remote, None)
    assert (status, findings) == (0, [])  # the first two are inside it
    third = sorted(folder.glob("*.log"))[3]
    longer = "00000000000000000113-overlapping1111111111A"
    for suffix in (".index", ".timeindex", ".leader_epoch_checkpoint", ".snapshot"):
        shutil.copy(third.with_suffix(suffix), folder / f"{longer}{suffix}")
    (folder / f"{longer}.index").write_bytes(b"")
    (folder / f"{longer}.log").write_bytes(second.read_bytes() + third.read_bytes())
    status, (note,) = verified(capsys, remote, None)
    assert (status, note["severity"], note["what"], note["offset"]) == (0, "info", "overlap", 113)


def test_options_of_directories_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "--remote-storage", str(TIERED.remote), "--repair"]) == 2
    assert main(["verify"]) == 2
    assert "--path, or --remote-storage" in capsys.readouterr().err
