"""Tasks of the source, apart from Spark: ranges, data loss after planning, headers, the pushdown switch."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa
import pytest
from builders.root_places import RootPlace
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import DataLossError, InvalidOptionError, MissingPackageError
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.spark import data_source
from pyspark_kafkalog.spark.data_source import KafkalogDataSource, read_schema
from pyspark_kafkalog.spark.read import reader as batch_reader
from pyspark_kafkalog.spark.read.plan import subscribed_partitions
from pyspark_kafkalog.spark.read.reader import (
    KafkalogBatchReader,
    KafkalogPushdownReader,
    OffsetRangePartition,
    read_offset_range,
)
from pyspark_kafkalog.storage.artefacts import partition_listing

COUNT = 400
PUSHDOWN_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"


@pytest.fixture
def root(root_place: RootPlace) -> RootPlace:
    """A topic of one partition with several segments; every third record has a header."""
    log_dir = LogDir.create(root_place)
    log_dir.create_topic("t", partitions=1, configs={"internal.segment.bytes": "4096"})
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    for first in range(0, COUNT, 20):
        numbers = range(first, first + 20)
        headers = [[{"key": "h", "value": b"x"}] if number % 3 == 0 else [] for number in numbers]
        values = [str(number).zfill(50) for number in numbers]
        log_dir.append("t", pa.table({"value": values, "headers": pa.array(headers, pa.list_(pair))}))
    return root_place


def reader(root: RootPlace, **options: str) -> KafkalogBatchReader:
    source = KafkalogDataSource({"path": str(root), **options})
    made = source.reader(source.schema())
    assert isinstance(made, KafkalogBatchReader)
    return made


def offsets(made: KafkalogBatchReader) -> list[int]:
    """Offsets of all planned partitions, read as a task reads them: reader and partition have travelled."""
    made, planned = pickle.loads(pickle.dumps((made, made.partitions())))
    return [offset for each in planned for batch in made.read(each) for offset in batch.column("offset").to_pylist()]


def lose_first_segment(root: RootPlace) -> int:
    """Remove it as retention does; returns where the log begins then."""
    first, second, *_ = sorted((root / "t-0").glob("*.log"))
    for path in first.parent.glob(f"{first.stem}.*"):
        path.unlink()
    return int(second.stem)


def test_every_offset_is_read_once_however_read_is_split(root: RootPlace) -> None:
    assert offsets(reader(root)) == list(range(COUNT))
    cut = reader(root, maxBytesPerPartition="3000", minPartitions="3")
    assert len(cut.partitions()) > 5
    assert offsets(cut) == list(range(COUNT))


def test_batches_have_exactly_schema_that_spark_expects(root: RootPlace) -> None:
    schema = read_schema(include_headers=True)
    (each,) = reader(root, includeHeaders="true").partitions()
    for batch in KafkalogBatchReader(reader(root)._options, schema).read(each):
        assert batch.schema.equals(to_arrow_schema(schema, timezone="UTC"))
        batch.validate(full=True)


def test_record_without_headers_has_null_headers(root: RootPlace) -> None:
    made = reader(root, includeHeaders="true")
    headers = [
        row for each in made.partitions() for batch in made.read(each) for row in batch.column("headers").to_pylist()
    ]
    assert headers[:4] == [[{"key": "h", "value": b"x"}], None, None, [{"key": "h", "value": b"x"}]]
    assert sum(row is None for row in headers) == COUNT - (COUNT + 2) // 3


def test_subscribe_pattern_matches_as_in_java(root: RootPlace) -> None:
    assert offsets(reader(root, subscribePattern=r"^[a-z&&[^u-z]]\z")) == offsets(reader(root))
    assert offsets(reader(root, subscribePattern=r"\Q.\E|\P{Alpha}")) == []


def test_read_without_topics_plans_no_task_and_placeholder_reads_nothing(root: RootPlace) -> None:
    made = reader(root, subscribePattern="none")
    assert made.partitions() == []
    assert list(made.read(InputPartition(None))) == []


@pytest.mark.file_roots
def test_records_deleted_by_retention_after_planning_are_data_loss(root: RootPlace) -> None:
    (each,) = reader(root).partitions()
    assert isinstance(each, OffsetRangePartition)
    batches = read_offset_range(each, to_arrow_schema(read_schema(include_headers=False), timezone="UTC"))
    lose_first_segment(root)
    with pytest.raises(DataLossError, match=r"t-0: records of offsets 0 to 60 are gone: .*failOnDataLoss to false"):
        next(batches)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_topic_deleted_or_recreated_after_planning_is_data_loss_without_new_rows(root: RootPlace, fail: str) -> None:
    made = reader(root, failOnDataLoss=fail)
    (each,) = made.partitions()
    log_dir = LogDir.open(root)
    log_dir.delete_topic("t")
    for count in (None, 0, 3, COUNT):
        if count == 0 and isinstance(root, Path):
            (root / "t-0").mkdir()  # as far as its maker has come
        elif count:
            log_dir.append("t", pa.table({"value": ["another topic's"] * count}))
        if fail == "true":
            with pytest.raises(DataLossError, match=f"t-0: offsets 0 to {COUNT} were requested, but the topic was del"):
                list(made.read(each))
        else:
            assert list(made.read(each)) == []


@pytest.mark.file_roots
def test_topic_deleted_during_planning_does_not_fail_read_of_others(
    root: RootPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    log_dir = LogDir.open(root)
    log_dir.append("u", pa.table({"value": ["x"] * 3}))

    def deleting(*given: Any) -> list[PartitionSnapshot]:
        found = subscribed_partitions(*given)
        if "t" in log_dir.topics():
            log_dir.delete_topic("t")
        return found

    monkeypatch.setattr(batch_reader, "subscribed_partitions", deleting)
    assert offsets(reader(root, subscribePattern=".")) == [0, 1, 2]


@pytest.mark.file_roots
def test_with_data_loss_allowed_read_continues_at_log_start(root: RootPlace) -> None:
    made = reader(root, failOnDataLoss="false")
    planned = made.partitions()
    start = lose_first_segment(root)
    found = [o for each in planned for batch in made.read(each) for o in batch.column("offset").to_pylist()]
    assert found == list(range(start, COUNT))


@pytest.mark.file_roots
def test_path_of_partition_directory_excludes_subscription(root: RootPlace) -> None:
    assert offsets(reader(root / "t-0")) == list(range(COUNT))
    with pytest.raises(
        InvalidOptionError, match="names the partition directory of t-0, which is then all that is read"
    ):
        reader(root / "t-0", subscribe="t").partitions()


def test_filters_are_pushed_only_with_option_and_spark_pushdown(
    root: RootPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert type(reader(root, filterPushdown="true")) is KafkalogBatchReader
    monkeypatch.setitem(sys.modules, PUSHDOWN_WORKER, ModuleType(PUSHDOWN_WORKER))
    assert type(reader(root)) is KafkalogBatchReader
    made = reader(root, filterPushdown="true")
    assert isinstance(made, KafkalogPushdownReader)
    kept, left = GreaterThanOrEqual(("offset",), 390), EqualTo(("value",), b"x")
    assert list(made.pushFilters([kept, left])) == [left]
    assert offsets(made) == list(range(390, COUNT))


def test_older_spark_is_named_when_the_source_is_created_and_not_when_it_is_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As Spark 4.1 is, where an error in the lookup would hide the data sources of all packages."""
    monkeypatch.setattr("pyspark.__version__", "4.1.0")
    monkeypatch.setattr(data_source, "_OF_SPARK_4_2", "pyspark.sql.streaming.of_later_versions")
    assert KafkalogDataSource.name() == "kafkalog"
    with pytest.raises(MissingPackageError, match=r"expects Spark 4\.2 or newer, found pyspark 4\.1\.0 .*LogDir"):
        KafkalogDataSource({"path": "/nowhere"})


