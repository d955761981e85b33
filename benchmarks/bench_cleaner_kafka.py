"""Runs Kafka's own LogCleaner on given segments: a broker that cleans one topic on request.

All topics exist from the start with cleanup.policy `delete`, so that one broker, warmed up by the first of them, can
take turns with the other contenders; a topic is cleaned when its policy becomes `compact`. The duration comes from the
broker's log, as Kafka's own statistic.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from pathlib import Path

from bench_peers import BROKER_JAVA_OPTIONS, Broker

SETTINGS = {
    "log.cleaner.threads": "1",
    "log.cleaner.dedupe.buffer.size": str(128 << 20),
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.retention.check.interval.ms": "86400000",
    "log.initial.task.delay.ms": "86400000",
}
CONFIGS = {"cleanup.policy": "delete", "segment.ms": "9223372036854775807"}
SECONDS_MAX = 600
_STATISTIC = re.compile(
    r"cleaned log (?P<name>\S+) \(dirty section = \[\d+, (?P<end>\d+)\]\)\s+"
    r"(?P<megabytes>[\d,.]+) MB of log processed in (?P<seconds>[\d,.]+) seconds.*?"
    r"End size: [\d,.]+ MB \((?P<kept>[\d,]+) messages\)",
    re.DOTALL,
)


class KafkaCleaner:
    """A broker with `topics` topics, `t-0` and so on, each with the segments of `partition_dir`."""

    def __init__(self, home: Path, partition_dir: Path, topics: int, segment_bytes: int) -> None:
        self._broker = Broker(home, SETTINGS, BROKER_JAVA_OPTIONS)
        self._broker.start()
        names = [f"t{number}" for number in range(topics)]
        for name in names:
            self._broker.create_topic(name, 1, {**CONFIGS, "segment.bytes": str(segment_bytes)})
        self._broker.stop()
        for name in names:
            _replace_files(partition_dir, self._broker.data / f"{name}-0")
        self._broker.start()

    def close(self) -> None:
        self._broker.kill()

    def clean(self, number: int) -> tuple[float, int]:
        """Have topic number `number` cleaned, once; (seconds by Kafka's statistic, records kept)."""
        from confluent_kafka.admin import (
            AdminClient,
            AlterConfigOpType,
            ConfigEntry,
            ConfigResource,
            ResourceType,
        )

        name = f"t{number}"
        policy = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=[policy])
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap})
        admin.incremental_alter_configs([resource])[resource].result(30)
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            for found in _STATISTIC.finditer((self._broker.home / "server.log").read_text(errors="replace")):
                if found["name"] == f"{name}-0":
                    return float(found["seconds"].replace(",", "")), int(found["kept"].replace(",", ""))
            time.sleep(0.2)
        raise TimeoutError(f"Kafka's cleaner did not come to {name} in {SECONDS_MAX} s")


def _replace_files(source: Path, target: Path) -> None:
    """Give `target` the files of `source`; closed `.log` files, which no broker writes to, by a second name."""
    for old in target.iterdir():
        if old.name != "partition.metadata":
            old.unlink()
    *_, active = sorted(source.glob("*.log"))
    for new in source.iterdir():
        if new.suffix == ".log" and new != active:
            os.link(new, target / new.name)
        elif new.name != "partition.metadata":
            shutil.copy2(new, target / new.name)
