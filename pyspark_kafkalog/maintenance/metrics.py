"""Metrics of a log directory under Kafka's names, computed from the directory: no process keeps counters.

A metric is one attribute of Kafka's JMX beans (`kafka.log:type=Log,name=Size`), with a value for each set of tags. Its
Prometheus name follows the usual rules of Prometheus' JMX exporter (`kafka_log_log_size`), so dashboards made for
brokers find it.

For a native log directory, offsets come from the commit log, and sizes and numbers of segments from one listing of each
partition's directory; no record is read. For a broker's directory, the end of each log is found in its files, as in
reads, and its last stable offset by reading batch headers after the last producer snapshot, if the partition has
changed. The cleaner's metrics are those that its last run stored.

For a log directory in an object store all comes from the metadata log, so a scrape costs one request. A run counts as a
segment there; what is not merged yet and the objects that wait for their deletion have metrics of their own.

For topics with remote.storage.enable, what is copied comes from the metadata log, and what is still to be copied from
the directories. Kafka's meters of copying and deleting (RemoteCopyBytesPerSec and others) count in a process, so there
are none here; the reports of `kafkalog tier` have the bytes of each run.

Sources of names and meanings: org.apache.kafka.storage.internals.log.UnifiedLog, LogCleaner, LogCleanerManager,
org.apache.kafka.server.log.remote.storage.RemoteStorageMetrics, RemoteLogManager.RLMCopyTask, kafka.log.LogManager,
kafka.server.ReplicaManager, kafka.cluster.Partition, of Kafka 4.1.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.groups.group import Group, KnownEnds, known_lags
from pyspark_kafkalog.groups.guarded_group import list_groups, open_group
from pyspark_kafkalog.groups.offset_records import OFFSETS_TOPIC
from pyspark_kafkalog.maintenance.cleaner.run_record import RecordPlace, read_last_run, read_uncleanable, record_place
from pyspark_kafkalog.maintenance.tier import only_local, why_not
from pyspark_kafkalog.metadata.extents import Runs
from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage, TopicImage
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.kinds import for_kind
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.protocol import Root, native_or_none
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.names import LOG_SUFFIX, TopicPartition, partition_path, segment_file
from pyspark_kafkalog.storage.segment.stored import stored_segments

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Metric:
    """One attribute of Kafka's beans, a gauge; `values` are keyed by the values of the tags, in the order of `tags`."""

    domain: str
    bean_type: str
    name: str
    meaning: str
    tags: tuple[str, ...] = ()
    values: Mapping[tuple[str, ...], float] = field(default_factory=dict)

    @property
    def prometheus_name(self) -> str:
        """The name by the JMX exporter's usual rules: `kafka_log_logcleaner_max_clean_time_secs`."""
        return "_".join((self.domain, self.bean_type, self.name)).replace(".", "_").replace("-", "_").lower()

    @property
    def bean_pattern(self) -> str:
        """The pattern of Kafka's beans: `kafka.log:type=Log,name=Size,topic=*,partition=*`."""
        return f"{self.domain}:type={self.bean_type},name={self.name}" + "".join(f",{tag}=*" for tag in self.tags)


@dataclass(frozen=True, slots=True)
class LogSize:
    """One partition's log: bytes of its `.log` files, number of segments, and offsets.

    `offsets_above_high_watermark` is None in a native log directory, which cannot have any. The copy lag, in bytes and
    closed segments that are not in remote storage, is None unless segments are copied there.
    """

    size_bytes: int
    segments_count: int
    log_start_offset: int
    log_end_offset: int
    last_stable_offset_lag: int
    offsets_above_high_watermark: int | None = None
    copy_lag_bytes: int | None = None
    copy_lag_segments: int | None = None


