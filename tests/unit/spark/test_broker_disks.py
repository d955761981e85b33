"""Batches and streams over a killed and over a tiering broker's directory."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from builders.broker_disks import cluster, killed, tiered
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_kafkalog.errors import DataLossError, LogDirError
from pyspark_kafkalog.spark.data_source import KafkalogDataSource
from pyspark_kafkalog.spark.read.reader import KafkalogBatchReader
from pyspark_kafkalog.spark.stream.plan import from_json
from pyspark_kafkalog.spark.stream.reader import KafkalogStreamReader
from pyspark_kafkalog.storage.names import TopicPartition

__all__ = ["cluster", "killed", "tiered"]


def batch(root: Path, **options: str) -> KafkalogBatchReader:
    source = KafkalogDataSource({"path": str(root), **options})
    made = source.reader(source.schema())
    assert isinstance(made, KafkalogBatchReader)
    return made


def stream(root: Path, **options: str) -> KafkalogStreamReader:
    source = KafkalogDataSource({"path": str(root), **options})
    made = source.streamReader(source.schema())
    assert isinstance(made, KafkalogStreamReader)
    return made


def batch_offsets(root: Path, **options: str) -> list[int]:
    made = batch(root, **options)
    made, planned = pickle.loads(pickle.dumps((made, made.partitions())))
    return sorted(
        offset for each in planned for found in made.read(each) for offset in found.column("offset").to_pylist()
    )


def stream_offsets(made: KafkalogStreamReader) -> tuple[dict[TopicPartition, int], list[int]]:
    """The first micro-batch: its start, and the offsets that it reads."""
    start = made.initialOffset()
    end = made.latestOffset(start, ReadAllAvailable())
    planned = made.partitions(start, end)
    found = [offset for each in planned for batch in made.read(each) for offset in batch.column("offset").to_pylist()]
    return from_json(start), sorted(found)


@pytest.mark.parametrize(
    ("isolation", "to_log_end", "count"),
    [
        ("read_uncommitted", "false", 10),
        ("read_committed", "false", 10),
        ("read_uncommitted", "true", 22),
        ("read_committed", "true", 15),
    ],
)
def test_batch_and_stream_read_to_log_end_with_read_to_log_end(
    killed: Path, caplog: pytest.LogCaptureFixture, isolation: str, to_log_end: str, count: int
) -> None:
    options = {"subscribe": "paid", "isolationLevel": isolation, "readToLogEnd": to_log_end}
    from_batch = batch_offsets(killed, **options)
    told_by_batch = caplog.text.count("14 offsets in 1 partition")
    made = stream(killed, startingOffsets="earliest", **options)
    _, from_stream = stream_offsets(made)
    made.latestOffset(made.initialOffset(), ReadAllAvailable())
    assert len(from_batch) == count
    assert from_stream == from_batch
    once = 0 if to_log_end == "true" else 1
    assert told_by_batch == once
    assert caplog.text.count("14 offsets in 1 partition") == 2 * once


def test_batch_start_beyond_last_stable_offset_names_open_transaction(killed: Path) -> None:
    options = {
        "subscribe": "paid",
        "startingOffsets": json.dumps({"paid": {"0": 22}}),
        "isolationLevel": "read_committed",
        "readToLogEnd": "true",
    }
    with pytest.raises(DataLossError, match="producer 0 has a transaction open since offset 21") as raised:
        batch_offsets(killed, **options)
    assert "retention" not in str(raised.value)
    assert batch_offsets(killed, failOnDataLoss="false", **options) == []


def test_batch_end_beyond_last_stable_offset_names_open_transaction(killed: Path) -> None:
    options = {"subscribe": "paid", "isolationLevel": "read_committed", "readToLogEnd": "true"}
    ending = json.dumps({"paid": {"0": 24}})
    with pytest.raises(DataLossError, match="producer 0 has a transaction open since offset 21"):
        batch_offsets(killed, endingOffsets=ending, **options)
    assert len(batch_offsets(killed, endingOffsets=ending, failOnDataLoss="false", **options)) == 15


def test_stream_start_beyond_last_stable_offset_waits_for_transaction(killed: Path) -> None:
    starting = json.dumps({"paid": {"0": 22}})
    made = stream(
        killed, subscribe="paid", startingOffsets=starting, isolationLevel="read_committed", readToLogEnd="true"
    )
    assert stream_offsets(made) == ({TopicPartition("paid", 0): 22}, [])


def test_earliest_of_tiered_topic_fails_unless_data_loss_is_allowed(
    tiered: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"assign": '{"tiered":[0]}', "startingOffsets": "earliest"}
    message = "offsets 0 to 551 of tiered-0 are in remote storage .*Set failOnDataLoss to false"
    with pytest.raises(DataLossError, match=message):
        batch(tiered, **options).partitions()
    with pytest.raises(DataLossError, match=message):
        stream(tiered, **options).initialOffset()
    local = list(range(552, 690))
    assert batch_offsets(tiered, failOnDataLoss="false", **options) == local
    assert stream_offsets(stream(tiered, failOnDataLoss="false", **options)) == (
        {TopicPartition("tiered", 0): 552},
        local,
    )
    assert "remote storage" in caplog.text


@pytest.mark.parametrize("start", [552, 600])
def test_start_at_or_above_local_log_start_is_read(tiered: Path, start: int) -> None:
    options = {"assign": '{"tiered":[0]}', "startingOffsets": json.dumps({"tiered": {"0": start}})}
    assert batch_offsets(tiered, **options) == list(range(start, 690))
    assert stream_offsets(stream(tiered, **options))[1] == list(range(start, 690))


def test_start_by_timestamp_fails_where_offset_may_be_remote(tiered: Path) -> None:
    options = {"assign": '{"tiered":[0]}', "startingTimestamp": "0"}
    with pytest.raises(DataLossError, match="the offset for timestamp 0 may be a remote one"):
        batch(tiered, **options).partitions()
    assert batch_offsets(tiered, failOnDataLoss="false", **options) == list(range(552, 690))


def test_wholly_remote_range_is_empty_when_data_loss_is_allowed(tiered: Path) -> None:
    options = {"assign": '{"tiered":[0]}', "endingOffsets": json.dumps({"tiered": {"0": 100}})}
    with pytest.raises(DataLossError, match="remote storage"):
        batch(tiered, **options).partitions()
    assert batch_offsets(tiered, failOnDataLoss="false", **options) == []


def test_stream_continues_after_offsets_tiered_while_it_was_stopped(
    tiered: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start, options = {"tiered": {"0": 100}}, {"assign": '{"tiered":[0]}'}
    with pytest.raises(DataLossError, match="offsets 0 to 551 are in remote storage"):
        stream(tiered, **options).latestOffset(start, ReadAllAvailable())
    made = stream(tiered, failOnDataLoss="false", **options)
    end = made.latestOffset(start, ReadAllAvailable())
    planned = made.partitions(start, end)
    found = [offset for each in planned for batch in made.read(each) for offset in batch.column("offset").to_pylist()]
    assert found == list(range(552, 690))
    assert "offsets 0 to 551 are in remote storage" in caplog.text


def test_new_partition_of_stream_with_remote_start_fails_with_remote_offsets(tiered: Path) -> None:
    start = {"tiered": {"0": 600}}
    made = stream(tiered, assign='{"tiered":[0,1]}')
    end = made.latestOffset(start, ReadAllAvailable())
    with pytest.raises(DataLossError, match=r"tiered-1: .* offsets 0 to 1157 are in remote storage"):
        made.partitions(start, end)


def test_task_of_several_directories_fails_if_the_chosen_one_vanishes(cluster: list[Path]) -> None:
    reader = batch(Path(",".join(map(str, cluster))), subscribe="elected")
    planned = reader.partitions()
    cluster[0].rename(cluster[0].with_name("gone"))  # not read
    assert sum(found.num_rows for each in planned for found in reader.read(each)) == 90
    cluster[1].rename(cluster[1].with_name("chosen"))
    with pytest.raises(LogDirError, match=rf"{cluster[1]}: expected .*found no such directory"):
        list(reader.read(planned[0]))
