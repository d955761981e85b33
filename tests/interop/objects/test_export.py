"""A log directory in S3Proxy, exported to files: Kafka finds the copy valid, and a broker serves every record of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from kafka_processes.clients import consume, producing
from kafka_processes.oracle import Broker, dump_log
from kafka_processes.s3_proxy import S3Proxy

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.objects.merge import merge_partition
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.object_store.settings import store_settings
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.main import main

PARTITIONS = 2
SMALL = {"segment.bytes": "1048576", "index.interval.bytes": "1024"}
BIG = 3000


def _values(write: int, count: int, width: int) -> pa.Table:
    numbers = [f"{write}-{number}" for number in range(count)]
    return pa.table({"key": numbers, "value": [each.ljust(width, ".") for each in numbers]})


def _fill(log_dir: LogDir) -> None:
    """Segments of merged runs, data objects, and small writes inside their commits."""
    log_dir.create_topic("orders", partitions=PARTITIONS, configs=SMALL)
    for write in range(3):
        log_dir.append("orders", _values(write, BIG, 900))
    root = log_dir.root.native()
    assert isinstance(root, ObjectRoot)
    config = broker_config(root.store.image).log_config(SMALL)
    merged = merge_partition(root.store, root.objects, config, TopicPartition("orders", 0), clock=root.clock)
    assert merged is not None
    assert len(merged.segments) > 1
    log_dir.append("orders", _values(3, BIG, 900))
    for write in range(4, 10):
        log_dir.append("orders", _values(write, 10, 20))


@pytest.mark.full
def test_broker_serves_export_of_object_root(
    s3_proxy: S3Proxy, start_broker: Callable[..., Broker], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    location = s3_proxy.new_location().below("log")
    for option, variable in (
        ("storeEndpoint", "AWS_ENDPOINT_URL"),
        ("storeRegion", "AWS_REGION"),
        ("storeAccessKey", "AWS_ACCESS_KEY_ID"),
        ("storeSecretKey", "AWS_SECRET_ACCESS_KEY"),
    ):
        monkeypatch.setenv(variable, s3_proxy.options()[option])
    log_dir = LogDir.open_or_create(StoreAddress(location, store_settings(location, {})))
    _fill(log_dir)
    log_dir.refresh()
    expected = [
        (row["partition"], row["offset"], row["key"], row["value"])
        for row in log_dir.read("orders", columns=["partition", "offset", "key", "value"]).to_pylist()
    ]
    assert len(expected) == 4 * BIG + 60
    copy = tmp_path / "copy"
    assert main(["export", "--path", location.url, "--to", str(copy)]) == 0

    logs = sorted(copy.glob("orders-*/*.log"))
    assert len(logs) > 2 * PARTITIONS
    dumped = dump_log(logs, "--deep-iteration")
    assert dumped.returncode == 0, dumped.stderr
    assert dumped.stdout.count("isvalid: true") == dumped.stdout.count("isvalid:") > 0
    indexes = sorted(copy.glob("orders-*/*.index")) + sorted(copy.glob("orders-*/*.timeindex"))
    checked = dump_log(indexes, "--index-sanity-check")
    assert checked.stdout.count("passed sanity check") == len(indexes), checked.stdout

    broker = start_broker()
    broker.create_topic("orders", PARTITIONS, SMALL)
    broker.stop()
    assert main(["export", "--path", str(copy), "--to", str(broker.data)]) == 0
    broker.start()
    served = [(each.partition, each.offset, each.key, each.value) for each in consume(broker.bootstrap, "orders")]
    assert sorted(served) == sorted(expected)
    with producing(broker.bootstrap) as producer:
        producer.produce("orders", value=b"and on", partition=0)
    assert len(consume(broker.bootstrap, "orders")) == len(expected) + 1