def collect_metrics(root: Root, *, now_ms: int, lag_seconds: bool = False) -> list[Metric]:
    """All metrics of the log directory as of its last `refresh`.

    `lag_seconds`: also the lag of groups in time, which reads a batch of each partition that a group is behind in.

    A partition that cannot be read is omitted and counted as offline. Raises LogDirError when the root itself cannot be
    read.
    """
    logs: dict[TopicPartition, LogSize] = {}
    offline = 0
    for topic_partition, found in log_sizes(root):
        if found is None:
            offline += 1
        else:
            logs[topic_partition] = found
    group_ids = _group_ids(root)
    return [
        *_log_metrics(logs),
        *_metrics_of_kind(root, logs, now_ms),
        *offline_metrics(root.directories or (str(root.path),), is_offline=False),
        *_replica_metrics(logs, offline),
        _lag_metric(root, group_ids),
        *((_lag_seconds_metric(root, group_ids),) if lag_seconds else ()),
    ]


def _metrics_of_kind(root: Root, logs: Mapping[TopicPartition, LogSize], now_ms: int) -> Iterator[Metric]:
    """What depends on where the records are, and what runs of the cleaner have stored there."""
    yield from _uncleanable_metrics(logs, root, now_ms)
    yield from _cleaner_metrics(record_place(root), now_ms)
    native = native_or_none(root)
    if native is None:
        return
    image = native.store.image
    yield from _following_metrics(image)
    yield from for_kind(native, lambda _: _remote_metrics(image, logs), lambda _: _object_metrics(image))


def _following_metrics(image: MetadataImage) -> Iterator[Metric]:
    """Of a root that follows: since when, and when it has last got something. Its lag is known to the follower only."""
    if image.following is None:
        return
    leader = (image.following.leader,)
    for name, meaning, time_ms in (
        ("SinceTimestampSeconds", "since when the log directory follows this leader", image.following.since_ms),
        ("LastCommitTimestampSeconds", "when it has last changed", image.last_timestamp_ms),
    ):
        yield Metric("kafkalog", "Following", name, meaning, ("leader",), {leader: time_ms / 1000})


def _remote_metrics(image: MetadataImage, logs: Mapping[TopicPartition, LogSize]) -> Iterator[Metric]:
    """By topic, as a broker has them: of topics that are tiered, or have segments in remote storage."""
    waiting = Counter[str]()
    waiting_bytes = Counter[str]()
    for topic_partition, log in logs.items():
        if log.copy_lag_segments is not None:
            waiting[topic_partition.topic] += log.copy_lag_segments
            waiting_bytes[topic_partition.topic] += log.copy_lag_bytes or 0
    dropped = Counter(segment.topic for each in image.dropped for segment in each.segments)
    copied, copied_bytes = Counter[str](), Counter[str]()
    for name, topic in image.topics.items():
        for segment in (segment for each in topic.partitions for segment in each.segments):
            copied[name] += 1
            copied_bytes[name] += segment.size_bytes
    topics = sorted({*waiting, *dropped, *copied})
    for name, meaning, values in (
        ("RemoteCopyLagBytes", "bytes of closed segments that are not in remote storage yet", waiting_bytes),
        ("RemoteCopyLagSegments", "closed segments that are not in remote storage yet", waiting),
        ("RemoteDeleteLagSegments", "dropped segments whose objects the next runs of retention delete", dropped),
        ("RemoteLogMetadataCount", "segments in remote storage", copied),
        ("RemoteLogSizeBytes", "bytes of the segments in remote storage", copied_bytes),
    ):
        if topics:
            found: dict[tuple[str, ...], float] = {(each,): float(values[each]) for each in topics}
            yield Metric("kafka.server", "BrokerTopicMetrics", name, meaning, ("topic",), found)


def _object_metrics(image: MetadataImage) -> Iterator[Metric]:
    partitions: dict[tuple[str, ...], Runs] = {
        (topic.name, str(each.partition)): each.runs for topic in image.topics.values() for each in topic.partitions
    }
    for name, meaning, values in (
        ("UnmergedBytes", "bytes of runs that merge-segments has not made segments of", _unmerged_bytes),
        ("NumRuns", "runs: the parts of writes that are not merged", len),
    ):
        found = {tags: float(values(runs)) for tags, runs in partitions.items()}
        yield Metric("kafkalog", "Log", name, meaning, ("topic", "partition"), found)
    store = ("kafkalog", "ObjectStore")
    yield _metric(*store, "DataObjectsCount", "data objects that runs are in", len(image.objects))
    dropped = sum(len(each.data_keys) + 3 * len(each.segments) for each in image.dropped)
    yield _metric(*store, "DroppedObjectsCount", "objects that the next runs of retention delete", dropped)


