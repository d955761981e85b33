"""`kafkalog follow` while it runs: leader, follower, report, progress, metrics, and the copy of the metadata log."""

from __future__ import annotations

import argparse
import logging
import random
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import InvalidConfigError, LeaderUnavailableError
from pyspark_kafkalog.maintenance.jobs.tasks import SparkTasks, job_session, stop_signal
from pyspark_kafkalog.object_store.location import parse_location
from pyspark_kafkalog.protocol.client_settings import ClientSettings, read_client_settings
from pyspark_kafkalog.replication.cluster.connections import parse_addresses
from pyspark_kafkalog.replication.follower import Follower, FollowSettings
from pyspark_kafkalog.replication.follower_state import FollowerState, Phase, Totals
from pyspark_kafkalog.replication.leader import LeaderEndPoint
from pyspark_kafkalog.replication.metadata_observer import MetadataObserver, observing
from pyspark_kafkalog.replication.partition_state import retry_delay_ms
from pyspark_kafkalog.replication.range_task import LeaderAddress
from pyspark_kafkalog.replication.report import FollowerCollector, FollowReport
from pyspark_kafkalog.replication.task_leader import TaskLeader
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.security.open import find_root, open_or_create_root
from pyspark_kafkalog.server.config import Address
from pyspark_kafkalog.storage.filesystem import is_out_of_space, time_ms
from pyspark_kafkalog.threads import start
from pyspark_kafkalog.tools.command import UsageError, one_line, topic_pattern
from pyspark_kafkalog.tools.output import notice
from pyspark_kafkalog.tools.processes.metrics import serving_metrics
from pyspark_kafkalog.tools.running import set_up_log
from pyspark_kafkalog.units import plural, size_text

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG: Final = logging.getLogger(__name__)
#: How long a new copy waits for its leader: a wrong address ends the command, and a service manager tries again.
_FIRST_ANSWER_S: Final = 5.0
_REPORT_S: Final = 10.0
_PROGRESS_S: Final = 1.0
#: The rate that is shown is that of so many seconds.
_RATE_S: Final = 5.0
_STOP_S: Final = 0.05


def run(options: argparse.Namespace) -> int:
    """Follow until a signal, or with --once until all is copied."""
    set_up_log(options.log_format)
    pattern = topic_pattern(options.topics)
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
            _await_leader(leader, address)
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
        with _progress(follower.shared), _stopping(follower):
            follower.run()
        return _outcome(follower, settings)


def _is_at(root: NativeRoot, text: str) -> bool:
    """Whether the path or URL is where `root` is, also by another name of the same directory."""
    place = parse_location(text)
    if isinstance(place, Path) and isinstance(root.path, Path):
        return place.exists() and place.samefile(root.path)
    return place == root.path


def _await_leader(leader: LeaderEndPoint, address: LeaderAddress) -> None:
    """Wait some seconds for the leader's first answer, so that a wrong address leaves no empty log directory behind.

    Raises LeaderUnavailableError.
    """
    deadline_s, failures = time.monotonic() + _FIRST_ANSWER_S, 0
    while True:
        try:
            if not address.is_root:
                _check_connects(address.text.split(","))
            leader.describe(lambda _: False)
            return
        except LeaderUnavailableError as error:
            if time.monotonic() > deadline_s:
                raise LeaderUnavailableError(
                    f"no answer from {leader.name} within {_FIRST_ANSWER_S:g} seconds: check --from; no log directory "
                    f"was created ({one_line(error)})"
                ) from error
            failures += 1
        left_s = max(deadline_s - time.monotonic(), 0.0)
        time.sleep(min(retry_delay_ms(failures, random.SystemRandom()) / 1000, left_s))


def _check_connects(brokers: Sequence[str]) -> None:
    """Raise LeaderUnavailableError if none of the brokers accepts a connection soon: a request would wait for long."""
    reasons = []
    for each in map(Address.parse, brokers):
        try:
            socket.create_connection((each.host, each.port), timeout=_FIRST_ANSWER_S or None).close()
            return
        except OSError as error:
            reasons.append(f"{each}: {error.strerror or error}")
    raise LeaderUnavailableError("; ".join(reasons))


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
    address = LeaderAddress(options.leader)
    if not address.is_root:
        try:
            parse_addresses(options.leader)
        except InvalidConfigError as error:
            raise UsageError(f"--from {error}") from None
        return LeaderAddress(options.leader, _client_settings(options))
    if options.leader.startswith(("http://", "https://", "kafka://")):
        raise UsageError(f"--from {options.leader!r}: brokers are named as host:port, without a scheme")
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

    registry = CollectorRegistry(auto_describe=False)
    registry.register(FollowerCollector(report))
    with serving_metrics(registry, Address.parse(address)) as url:
        _LOG.info("metrics are at %s", url)
        yield


@contextmanager
def _progress(shared: FollowerState) -> Iterator[None]:
    """Show a line with the current rate on standard error, if that is a terminal. Messages of the log go above it."""
    if not sys.stderr.isatty():
        yield
        return
    from tqdm import tqdm
    from tqdm.contrib.logging import logging_redirect_tqdm

    line = ProgressLine()
    with tqdm(bar_format="{desc}", file=sys.stderr, leave=False, dynamic_ncols=True) as bar, logging_redirect_tqdm():

        def show() -> None:
            bar.set_description_str(line.text(shared.totals(), time.monotonic()))

        with _repeated(show, _PROGRESS_S):
            yield


class ProgressLine:
    """The text about a follower's progress: its rate over the last seconds, not since the start, and its lag."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def text(self, totals: Totals, now_s: float) -> str:
        """The line at the monotonic time `now_s`."""
        self._seen.append((now_s, totals.copied_bytes))
        while len(self._seen) > 2 and now_s - self._seen[1][0] >= _RATE_S:
            self._seen.popleft()
        then_s, then_bytes = self._seen[0]
        parts = [f"{size_text(totals.copied_bytes)} copied"]
        if totals.copied_bytes > then_bytes:
            parts.append(f"{size_text(int((totals.copied_bytes - then_bytes) / (now_s - then_s)))}/s")
        is_behind = totals.lag or totals.unknown or not totals.partitions
        parts.append(f"{plural(totals.lag, 'record')} behind" if is_behind else "in sync")
        if totals.stopped:
            parts.append(f"{plural(totals.stopped, 'partition')} stopped")
        return f"follow: {', '.join(parts)}"
