"""`kafkalog dump-log` prints the same as Kafka's kafka-dump-log for every file of every fixture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from repository import FIXTURES

from pyspark_kafkalog.tools.main import main

DIED = "EXCEPTION"  # how the fixtures tell that Kafka's tool died; ours says why in one line of its own words
SANITY = ["--index-sanity-check"]


def _entries() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for manifest in sorted(FIXTURES.glob("*/expected/manifest.json")):
        for file, entries in json.loads(manifest.read_text("utf-8"))["dumps"].items():
            for entry in entries:
                yield manifest.parts[-3], file, entry


def _fixture_names() -> list[str]:
    return sorted({fixture for fixture, _, _ in _entries()})


def _dump(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    capsys.readouterr()
    exit_code = main(["dump-log", *arguments])
    captured = capsys.readouterr()
    here = f"{Path.cwd()}/"
    return exit_code, captured.out.replace(here, ""), captured.err.replace(here, "")


def _without_exceptions(text: str) -> str:
    return "".join(DIED + "\n" if line.startswith(DIED) else line for line in text.splitlines(keepends=True))


@pytest.mark.parametrize("fixture", _fixture_names())
def test_dump_matches_kafka(fixture: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(FIXTURES / fixture)
    compared = 0
    for _, file, entry in (found for found in _entries() if found[0] == fixture and found[2]["args"] != SANITY):
        expected_err = Path(entry["stderr"]).read_text("utf-8") if "stderr" in entry else ""
        exit_code, out, err = _dump([*entry["args"], "--files", file], capsys)
        assert out == Path(entry["stdout"]).read_bytes().decode("utf-8"), file
        if expected_err.startswith(DIED):
            assert exit_code == 1, file
            assert err.startswith("kafkalog dump-log: "), file
            assert err.count("\n") == 1, file
        else:
            assert (exit_code, err) == (0, expected_err), file
        compared += 1
    assert compared


@pytest.mark.parametrize("fixture", _fixture_names())
def test_sanity_check_matches_kafka(
    fixture: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(FIXTURES / fixture)
    printed: dict[str, str] = {}
    for _, file, entry in (found for found in _entries() if found[0] == fixture and found[2]["args"] == SANITY):
        exit_code, out, err = _dump([*SANITY, "--files", file], capsys)
        assert (exit_code == 1) == bool(err), file
        collected = entry["stdout"]
        printed[collected] = printed.get(collected, "") + out + (DIED + "\n" if exit_code else "")
    for collected, text in printed.items():
        assert text == _without_exceptions(Path(collected).read_text("utf-8")), collected


@pytest.mark.parametrize("fixture", _fixture_names())
def test_shallow_dump_is_deep_dump_without_records(
    fixture: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(FIXTURES / fixture)
    for _, file, entry in (found for found in _entries() if found[0] == fixture and _is_plain_deep_dump(found[2])):
        expected = Path(entry["stdout"]).read_bytes().decode("utf-8").split("\n")
        _, out, err = _dump(["--files", file], capsys)
        assert out.split("\n") == [line for line in expected if not line.startswith("| ")], file
        assert not err.startswith("Non-consecutive"), file


def _is_plain_deep_dump(entry: dict[str, Any]) -> bool:
    """Whether the dump of records has no payload with a line break in it, which would begin lines of its own."""
    if "--deep-iteration" not in entry["args"]:
        return False
    starts = ("Dumping ", "Log starting", "Snapshot end", "KRaft boot", "baseOffset: ", "| ", "Found ")
    lines = Path(entry["stdout"]).read_bytes().decode("utf-8").split("\n")
    return all(line.startswith(starts) for line in lines[:-1])
