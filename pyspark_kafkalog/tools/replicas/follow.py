"""`kafkalog follow`: keep a log directory as a replica of a Kafka cluster, or of another log directory.

Batches are copied as they are: with offsets, leader epochs, codecs, producers, transactions; topics with their ids,
partitions and configurations; groups with their offsets; access control entries and quotas. Spark reads the copy like
any log directory, while it follows. No other process may write to it before `kafkalog promote`.

The leader is a list of brokers, or the path or URL of a log directory, also of a broker's. The log directory of --path
is created if it does not exist. It gets a cluster id of its own, not the leader's: clients and followers recognize a
cluster by that id, and these are two; `kafkalog export` gives a copy for a broker the id that it needs.

The command resumes after any crash at the last commit. It never gives up while the leader or the disk is not
available; with --once it ends when all is copied that the leader had at the start, or after a minute without progress.
SIGTERM and Ctrl-C end it, with what was fetched committed.

With --spark, as in jobs/follow.py, tasks of Spark fetch the partitions that are far behind, in ranges of offsets. They
write to files in the log directory, or put objects into its store; the driver commits them in order.

Where the leader has lost records that were copied, or has others, the partition is stopped and reported, or with
--on-divergence truncate cut back to where both agree. What retention has deleted at the leader before it was copied is
reported as a gap.

A log directory that has topics and takes writes, also one that was promoted, follows only with --demote: it refuses
writes from then on.

With --controllers (the listener of the controllers, not of the brokers) also the cluster's metadata log is copied, byte
for byte, to a directory of its own: `kafkalog topics`, `configs`, `acls` and `metadata-quorum` answer from it.

examples:
  kafkalog follow --from broker1:9092,broker2:9092 --path /data/copy --topics 'orders|payments'
  kafkalog follow --from broker1:9093 --command-config client.properties --path s3://bucket/copy
  kafkalog follow --from /data/log --path s3://bucket/second-place --once --report follow.json
  kafkalog follow --from broker1:9092 --path /data/copy --controllers controller1:9093 --metadata-path /data/metadata
  kafkalog follow --from /data/new-leader --path /data/former-leader --demote --on-divergence truncate
  kafkalog follow --from broker1:9092 --path /data/copy --max-rate 50000000 --metrics-listen 127.0.0.1:9309
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import LeaderUnavailableError
from pyspark_kafkalog.maintenance.jobs.tasks import SparkTasks, job_session, stop_signal
from pyspark_kafkalog.object_store.location import parse_location
from pyspark_kafkalog.protocol.client_settings import ClientSettings, read_client_settings
from pyspark_kafkalog.replication.events import Event, EventKind
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.security.open import find_root, open_or_create_root
from pyspark_kafkalog.storage.filesystem import is_out_of_space, time_ms
from pyspark_kafkalog.threads import start
from pyspark_kafkalog.tools.command import UsageError, add_path, include_pattern, local_path, one_line, positive
from pyspark_kafkalog.tools.output import notice
from pyspark_kafkalog.tools.running import add_log_format, serving_metrics, set_up_log, without_collections

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pyspark_kafkalog.replication.follower import Follower, FollowSettings
    from pyspark_kafkalog.replication.follower_state import FollowerState
    from pyspark_kafkalog.replication.leader import LeaderEndPoint
    from pyspark_kafkalog.replication.range_task import LeaderAddress
    from pyspark_kafkalog.replication.report import FollowReport
    from pyspark_kafkalog.replication.task_leader import TaskLeader

_LOG: Final = logging.getLogger(__name__)
_FIRST_ANSWER_S: Final = 60.0
_REPORT_S: Final = 10.0
_PROGRESS_S: Final = 1.0
_STOP_S: Final = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The leader, the root, and how to follow."""
    parser.add_argument(
        "--from",
        dest="leader",
        required=True,
        metavar="LEADER",
        help="HOST:PORT[,HOST:PORT ...] of brokers, or the path or URL of a log directory",
    )
    add_path(parser, "the log directory that follows; it is created if it does not exist")
    parser.add_argument(
        "--topics", default=".*", metavar="REGEX", help="topics to follow, as a Java regular expression (default: all)"
    )
    parser.add_argument("--once", action="store_true", help="copy what the leader has now, and end")
    parser.add_argument(
        "--on-divergence",
        choices=("stop", "truncate"),
        default="stop",
        help="where the leader has lost records that were copied, or has others: stop the partition, or cut it back "
        "(default: stop)",
    )
    parser.add_argument(
        "--demote",
        action="store_true",
        help="let a log directory follow that has topics and takes writes, such as the former leader of a promoted one",
    )
    parser.add_argument(
        "--max-rate",
        type=positive,
        metavar="BYTES_PER_S",
        help="copy at most so many bytes a second (default: no bound)",
    )
    parser.add_argument(
        "--spark",
        action="store_true",
        help="fetch ahead in tasks of Spark what is far behind: in an existing session, spark-submit's or a new one",
    )
    parser.add_argument(
        "--flush",
        choices=("fsync", "os"),
        default="fsync",
        help="commit when records are on disk, or when the operating system has them (default: fsync)",
    )
    parser.add_argument(
        "--command-config", type=Path, metavar="FILE", help="properties of the connection to brokers: TLS, SASL, rack"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="keep a report in JSON there, over all runs")
    parser.add_argument(
        "--metrics-listen", metavar="HOST:PORT", help="serve metrics for Prometheus there (default: nowhere)"
    )
    parser.add_argument(
        "--controllers", metavar="HOST:PORT", help="also copy the metadata log of these controllers (--metadata-path)"
    )
    parser.add_argument(
        "--metadata-path",
        type=local_path,
        metavar="DIR",
        help="the directory of that copy, which tools read with --path DIR",
    )
    add_log_format(parser)


