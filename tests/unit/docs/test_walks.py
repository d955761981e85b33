"""The walks of ARCHITECTURE: each names modules that a real call enters, step by step, in the order of the calls."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from unittest import mock

import pyarrow as pa
import pytest
from builders.root_places import forget, memory_root
from documented import REPOSITORY
from kafka_processes.served import serve
from patience import wait_until

import pyspark_kafkalog
from pyspark_kafkalog import LogDir
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from pyspark_kafkalog.protocol.messages.records import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.tools.main import main

PACKAGE = f"{Path(pyspark_kafkalog.__file__).parent}/"
PAGE = (REPOSITORY / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
#: What every walk enters for a name, a number, a file or a byte: a reader of a walk need not open it.
FOUNDATION = (
    *("errors.py", "threads.py", "units.py", "values.py", "config/", "metadata/messages/", "object_store/", "record/"),
    *("storage/artefacts/", "storage/below_root.py", "storage/filesystem.py", "storage/names.py"),
)
#: How many other modules each walk enters. These limits may only fall.
MODULES_MAX = {
    "A Spark write": 38,
    "A Spark read": 24,
    "A Produce": 38,
    "An OffsetCommit": 49,
    "Retention of an object root": 37,
}
ROWS = pa.RecordBatch.from_pydict({"key": pa.array([b"a", b"b"]), "value": pa.array([b"1", b"2"])})


class Entered:
    """The modules of the package whose functions are called while this is on, in the order of their first calls.

    It sees the calling thread, and each thread that has begun since `threading.setprofile`.
    """

    def __init__(self) -> None:
        self._is_on = False
        self._modules: dict[str, None] = {}

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if self._is_on and event == "call" and code.co_filename.startswith(PACKAGE) and code.co_name != "<module>":
            self._modules.setdefault(code.co_filename.removeprefix(PACKAGE))

    def during(
        self, call: Callable[[], object], *, before: Callable[[], object] = lambda: None, in_this_thread: bool = True
    ) -> list[str]:
        """Those of the second of two calls: the first one imports modules, and fills caches."""
        before()
        call()
        before()
        if in_this_thread:
            sys.setprofile(self)
        self._is_on = True
        try:
            call()
        finally:
            self._is_on = False
            sys.setprofile(None)
        return list(self._modules)


@pytest.fixture
def entered() -> Iterator[Entered]:
    recorder = Entered()
    threading.setprofile(recorder)
    yield recorder
    threading.setprofile(None)


def spark_source(path: Path, **options: str) -> object:
    from pyspark_kafkalog.spark.data_source import KafkalogDataSource

    return KafkalogDataSource({"path": str(path), **options})


def spark_write(entered: Entered, path: Path) -> list[str]:
    from pyspark.sql.types import BinaryType, StructType

    schema = StructType().add("key", BinaryType()).add("value", BinaryType())

    def write() -> None:
        writer = spark_source(path, topic="orders").writer(schema, overwrite=False)
        writer.commit([writer.write(iter([ROWS]))])

    with mock.patch("pyspark.TaskContext.get", return_value=mock.Mock(**{"partitionId.return_value": 0})):
        return entered.during(write)


def spark_read(entered: Entered, path: Path) -> list[str]:
    LogDir.open(path).append("orders", pa.Table.from_batches([ROWS]))

    def read() -> None:
        source = spark_source(path, subscribe="orders", startingOffsets="earliest")
        reader = source.reader(source.schema())
        assert sum(batch.num_rows for each in reader.partitions() for batch in reader.read(each)) == ROWS.num_rows

    return entered.during(read)


def client_of(address: str) -> WireClient:
    host, _, port = address.rpartition(":")
    client = WireClient.connect(host, int(port), client_id="walk", timeout_s=60)
    client.negotiate()
    return client


def produce(entered: Entered, path: Path) -> list[str]:
    batch = encode_batch((Record(offset=0, timestamp_ms=1, key=b"k", value=b"v", headers=()),))
    topic = TopicProduceData(name="orders", partition_data=(PartitionProduceData(index=0, records=batch),))
    request = ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=(topic,))
    with serve(path) as address, client_of(address) as client:

        def call() -> None:
            (answer,) = client.call(request, ProduceResponse, version=9).responses
            assert answer.partition_responses[0].error_code == ErrorCode.NONE

        return entered.during(call, in_this_thread=False)


def offset_commit(entered: Entered, path: Path) -> list[str]:
    partition = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    topic = OffsetCommitRequestTopic(name="orders", partitions=(partition,))
    request = OffsetCommitRequest(group_id="group", topics=(topic,))
    with serve(path) as address, client_of(address) as client:

        def is_committed() -> bool:
            (answer,) = client.call(request, OffsetCommitResponse, version=8).topics
            return answer.partitions[0].error_code == ErrorCode.NONE

        wait_until(is_committed, "the coordinator's partition is loaded")
        return entered.during(is_committed, in_this_thread=False)


def retention(entered: Entered, _: Path) -> list[str]:
    url = memory_root()
    log_dir = LogDir.create(url)
    log_dir.create_topic("orders", configs={"retention.ms": "1"})
    long_ago = pa.table({"value": [b"x"], "timestamp": pa.array([1], pa.timestamp("ms", "UTC"))})

    def delete_all() -> None:
        assert main(["retention", "--path", url]) == 0

    try:
        modules = entered.during(delete_all, before=lambda: log_dir.append("orders", long_ago))
        log_dir.refresh()
        assert log_dir.read("orders").num_rows == 0
        return modules
    finally:
        forget(url)


WALKS = {
    "A Spark write": spark_write,
    "A Spark read": spark_read,
    "A Produce": produce,
    "An OffsetCommit": offset_commit,
    "Retention of an object root": retention,
}


def steps_of(title: str) -> list[list[str]]:
    """The modules that each numbered step of a walk names."""
    section = PAGE.partition(f"### {title}\n")[2].partition("\n#")[0]
    steps = re.findall(r"^\d+\. .*(?:\n {3}.*)*", section, re.MULTILINE)
    return [re.findall(r"`([\w/]+\.py)`", step) for step in steps]


@pytest.mark.parametrize("title", WALKS)
def test_walk_names_the_modules_that_a_call_enters_step_by_step(title: str, entered: Entered, tmp_path: Path) -> None:
    LogDir.create(tmp_path / "log").create_topic("orders")
    modules = WALKS[title](entered, tmp_path / "log")
    steps = steps_of(title)
    assert len(steps) > 3
    named = [each for step in steps for each in step]
    assert not set(named) - set(modules), "these are named and not entered"
    ends = [max(map(modules.index, step)) for step in steps if step]
    assert ends == sorted(ends), "a step enters its last module before the step above it"
    beyond = [each for each in modules if not each.startswith(FOUNDATION)]
    assert len(beyond) <= MODULES_MAX[title], f"{len(beyond)} modules: {', '.join(beyond)}"
