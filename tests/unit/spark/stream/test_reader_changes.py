"""The stream reader while partitions, topics and log starts change; directories of brokers."""

from __future__ import annotations

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from builders.root_places import RootPlace
from fakes.stream_queries import Query, append, make_root, plain, rows_of, stream
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import DataLossError, LogDirError
from pyspark_kafkalog.metadata.image import partition_state_record
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.spark.stream.reader import KafkalogStreamReader
from pyspark_kafkalog.storage.names import META_PROPERTIES, PARTITION_METADATA


@pytest.fixture
def root(root_place: RootPlace) -> RootPlace:
    return make_root(root_place)


def move_log_start(root: RootPlace, topic: str, log_start_offset: int, partition: int = 0) -> None:
    store = LocalMetadataStore.open(root)
    found = store.image.topic(topic)
    state = replace(found.partitions[partition].state, log_start_offset=log_start_offset)
    store.commit(lambda _: [partition_state_record(found.topic_id, partition, state)], operation="delete records")


# Partitions and topics that come and go


def test_new_partitions_and_topics_start_at_earliest(root: RootPlace) -> None:
    query = Query(lambda: stream(root))
    query.run()
    LogDir.open(root).add_partitions("t", 3)
    append(root, "t", 4, 2)
    LogDir.open(root).create_topic("v", partitions=1)
    append(root, "v", 2)
    query.restart()
    assert query.run() == [*rows_of("t", 2, 0, 4), *rows_of("v", 0, 0, 2)]
    assert plain(query.offsets[-1]) == {"t": {"0": 100, "1": 20, "2": 4}, "u": {"0": 0}, "v": {"0": 2}}


def test_deleted_topic_is_data_loss_or_warning(root: RootPlace, caplog: pytest.LogCaptureFixture) -> None:
    strict = Query(lambda: stream(root, startingOffsets="earliest"))
    lenient = Query(lambda: stream(root, startingOffsets="earliest", failOnDataLoss="false"))
    strict.run()
    lenient.run()
    LogDir.open(root).delete_topic("t")
    with pytest.raises(DataLossError, match=r"t-0: offsets from 100 on were requested.*t-1: offsets from 20 on"):
        strict.run()
    with caplog.at_level(logging.WARNING):
        assert lenient.run() == []
    assert "t-1: offsets from 20 on were requested, the partition does not exist" in caplog.text
    assert plain(lenient.offsets[-1]) == {"u": {"0": 0}}


@pytest.mark.parametrize("count", [3, 150], ids=["shorter", "longer"])
def test_recreated_topic_is_noticed_by_its_id(root: RootPlace, count: int, caplog: pytest.LogCaptureFixture) -> None:
    strict = Query(lambda: stream(root, startingOffsets="earliest", subscribe="t"))
    lenient = Query(lambda: stream(root, startingOffsets="earliest", subscribe="t", failOnDataLoss="false"))
    strict.run()
    lenient.run()
    log_dir = LogDir.open(root)
    log_dir.delete_topic("t")
    log_dir.create_topic("t", partitions=2)
    append(root, "t", count)
    with pytest.raises(DataLossError, match=r"t-0: offsets from 100 on were requested.*the topic was re-created"):
        strict.run()
    with caplog.at_level(logging.WARNING):
        assert lenient.plan()
    assert plain(lenient.offsets[-1]) == {}
    lenient.restart()
    assert lenient.read() == []
    assert lenient.run() == rows_of("t", 0, 0, count)


def test_shorter_log_is_noticed_after_restart(root: RootPlace) -> None:
    query = Query(lambda: stream(root, startingOffsets="earliest", subscribe="t", failOnDataLoss="false"))
    query.run()
    log_dir = LogDir.open(root)
    log_dir.delete_topic("t")
    log_dir.create_topic("t", partitions=1)
    append(root, "t", 3)
    query.restart()
    assert query.run() == rows_of("t", 0, 0, 3)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_topic_recreated_between_plan_and_task_gives_no_new_row(root: RootPlace, fail: str) -> None:
    reader = stream(root, startingOffsets="earliest", subscribe="t", failOnDataLoss=fail)
    start = reader.initialOffset()
    planned = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    log_dir = LogDir.open(root)
    log_dir.delete_topic("t")
    for state in ("deleted", "re-created"):
        if state == "re-created":
            log_dir.create_topic("t", partitions=2)
            append(root, "t", 100)
        if fail == "true":
            with pytest.raises(DataLossError, match="t-0: offsets 0 to 100 were requested, but the topic was deleted"):
                list(reader.read(planned[0]))
        else:
            assert list(reader.read(planned[0])) == []


