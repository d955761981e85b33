"""A root that a later version of the package has upgraded is refused by the driver, by tasks, and at the commit."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import UnsupportedFormatError
from pyspark_kafkalog.metadata.root_format import (
    FORMAT_MARKER,
    NEWEST_FORMAT_VERSION,
    OLDEST_FORMAT_VERSION,
    metadata_dir,
)
from pyspark_kafkalog.spark.data_source import KafkalogDataSource
from pyspark_kafkalog.spark.options.parse import parse_write_options
from pyspark_kafkalog.spark.write.plan import TopicTarget, plan_batch
from pyspark_kafkalog.spark.write.writers import TaskWriter
from pyspark_kafkalog.storage.staged_file import StagingTask

LATER = NEWEST_FORMAT_VERSION + 1
REFUSED = (
    f"expected a format version from {OLDEST_FORMAT_VERSION} to {NEWEST_FORMAT_VERSION}, found format version {LATER}; "
    "upgrade pyspark_kafkalog, on the driver and all executors"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    LogDir.create(tmp_path / "log").append("t", pa.table({"value": ["a"]}))
    return tmp_path / "log"


def upgrade(root: Path) -> None:
    (metadata_dir(root) / FORMAT_MARKER).write_text(f"version={LATER}\n")


def test_reader_from_before_upgrade_is_refused_at_planning(root: Path) -> None:
    source = KafkalogDataSource({"path": str(root), "subscribe": "t"})
    upgrade(root)
    with pytest.raises(UnsupportedFormatError, match=REFUSED):
        source.reader(source.schema()).partitions()


def test_write_task_refuses_upgraded_root(root: Path) -> None:
    plan, _ = plan_batch(parse_write_options({"path": str(root)}))
    upgrade(root)
    with pytest.raises(UnsupportedFormatError, match=REFUSED):
        TopicTarget.open(plan.open_root(), "t")


def test_staged_files_are_not_committed_to_root_upgraded_since(root: Path) -> None:
    log_dir = LogDir.open(root)
    plan, _ = plan_batch(parse_write_options({"path": str(root), "topic": "t"}))
    task = StagingTask(root=root, write_id="write", task=0)
    batch = pa.RecordBatch.from_pydict({"value": pa.array(["b"])})
    staged = TaskWriter(task, plan, first_partition=0).write(iter([batch]))
    upgrade(root)
    before = {path: path.read_bytes() for path in root.rglob("*.log")}
    with pytest.raises(UnsupportedFormatError, match=REFUSED):
        log_dir.commit_staged(staged)
    after = {path: path.read_bytes() for path in root.rglob("*.log")}
    assert after.keys() == before.keys()
    (metadata_dir(root) / FORMAT_MARKER).write_text("version=1\n")
    assert LogDir.open(root).commit_staged(staged).partitions[0].records == 1
    assert LogDir.open(root).read("t")["value"].to_pylist() == [b"a", b"b"]
