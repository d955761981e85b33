"""Metrics of a follower for Prometheus, under the names that the usual rules of its JMX exporter give to a broker's.

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

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pyspark_kafkalog.replication.follower_state import Phase
from pyspark_kafkalog.replication.report import FollowReport


class FollowerCollector(Collector):
    """The metrics of one follower, as of each scrape."""

    def __init__(self, report: FollowReport) -> None:
        self._report = report

    def describe(self) -> list[Metric]:
        """Empty, so that registering does not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The current metrics."""
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
