"""What a server's writer stores is valid to Kafka's dump tool, and a broker that mounts it serves and continues it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.leader_writers import Served, append, batch, mark, marker
from kafka_processes.clients import consume, producing
from kafka_processes.oracle import Broker, dump_log

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.root.commit.changes import AppendedRange
from pyspark_kafkalog.storage.filesystem import time_ms

TOPICS = {
    "idempotent": {"internal.segment.bytes": "700", "index.interval.bytes": "100"},
    "transactions": {"index.interval.bytes": "100"},
    "stamped": {"message.timestamp.type": "LogAppendTime"},
    "packed": {"compression.type": "zstd", "compression.zstd.level": "5"},
}
PRODUCER, ABORTING = 4001, 4002


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root whose records came through the writer, some by a second process."""
    root = tmp_path_factory.mktemp("leader") / "root"
    log_dir = LogDir.open_or_create(root)
    for topic, configs in TOPICS.items():
        log_dir.create_topic(topic, 1, configs)
    now_ms = time_ms()
    servers = [Served(root, flush="fsync", now_ms=now_ms) for _ in range(2)]

    def store(number: int, data: bytes, topic: str, *, is_marker: bool = False) -> None:
        of = mark if is_marker else append
        assert isinstance(servers[number % 2].append(of(data, topic)), AppendedRange)

    for at in range(20):
        values = [b"%d %d" % (at, each) for each in range(3)]
        store(at, batch(values, at_ms=now_ms, producer=(PRODUCER, 0, 3 * at)), "idempotent")
        store(at, batch(values, at_ms=now_ms - 99, codec=CompressionType.LZ4), "stamped")
        store(at, batch(values, at_ms=now_ms, codec=CompressionType(at % 5)), "packed")
    for at in range(6):
        for producer_id in (PRODUCER, ABORTING):
            data = batch([b"%d" % producer_id], at_ms=now_ms, producer=(producer_id, 0, at), is_transactional=True)
            store(at, data, "transactions")
            if at % 2:
                is_commit = producer_id == PRODUCER
                end = marker(producer_id, 0, is_commit=is_commit, at_ms=now_ms)
                store(at + 1, end, "transactions", is_marker=True)
    for server in servers:
        server.writer.close()
    return root


def test_dump_tool_finds_every_batch_and_index_entry_valid(root: Path) -> None:
    logs = sorted(file for topic in TOPICS for file in (root / f"{topic}-0").glob("*.log"))
    assert len(logs) > len(TOPICS)
    dumped = dump_log(logs, "--deep-iteration")
    assert dumped.returncode == 0, dumped.stderr
    valid = re.findall(r"isvalid: (\w+)", dumped.stdout)
    assert len(valid) == 20 * 3 + 6 * 2 + 6
    assert set(valid) == {"true"}
    assert len(re.findall(r"compresscodec: zstd", dumped.stdout)) == 20
    assert dumped.stdout.count("endTxnMarker: ABORT") == dumped.stdout.count("endTxnMarker: COMMIT") == 3
    others = [file for topic in TOPICS for file in sorted((root / f"{topic}-0").iterdir()) if file.suffix != ".log"]
    others = [file for file in others if file.suffix in (".index", ".timeindex", ".snapshot", ".txnindex")]
    assert {file.suffix for file in others} == {".index", ".timeindex", ".snapshot", ".txnindex"}
    checked = dump_log(others)
    assert checked.returncode == 0, checked.stderr
    assert "mismatch" not in (checked.stdout + checked.stderr).lower()
    assert "out of order" not in (checked.stdout + checked.stderr).lower()


@pytest.mark.full
def test_broker_that_mounts_it_serves_the_same_records_and_goes_on(
    root: Path, start_broker: Callable[..., Broker]
) -> None:
    broker = start_broker({"log.retention.ms": "-1"}).start()
    broker.mount(root, dict.fromkeys(TOPICS, 1), TOPICS["idempotent"])
    log_dir = LogDir.open(root)
    for topic in TOPICS:
        for isolation in ("read_uncommitted", "read_committed"):
            ours = log_dir.read(topic, isolation=isolation)
            theirs = consume(broker.bootstrap, topic, isolation=isolation)
            assert [(each.offset, each.value) for each in theirs] == list(
                zip(ours["offset"].to_pylist(), ours["value"].to_pylist(), strict=True)
            )
    committed = consume(broker.bootstrap, "transactions", isolation="read_committed")
    assert {each.value for each in committed} == {b"4001"}
    assert {each.timestamp_type for each in consume(broker.bootstrap, "stamped")} == {1}
    with producing(broker.bootstrap, **{"enable.idempotence": True}) as producer:
        producer.produce("idempotent", value=b"after", partition=0)
    assert [each.value for each in consume(broker.bootstrap, "idempotent")][-1] == b"after"
