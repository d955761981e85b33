"""`kafkalog dump-log` answers odd, damaged and missing files like Kafka's tool."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_kafkalog.tools.main import main
from tests.unit.tools.dump.odd_inputs import CASES, DIED, RECORDED, build, relative

ANSWERS = json.loads(RECORDED.read_text("utf-8"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("odd-inputs").resolve()
    build(directory)
    return directory


def test_every_case_has_an_answer_of_kafka() -> None:
    assert list(ANSWERS) == list(CASES)


@pytest.mark.parametrize("case", CASES)
def test_answer_matches_kafka(
    case: str, directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(directory)
    before = {path: path.stat().st_size for path in directory.rglob("*")}
    exit_code = main(["dump-log", *CASES[case]])
    captured = capsys.readouterr()
    expected_code, expected_out, expected_err = ANSWERS[case]
    assert captured.out == expected_out
    assert exit_code == expected_code
    err = relative(captured.err, directory)
    if expected_err.endswith(DIED):
        *said, why = err.splitlines(keepends=True)
        assert "".join(said) + DIED == expected_err
        assert why.startswith("kafkalog dump-log: ")
    else:
        assert err == expected_err
    assert {path: path.stat().st_size for path in directory.rglob("*")} == before