def _unmerged_bytes(runs: Runs) -> int:
    return int(runs.table["size_bytes"].sum(dtype=np.int64))


def offline_metrics(directories: Sequence[Path | str], *, is_offline: bool) -> list[Metric]:
    """The metrics that a root has even if it cannot be read (`is_offline`); their value is 0 for one that can.

    Of several directories one that cannot be read makes all of them unreadable.
    """
    value = float(is_offline)
    return [
        _metric("kafka.log", "LogManager", "OfflineLogDirectoryCount", "log directories that cannot be read", value),
        Metric(
            "kafka.log",
            "LogManager",
            "LogDirectoryOffline",
            "1 when the log directory cannot be read",
            ("logDirectory",),
            {(str(directory),): value for directory in directories},
        ),
    ]


def log_sizes(root: Root, topics: Collection[str] | None = None) -> Iterator[tuple[TopicPartition, LogSize | None]]:
    """The sizes of every partition, or those of `topics` that exist; None for one that cannot be read: it is logged."""
    return for_kind(
        root,
        lambda root: _native_log_sizes(root, _topics(root, topics)),
        lambda root: _object_log_sizes(_topics(root, topics)),
        lambda root: _broker_log_sizes(root, [each for each in root.topics() if topics is None or each in topics]),
    )


def _topics(root: NativeRoot, topics: Collection[str] | None) -> list[TopicImage]:
    """All topics, or those of `topics` that exist."""
    found = root.store.image.topics
    return [found[name] for name in sorted(found) if topics is None or name in topics]


def _object_log_sizes(topics: Iterable[TopicImage]) -> Iterator[tuple[TopicPartition, LogSize]]:
    for topic in topics:
        for partition in topic.partitions:
            yield TopicPartition(topic.name, partition.partition), object_log_size(partition)


def object_log_size(partition: PartitionImage) -> LogSize:
    """Size of a log in an object store: its segment objects and runs, without indexes and tables."""
    state = partition.state
    return LogSize(
        size_bytes=sum(each.size_bytes for each in partition.segments) + _unmerged_bytes(partition.runs),
        segments_count=len(partition.segments) + len(partition.runs),
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
        last_stable_offset_lag=state.log_end_offset - state.last_stable_offset,
    )


def _native_log_sizes(root: FileRoot, topics: Sequence[TopicImage]) -> Iterator[tuple[TopicPartition, LogSize | None]]:
    broker = root.broker_config()
    for topic in topics:
        is_tiered = root.remote_storage is not None and why_not(topic.name, broker.log_config(topic.configs)) is None
        for partition in topic.partitions:
            topic_partition = TopicPartition(topic.name, partition.partition)
            try:
                found = native_log_size(partition_path(root.path, topic_partition), partition, is_tiered=is_tiered)
                yield topic_partition, found
            except OSError as error:
                _warn_unreadable(topic_partition, error)
                yield topic_partition, None


def native_log_size(directory: Path, partition: PartitionImage, *, is_tiered: bool) -> LogSize:
    """Size of a native log, without what a killed writer left above the high watermark. Raises OSError.

    Segments below the log start offset count until retention removes them, as with a broker after delete-records.
    """
    state = partition.state
    segments = stored_segments(directory, state)
    waiting = only_local(partition, segments[:-1])
    return LogSize(
        size_bytes=sum(each.size_bytes for each in segments),
        segments_count=len(segments),
        log_start_offset=state.log_start_offset,
        log_end_offset=state.log_end_offset,
        last_stable_offset_lag=state.log_end_offset - state.last_stable_offset,
        copy_lag_bytes=sum(each.size_bytes for each in waiting) if is_tiered else None,
        copy_lag_segments=len(waiting) if is_tiered else None,
    )


