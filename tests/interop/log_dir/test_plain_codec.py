"""Batches of the plain codec, alone in a `.log` file, are valid for Kafka and served record for record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from kafka_processes.clients import ConsumedRecord, consume
from kafka_processes.oracle import Broker

from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.reference import Record, encode_batch
from tests.interop.samples import CODECS, assert_dumps_clean, sample_records

RECORDS_PER_BATCH = 100


def _to_plain(record: ConsumedRecord) -> Record:
    return Record(
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        key=record.key,
        value=record.value,
        headers=tuple((key.encode(), value) for key, value in record.headers),
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("plain")
    for codec in CODECS:
        directory = root / f"plain-{codec}-0"
        directory.mkdir()
        records = [_to_plain(record) for record in sample_records(1000, seed=1)]
        runs = [records[at : at + RECORDS_PER_BATCH] for at in range(0, len(records), RECORDS_PER_BATCH)]
        data = b"".join(encode_batch(run, compression=CompressionType[codec.upper()]) for run in runs)
        (directory / "00000000000000000000.log").write_bytes(data)
    return root


@pytest.fixture(scope="module")
def broker(written: Path, start_broker: Callable[..., Broker]) -> Broker:
    broker = start_broker()
    broker.mount(written, {f"plain-{codec}": 1 for codec in CODECS})
    return broker


def test_kafka_finds_each_plain_batch_valid(written: Path) -> None:
    assert_dumps_clean(sorted(written.iterdir()), batches_min=10 * len(CODECS))


@pytest.mark.full
@pytest.mark.parametrize("codec", CODECS)
def test_kafka_serves_plain_batches_record_for_record(broker: Broker, codec: str) -> None:
    assert consume(broker.bootstrap, f"plain-{codec}") == sample_records(1000, seed=1)
