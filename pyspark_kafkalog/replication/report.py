"""The report of a follower, and its metrics: what happened, how often, and where each partition is.

Each event is a line of the log as it happens. The report is one JSON object: the events, their counts, totals, and the
partitions. It is written at intervals and at the end, through a temporary file, so that a reader never sees a part; and
with each event of a loss, ahead of the commit that follows from it, so that a kill between them hides nothing.

There is a report from the beginning on, while the leader has not answered yet.

A follower that is started again continues the report: events and counts are those of all runs, totals of the last one.

`FollowerCollector` has the same for Prometheus, under the names that the usual rules of its JMX exporter give to a
broker's metrics:

    kafka_server_fetcherlagmetrics_consumerlag{topic,partition}  kafka.server:type=FetcherLagMetrics,
                                                                 name=ConsumerLag
    kafka_server_replicafetchermanager_maxlag                    kafka.server:type=ReplicaFetcherManager,name=MaxLag
    kafka_server_replicafetchermanager_failedpartitionscount     …,name=FailedPartitionsCount
    kafka_server_brokertopicmetrics_replicationbytesin_total     kafka.server:type=BrokerTopicMetrics,
                                                                 name=ReplicationBytesInPerSec
    kafkalog_follower_waiting_for_leader                             1 while the leader has not answered yet, or 0
    kafkalog_follower_records_total, kafkalog_follower_commits_total
    kafkalog_follower_events_total{event}                            see events.py
    kafkalog_follower_last_alarm_timestamp_seconds                   the last event that a person should look at, or 0

Lags are offsets between the committed log end and the leader's high watermark. They are read at each scrape; counters
begin at 0 with each follower.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.replication.events import ALARMING, LOSSES, Event
from pyspark_kafkalog.replication.follower_state import Followed, FollowerState, Phase, Totals

if TYPE_CHECKING:
    from prometheus_client.core import Metric

_LOG: Final = logging.getLogger(__name__)
#: Of each kind, the newest events are kept.
_EVENTS_MAX: Final = 1000
#: A larger file is no report, whatever it begins with.
_BYTES_MAX: Final = 16 << 20
_WAITING: Final = "waiting for leader"
_FOLLOWING: Final = "following"


class FollowReport:
    """Takes events from all threads of a follower."""

    def __init__(self, *, leader: str, root: str, clock_ms: Callable[[], int]) -> None:
        self._leader = leader
        self._root = root
        self._clock_ms = clock_ms
        self._began_ms = clock_ms()
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._earlier_counts: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._events: dict[str, deque[tuple[int, Event]]] = {}
        #: When the last alarming event was, in ms; 0 for never.
        self.last_alarm_ms = 0
        self._shared: FollowerState | None = None
        self._cluster_id: Callable[[], str] = str
        #: Called with each event of a loss, by the thread that notes it.
        self.on_loss: Callable[[], None] = _do_nothing

    def watch(self, shared: FollowerState, cluster_id: Callable[[], str]) -> None:
        """Report on the follower with this state from now on. `cluster_id`: the leader's, empty before it answers."""
        self._shared, self._cluster_id = shared, cluster_id

    @property
    def is_waiting(self) -> bool:
        """Whether the leader has not answered yet."""
        return not self._cluster_id()

    @property
    def commits(self) -> int:
        """How many the follower has made."""
        return 0 if self._shared is None else self._shared.commits

    def partitions(self) -> list[Followed]:
        """The followed partitions as of now."""
        return [] if self._shared is None else self._shared.partitions()

    def totals(self) -> Totals:
        """The sums of now."""
        return Totals() if self._shared is None else self._shared.totals()

    def continue_from(self, path: Path) -> None:
        """Continue with the events of the report at `path`, if there is one.

        Raises InvalidOptionError if the file is anything else, or the report of another root; OSError.
        """
        try:
            with path.open("rb") as file:
                text = file.read(_BYTES_MAX + 1)
        except FileNotFoundError:
            return
        if len(text) > _BYTES_MAX:
            raise InvalidOptionError(f"{path} has more than {_BYTES_MAX} bytes, as no report has: name another file")
        try:
            tree = json.loads(text)
            of_root, counts = tree["root"], Counter({str(kind): int(count) for kind, count in tree["counts"].items()})
            events = [(int(each["time_ms"]), Event.of_fields(each)) for each in tree["events"]]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            raise InvalidOptionError(f"{path} is no report of kafkalog follow: name another file") from error
        if of_root != self._root:
            raise InvalidOptionError(f"{path} is the report of {of_root}, not of {self._root}: name another file")
        with self._lock:
            self._earlier_counts = counts
            for time_ms, event in events:
                self._kept(event).append((time_ms, event))

    def _kept(self, event: Event) -> deque[tuple[int, Event]]:
        return self._events.setdefault(event.kind.value, deque(maxlen=_EVENTS_MAX))

    def note(self, event: Event) -> None:
        """Log an event, and keep it for the report."""
        now_ms = self._clock_ms()
        is_alarming = event.kind in ALARMING
        with self._lock:
            self._counts[event.kind.value] += 1
            self._kept(event).append((now_ms, event))
            if is_alarming:
                self.last_alarm_ms = now_ms
        _LOG.log(logging.WARNING if is_alarming else logging.INFO, "%s", event.line())
        if event.kind in LOSSES:
            self.on_loss()

    def counts(self) -> Mapping[str, int]:
        """How often each kind of event was in this run."""
        with self._lock:
            return dict(self._counts)

    def tree(self) -> Mapping[str, Any]:
        """The report as of now."""
        totals = self.totals()
        with self._lock:
            events = sorted((pair for kept in self._events.values() for pair in kept), key=lambda pair: pair[0])
            counts = dict(self._earlier_counts + self._counts)
        return {
            "leader": self._leader,
            "cluster_id": self._cluster_id(),
            "root": self._root,
            "state": _WAITING if self.is_waiting else _FOLLOWING,
            "began_ms": self._began_ms,
            "written_ms": self._clock_ms(),
            "totals": {
                "partitions": totals.partitions,
                "stopped_partitions": totals.stopped,
                "lag_offsets": totals.lag,
                "copied_records": totals.copied_records,
                "copied_bytes": totals.copied_bytes,
                "commits": self.commits,
            },
            "counts": counts,
            "events": [{"time_ms": time_ms, **event.fields()} for time_ms, event in events],
            "partitions": [_partition(each) for each in sorted(self.partitions(), key=lambda each: each.name)],
        }

    def write(self, path: Path) -> None:
        """Replace the file at `path` by the report as of now, durably. Raises OSError."""
        part = path.with_name(path.name + ".part")
        with self._writing:
            with part.open("w", encoding="utf-8") as file:
                file.write(json.dumps(self.tree(), ensure_ascii=False, indent=1) + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)


