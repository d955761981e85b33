"""`kafkalog dump-log --output json` prints the same facts as its text, one object per line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from repository import FIXTURES

from pyspark_kafkalog.metadata.messages.metadata_records import ClientQuotaRecord
from pyspark_kafkalog.metadata.messages.records import encode_record
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.tools.main import main
from tests.unit.tools.dump.odd_inputs import CASES, RECORDED, build

ANSWERS = json.loads(RECORDED.read_text("utf-8"))


def dump(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["dump-log", "--output", "json", *arguments]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.split("\n")[:-1]]


def of_type(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in found if each["type"] == kind]


def test_batches_and_records_have_same_fields_as_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(FIXTURES / "cars")
    log = "cars-0/00000000000000000000.log"
    found = dump(capsys, "--files", log, "--print-data-log")
    assert found[0] == {"type": "file", "file": log}
    assert found[1] == {"type": "log", "startingOffset": 0}
    text = Path(f"expected/dump/{log}.txt").read_text("utf-8").splitlines()
    batches = of_type(found, "batch")
    assert len(batches) == sum(line.startswith("baseOffset: ") for line in text)
    for batch, line in zip(batches, (line for line in text if line.startswith("baseOffset: ")), strict=True):
        for name in ("baseOffset", "lastOffset", "count", "position", "size", "magic", "crc", "compresscodec"):
            assert f" {name}: {batch[name]} " in f" {line} "
        assert (batch["isvalid"], batch["deleteHorizonMs"]) == (True, None)
    records = of_type(found, "record")
    lines = [line for line in text if line.startswith("| ")]
    assert [f" key: {record['key']} payload: {record['payload']}" for record in records] == [
        line[line.index(" key: ") :] for line in lines
    ]
    assert records[0]["offset"] == 0
    assert {"timestamp", "timestampType", "keySize", "valueSize", "sequence", "headerKeys"} <= set(records[0])


def test_binary_contents_are_base64(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "00000000000000000000.log"
    record = Record(offset=0, timestamp_ms=1, key=None, value=b"\xff\x00", headers=((b"h", b"v"), (b"\xfe", None)))
    log.write_bytes(encode_batch([record]))
    (found,) = of_type(dump(capsys, "--files", str(log), "--print-data-log"), "record")
    assert (found["key"], found["payload"]) == (None, {"base64": "/wA="})
    assert found["headers"] == [{"key": "h", "value": "v"}, {"key": {"base64": "/g=="}, "value": None}]
    (found,) = of_type(dump(capsys, "--files", str(log), "--print-data-log", "--skip-record-metadata"), "record")
    assert set(found) == {"type", "key", "payload", "headers"}
    (found,) = of_type(dump(capsys, "--files", str(log), "--deep-iteration"), "record")
    assert "payload" not in found


def test_decoded_records_are_objects(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(FIXTURES / "cluster-metadata")
    found = dump(capsys, "--files", "bootstrap.checkpoint", "--cluster-metadata-decoder")
    assert found[1]["type"] == "bootstrapSnapshot"
    decoded = [record["payload"]["type"] for record in of_type(found, "record") if "payload" in record]
    assert "FEATURE_LEVEL_RECORD" in decoded
    (checkpoint,) = Path("__cluster_metadata-0").glob("*0-0000000000.checkpoint")
    found = dump(capsys, "--files", str(checkpoint), "--deep-iteration")
    assert found[1] == {"type": "snapshot", "endOffset": 0, "epoch": 0}
    controls = {record["controlType"]: record["data"] for record in of_type(found, "record") if "controlType" in record}
    assert controls["KRaftVersion"] == {"version": 0, "kRaftVersion": 1}
    assert set(controls) == {"SnapshotHeader", "KRaftVersion", "KRaftVoters", "SnapshotFooter"}


def test_nan_is_printed_as_string(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quota = encode_record(ClientQuotaRecord(entity=(), key="k", value=math.nan, remove=False))
    log = tmp_path / "00000000000000000000.log"
    log.write_bytes(encode_batch([Record(offset=0, timestamp_ms=1, key=None, value=quota)]))
    (found,) = of_type(dump(capsys, "--files", str(log), "--cluster-metadata-decoder"), "record")
    assert found["payload"]["data"]["value"] == "NaN"


def test_indexes_and_snapshots_have_all_entries(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert dump(capsys, *CASES["sound .index"])[1:] == [
        {"type": "offsetIndexEntry", "offset": 3, "position": 83},
        {"type": "offsetIndexEntry", "offset": 5, "position": 166},
    ]
    assert dump(capsys, *CASES["sound .timeindex"])[1:] == [
        {"type": "timeIndexEntry", "timestamp": 1003, "offset": 3},
        {"type": "timeIndexEntry", "timestamp": 1005, "offset": 5},
    ]
    (checked,) = dump(capsys, *CASES["sound .index checked"])[1:]
    assert (checked["type"], checked["passed"]) == ("sanityCheck", True)
    (empty,) = dump(capsys, *CASES["empty .index"])[1:]
    assert empty["type"] == "emptyIndex"
    (aborted,) = dump(capsys, *CASES["transactions one"])[1:]
    assert (aborted["producerId"], aborted["firstOffset"], aborted["lastStableOffset"]) == (5, 1, 3)
    (producer,) = dump(capsys, *CASES["snapshot one producer"])[1:]
    assert (producer["producerId"], producer["lastSequence"], producer["currentTxnFirstOffset"]) == (1, 3, 8)
    (tail,) = of_type(dump(capsys, *CASES["torn after 40 bytes"]), "invalidBytes")
    assert tail["size"] == 40


@pytest.mark.parametrize("case", CASES)
def test_odd_input_gives_valid_json_and_same_exit_code_as_text(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build(tmp_path)
    monkeypatch.chdir(tmp_path)
    exit_code = main(["dump-log", "--output", "json", *CASES[case]])
    captured = capsys.readouterr()
    for line in captured.out.split("\n")[:-1]:
        assert "type" in json.loads(line)
    assert exit_code == ANSWERS[case][0]
    assert bool(captured.err) == bool(ANSWERS[case][2])