def test_data_source_lookup_loads_neither_numba_nor_pyarrow() -> None:
    program = (
        "import sys; from pyspark_kafkalog import DefaultSource; assert DefaultSource.name() == 'kafkalog'; "
        "print(sorted({'numba', 'pyarrow', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "numba" not in done.stdout
    assert "pyarrow" not in done.stdout


@pytest.mark.parametrize("max_bytes", [None, "8192"])
def test_plan_of_everything_lists_each_directory_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_bytes: str | None
) -> None:
    log_dir = LogDir.create(tmp_path)
    log_dir.create_topic("t", partitions=5, configs={"internal.segment.bytes": "4096"})
    for partition in range(5):
        values = pa.table({"value": [str(number).zfill(50) for number in range(400)]})
        log_dir.append("t", values, partition=partition, flush="os")
    made = reader(tmp_path, **({} if max_bytes is None else {"maxBytesPerPartition": max_bytes}))
    listed: list[str] = []
    real = partition_listing.list_names
    monkeypatch.setattr(
        partition_listing, "list_names", lambda directory: listed.append(str(directory)) or real(directory)
    )
    planned = made.partitions()
    assert len(planned) == 5 if max_bytes is None else len(planned) > 5
    assert sorted(Counter(listed).values()) == [1] * 5, (listed, planned)