def _do_nothing() -> None:
    """What is done with the event of a loss if no report is written."""


def _partition(followed: Followed) -> Mapping[str, Any]:
    found: dict[str, Any] = {
        "topic": followed.name.topic,
        "partition": followed.name.partition,
        "log_start_offset": followed.committed_start_offset,
        "log_end_offset": followed.committed_end_offset,
        "leader_high_watermark": followed.high_watermark,
        "copied_records": followed.copied_records,
        "copied_bytes": followed.copied_bytes,
        "is_stopped": followed.phase is Phase.STOPPED,
    }
    if followed.last_error:
        found["error"] = followed.last_error
    return found


class FollowerCollector:
    """The metrics of one follower, as of each scrape."""

    def __init__(self, report: FollowReport) -> None:
        self._report = report

    def describe(self) -> list[Metric]:
        """Empty, so that registering does not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The current metrics."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily  # an extra

        partitions = self._report.partitions()
        yield GaugeMetricFamily(
            "kafkalog_follower_waiting_for_leader",
            "1 while the leader has not answered yet",
            value=self._report.is_waiting,
        )
        lags = GaugeMetricFamily(
            "kafka_server_fetcherlagmetrics_consumerlag",
            "offsets that the leader has and this root has not",
            labels=("topic", "partition"),
        )
        for each in partitions:
            if each.lag >= 0:
                lags.add_metric((each.name.topic, str(each.name.partition)), each.lag)
        yield lags
        yield GaugeMetricFamily(
            "kafka_server_replicafetchermanager_maxlag",
            "the largest lag of a partition",
            value=max((each.lag for each in partitions), default=0),
        )
        yield GaugeMetricFamily(
            "kafka_server_replicafetchermanager_failedpartitionscount",
            "partitions that are not followed any more",
            value=sum(each.phase is Phase.STOPPED for each in partitions),
        )
        totals = self._report.totals()
        yield CounterMetricFamily(
            "kafka_server_brokertopicmetrics_replicationbytesin", "bytes of batches copied", value=totals.copied_bytes
        )
        yield CounterMetricFamily("kafkalog_follower_records", "records copied", value=totals.copied_records)
        yield CounterMetricFamily("kafkalog_follower_commits", "commits", value=self._report.commits)
        events = CounterMetricFamily("kafkalog_follower_events", "events by kind", labels=("event",))
        for kind, count in self._report.counts().items():
            events.add_metric((kind,), count)
        yield events
        yield GaugeMetricFamily(
            "kafkalog_follower_last_alarm_timestamp_seconds",
            "when the last event was that a person should look at",
            value=self._report.last_alarm_ms / 1000,
        )
