"""Parts of a write: each partition's batches in the files of all tasks, and what finding and reading them costs."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from open_files import descriptors, descriptors_before, open_files_left

from pyspark_kafkalog.errors import CorruptRecordError, UnknownTopicError
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.record.scan import scan_batches
from pyspark_kafkalog.storage import staged_file, staged_parts
from pyspark_kafkalog.storage.filesystem import LOCAL, flushing_file_system
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.segment.segment import set_headers
from pyspark_kafkalog.storage.staged_file import StagedFile, StagingTask, TaskFiles
from pyspark_kafkalog.storage.staged_parts import StagedFiles

PARTITIONS = 4
Values = dict[TopicPartition, list[bytes]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for topic in ("orders", "returns"):
        for partition in range(PARTITIONS):
            (tmp_path / f"{topic}-{partition}").mkdir()
    return tmp_path


class Task:
    """A task that stages values, one a record, and notes them by partition in `values`."""

    def __init__(self, root: Path, number: int, values: Values) -> None:
        self._task = StagingTask(root=root, write_id="w", task=number)
        self._topics: dict[str, TaskFiles] = {}
        self._values = values

    def add(self, place: TopicPartition, *values: bytes) -> None:
        """Stage a batch."""
        files = self._topics.get(place.topic)
        if files is None:
            fs = flushing_file_system(LOCAL, "os")
            files = self._topics[place.topic] = TaskFiles(self._task, place.topic, fs)
        first = files.next_offset(place.partition)
        records = [Record(offset=first + at, timestamp_ms=0, key=None, value=each) for at, each in enumerate(values)]
        data = encode_batch(records)
        files.append(place.partition, data, scan_batches(data, file="staged").batches)
        self._values.setdefault(place, []).extend(values)

    def finish(self) -> list[StagedFile]:
        return [each for topic in sorted(self._topics) for each in self._topics[topic].finish()]


def staged_at_random(root: Path, rng: random.Random) -> tuple[list[StagedFile], Values]:
    """The files of some tasks, as the driver gets them, and the values of each partition in order."""
    values: Values = {}
    staged: list[StagedFile] = []
    for number in range(rng.randint(1, 6)):
        task = Task(root, number, values)
        for _ in range(rng.randint(0, 20)):
            place = TopicPartition(rng.choice(["orders", "returns"]), rng.randrange(PARTITIONS))
            task.add(place, *(b"%d %d" % (number, rng.randrange(10**9)) for _ in range(rng.randint(1, 4))))
        staged += pickle.loads(pickle.dumps(task.finish()))
    return staged, values


@pytest.mark.parametrize("shared_bytes", [0, 300, 1 << 20])
@pytest.mark.parametrize("seed", range(6))
def test_parts_have_the_batches_of_all_tasks_in_order(
    root: Path, seed: int, shared_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged_file, "SHARED_BYTES", shared_bytes)
    staged, values = staged_at_random(root, random.Random(seed))
    with StagedFiles(root, staged) as files:
        parts = files.parts()
        assert [each.topic_partition for each in parts] == sorted(values)
        for part in parts:
            data = np.empty(part.size_bytes, np.uint8)
            part.read(0, len(part.batches), data)
            found = [value for value in values[part.topic_partition] if value in data.tobytes()]
            assert found == values[part.topic_partition]
            places = [data.tobytes().index(value) for value in found]
            assert places == sorted(places)
            set_headers(data, part.batches)
            batches = scan_batches(data, file="part").batches
            for name in ("size_bytes", "base_offset", "last_offset", "records_count"):
                assert batches[name].tolist() == part.batches[name].tolist()
            assert part.records_count == len(found) == int(batches["last_offset"][-1]) + 1


@pytest.mark.parametrize("large_bytes", [1, 200, 1 << 30])
def test_sections_cover_a_part_and_large_ones_are_of_one_file(root: Path, large_bytes: int) -> None:
    staged, _ = staged_at_random(root, random.Random(7))
    with StagedFiles(root, staged) as files:
        for part in files.parts():
            end = 0
            for first, last, is_large in part.sections(large_bytes):
                assert first == end < last
                end = last
                rows, numbers = part.batches[first:last], part.numbers[first:last]
                if is_large:
                    assert len(set(numbers.tolist())) == 1
                    assert int(rows["size_bytes"].sum()) >= large_bytes
                    assert (rows["position"][1:] == rows["position"][:-1] + rows["size_bytes"][:-1]).all()
                else:
                    assert large_bytes > 1
            assert end == len(part.batches)


def test_task_has_one_file_and_others_for_large_parts_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_file, "SHARED_BYTES", 1000)
    task = Task(root, 3, {})
    task.add(TopicPartition("orders", 2), b"small")
    for _ in range(4):
        task.add(TopicPartition("orders", 1), b"x" * 400)
    task.add(TopicPartition("orders", 2), b"small too")
    shared, own = task.finish()
    assert (shared.topic_partition.partition, shared.name) == (2, "w-3.staged")
    assert shared.partitions.tolist() == [2, 1, 1, 2]
    assert (own.topic_partition.partition, own.name, own.partitions.tolist()) == (1, "w-3own.staged", [1, 1])
    with StagedFiles(root, [shared, own]) as files:
        first, second = files.parts()
        assert [first.is_whole_file(at, at + 2) for at in (0, 2)] == [False, True]
        assert not second.is_whole_file(0, 2)


@pytest.mark.parametrize("tasks", [2, 20, 200])
def test_each_file_is_opened_once_for_all_partitions(root: Path, tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    staged = []
    for number in range(tasks):
        task = Task(root, number, {})
        for partition in range(PARTITIONS):
            task.add(TopicPartition("orders", partition), b"value")
        staged += task.finish()
    assert len(staged) == tasks
    opened: Counter[str] = Counter()
    open_file = staged_parts.open_file
    monkeypatch.setattr(staged_parts, "open_file", lambda path: (opened.update([path.name]), open_file(path))[1])
    before = descriptors_before()
    with StagedFiles(root, staged) as files:
        for part in files.parts():
            part.read(0, tasks, np.empty(part.size_bytes, np.uint8))
    assert set(opened.values()) == {1}
    assert len(opened) == tasks
    assert descriptors() == before


def test_more_files_than_may_be_open_are_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staged_parts, "_OPEN_FILES_MAX", 10)
    staged, values = [], Values()
    for number in range(60):
        task = Task(root, number, values)
        for partition in range(PARTITIONS):
            task.add(TopicPartition("orders", partition), b"of task %d" % number)
        staged += task.finish()
    with open_files_left(30), StagedFiles(root, staged) as files:
        for part in files.parts():
            data = np.empty(part.size_bytes, np.uint8)
            part.read(0, 60, data)
            assert all(b"of task %d" % number in data.tobytes() for number in range(60))


def test_message_of_a_task_has_few_bytes_a_batch(root: Path) -> None:
    for partition in range(PARTITIONS, 100):
        (root / f"orders-{partition}").mkdir()
    task = Task(root, 0, {})
    for partition in range(100):
        task.add(TopicPartition("orders", partition), b"value %d" % partition)
    (staged,) = task.finish()
    message = pickle.dumps(staged)
    assert len(message) < 300 + 100 * 30
    again = pickle.loads(message)
    assert (again.batches == staged.batches).all()
    assert (again.partitions == staged.partitions).all()
    assert (again.topic_partition, again.name, again.size_bytes, again.write_id) == (
        staged.topic_partition,
        staged.name,
        staged.size_bytes,
        "w",
    )


def test_file_of_another_size_or_none_is_reported(root: Path) -> None:
    task = Task(root, 0, {})
    task.add(TopicPartition("orders", 0), b"value")
    (staged,) = task.finish()
    path = staged.path(root)
    path.write_bytes(path.read_bytes() + b"x")
    with StagedFiles(root, [staged]) as files, pytest.raises(CorruptRecordError, match="expected a staged file of"):
        files.read(0, 0, memoryview(bytearray(1)))
    path.unlink()
    with StagedFiles(root, [staged]) as files, pytest.raises(UnknownTopicError, match="expected the staged file w-0"):
        files.read(0, 0, memoryview(bytearray(1)))
