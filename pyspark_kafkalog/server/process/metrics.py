"""What a server has done, under the names that the usual rules of Prometheus' JMX exporter give to a broker's beans.

    kafka_network_requestmetrics_requests_total{request,version}     kafka.network:type=RequestMetrics,
                                                                     name=RequestsPerSec
    kafka_network_requestmetrics_totaltimems_*{request}              …,name=TotalTimeMs, as a histogram
    kafka_network_requestmetrics_errors_total{request,error}         …,name=ErrorsPerSec
    kafka_server_brokertopicmetrics_messagesin_total{topic}          kafka.server:type=BrokerTopicMetrics,
                                                                     name=MessagesInPerSec
    kafka_server_brokertopicmetrics_bytesin_total{topic}             …,name=BytesInPerSec
    kafka_server_brokertopicmetrics_bytesout_total{topic}            …,name=BytesOutPerSec
    kafka_server_brokertopicmetrics_failedproducerequests_total{topic}
    kafka_server_socketservermetrics_connection_count                kafka.server:type=socket-server-metrics
    kafka_network_requestchannel_requestbytes                        bytes of the requests in memory
    kafka_controller_kafkacontroller_activebrokercount               live servers
    kafka_server_fetchsessioncache_numincrementalfetchsessions       kafka.server:type=FetchSessionCache,
                                                                     name=NumIncrementalFetchSessions
    kafka_server_fetchsessioncache_numincrementalfetchpartitionscached
    kafka_server_fetchsessioncache_incrementalfetchsessionevictions_total
    kafkalog_server_commits_total, kafkalog_server_commit_units_total    commits of this server, and what was in them

Counters begin at 0 with each server; nothing is kept. What clients may name as they like, such as client ids and topics
that do not exist, is no label, and unknown versions of an API are one label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from pyspark_kafkalog.protocol.api import APIS, ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.server.reads.fetch_sessions import FetchSessions

_ERROR_NAMES: Final = {int(each): each.name for each in ErrorCode}
_VERSIONS: Final = {api.key: frozenset(api.versions) for api in APIS.values()}
#: The label of all versions, or of all error codes, that Kafka does not have.
_UNKNOWN: Final = "unknown"
#: Counters of topics in memory.
_TOPIC_COUNTERS_MAX: Final = 40_000
_TIME_BUCKETS_MS: Final = (0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 30000)


class ServerMetrics:
    """The metrics of one server, in `registry`."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._requests = self._counter("kafka_network_requestmetrics_requests", "requests", "request", "version")
        self._errors = self._counter("kafka_network_requestmetrics_errors", "error codes answered", "request", "error")
        self._times_ms = Histogram(
            "kafka_network_requestmetrics_totaltimems",
            "ms from the request to its answer",
            ("request",),
            buckets=_TIME_BUCKETS_MS,
            registry=self.registry,
        )
        self._records_in = self._counter("kafka_server_brokertopicmetrics_messagesin", "records produced", "topic")
        self._bytes_in = self._counter("kafka_server_brokertopicmetrics_bytesin", "bytes produced", "topic")
        self._bytes_out = self._counter("kafka_server_brokertopicmetrics_bytesout", "bytes fetched", "topic")
        self._failed = self._counter(
            "kafka_server_brokertopicmetrics_failedproducerequests", "batches that were refused", "topic"
        )
        self._commits = self._counter("kafkalog_server_commits", "commits")
        self._units = self._counter("kafkalog_server_commit_units", "units in the commits")
        # The children of a labelled metric take a lock and a lookup to find; a request has always the same ones.
        self._time_of = cache(lambda request: self._times_ms.labels(request))
        self._request_of = cache(lambda request, version: self._requests.labels(request, version))
        self._topics: dict[tuple[Counter, str], Counter] = {}

    def _topic_of(self, counter: Counter, topic: str) -> Counter:
        """The counter of the topic. Topics come and go: of too many, all begin at 0 again, as after a restart."""
        found = self._topics.get((counter, topic))
        if found is None:
            if len(self._topics) >= _TOPIC_COUNTERS_MAX:
                self._topics.clear()
                for each in (self._records_in, self._bytes_in, self._bytes_out, self._failed):
                    each.clear()
            found = self._topics[counter, topic] = counter.labels(topic)
        return found

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(name, meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, value: Callable[[], float]) -> None:
        Gauge(name, meaning, registry=self.registry).set_function(value)

    def watch(
        self, *, connections: Callable[[], float], request_bytes: Callable[[], float], servers: Callable[[], float]
    ) -> None:
        """Add the gauges, whose values are asked for at each scrape, in the scraping thread."""
        self._gauge("kafka_server_socketservermetrics_connection_count", "open connections", connections)
        self._gauge("kafka_network_requestchannel_requestbytes", "bytes of the requests in memory", request_bytes)
        self._gauge("kafka_controller_kafkacontroller_activebrokercount", "live servers", servers)

    def watch_fetch_sessions(self, sessions: FetchSessions) -> None:
        """Add what is known of the fetch sessions at each scrape."""
        prefix = "kafka_server_fetchsessioncache_"
        self._gauge(prefix + "numincrementalfetchsessions", "fetch sessions", lambda: len(sessions))
        self._gauge(
            prefix + "numincrementalfetchpartitionscached",
            "partitions of the fetch sessions",
            lambda: sessions.partitions_count,
        )
        self.registry.register(_Evictions(prefix + "incrementalfetchsessionevictions", sessions))

    def handled(self, api_key: ApiKey, version: int, seconds: float, error_code: int) -> None:
        """A request was answered, with this top-level error code. Clients may ask ApiVersions in any version."""
        self._request_of(api_key.name, version if version in _VERSIONS[api_key] else _UNKNOWN).inc()
        self._time_of(api_key.name).observe(seconds * 1000)
        if error_code:
            self._errors.labels(api_key.name, _ERROR_NAMES.get(error_code, _UNKNOWN)).inc()

    def committed(self, units: int) -> None:
        """A commit was made."""
        self._commits.inc()
        self._units.inc(units)

    def produced(self, topic: str, *, records: int, size_bytes: int) -> None:
        self._topic_of(self._records_in, topic).inc(records)
        self._topic_of(self._bytes_in, topic).inc(size_bytes)

    def produce_failed(self, topic: str) -> None:
        self._topic_of(self._failed, topic).inc()

    def fetched(self, topic: str, *, size_bytes: int) -> None:
        self._topic_of(self._bytes_out, topic).inc(size_bytes)


class _Evictions(Collector):
    """A counter whose value is asked for at each scrape."""

    def __init__(self, name: str, sessions: FetchSessions) -> None:
        self._name = name
        self._sessions = sessions

    def collect(self) -> Iterable[CounterMetricFamily]:
        yield CounterMetricFamily(
            self._name, "fetch sessions that made room for others", value=self._sessions.evictions
        )