def run(options: argparse.Namespace) -> int:
    """Follow until a signal, or with --once until all is copied."""
    with without_collections():
        from pyspark_kafkalog.replication.follower import Follower, FollowSettings
        from pyspark_kafkalog.replication.report import FollowReport

    set_up_log(options.log_format)
    pattern = include_pattern(options.topics)
    if (options.controllers is None) != (options.metadata_path is None):
        raise UsageError("--controllers and --metadata-path belong together")
    address = _leader(options)
    with ExitStack() as stack:
        leader = stack.enter_context(closing(address.open()))
        found = find_root(options.path)
        if found is not None:
            _check_may_follow(found.native(), address, may_demote=options.demote)
        report = FollowReport(leader=leader.name, root=str(parse_location(str(options.path))), clock_ms=time_ms)
        if options.metrics_listen is not None:
            stack.enter_context(_metrics(report, options.metrics_listen))
        if options.report is not None:
            stack.enter_context(_written(report, options.report, options.path))
        if found is None:
            _await_leader(leader, report, is_once=options.once)
        # Whatever can refuse to start is started before a log directory is created.
        spark = stack.enter_context(_spark()) if options.spark else None
        stack.enter_context(_observed(options))
        root = open_or_create_root(options.path).native()
        _check_may_follow(root, address, may_demote=options.demote)
        tasks: TaskLeader | None = None
        if spark is not None:
            leader = tasks = stack.enter_context(_task_leader(leader, address, root, spark))
        settings = FollowSettings(
            topics=options.topics,
            selects=pattern.matches,
            may_cut=options.on_divergence == "truncate",
            is_once=options.once,
            max_bytes_per_s=options.max_rate,
            flush=options.flush,
        )
        is_working = (lambda: False) if tasks is None else tasks.is_working
        follower = Follower(leader, root, settings, on_event=report.note, is_working=is_working)
        report.watch(follower.shared, lambda: follower.cluster_id)
        stack.enter_context(_progress(follower.shared))
        stack.enter_context(_stopping(follower))
        follower.run()
        return _outcome(follower, settings)