@pytest.mark.parametrize("state", ["deleted", "re-created"])
def test_topic_deleted_between_end_and_plan_is_data_loss_or_warning(
    root: RootPlace, state: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A small maxBytesPerPartition makes the plan look into the log, of which nothing is left."""
    options = {"startingOffsets": "earliest", "maxBytesPerPartition": 100}
    strict = stream(root, **options)
    lenient = stream(root, **options, failOnDataLoss="false")
    start = strict.initialOffset()
    append(root, "u", 3)
    ends = [each.latestOffset(start, ReadAllAvailable()) for each in (strict, lenient)]

    def read(reader: KafkalogStreamReader, end: dict[str, Any]) -> list[tuple[Any, ...]]:
        batches = [batch for each in reader.partitions(start, end) for batch in reader.read(each)]
        return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]

    log_dir = LogDir.open(root)
    log_dir.delete_topic("t")
    if state == "re-created":
        log_dir.create_topic("t", partitions=2)
        append(root, "t", 150)
    with pytest.raises(DataLossError, match=r"t-0: offsets 0 to \d+ were requested, .*the topic was "):
        read(strict, ends[0])
    with caplog.at_level(logging.WARNING):
        assert read(lenient, ends[1]) == rows_of("u", 0, 0, 3)
    assert "t-0: offsets 0 to " in caplog.text


@pytest.mark.file_roots
def test_topic_recreated_while_task_reads_fails_task(root: RootPlace) -> None:
    reader = stream(root, startingOffsets="earliest", subscribe="t", failOnDataLoss="false")
    start = reader.initialOffset()
    planned = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    batches = reader.read(planned[0])
    next(batches)
    log_dir = LogDir.open(root)
    log_dir.delete_topic("t")
    log_dir.create_topic("t", partitions=2)
    with pytest.raises(DataLossError, match="re-created"):
        list(batches)


@pytest.mark.file_roots
def test_offsets_below_log_start_are_data_loss_or_warning(root: RootPlace, caplog: pytest.LogCaptureFixture) -> None:
    options = {"subscribe": "t", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 12}
    strict = Query(lambda: stream(root, **options))
    lenient = Query(lambda: stream(root, **options, failOnDataLoss="false"))
    for query in (strict, lenient):
        query.plan()
        assert query.read() == [*rows_of("t", 0, 0, 10), *rows_of("t", 1, 0, 2)]
    move_log_start(root, "t", 10)
    strict.plan()
    assert len(strict.read()) == 12, "what was read may go"
    move_log_start(root, "t", 40)
    requested_and_available = "t-0: offsets from 20 on were requested, available are log start 40 to high watermark 100"
    with pytest.raises(DataLossError, match=requested_and_available):
        strict.run()
    with caplog.at_level(logging.WARNING):
        rows = lenient.run()
    assert sorted(rows) == [*rows_of("t", 0, 40, 100), *rows_of("t", 1, 2, 20)]
    assert "t-0: offsets 10 to" in caplog.text
    assert "available are log start 40 to high watermark 100" in caplog.text


# Directories of brokers


@pytest.mark.full
def test_stream_of_every_broker_fixture_equals_batch_read(kafka_fixtures: Path) -> None:
    for path in sorted(kafka_fixtures.glob("*/expected/manifest.json")):
        topics = [topic for topic in json.loads(path.read_text()).get("records") or {} if not topic.startswith("__")]
        for isolation in ("read_uncommitted", "read_committed"):
            if topics:
                check_fixture(path.parents[1], topics, isolation)


def check_fixture(fixture: Path, topics: list[str], isolation: Any) -> None:
    """Gaps of compaction and transactions are no loss; only what is there comes, in batches of 37 offsets."""
    options = {"isolationLevel": isolation, "startingOffsets": "earliest", "subscribe": ",".join(topics)}
    log_dir = LogDir.open(fixture)
    expected = [
        (topic, *row.values())
        for topic in topics
        for row in log_dir.read(topic, isolation=isolation, columns=["partition", "offset"]).to_pylist()
    ]
    is_whole = all(each.log_start_offset == 0 for topic in topics for each in log_dir.topic(topic).partitions)
    query = Query(lambda: stream(fixture, **options, maxOffsetsPerTrigger=37))
    assert is_whole or fixture.name == "retention"
    assert sorted(query.run()) == sorted(expected), fixture


@pytest.fixture
def foreign(root: RootPlace) -> Path:
    """`root` as if a broker had written it, with small segments in partition 0."""
    shutil.rmtree(root)
    LogDir.create(root).create_topic("t", partitions=1, configs={"internal.segment.bytes": "4096"})
    for _ in range(20):
        append(root, "t", 10)
    shutil.rmtree(root / "__cluster_metadata-0")
    assert (root / META_PROPERTIES).exists()
    return root


@pytest.mark.file_roots
def test_segments_deleted_by_broker_are_data_loss_or_skipped(foreign: Path) -> None:
    strict = Query(lambda: stream(foreign, startingOffsets="earliest", maxOffsetsPerTrigger=10))
    lenient = Query(
        lambda: stream(foreign, startingOffsets="earliest", maxOffsetsPerTrigger=10, failOnDataLoss="false")
    )
    for query in (strict, lenient):
        query.plan()
        assert len(query.read()) == 10
    logs = sorted(foreign.glob("t-0/*.log"))
    for log in logs[:2]:
        log.unlink()
    log_start_offset = int(logs[2].stem)
    with pytest.raises(DataLossError, match=f"from 10 on were requested, available are log start {log_start_offset}"):
        strict.run()
    assert lenient.run() == rows_of("t", 0, log_start_offset, 200)


@pytest.mark.file_roots
def test_raised_log_start_checkpoint_is_data_loss(foreign: Path) -> None:
    query = Query(lambda: stream(foreign, startingOffsets="earliest", maxOffsetsPerTrigger=10))
    query.plan()
    query.read()
    (foreign / "log-start-offset-checkpoint").write_text("0\n1\nt 0 15\n")
    with pytest.raises(DataLossError, match="available are log start 15 to high watermark 200"):
        query.run()


@pytest.mark.file_roots
def test_lagging_checkpoint_of_high_watermark_is_no_loss(foreign: Path) -> None:
    query = Query(lambda: stream(foreign, startingOffsets="earliest"))
    assert len(query.run()) == 200
    (foreign / "replication-offset-checkpoint").write_text("0\n1\nt 0 150\n")
    assert query.run() == []
    query.restart()
    assert query.read() == rows_of("t", 0, 0, 200)
    assert query.run() == []


@pytest.mark.file_roots
def test_broker_directory_without_topic_ids_is_read(foreign: Path) -> None:
    (foreign / "t-0" / PARTITION_METADATA).unlink()
    query = Query(lambda: stream(foreign, startingOffsets="earliest"))
    assert len(query.run()) == 200


@pytest.mark.file_roots
def test_directory_adopted_while_read_continues_and_replaced_one_fails(foreign: Path) -> None:
    reader = stream(foreign, startingOffsets="earliest")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert plain(end) == {"t": {"0": 200}}
    LogDir.adopt(foreign)
    append(foreign, "t", 5)
    later = reader.latestOffset(end, ReadAllAvailable())
    assert plain(later) == {"t": {"0": 205}}
    shutil.rmtree(foreign)
    LogDir.create(foreign).create_topic("t", partitions=1)
    with pytest.raises(
        LogDirError, match=r"expected the log directory with cluster id .* found the log directory with"
    ):
        reader.latestOffset(later, ReadAllAvailable())