def _broker_log_sizes(root: Root, names: Sequence[str]) -> Iterator[tuple[TopicPartition, LogSize | None]]:
    partitions = (TopicPartition(name, number) for name in names for number in root.partition_numbers(name))
    for topic_partition in partitions:
        try:
            yield (
                topic_partition,
                _broker_log_size(root, root.partition(topic_partition.topic, topic_partition.partition)),
            )
        except (KafkalogError, OSError) as error:
            _warn_unreadable(topic_partition, error)
            yield topic_partition, None


def _broker_log_size(root: Root, found: PartitionSnapshot) -> LogSize:
    sizes_bytes = []
    for base_offset in list_base_offsets(found.directory):
        try:
            sizes_bytes.append(segment_file(found.directory, base_offset, LOG_SUFFIX).stat().st_size)
        except FileNotFoundError:
            continue  # retention or the cleaner has removed it since it was listed
    return LogSize(
        size_bytes=sum(sizes_bytes),
        segments_count=len(sizes_bytes),
        log_start_offset=found.log_start_offset,
        log_end_offset=found.log_end_offset,
        last_stable_offset_lag=found.high_watermark - found.last_stable_offset,
        offsets_above_high_watermark=found.offsets_above_high_watermark,
    )


def _warn_unreadable(topic_partition: TopicPartition, error: Exception) -> None:
    _LOG.warning("%s is omitted from the metrics: %s", topic_partition, error)


def _log_metrics(logs: Mapping[TopicPartition, LogSize]) -> Iterator[Metric]:
    tags: dict[TopicPartition, tuple[str, ...]] = {
        topic_partition: (topic_partition.topic, str(topic_partition.partition)) for topic_partition in logs
    }

    def by_partition(domain: str, bean_type: str, name: str, meaning: str, attribute: str) -> Metric:
        found = {tags[topic_partition]: getattr(log, attribute) for topic_partition, log in logs.items()}
        values = {each: float(value) for each, value in found.items() if value is not None}
        return Metric(domain, bean_type, name, meaning, ("topic", "partition"), values)

    yield by_partition("kafka.log", "Log", "Size", "bytes of the partition's .log files", "size_bytes")
    yield by_partition("kafka.log", "Log", "NumLogSegments", "segments, the active one counted", "segments_count")
    yield by_partition("kafka.log", "Log", "LogStartOffset", "first offset that can be read", "log_start_offset")
    yield by_partition("kafka.log", "Log", "LogEndOffset", "offset that the next record gets", "log_end_offset")
    yield by_partition(
        "kafka.cluster",
        "Partition",
        "LastStableOffsetLag",
        "offsets that read_committed cannot read yet",
        "last_stable_offset_lag",
    )
    yield by_partition(
        "kafkalog",
        "Partition",
        "OffsetsAboveHighWatermark",
        "offsets of a broker's log above the high watermark of its checkpoint",
        "offsets_above_high_watermark",
    )


def _uncleanable_metrics(logs: Mapping[TopicPartition, LogSize], root: Root, now_ms: int) -> Iterator[Metric]:
    marked = [topic_partition for topic_partition in read_uncleanable(record_place(root)) if topic_partition in logs]
    cleanable_bytes = sum(_cleanable_bytes(root.native(), topic_partition, now_ms) for topic_partition in marked)
    for name, meaning, value in (
        ("uncleanable-partitions-count", "partitions whose last cleaning failed", len(marked)),
        ("uncleanable-bytes", "bytes that a cleaning of those partitions would be about", cleanable_bytes),
    ):
        values: dict[tuple[str, ...], float] = {(str(each),): float(value) for each in root.directories or (root.path,)}
        yield Metric("kafka.log", "LogCleanerManager", name, meaning, ("logDirectory",), values)


def _cleanable_bytes(root: NativeRoot, topic_partition: TopicPartition, now_ms: int) -> int:
    """Bytes of the segments that the next cleaning would read as dirty; 0 if damage prevents the calculation."""
    from pyspark_kafkalog.maintenance.cleaner.clean import (
        cleanable_logs,  # loads the cleaner, which other roots do not need
    )

    try:
        return cleanable_logs(root, now_ms).inspect(topic_partition).plan.cleanable_bytes
    except (KafkalogError, OSError) as error:
        _LOG.warning("the cleanable bytes of %s are unknown: %s", topic_partition, error)
        return 0