def _is_at(root: NativeRoot, text: str) -> bool:
    """Whether the path or URL is where `root` is, also by another name of the same directory."""
    place = parse_location(text)
    if isinstance(place, Path) and isinstance(root.path, Path):
        return place.exists() and place.samefile(root.path)
    return place == root.path


def _await_leader(leader: LeaderEndPoint, report: FollowReport, *, is_once: bool) -> None:
    """Wait for the leader's first answer, so that a wrong address leaves no empty log directory behind.

    Raises LeaderUnavailableError after a minute with `is_once`.
    """
    from pyspark_kafkalog.replication.partition_state import retry_delay_ms

    deadline_s, failures = time.monotonic() + _FIRST_ANSWER_S, 0
    while True:
        try:
            leader.describe(lambda _: False)
            return
        except LeaderUnavailableError as error:
            if is_once and time.monotonic() > deadline_s:
                raise
            failures += 1
            if failures == 1:
                detail = f"the log directory is created once it answers: {error}"
                report.note(Event(kind=EventKind.LEADER_UNAVAILABLE, detail=detail))
        time.sleep(retry_delay_ms(failures, random.SystemRandom()) / 1000)


def _check_may_follow(root: NativeRoot, address: LeaderAddress, *, may_demote: bool) -> None:
    """Raise UsageError for the leader's log directory, and for one with topics that does not follow.

    The latter would refuse writes from now on.
    """
    if address.is_root and _is_at(root, address.text):
        raise UsageError(f"{root.path} cannot follow itself: --from and --path name the same log directory")
    image = root.store.refresh()
    if image.topics and image.following is None and not may_demote:
        raise UsageError(
            f"{root.path} has topics, and takes writes: it does not follow, or was promoted. Name another directory, "
            "or let it follow and refuse writes with --demote"
        )


def _leader(options: argparse.Namespace) -> LeaderAddress:
    """The leader that --from names. Raises UsageError."""
    from pyspark_kafkalog.replication.range_task import LeaderAddress

    address = LeaderAddress(options.leader)
    if not address.is_root:
        return LeaderAddress(options.leader, _client_settings(options))
    if options.command_config is not None:
        raise UsageError(f"--command-config is for brokers, and {options.leader} is a log directory")
    return address


def _client_settings(options: argparse.Namespace) -> ClientSettings | None:
    return None if options.command_config is None else read_client_settings(options.command_config)


@contextmanager
def _observed(options: argparse.Namespace) -> Iterator[None]:
    """Keep a copy of the metadata log up to date during the block, if one is asked for; with --once up to now."""
    if options.controllers is None:
        yield
        return
    from pyspark_kafkalog.replication.metadata.observer import MetadataObserver, observing

    settings = _client_settings(options)
    if options.once:
        observer = MetadataObserver(options.controllers, options.metadata_path, settings)
        try:
            observed = observer.catch_up()
        finally:
            observer.close()
        sys.stdout.write(f"Copied the metadata log up to offset {observed.end_offset}.\n")
        yield
        return
    last_error = ""

    def report(observed: object) -> None:
        nonlocal last_error
        error = one_line(observed) if isinstance(observed, Exception) else ""
        if error and error != last_error:
            _LOG.warning("the metadata log is not copied for the moment: %s", error)
        elif last_error and not error:
            _LOG.info("the metadata log is copied again")
        last_error = error

    with observing(options.controllers, options.metadata_path, settings, report=report):
        yield


def _spark() -> AbstractContextManager[SparkSession]:
    """The session for tasks that fetch ahead."""
    return job_session("kafkalog follow")


