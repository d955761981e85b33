"""Rows and offsets of every real broker's directory match the answers of Kafka's consumer and of the broker."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from repository import FIXTURES

from pyspark_kafkalog import LogDir

#: The broker looks in the first segment whose largest timestamp is late enough, and nowhere else. Here the cleaner has
#: left just an emptied batch there, so it answers "none"; the reader goes on and finds the record that is there.
EMPTIED_SEGMENTS = {(f"compacted-{state}", "compacted-idempotent") for state in ("2-cleaned", "3-dirty", "4-cleaned")}


def _cases() -> Iterator[Any]:
    for manifest_path in sorted(FIXTURES.glob("*/expected/manifest.json")):
        root = manifest_path.parent.parent
        manifest = json.loads(manifest_path.read_text())
        for topic, levels in manifest["records"].items():
            for isolation, expected in levels.items():
                yield pytest.param(root, topic, isolation, expected["file"], id=f"{root.name}-{topic}-{isolation}")


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def _expected(path: Path) -> list[dict[str, Any]]:
    rows = []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        rows.append(
            {
                "partition": record["partition"],
                "offset": record["offset"],
                "timestamp_ms": record["timestamp"],
                "timestampType": {"CreateTime": 0, "LogAppendTime": 1, "NoTimestampType": 0}[record["timestampType"]],
                "key": _bytes(record["key"]),
                "value": _bytes(record["value"]),
                "headers": [(key, _bytes(value)) for key, value in record["headers"]],
            }
        )
    return rows


def _found(root: Path, topic: str, isolation: Any) -> list[dict[str, Any]]:
    table = LogDir.open(root).read(topic, isolation=isolation)
    milliseconds = table["timestamp"].cast("int64").to_pylist()
    rows = table.drop_columns(["topic", "timestamp"]).to_pylist()
    for row, timestamp_ms in zip(rows, milliseconds, strict=True):
        row["timestamp_ms"] = timestamp_ms
        row["headers"] = [(header["key"], header["value"]) for header in row["headers"]]
    return rows


@pytest.mark.parametrize(("root", "topic", "isolation", "file"), list(_cases()))
def test_rows_match_kafka_consumer(root: Path, topic: str, isolation: str, file: str) -> None:
    assert _found(root, topic, isolation) == _expected(root / file)


def _offset_cases() -> Iterator[Any]:
    for manifest_path in sorted(FIXTURES.glob("*/expected/manifest.json")):
        for topic, partitions in json.loads(manifest_path.read_text()).get("offsets", {}).items():
            root = manifest_path.parent.parent
            yield pytest.param(root, topic, partitions, id=f"{root.name}-{topic}")


@pytest.mark.parametrize(("root", "topic", "partitions"), list(_offset_cases()))
def test_offsets_match_broker(root: Path, topic: str, partitions: list[dict[str, Any]]) -> None:
    log_dir = LogDir.open(root)
    for expected in partitions:
        found = log_dir.partition(topic, expected["partition"])
        assert (found.log_start_offset, found.high_watermark) == (expected["earliest"], expected["latest"])
        assert log_dir.last_stable_offset(topic, expected["partition"]) == expected["last_stable"]
        reader = log_dir.reader(topic, expected["partition"])
        for by_time in expected["by_time"]:
            first = reader.offset_for_timestamp(by_time["target"], found.log_start_offset, found.high_watermark)
            answer = (-1, -1) if first is None else (first.offset, first.timestamp_ms)
            wanted = by_time["read_uncommitted"]
            if (root.name, topic) in EMPTIED_SEGMENTS and wanted["offset"] == -1:
                assert first is not None
                continue
            assert answer == (wanted["offset"], wanted["timestamp"]), by_time["target"]
