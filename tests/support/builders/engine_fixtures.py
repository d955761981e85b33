"""The fixtures as the log engine's tests use them: partitions with their configs, offsets and files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from repository import FIXTURES

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets, list_partitions

LATE_MS = 1_800_000_000_000  # after every fixture's last record


@dataclass(frozen=True)
class FixturePartition:
    """One partition directory of one fixture."""

    fixture: str
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.fixture}/{self.topic}-{self.partition}"

    @property
    def root(self) -> Path:
        return FIXTURES / self.fixture

    @property
    def directory(self) -> Path:
        return self.root / f"{self.topic}-{self.partition}"

    @property
    def config(self) -> LogConfig:
        topics = manifest(self.fixture)["topics"]
        return LogConfig.from_properties(topics.get(self.topic, {}).get("configs", {}))

    @property
    def base_offsets(self) -> list[int]:
        return list_base_offsets(self.directory)

    @property
    def log_start_offset(self) -> int:
        """What log-start-offset-checkpoint says, 0 if nothing."""
        return checkpoint(self.root / "log-start-offset-checkpoint").get((self.topic, self.partition), 0)

    @property
    def offsets(self) -> dict[str, Any]:
        """What a real broker has answered about this partition's offsets."""
        found = [each for each in manifest(self.fixture)["offsets"][self.topic] if each["partition"] == self.partition]
        result: dict[str, Any] = found[0]
        return result


@cache
def manifest(fixture: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((FIXTURES / fixture / "expected" / "manifest.json").read_text())
    return result


@cache
def checkpoint(path: Path) -> dict[tuple[str, int], int]:
    """An offset checkpoint file."""
    lines = [line.split() for line in path.read_text().splitlines()[2:]]
    return {(topic, int(partition)): int(offset) for topic, partition, offset in lines}


def partitions() -> list[FixturePartition]:
    """Every partition of every fixture."""
    return [
        FixturePartition(path.parent.parent.name, found.topic, found.partition)
        for path in sorted(FIXTURES.glob("*/expected/manifest.json"))
        for found in list_partitions(path.parent.parent)
    ]


def partitions_with_offsets() -> list[FixturePartition]:
    """Those for which a broker's answers about offsets are known."""
    return [
        each
        for each in partitions()
        if any(found["partition"] == each.partition for found in manifest(each.fixture)["offsets"].get(each.topic, []))
    ]


def expected_records(part: FixturePartition, isolation: str) -> Iterator[dict[str, Any]]:
    """The partition's records as a real consumer has read them with that isolation."""
    files = manifest(part.fixture)["records"].get(part.topic)
    if files is None:
        return
    with (part.root / files[isolation]["file"]).open() as lines:
        for line in lines:
            record = json.loads(line)
            if record["partition"] == part.partition:
                yield record


def files_of(directory: Path) -> dict[str, bytes]:
    """Content of every file in `directory`."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}
