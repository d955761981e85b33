"""A real broker tiers, and deletes what it tiered, while its directory and its remote storage are read."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builders.aiven_objects import AivenWriter
from builders.tiered_fixtures import ALL, rows_of
from kafka_processes.clients import consume
from kafka_processes.oracle import Broker, tiering
from kafka_processes.s3_proxy import S3Proxy
from kafka_processes.tiering_brokers import SEGMENTS, is_committed, numbers, produced
from patience import wait_until
from pyspark.sql.pandas.types import to_arrow_schema
from tiers import TIER

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import OffsetOutOfRangeError
from pyspark_kafkalog.object_store.client import open_store
from pyspark_kafkalog.object_store.settings import store_settings
from pyspark_kafkalog.spark.data_source import read_schema
from pyspark_kafkalog.spark.options.parse import parse_read_options
from pyspark_kafkalog.spark.read.reader import KafkalogBatchReader, read_offset_range
from pyspark_kafkalog.tools.main import main

#: How long the broker tiers while it is read.
SECONDS = 180 if TIER == "full" else 20


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path / "broker", settings=tiering(tmp_path / "tier")) as started:
        yield started


def opened(broker: Broker, tier: Path) -> LogDir:
    return LogDir.open(broker.data, remote_storage=tier)


@pytest.mark.full
def test_reads_see_every_record_once_while_the_broker_tiers(broker: Broker, tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    broker.create_topic("orders", 1, SEGMENTS)
    reads, most_remote = 0, 0
    with produced(broker, "orders"):
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            log_dir = opened(broker, tier)
            found = log_dir.partition("orders", 0)
            all_of_it = numbers(log_dir.read("orders")["value"].to_pylist())
            assert all_of_it == list(range(len(all_of_it)))
            committed = numbers(log_dir.read("orders", isolation="read_committed")["value"].to_pylist())
            assert committed == [each for each in range(max(committed, default=-1) + 1) if is_committed(each)]
            reads += 1
            most_remote = max(most_remote, found.latest_tiered_offset)
    assert reads > 5
    assert most_remote > 500
    consumed = [record.value for record in consume(broker.bootstrap, "orders", isolation="read_committed")]
    broker.stop()
    log_dir = opened(broker, tier)
    assert log_dir.partition("orders", 0).local_log_start_offset > 500
    assert main(["verify", "--path", str(broker.data), "--remote-storage", str(tier), "--output", "json"]) == 0
    assert log_dir.read("orders", isolation="read_committed")["value"].to_pylist() == consumed


@pytest.mark.full
def test_reads_beside_retention_of_remote_segments_lose_only_what_it_deletes(broker: Broker, tmp_path: Path) -> None:
    tier = tmp_path / "tier"
    broker.create_topic("orders", 1, {**SEGMENTS, "retention.bytes": "120000"})
    complete, out_of_range = 0, 0
    with produced(broker, "orders"):
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            log_dir = opened(broker, tier)
            before = log_dir.partition("orders", 0).log_start_offset
            try:
                found = numbers(log_dir.read("orders")["value"].to_pylist())
            except OffsetOutOfRangeError:
                out_of_range += 1
                wait_until(lambda: opened(broker, tier).partition("orders", 0).log_start_offset > before)  # noqa: B023
                continue
            assert found == list(range(found[0], found[0] + len(found))) if found else True
            complete += 1
    assert complete > 3
    assert opened(broker, tier).partition("orders", 0).log_start_offset > 500


@pytest.mark.parametrize("layout", ["local", "aiven"])
def test_segments_in_a_bucket_are_read_with_and_without_the_directory(
    s3_proxy: S3Proxy, layout: str, tmp_path: Path
) -> None:
    fixture = ALL[0]
    objects = fixture.remote
    if layout == "aiven":
        objects = tmp_path / "objects"
        AivenWriter(is_compressed=True, prefix="tiered-").write(fixture, objects)
    location = s3_proxy.new_location().below("some/folder")
    store = open_store(location, store_settings(location, s3_proxy.options()))
    for path in objects.rglob("*"):
        if path.is_file():
            store.put(str(path.relative_to(objects)), path.read_bytes())
    ends = {0: 552, 1: 1158, 2: 667}
    rows = fixture.rows("tiered", "read_uncommitted")
    for path, expected in (
        ({"path": str(fixture.log_dir)}, rows),
        ({}, [row for row in rows if row[1] < ends[row[0]]]),
    ):
        options = {
            "subscribe": "tiered",
            "remoteStorage": location.url,
            "includeHeaders": "true",
            **path,
            **s3_proxy.options(),
        }
        parsed = parse_read_options(options)
        assert s3_proxy.secret_key not in repr(parsed)
        schema = to_arrow_schema(read_schema(include_headers=True), timezone="UTC")
        tasks = KafkalogBatchReader(parsed, read_schema(include_headers=True)).partitions()
        found = [
            row
            for task in tasks
            for batch in read_offset_range(pickle.loads(pickle.dumps(task)), schema)  # type: ignore[arg-type]
            for row in rows_of(batch)
        ]
        assert sorted(found) == expected