def _cleaner_metrics(place: RecordPlace, now_ms: int) -> Iterator[Metric]:
    run = read_last_run(place)
    if run is None:
        return
    recopy_percent = 100 * run.bytes_written // max(run.bytes_read, 1)
    manager = ("kafka.log", "LogCleanerManager")
    yield _metric(*manager, "max-dirty-percent", "dirtiest log of the last run, percent", int(run.max_dirty_percent))
    yield _metric(*manager, "time-since-last-run-ms", "ms since the last run ended", max(now_ms - run.ended_ms, 0))
    yield _metric("kafka.log", "LogCleaner", "cleaner-recopy-percent", "bytes written of bytes read", recopy_percent)
    yield _metric(
        "kafka.log",
        "LogCleaner",
        "max-clean-time-secs",
        "seconds of the last run's slowest partition",
        int(run.max_clean_seconds),
    )


def _replica_metrics(logs: Mapping[TopicPartition, LogSize], offline_count: int) -> Iterator[Metric]:
    total = len(logs) + offline_count
    manager = ("kafka.server", "ReplicaManager")
    yield _metric(*manager, "UnderReplicatedPartitions", "always 0: a root has one replica of each partition", 0)
    yield _metric(*manager, "PartitionCount", "partitions", total)
    yield _metric(*manager, "LeaderCount", "partitions that can be read", len(logs))
    yield _metric(*manager, "OfflineReplicaCount", "partitions that cannot be read", offline_count)
    controller = ("kafka.controller", "KafkaController")
    yield _metric(*controller, "GlobalTopicCount", "topics", len({topic_partition.topic for topic_partition in logs}))
    yield _metric(*controller, "GlobalPartitionCount", "partitions", total)


def _left_out(what: str, error: Exception) -> None:
    _LOG.warning("%s is omitted from the lag of consumer groups: %s", what, error)


def _group_ids(root: Root) -> Sequence[str]:
    try:
        return list_groups(root, left_out=_left_out)
    except (KafkalogError, OSError) as error:
        _left_out(OFFSETS_TOPIC, error)
        return ()


def _lag_seconds_metric(root: Root, group_ids: Sequence[str]) -> Metric:
    """The lag of each group in time; a group or partition that cannot be read is omitted, and logged."""
    values: dict[tuple[str, ...], float] = {}
    for group_id in group_ids:
        try:
            for found in open_group(root, group_id).lag():
                behind_ms = found.lag_ms(root)
                if behind_ms is not None:
                    values[group_id, found.topic_partition.topic, str(found.topic_partition.partition)] = (
                        behind_ms / 1000
                    )
        except (KafkalogError, OSError) as error:
            _left_out(f"group {group_id}", error)
    meaning = "time from the record at a group's committed offset to the newest record, by their timestamps"
    return Metric("kafkalog", "group", "lag-seconds", meaning, ("group", "topic", "partition"), values)


def _lag_metric(root: Root, group_ids: Sequence[str]) -> Metric:
    """The lag of each group; a group or partition that cannot be read is omitted, and logged."""
    values: dict[tuple[str, ...], float] = {}
    ends = None if native_or_none(root) is None else KnownEnds(root)
    for group_id in group_ids:
        try:
            group = open_group(root, group_id)
            if isinstance(group, Group) and ends is not None:
                for (topic, number), lag in known_lags(group, ends).items():
                    values[group_id, topic, str(number)] = float(lag)
                continue
            lags = group.lag()
        except (KafkalogError, OSError) as error:
            _left_out(f"group {group_id}", error)
            continue
        for found in lags:
            topic_partition = found.topic_partition
            if found.lag is not None:
                values[group_id, topic_partition.topic, str(topic_partition.partition)] = float(found.lag)
    meaning = "offsets between a group's committed one and the end of the partition"
    tags = ("group", "topic", "partition")
    return Metric("kafka.consumer", "consumer-fetch-manager-metrics", "records-lag", meaning, tags, values)


def _metric(domain: str, bean_type: str, name: str, meaning: str, value: float) -> Metric:
    return Metric(domain, bean_type, name, meaning, (), {(): float(value)})
