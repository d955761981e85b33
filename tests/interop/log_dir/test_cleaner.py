"""The cleaner's output is a log that Kafka's tools and a broker accept, record for record."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from kafka_processes.clients import consume
from kafka_processes.oracle import Broker

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from tests.interop.samples import assert_dumps_clean

SMALL = {
    "cleanup.policy": "compact",
    "internal.segment.bytes": "4000",
    "index.interval.bytes": "300",
    "min.cleanable.dirty.ratio": "0",
}
CODECS = ("uncompressed", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def cleaned(tmp_path_factory: pytest.TempPathFactory) -> LogDir:
    """A topic a codec, each cleaned twice, with tombstones in between."""
    log_dir = LogDir.create(tmp_path_factory.mktemp("cleaned"))
    for codec in CODECS:
        log_dir.create_topic(codec, partitions=1, configs={**SMALL, "compression.type": codec})
        for number in range(60):
            keys = [b"%d" % (number * at % 37) for at in range(30)]
            values = [None if at % 9 == 4 else b"%d-%d" % (number, at) + b"." * (at * 7 % 60) for at in range(30)]
            log_dir.append(codec, pa.table({"key": keys, "value": pa.array(values, pa.binary())}), partition=0)
            if number in (30, 59):
                report = clean_partition(log_dir.root, codec, 0)
                assert (report.error, report.skipped) == (None, None)
    return log_dir


@pytest.fixture(scope="module")
def broker(cleaned: LogDir, start_broker: Callable[..., Broker]) -> Broker:
    broker = start_broker()
    broker.mount(cleaned.path, dict.fromkeys(CODECS, 1), SMALL)
    return broker


def test_kafka_finds_cleaned_segments_valid(cleaned: LogDir) -> None:
    assert_dumps_clean([cleaned.partition(codec, 0).directory for codec in CODECS], batches_min=20, has_gaps=True)


@pytest.mark.full
@pytest.mark.parametrize("codec", CODECS)
def test_broker_serves_cleaned_records(cleaned: LogDir, broker: Broker, codec: str) -> None:
    rows = cleaned.read(codec, columns=["offset", "key", "value"]).to_pylist()
    served = [(each.offset, each.key, each.value) for each in consume(broker.bootstrap, codec)]
    assert served == [(row["offset"], row["key"], row["value"]) for row in rows]
