"""Logs that `LogDir` writes are Kafka's: its tools find them valid, and a broker serves them record for record."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from kafka_processes.clients import ConsumedRecord, consume, producing
from kafka_processes.oracle import Broker, dump_log
from tiers import rest_full

from pyspark_kafkalog import LogDir
from tests.interop.samples import CODECS, assert_dumps_clean, sample_records, to_table

PARTITIONS = 3
APPENDS = 16
RECORDS_PER_APPEND = 100
CONFIGS = {"internal.segment.bytes": "300000", "index.interval.bytes": "1000"}


def expected_records(codec: str) -> list[ConsumedRecord]:
    count = APPENDS * RECORDS_PER_APPEND
    return [
        record
        for partition in range(PARTITIONS)
        for record in sample_records(count, seed=CODECS.index(codec) * 10 + partition, partition=partition)
    ]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One root, a topic a codec, each written in several commits that roll segments."""
    root = tmp_path_factory.mktemp("written")
    log_dir = LogDir.create(root)
    for codec in CODECS:
        topic = f"logdir-{codec}"
        log_dir.create_topic(topic, partitions=PARTITIONS, configs=CONFIGS)
        records = expected_records(codec)
        for first in range(0, APPENDS * RECORDS_PER_APPEND, RECORDS_PER_APPEND):
            for partition in range(PARTITIONS):
                chunk = [
                    record
                    for record in records
                    if record.partition == partition and first <= record.offset < first + RECORDS_PER_APPEND
                ]
                log_dir.append(topic, to_table(chunk), partition=partition, compression_type=codec)
    return root


@pytest.fixture(scope="module")
def broker(written: Path, start_broker: Callable[..., Broker]) -> Broker:
    broker = start_broker()
    broker.mount(written, {f"logdir-{codec}": PARTITIONS for codec in CODECS})
    return broker


@pytest.mark.full
def test_kafka_finds_written_segments_and_indexes_valid(written: Path) -> None:
    directories = [written / f"logdir-{codec}-{partition}" for codec in CODECS for partition in range(PARTITIONS)]
    assert len(list(directories[0].glob("*.log"))) > 1, "the segments were meant to roll"
    assert any(index.stat().st_size for index in directories[0].glob("*.index"))
    assert_dumps_clean(directories, batches_min=APPENDS * len(directories))


@pytest.mark.full
def test_kafka_rebuilds_same_indexes(
    written: Path, start_broker: Callable[..., Broker], tmp_path_factory: pytest.TempPathFactory
) -> None:
    logs_alone = tmp_path_factory.mktemp("logs-alone")
    for log in written.glob("logdir-*/*.log"):
        (logs_alone / log.parent.name).mkdir(exist_ok=True)
        shutil.copyfile(log, logs_alone / log.parent.name / log.name)
    broker = start_broker()
    broker.mount(logs_alone, {f"logdir-{codec}": PARTITIONS for codec in CODECS}, CONFIGS)
    broker.stop()
    compared = 0
    for directory in written.glob("logdir-*"):
        *closed, _ = sorted(directory.glob("*.log"))  # the active segment gets a closing entry when a broker stops
        for index in (log.with_suffix(suffix) for log in closed for suffix in (".index", ".timeindex")):
            assert index.read_bytes() == (broker.data / directory.name / index.name).read_bytes(), index
            compared += index.stat().st_size > 0
    assert compared > PARTITIONS


@pytest.mark.full
def test_kafka_serves_log_append_time(start_broker: Callable[..., Broker], tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("stamped", partitions=1, configs={"message.timestamp.type": "LogAppendTime"})
    log_dir.append("stamped", to_table(sample_records(50, seed=3)), compression_type="lz4")
    broker = start_broker()
    broker.mount(tmp_path / "root", {"stamped": 1}, {"message.timestamp.type": "LogAppendTime"})
    served = consume(broker.bootstrap, "stamped")
    assert {record.timestamp_type for record in served} == {1}
    rows = log_dir.read("stamped", columns=["offset", "timestamp"]).to_pylist()
    assert [(row["offset"], round(row["timestamp"].timestamp() * 1000)) for row in rows] == [
        (record.offset, record.timestamp_ms) for record in served
    ]


@pytest.mark.parametrize("codec", rest_full(CODECS))
def test_kafka_serves_written_topics_record_for_record(broker: Broker, codec: str) -> None:
    assert consume(broker.bootstrap, f"logdir-{codec}", isolation="read_committed") == expected_records(codec)


def test_kafka_appends_at_end_of_written_log(broker: Broker) -> None:
    with producing(broker.bootstrap) as producer:
        producer.produce("logdir-zstd", value=b"after", partition=0)
    last = [record for record in consume(broker.bootstrap, "logdir-zstd") if record.partition == 0][-1]
    assert (last.offset, last.value) == (APPENDS * RECORDS_PER_APPEND, b"after")


def test_keys_go_to_partitions_of_kafkas_partitioner(broker: Broker, tmp_path: Path) -> None:
    keys = [b"", b"a", b"ab", b"abc", b"abcd", bytes(range(256)), *(b"key-%d" % i for i in range(500))]
    partitions = 7
    broker.create_topic("placed", partitions)
    with producing(broker.bootstrap, partitioner="murmur2") as producer:
        for key in keys:
            producer.produce("placed", key=key)
    theirs = {record.key: record.partition for record in consume(broker.bootstrap, "placed")}
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("placed", partitions=partitions)
    log_dir.append("placed", pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(keys, pa.binary())}))
    rows = log_dir.read("placed", columns=["key", "partition"]).to_pylist()
    assert {row["key"]: row["partition"] for row in rows} == theirs


def test_kafka_decodes_metadata_log_of_written_root(written: Path) -> None:
    files = sorted((written / "__cluster_metadata-0").glob("*.log"))
    assert files
    decoded = dump_log(files, "--cluster-metadata-decoder")
    assert decoded.returncode == 0, decoded.stderr
    assert set(re.findall(r"isvalid: (\w+)", decoded.stdout)) == {"true"}
    payloads = re.findall(r"payload: (\{.*\})$", decoded.stdout, re.MULTILINE)
    topics = {json.loads(text)["data"]["name"] for text in payloads if '"TOPIC_RECORD"' in text}
    assert topics == {f"logdir-{codec}" for codec in CODECS}
