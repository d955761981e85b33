"""The fixtures of a real tiering broker: its directory, what it copied to remote storage, and what its consumers got.

    tests/data/fixtures-tiered/<name>/log-dir, remote     as the broker left them (Kafka 4.1.0, LocalTieredStorage)
    tests/data/fixtures-tiered/<name>/expected            manifest.json, and the records of each topic, one a line

tiered            stopped cleanly
tiered-unclean    killed while it copied and deleted segments
tiered-recovered  the same broker after it was started again, tiered on, and was stopped cleanly
"""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from repository import DATA

TIERED_FIXTURES: Final = DATA / "fixtures-tiered"
NAMES: Final = ("tiered", "tiered-recovered", "tiered-unclean")
ISOLATIONS: Final = ("read_uncommitted", "read_committed")
COLUMNS: Final = ("partition", "offset", "timestamp", "key", "value", "headers")


@dataclass(frozen=True)
class TieredFixture:
    """One fixture. Its files are never changed: copy them first."""

    name: str

    @property
    def log_dir(self) -> Path:
        return TIERED_FIXTURES / self.name / "log-dir"

    @property
    def remote(self) -> Path:
        return TIERED_FIXTURES / self.name / "remote"

    @property
    def is_killed(self) -> bool:
        """Whether the broker's checkpoints are older than its logs."""
        return self.name == "tiered-unclean"

    def manifest(self) -> dict[str, Any]:
        return _manifest(self.name)

    def topics(self) -> list[str]:
        return list(self.manifest()["records"])

    def topic_id(self, topic: str) -> str:
        topic_id: str = self.manifest()["topics"][topic]["topicId"]
        return topic_id

    def partitions(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each topic with the offsets of each of its partitions, as the broker's tools print them."""
        for topic, partitions in self.manifest()["offsets"].items():
            for each in partitions:
                yield topic, each

    def rows(self, topic: str, isolation: str) -> list[tuple[Any, ...]]:
        """What a consumer got: COLUMNS, by partition and offset; timestamps in ms, headers as pairs."""
        file = Path(self.manifest()["records"][topic][isolation]["file"]).name
        with gzip.open(TIERED_FIXTURES / self.name / "expected" / f"{file}.gz", "rt") as lines:
            records = [json.loads(line) for line in lines]
        return sorted(
            (
                each["partition"],
                each["offset"],
                each["timestamp"],
                _bytes(each["key"]),
                _bytes(each["value"]),
                tuple((name, _bytes(value)) for name, value in each.get("headers") or ()),
            )
            for each in records
        )


ALL: Final = tuple(TieredFixture(name) for name in NAMES)


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """The records of a table in the form of `TieredFixture.rows`."""
    timestamps_ms = table["timestamp"].cast(pa.timestamp("ms", tz="UTC")).cast("int64").to_pylist()
    columns = [table[name].to_pylist() for name in COLUMNS]
    columns[2] = timestamps_ms
    columns[5] = [tuple((each["key"], each["value"]) for each in headers or ()) for headers in columns[5]]
    return sorted(zip(*columns, strict=True))


@cache
def _manifest(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((TIERED_FIXTURES / name / "expected" / "manifest.json").read_text())
    return found


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