@contextmanager
def _task_leader(
    leader: LeaderEndPoint, address: LeaderAddress, root: NativeRoot, spark: SparkSession
) -> Iterator[TaskLeader]:
    """The leader with tasks of Spark that fetch ahead. Those that still run at the end of the block are ended."""
    from pyspark_kafkalog.replication.task_leader import TaskLeader

    stop = threading.Event()
    tasks = SparkTasks(spark, stop=stop)
    found = TaskLeader(leader, address, tasks, root)
    try:
        yield found
    finally:
        stop.set()
        tasks.close()  # before their files are removed
        found.close()


def _outcome(follower: Follower, settings: FollowSettings) -> int:
    """The exit code: 1 if something of the leader's is not followed."""
    from pyspark_kafkalog.replication.follower_state import Phase

    totals = follower.shared.totals()
    stopped = [each for each in follower.shared.partitions() if each.phase is Phase.STOPPED]
    refused = follower.refused_topics()
    for topic in refused:
        notice(f"kafkalog follow: {topic.topic}: {topic.detail}")
    for each in stopped:
        notice(f"kafkalog follow: {each.name} is not followed any more: {each.last_error}")
    if settings.is_once:
        sys.stdout.write(f"Copied {totals.copied_records:,} records in {totals.copied_bytes:,} bytes.\n")
    return 1 if stopped or refused else 0


@contextmanager
def _stopping(follower: Follower) -> Iterator[None]:
    """Let the first SIGTERM or SIGINT end the follower during the block."""
    with stop_signal() as stop:

        def watch() -> None:
            if stop.is_set():
                follower.stop()

        with _repeated(watch, _STOP_S):
            yield


@contextmanager
def _repeated(work: Callable[[], None], interval_s: float) -> Iterator[None]:
    """Do `work` at intervals during the block, in a thread, and once at its end."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(interval_s):
            work()

    thread = threading.Thread(target=repeat, daemon=True)
    start(thread)
    try:
        yield
    finally:
        ended.set()
        thread.join()
        work()


def _written(report: FollowReport, path: Path, root: Path | str) -> AbstractContextManager[None]:
    """Write the report at intervals, with each loss and at the end.

    Raises InvalidOptionError if another file is there, and OSError if the report cannot be written at the beginning;
    but room on the disk is waited for, and so is `root` if the report is to be in it.
    """

    def write() -> None:
        try:
            report.write(path)
        except OSError as error:
            _LOG.warning("the report cannot be written: %s", one_line(error))

    report.continue_from(path)
    try:
        report.write(path)
    except OSError as error:
        is_root_missing = isinstance(error, FileNotFoundError) and path.parent == root
        if not is_root_missing and not is_out_of_space(error):
            raise
        _LOG.warning("the report cannot be written: %s", one_line(error))
    report.on_loss = write
    return _repeated(write, _REPORT_S)


@contextmanager
def _metrics(report: FollowReport, address: str) -> Iterator[None]:
    """Serve metrics at HOST:PORT during the block. Raises InvalidOptionError, or OSError if the address is in use."""
    from prometheus_client import CollectorRegistry

    from pyspark_kafkalog.replication.metrics import FollowerCollector
    from pyspark_kafkalog.server.config import Address

    registry = CollectorRegistry(auto_describe=False)
    registry.register(FollowerCollector(report))
    with serving_metrics(registry, Address.parse(address)) as url:
        _LOG.info("metrics are at %s", url)
        yield


@contextmanager
def _progress(shared: FollowerState) -> Iterator[None]:
    """Show records, their rate and the time that is left on standard error, if that is a terminal."""
    from tqdm import tqdm

    with tqdm(desc="follow", unit="record", unit_scale=True, file=sys.stderr, disable=None, dynamic_ncols=True) as bar:
        if bar.disable:
            yield
            return

        def show() -> None:
            totals = shared.totals()
            bar.total = totals.copied_records + totals.lag
            bar.n = totals.copied_records
            bar.set_postfix(MB=f"{totals.copied_bytes / 1e6:.1f}", lag=totals.lag, stopped=totals.stopped, refresh=True)

        with _repeated(show, _PROGRESS_S):
            yield
