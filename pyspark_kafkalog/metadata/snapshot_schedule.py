"""When a metadata snapshot is due, by the broker's configuration.

A snapshot is due once the commits since the last one take as many bytes as it does, 64 KiB at least and
metadata.log.max.record.bytes.between.snapshots at most; or, with a new commit, once
metadata.log.max.snapshot.interval.ms has passed. So reading a root's commits never takes much longer than reading its
snapshot, and of what is written to the metadata log snapshots are half at most.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.config.broker import BROKER_CONFIGS
from pyspark_kafkalog.metadata.log_tail import LogTail

_LEAST_BYTES: Final = 64 << 10


@dataclass(frozen=True, slots=True)
class MetadataLogConfig:
    """The metadata.* settings: bytes and ms between snapshots, ms that old files are kept."""

    max_bytes_between_snapshots: int
    max_snapshot_interval_ms: int
    max_retention_ms: int

    @staticmethod
    def from_properties(properties: Mapping[str, str]) -> MetadataLogConfig:
        """Parse the three of a broker's `properties`. Raises InvalidConfigError."""
        return MetadataLogConfig(
            _value(properties, "metadata.log.max.record.bytes.between.snapshots"),
            _value(properties, "metadata.log.max.snapshot.interval.ms"),
            _value(properties, "metadata.max.retention.ms"),
        )


def _value(properties: Mapping[str, str], name: str) -> int:
    definition = BROKER_CONFIGS[name]
    value = definition.parse(properties[name]) if name in properties else definition.default
    assert isinstance(value, int)
    return value


def snapshot_is_due(tail: LogTail, config: MetadataLogConfig, *, now_ms: int) -> bool:
    """Whether the log behind `tail`, which ends with a commit, calls for a snapshot at time `now_ms`."""
    if not tail.bytes_since:
        return False
    last_bytes = 0 if tail.snapshot is None else tail.snapshot.size_bytes
    if tail.bytes_since >= min(config.max_bytes_between_snapshots, max(_LEAST_BYTES, last_bytes)):
        return True
    return 0 < config.max_snapshot_interval_ms <= now_ms - tail.since_ms
