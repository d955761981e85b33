"""A volume that is unmounted under streaming queries: they fail, create nothing elsewhere, and continue after remount.

Really mounted where this process may mount, else the directory is renamed away.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_kafkalog import LogDir

pytestmark = [pytest.mark.spark, pytest.mark.full]

QUERY_SECONDS_MAX = 120
UNMOUNT_SECONDS_MAX = 120


class Volume:
    """A directory mounted at `path`, which is an empty directory while it is not."""

    def __init__(self, tmp_path: Path) -> None:
        self.path, self._disk = tmp_path / "volume", tmp_path / "disk"
        self.path.mkdir()
        self._disk.mkdir()
        self.is_mounted = self.is_real = False
        self.is_real = self._run("mount", "--bind", self._disk, self.path)
        self.is_mounted = self.is_real
        if not self.is_real:
            self.mount()

    def _run(self, *command: object) -> bool:
        try:
            return subprocess.run([str(each) for each in command], capture_output=True, check=False).returncode == 0
        except FileNotFoundError:
            return False

    def mount(self) -> None:
        if self.is_real:
            assert self._run("mount", "--bind", self._disk, self.path)
        else:
            self.path.rmdir()
            self._disk.rename(self.path)
        self.is_mounted = True

    def unmount(self) -> None:
        if self.is_real:
            deadline = time.monotonic() + UNMOUNT_SECONDS_MAX
            while not self._run("umount", self.path):  # busy while a process has a file of it open
                assert time.monotonic() < deadline, "somebody keeps a file of the volume open"
                time.sleep(0.02)
        else:
            self.path.rename(self._disk)
            self.path.mkdir()
        self.is_mounted = False


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Volume]:
    made = Volume(tmp_path)
    yield made
    if made.is_real and made.is_mounted:
        subprocess.run(["umount", "-l", str(made.path)], check=False)


def add_rows(directory: Path, first: int, count: int) -> None:
    directory.mkdir(exist_ok=True)
    (directory / f".{first}").write_text("".join(f"{number}\n" for number in range(first, first + count)))
    (directory / f".{first}").rename(directory / f"{first:06}.txt")


def start(frame: DataFrame, checkpoint: Path, sink: str, path: Path | None = None, **options: str) -> StreamingQuery:
    writer = frame.writeStream.format(sink).options(checkpointLocation=str(checkpoint), **options)
    return writer.start(None if path is None else str(path))


def wait_for_rows(query: StreamingQuery, rows: int) -> None:
    deadline = time.monotonic() + QUERY_SECONDS_MAX
    while sum(progress["numInputRows"] for progress in query.recentProgress) < rows:
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    query.processAllAvailable()


def failure_of(query: StreamingQuery) -> str:
    with pytest.raises(StreamingQueryException) as raised:
        query.awaitTermination(QUERY_SECONDS_MAX)
    return str(raised.value)


def test_queries_on_unmounted_volume_fail_and_continue_after_remount(
    spark: SparkSession, volume: Volume, tmp_path: Path
) -> None:
    root, files = volume.path / "log", tmp_path / "files"
    add_rows(files, 0, 100)
    rows = spark.readStream.option("maxFilesPerTrigger", 1).text(str(files))
    records = spark.readStream.format("kafkalog").option("subscribe", "t").option("startingOffsets", "earliest")

    sink = start(rows, tmp_path / "to", "kafkalog", root, topic="t")
    wait_for_rows(sink, 100)
    source = start(records.option("failOnDataLoss", "false").load(str(root)), tmp_path / "from", "noop")
    wait_for_rows(source, 100)
    identity = LogDir.open(root).identity
    offsets = json.loads(source.lastProgress["sources"][0]["endOffset"])
    assert offsets["t"] == {"0": 100}
    volume.unmount()

    add_rows(files, 100, 100)
    assert f"earlier micro-batches of query {sink.id} went to, found no such directory, for micro-ba" in failure_of(
        sink
    )
    assert f"expected the log directory with {identity}, found no such directory" in failure_of(source)
    assert list(volume.path.iterdir()) == []

    LogDir.create(root).create_topic("t", partitions=1)  # as another query would do it
    version = LogDir.open(root).version
    for query in (
        start(rows, tmp_path / "to", "kafkalog", root, topic="t"),
        start(records.load(str(root)), tmp_path / "from", "noop"),
    ):
        assert f"{LogDir.open(root).identity}" in failure_of(query)
    assert LogDir.open(root).version == version
    assert LogDir.open(root).read("t").num_rows == 0
    subprocess.run(["rm", "-r", str(root)], check=True)

    volume.mount()
    add_rows(files, 200, 100)
    sink = start(rows, tmp_path / "to", "kafkalog", root, topic="t")
    wait_for_rows(sink, 200)
    source = start(records.load(str(root)), tmp_path / "from", "noop")
    wait_for_rows(source, 200)
    for query in (sink, source):
        query.stop()
    values = LogDir.open(root).read("t", columns=["value"]).column("value").to_pylist()
    assert sorted(map(int, values)) == list(range(300))
