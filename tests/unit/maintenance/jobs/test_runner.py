"""Maintenance jobs reject invalid options, keep their loop running, and exit with a status that shows failures."""

from __future__ import annotations

import io
import json
import signal
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from builders.root_places import RootPlace, forget, memory_root, store_of
from fakes.thread_tasks import ThreadTasks
from kafkalog_command import Command

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.cleaner.job import cleaner_slots
from pyspark_kafkalog.maintenance.cleaner.logs import CleanerLimits
from pyspark_kafkalog.maintenance.cleaner.run_record import (
    LAST_RUN_FILE,
    UNCLEANABLE_FILE,
    CleanerRun,
    RecordFiles,
    read_last_run,
    read_uncleanable,
    record_place,
    store_marks,
    write_last_run,
)
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.jobs.runner import ALL_FINE, SOME_FAILED, JobRun, run_chunks, run_loop, run_once
from pyspark_kafkalog.maintenance.jobs.sinks import JsonLines
from pyspark_kafkalog.maintenance.jobs.tasks import StoppedError, Tasks, stop_signal
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.maintenance.jobs import OffsetFileError, parse_offsets

JOBS = ("log-cleaner", "retention", "merge-segments")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    LogDir.create(tmp_path / "root").create_topic("orders", partitions=3)
    return tmp_path / "root"


# Options


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize(
    "wrong",
    [
        ("--nix",),
        ("--now", "-5"),
        ("--now", "x"),
        ("--now", "1795400000000000"),
        ("--interval", "x"),
        ("--interval", "-1"),
        ("--interval", "5"),
        ("--loop", "--now", "5"),
        ("--tasks", "0"),
    ],
    ids=" ".join,
)
def test_invalid_options_exit_with_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, wrong: Sequence[str]
) -> None:
    exit_code, out, err = Command(name, tmp_path, capsys).try_to(*wrong)
    assert (exit_code, out) == (2, "")
    assert err.startswith(f"kafkalog {name}: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", JOBS)
def test_unknown_topic_or_root_exits_with_status_1(root: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    exit_code, out, err = Command(name, root, capsys).try_to("--topic", "nix")
    assert (exit_code, out) == (1, "")
    assert "nix" in err
    assert err.count("\n") == 1
    exit_code, out, err = Command(name, root.parent / "no-root", capsys).try_to()
    assert (exit_code, out, err.count("\n")) == (1, "", 1)


# Rounds and loops


class CountingJob:
    """Each round has its number as the only report; `failing` rounds fail in the way they say."""

    action = "count"

    def __init__(self, failing: dict[int, Exception | None]) -> None:
        self.rounds = 0
        self._failing = failing

    def choose(self, job_run: JobRun) -> Sequence[TopicPartition]:
        self.rounds += 1
        return [TopicPartition("a", self.rounds)]

    def bytes_to_read(self, job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[int]:
        return iter(())

    def run(self, tasks: Tasks, job_run: JobRun, partitions: Sequence[TopicPartition]) -> Iterator[PartitionReport]:
        error = "broken" if self.rounds in self._failing else None
        raised = self._failing.get(self.rounds)
        if raised is not None:
            raise raised
        yield PartitionReport(topic="a", partition=self.rounds, action="count", error=error)


class Clock(threading.Event):
    """Stands for the event that ends a loop: time passes at once, and ends after some pauses."""

    def __init__(self, pauses: int) -> None:
        super().__init__()
        self.pauses: list[float] = []
        self._left = pauses

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.pauses.append(timeout)
        if len(self.pauses) == self._left:
            self.set()
        return self.is_set()


class Seen:
    """A sink that remembers."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def begin(self, action: str, job_run: JobRun, partitions_count: int) -> None:
        self.told.append((action, partitions_count))

    def take(self, report: PartitionReport) -> None:
        self.told.append(report.partition)

    def end(self) -> None:
        self.told.append("end")


def test_loop_continues_after_failed_round(tmp_path: Path) -> None:
    job, clock, seen = CountingJob({2: OSError("gone"), 3: RuntimeError("odd"), 4: None}), Clock(5), Seen()
    status = run_loop(
        job, lambda _: ThreadTasks(), JobRun(path=tmp_path), [seen], interval_s=7.5, stop=clock, is_alive=lambda: True
    )
    assert (status, job.rounds) == (ALL_FINE, 5)
    assert clock.pauses == [7.5] * 5
    assert seen.told == [("count", 1), 1, "end"] + [("count", 1), "end"] * 2 + [("count", 1), 4, "end"] + [
        ("count", 1),
        5,
        "end",
    ]


def test_loop_fails_without_session_and_succeeds_when_stopped(tmp_path: Path) -> None:
    job, clock = CountingJob({}), Clock(9)
    arguments = (lambda _: ThreadTasks(), JobRun(path=tmp_path), [])
    assert run_loop(job, *arguments, interval_s=1, stop=clock, is_alive=lambda: False) == SOME_FAILED
    assert job.rounds == 1
    job = CountingJob({2: StoppedError("the session is gone")})
    assert run_loop(job, *arguments, interval_s=1, stop=clock, is_alive=lambda: True) == SOME_FAILED
    assert job.rounds == 2

    class ToldToEnd(CountingJob):
        def choose(self, job_run: JobRun) -> Sequence[TopicPartition]:
            clock.set()
            return super().choose(job_run)

    job = ToldToEnd({1: StoppedError("told to end")})
    assert run_loop(job, *arguments, interval_s=1, stop=clock, is_alive=lambda: False) == ALL_FINE
    assert job.rounds == 1


def test_failed_partition_fails_round(tmp_path: Path) -> None:
    assert run_once(CountingJob({}), lambda _: ThreadTasks(), JobRun(path=tmp_path), []) == ALL_FINE
    assert run_once(CountingJob({1: None}), lambda _: ThreadTasks(), JobRun(path=tmp_path), []) == SOME_FAILED


def test_run_with_chosen_partitions_does_not_choose_again(tmp_path: Path) -> None:
    job, seen = CountingJob({}), Seen()
    chosen = [TopicPartition("a", 0), TopicPartition("a", 1)]
    assert run_once(job, lambda _: ThreadTasks(), JobRun(path=tmp_path), [seen], partitions=chosen) == ALL_FINE
    assert job.rounds == 0
    assert seen.told == [("count", 2), 0, "end"]


def test_loop_chooses_again_after_first_run(tmp_path: Path) -> None:
    job, clock = CountingJob({}), Clock(3)
    chosen = [TopicPartition("a", 0)]
    arguments = (lambda _: ThreadTasks(), JobRun(path=tmp_path), [])
    status = run_loop(job, *arguments, interval_s=1, stop=clock, is_alive=lambda: True, partitions=chosen)
    assert (status, job.rounds) == (ALL_FINE, 2)


def _reports(partitions: Sequence[TopicPartition]) -> list[PartitionReport]:
    return [PartitionReport(topic=each.topic, partition=each.partition, action="x") for each in partitions]


@pytest.mark.parametrize(("count", "most", "tasks_expected"), [(0, 5, 0), (3, 128, 2), (4, 1, 4), (1000, 128, 8)])
def test_partitions_are_split_evenly_into_tasks(count: int, most: int, tasks_expected: int) -> None:
    partitions = [TopicPartition("a", number) for number in range(count)]
    tasks = ThreadTasks(2)
    reports = list(run_chunks(tasks, partitions, _reports, action="x", partitions_max=most))
    assert sorted(each.partition for each in reports) == list(range(count))
    assert tasks.submitted == tasks_expected


def test_partitions_of_lost_task_are_reported_as_failed() -> None:
    partitions = [TopicPartition("a", number) for number in range(6)]
    tasks = ThreadTasks(2, lose=lambda number: number == 1)
    reports = list(run_chunks(tasks, partitions, _reports, action="x", partitions_max=2))
    failed = {each.partition for each in reports if not each.is_fine}
    assert (len(reports), failed) == (6, {2, 3})


def test_first_signal_requests_stop_and_second_acts_as_before() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_signal() as stop:
        assert not stop.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert stop.is_set()
        assert signal.getsignal(signal.SIGTERM) == before
    assert signal.getsignal(signal.SIGTERM) == before


def test_json_report_has_zero_values_and_no_unset_ones() -> None:
    stream = io.StringIO()
    lines = JsonLines(stream)
    lines.begin("x", JobRun(path=Path("/"), dry_run=True), 1)
    lines.take(PartitionReport(topic="ä", partition=0, action="x", log_start_offset=0, seconds=1.23456))
    tree = json.loads(stream.getvalue())
    assert (tree["topic"], tree["logStartOffset"], tree["seconds"], tree["dryRun"]) == ("ä", 0, 1.235, True)
    assert "error" not in tree


# What is divided over tasks


def test_tasks_share_configured_limits() -> None:
    config = BrokerConfig.from_properties(
        {"log.cleaner.dedupe.buffer.size": "104857600", "log.cleaner.io.max.bytes.per.second": "1000"}
    )
    limits = CleanerLimits.of(config, 4)
    assert (limits.buffer_bytes, limits.bytes_per_second) == (26214400, 250.0)
    assert cleaner_slots(config, 8) == 8
    assert cleaner_slots(config, 800) == 50
    config = BrokerConfig.from_properties({"log.cleaner.threads": "3", "log.cleaner.dedupe.buffer.size": "104857600"})
    assert cleaner_slots(config, 8) == 3


# Marks and sums in the root


def test_uncleanable_marks_persist_until_cleared_or_topic_is_recreated(root: Path) -> None:
    log_dir = LogDir.open(root)
    own = log_dir.root.native()
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 2)
    assert read_uncleanable(RecordFiles(root)) == {}
    store_marks(own, {second: "bad\udcff"}, now_ms=2)
    store_marks(own, {first: "worse"}, now_ms=3)
    store_marks(own, {first: "x" * 5000}, now_ms=4)
    store_marks(own, {TopicPartition("nix", 0): "not there"}, now_ms=4)
    assert read_uncleanable(RecordFiles(root)) == {first: "x" * 1000, second: "bad\udcff"}
    assert [each["sinceMs"] for each in json.loads((root / UNCLEANABLE_FILE).read_text())["partitions"]] == [3, 2]
    store_marks(own, {first: None}, now_ms=0)
    assert list(read_uncleanable(RecordFiles(root))) == [second]
    store_marks(own, {second: None}, now_ms=0)
    assert not (root / UNCLEANABLE_FILE).exists()
    store_marks(own, {first: "bad"}, now_ms=5)
    log_dir.delete_topic("orders")
    log_dir.create_topic("orders", partitions=1)
    log_dir.create_topic("others", partitions=1)
    store_marks(own, {TopicPartition("others", 0): "bad"}, now_ms=6)
    assert list(read_uncleanable(RecordFiles(root))) == [TopicPartition("others", 0)]


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"partitions": [1]}', b'{"partitions": 3}', b"\xff", b"[" * 9999])
def test_damaged_cleaner_state_files_read_as_empty(tmp_path: Path, data: bytes) -> None:
    (tmp_path / UNCLEANABLE_FILE).write_bytes(data)
    (tmp_path / LAST_RUN_FILE).write_bytes(data)
    assert read_uncleanable(RecordFiles(tmp_path)) == {}
    assert read_last_run(RecordFiles(tmp_path)) is None


def test_totals_of_cleaner_run_are_read_back_as_written(root_place: RootPlace) -> None:
    root = LogDir.create(root_place).root.native()
    run = CleanerRun(began_ms=1, ended_ms=2, bytes_read=3, bytes_written=4, max_clean_seconds=0.5, max_dirty_percent=6)
    assert read_last_run(record_place(root)) is None
    write_last_run(root, run)
    assert read_last_run(record_place(root)) == run


def test_marks_in_object_store_persist_until_cleared() -> None:
    url = memory_root()
    log_dir = LogDir.create(url)
    log_dir.create_topic("orders", partitions=2)
    root, bucket = log_dir.root.native(), store_of(url).bucket
    first, second = TopicPartition("orders", 0), TopicPartition("orders", 1)
    store_marks(root, {first: "bad"}, now_ms=2)
    store_marks(root, {second: "worse"}, now_ms=3)
    assert read_uncleanable(record_place(root)) == {first: "bad", second: "worse"}
    assert verify(log_dir.root).is_sound
    for each in (first, second):
        store_marks(root, {each: None}, now_ms=0)
    assert UNCLEANABLE_FILE not in bucket
    bucket.write(UNCLEANABLE_FILE, b"{")
    assert read_uncleanable(record_place(root)) == {}
    forget(url)


# Kafka's file of offsets


def test_offset_file_is_parsed_like_kafka() -> None:
    one = b'{"partitions": [{"topic": "a", "partition": 1, "offset": 5}, {"topic": "a", "partition": 0, "offset": -1}]}'
    assert parse_offsets(one) == {TopicPartition("a", 1): 5, TopicPartition("a", 0): -1}
    assert parse_offsets(b'{"version": 1, "partitions": []}') == {}


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "not valid JSON"),
        (b"[]", "a JSON object"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"version": 2, "partitions": []}', "version 2"),
        (b'{"version": "1", "partitions": []}', "version"),
        (b"{}", "partitions"),
        (b'{"partitions": {}}', "partitions"),
        (b'{"partitions": [1]}', "entry 1"),
        (b'{"partitions": [{"topic": 1, "partition": 0, "offset": 0}]}', "topic"),
        (b'{"partitions": [{"topic": "a", "partition": true, "offset": 0}]}', "partition"),
        (b'{"partitions": [{"topic": "a", "partition": 0, "offset": 1.5}]}', "offset"),
        (b'{"partitions": [{"topic": "a", "partition": 2147483648, "offset": 1}]}', "partition"),
        (b'{"partitions": [{"topic": "a", "partition": 0, "offset": 9223372036854775808}]}', "offset"),
        (
            b'{"partitions": [' + b", ".join([b'{"topic": "a", "partition": 0, "offset": 1}'] * 2) + b"]}",
            "more than once: a-0",
        ),
    ],
)
def test_invalid_offset_file_is_rejected(data: bytes, found: str) -> None:
    with pytest.raises(OffsetFileError, match=found):
        parse_offsets(data)


def test_delete_records_prints_like_kafka(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(json.dumps({"partitions": [{"topic": "orders", "partition": 0, "offset": -1}], "version": 1}))
    command = Command("delete-records", root, capsys)
    assert command("--offset-json-file", str(path)) == (
        "Executing records delete operation\n"
        "Records delete operation completed:\n"
        "partition: orders-0\tlow_watermark: 0\n"
    )
    path.write_text(json.dumps({"partitions": [{"topic": "orders", "partition": 0, "offset": 7}]}))
    exit_code, out, err = command.try_to("--offset-json-file", str(path), "--output", "json", "--dry-run")
    assert (exit_code, err) == (1, "")
    tree = json.loads(out)
    assert (tree["partition"], tree["dryRun"], "7" in tree["error"]) == (0, True, True)
    assert command.try_to()[0] == 2
    assert command.try_to("--offset-json-file", str(tmp_path / "nix"))[0] == 1
