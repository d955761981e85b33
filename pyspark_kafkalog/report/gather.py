"""Gathers all facts of a log directory for its report, in one pass with bounded time and memory, whatever its size.

Nothing is locked or written. Files may appear and disappear meanwhile. A partition that cannot be described, and any
other part that cannot be read, is reported as such, and the pass continues.

*Heavy keys*, those with the most records and the most bytes, are of a bounded sample of a topic's newest records.
Partitions are read backwards from their ends, one slice at a time, until the sample is full. Arrow's grouping counts
the keys. When there are more distinct keys than fit, the lightest are dropped; the weight of the heaviest dropped key
bounds the error of every count, as in space-saving sketches. Control records and records of aborted transactions do not
count.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.errors import DiskFormatError, InvalidConfigError, KafkalogError
from pyspark_kafkalog.groups.guarded_group import open_group
from pyspark_kafkalog.groups.offsets_topic import group_names, offsets_partitions
from pyspark_kafkalog.maintenance.cleaner.run_record import read_last_run, read_uncleanable, record_place
from pyspark_kafkalog.maintenance.verify.findings import Finding
from pyspark_kafkalog.maintenance.verify.verify import verify, verify_without_batches
from pyspark_kafkalog.metadata.invariants import following_text
from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.report.facts import (
    NO_TIME_MS,
    Advice,
    Coverage,
    GroupLag,
    HeavyKey,
    KeySample,
    PartitionFacts,
    PartitionFiles,
    RootFacts,
    TopicFacts,
    WriteHistory,
    file_facts,
    object_facts,
)
from pyspark_kafkalog.report.findings import NO_SAMPLE, find
from pyspark_kafkalog.report.history import read_runs, write_history
from pyspark_kafkalog.root.brokers.image import read_topic_configs
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.kinds import for_kind
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.root.protocol import Root, native_or_none
from pyspark_kafkalog.root.snapshot import differing_replicas
from pyspark_kafkalog.root.transactions.states import timestamp_at
from pyspark_kafkalog.storage.artefacts.checkpoint_file import CLEANER_OFFSET_CHECKPOINT, read_offset_checkpoint
from pyspark_kafkalog.storage.artefacts.marker_files import MetaProperties, read_meta_properties
from pyspark_kafkalog.storage.below_root import absolute_paths
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import (
    INTERNAL_TOPICS,
    META_PROPERTIES,
    OFFSETS_TOPIC,
    TopicPartition,
    partition_path,
)
from pyspark_kafkalog.units import plural, size_text

_LOG: Final = logging.getLogger(__name__)
#: Keys that are reported for each measure.
TOP_KEYS: Final = 20
_SAMPLE_KEYS_MAX: Final = 1 << 17
_SAMPLE_SLICE_BYTES: Final = 1 << 20
#: A topic's sample is full after this many records, however small they are.
_SAMPLE_RECORDS_MAX: Final = 1_000_000
_SAMPLE_SCHEMA: Final = pa.schema([KAFKA_SCHEMA.field("key"), KAFKA_SCHEMA.field("value")])


@dataclass(frozen=True, slots=True)
class PartitionObjects:
    """A partition of a root in an object store."""

    topic_partition: TopicPartition
    root: ObjectRoot


@dataclass(frozen=True, slots=True)
class TopicFiles:
    """A topic, with an error in place of each partition that cannot be described."""

    name: str
    topic_id: str | None
    configs: Mapping[str, str]
    config: LogConfig
    partitions: Sequence[PartitionFiles | PartitionObjects | tuple[TopicPartition, str]]


def read_topics(root: Root) -> Iterator[TopicFiles]:
    """The topics in the order of their names."""
    return for_kind(root, _own_topics, _object_topics, _broker_topics)


def _cleaned(directory: Path) -> Mapping[TopicPartition, int]:
    try:
        return read_offset_checkpoint(directory / CLEANER_OFFSET_CHECKPOINT)
    except DiskFormatError as error:
        _LOG.warning("%s", error)
        return {}


def _object_topics(root: ObjectRoot) -> Iterator[TopicFiles]:
    for name, topic in sorted(root.store.image.topics.items()):
        partitions = [PartitionObjects(TopicPartition(name, each.partition), root) for each in topic.partitions]
        yield TopicFiles(name, topic.topic_id, topic.configs, root.log_config(name), partitions)


def _own_topics(native: FileRoot) -> Iterator[TopicFiles]:
    cleaned = _cleaned(native.path)
    image = native.store.image
    for name in sorted(image.topics):
        topic = image.topics[name]
        config = native.log_config(name)
        partitions: list[PartitionFiles | PartitionObjects | tuple[TopicPartition, str]] = []
        for each in topic.partitions:
            topic_partition = TopicPartition(name, each.partition)
            partitions.append(
                PartitionFiles(
                    topic_partition,
                    partition_path(native.path, topic_partition),
                    each.state,
                    config,
                    cleaned.get(topic_partition),
                    image=each,
                )
            )
        yield TopicFiles(name, topic.topic_id, topic.configs, config, partitions)


def _broker_topics(root: Root) -> Iterator[TopicFiles]:
    cleaned = {directory: _cleaned(directory) for directory in root.directories}
    try:
        all_configs = read_topic_configs(root.directories[0])
    except (DiskFormatError, OSError) as error:
        _LOG.warning("the topics' configurations cannot be read: %s", error)
        all_configs = {}
    for name in root.topics():
        configs = all_configs.get(name, {})
        config = _config(name, configs)
        partitions = [
            _broker_partition(root, TopicPartition(name, number), config, cleaned)
            for number in root.partition_numbers(name)
        ]
        yield TopicFiles(name, _topic_id(root, name), configs, config, partitions)


def _config(topic: str, configs: Mapping[str, str]) -> LogConfig:
    try:
        return LogConfig.from_properties(configs)
    except InvalidConfigError as error:  # from a later version of Kafka
        _LOG.warning("the configuration of %s is not understood, defaults are taken: %s", topic, error)
        return LogConfig()


def _broker_partition(
    root: Root, topic_partition: TopicPartition, config: LogConfig, cleaned: Mapping[Path, Mapping[TopicPartition, int]]
) -> PartitionFiles | tuple[TopicPartition, str]:
    try:
        found = root.partition(topic_partition.topic, topic_partition.partition)
        stable_offset = found.last_stable_offset
    except (KafkalogError, OSError) as error:
        return topic_partition, str(error)
    state = LogState(
        leader_epoch=found.leader_epoch,
        log_start_offset=found.local_log_start_offset,
        log_end_offset=found.high_watermark,
        active_base_offset=found.active_base_offset,
        active_size_bytes=max(found.active_size_bytes, 0),
        first_unstable_offset=stable_offset if stable_offset < found.high_watermark else -1,
    )
    return PartitionFiles(
        topic_partition,
        found.directory,
        state,
        config,
        cleaned[found.directory.parent].get(topic_partition),
        remote_offsets=found.remote_offsets_count,
        offsets_above_high_watermark=found.offsets_above_high_watermark,
    )


def _topic_id(root: Root, topic: str) -> str | None:
    for number in root.partition_numbers(topic):
        with contextlib.suppress(KafkalogError, OSError):
            return root.partition(topic, number).topic_id
    return None


#: Log bytes read for the heaviest keys, of the whole root and of one topic.
SAMPLE_BYTES: Final = 256 << 20
_TOPIC_SAMPLE_BYTES_MAX: Final = 32 << 20

#: Segments that are inspected one by one, in the whole root and in one partition.
_RUNS_MAX: Final = 40_000
_PARTITION_RUNS_MAX: Final = 256
_PARTITION_RUNS_MIN: Final = 2
_GROUP_ROWS_MAX: Final = 50_000


@dataclass(frozen=True, slots=True)
class GatherOptions:
    """Up to `sample_bytes` of log are read for the heaviest keys (0: none).

    `runs_table` is the Delta table to which maintenance jobs append their runs. `verify`: read and check all bytes.
    """

    sample_bytes: int = SAMPLE_BYTES
    runs_table: Path | None = None
    verify: bool = False


def gather(root: Root, options: GatherOptions, *, clock: Callable[[], int] = time_ms) -> RootFacts:
    """Gather the facts of the root as of its last refresh.

    Raises KafkalogError or OSError when the root itself cannot be read.
    """
    now_ms = clock()
    notes: list[str] = []
    found = list(read_topics(root))
    partitions = sum(len(each.partitions) for each in found)
    runs_max = min(max(_RUNS_MAX // max(partitions, 1), _PARTITION_RUNS_MIN), _PARTITION_RUNS_MAX)
    topics = tuple(_topic_facts(each, now_ms, runs_max) for each in found)
    topics = tuple(_with_open_transactions(root, each) for each in topics)
    differing = differing_replicas(root.partitions_read())  # before the check, which reads the root anew
    damage, coverage = _check(root, topics, options)
    failures: list[Advice] = []
    if any(run.segments > 1 for topic in topics for each in topic.partitions for run in each.runs):
        notes.append(
            f"Where a partition has more than {runs_max} segments, neighbours are drawn as one; "
            "the table of partitions and the segment sizes count each."
        )
    unmerged = [each for topic in topics for each in topic.partitions if each.unmerged_runs]
    if unmerged:
        runs, size = sum(each.unmerged_runs for each in unmerged), sum(each.unmerged_bytes for each in unmerged)
        notes.append(f"{plural(runs, 'run')} with {size_text(size)} are not merged yet; each is shown as a segment.")
    if differing is not None:
        notes.append(f"{differing[0].upper()}{differing[1:]}.")
    properties = _properties(root)
    renamed = list(map(_renamed_files, root.directories))
    directory = root.path if isinstance(root.path, Path) else None
    place = record_place(root)
    native = native_or_none(root)
    config = None if native is None else native.broker_config()
    facts = RootFacts(
        path=str(root.path) if directory is None else absolute_paths(directory),
        is_foreign=native is None,
        cluster_id=properties.cluster_id,
        node_id=properties.node_id,
        now_ms=now_ms,
        topics=topics,
        coverage=coverage,
        damage=damage,
        staging_retention_ms=None if config is None else config.staging_retention_ms,
        transaction_max_ms=None if config is None else config.transaction_max_timeout_ms,
        following=None if native is None or root.follows is None else following_text(native.store.image),
        deleted_directories=sum(deleted for deleted, _ in renamed),
        stray_directories=sum(stray for _, stray in renamed),
        history=None if native is None else _history(root, notes, failures),
        groups=_groups(root, topics, notes, failures),
        last_cleaning=read_last_run(place),
        uncleanable=read_uncleanable(place),
        runs=() if options.runs_table is None else _runs(options.runs_table, directory or str(root.path), notes),
        keys=_keys(root, topics, options.sample_bytes, notes, failures),
    )
    facts = replace(facts, failures=tuple(failures))
    return replace(facts, findings=find(facts), notes=tuple(notes))


def unopened(path: Path, findings: Sequence[Finding], *, clock: Callable[[], int] = time_ms) -> RootFacts:
    """The facts of a native log directory whose metadata log cannot be loaded: what is wrong with that log."""
    coverage = Coverage(
        read=("the metadata log, which cannot be loaded",), unread=("topics, partitions, groups and batches",)
    )
    facts = RootFacts(
        path=absolute_paths(path),
        is_foreign=False,
        cluster_id=None,
        node_id=None,
        now_ms=clock(),
        topics=(),
        is_opened=False,
        coverage=coverage,
        damage=tuple(findings),
    )
    return replace(facts, findings=find(facts))


def _check(root: Root, topics: Sequence[TopicFacts], options: GatherOptions) -> tuple[tuple[Finding, ...], Coverage]:
    """The damage of the root and its partitions, and what was looked at."""
    size = size_text(sum(each.size_bytes for each in topics))
    read = [
        "the metadata log, checkpoints, and the names and sizes of all files or objects",
        "the first batch header of each segment that is shown",
    ]
    if options.sample_bytes:
        read.append(f"up to {size_text(options.sample_bytes)} of the newest records, for the largest keys")
    if not options.verify:
        unread = f"the bytes of batches ({size}) were not checked: run kafkalog verify, or kafkalog report --verify"
        return tuple(verify_without_batches(root)), Coverage(read=tuple(read), unread=(unread,))
    verification = verify(root)
    checked = sum(each.bytes_read for each in verification.reports)
    read.append(f"the batches of all segments, with their CRCs ({size_text(checked)}), as by kafkalog verify")
    unread = "records inside compressed batches were not decompressed: kafkalog verify --deep checks them too"
    coverage = Coverage(read=tuple(read), unread=(unread,), are_batches_checked=True)
    return tuple(verification.findings), coverage


def _with_open_transactions(root: Root, topic: TopicFacts) -> TopicFacts:
    """The topic, with the time since when each of its partitions with an open transaction has one."""
    partitions = [
        each
        if each.last_stable_offset >= each.high_watermark
        else replace(each, unstable_since_ms=_unstable_since_ms(root, each))
        for each in topic.partitions
    ]
    return replace(topic, partitions=tuple(partitions))


def _unstable_since_ms(root: Root, facts: PartitionFacts) -> int:
    topic_partition = facts.topic_partition
    try:
        found = root.partition(topic_partition.topic, topic_partition.partition)
        return timestamp_at(found, facts.last_stable_offset)
    except (KafkalogError, OSError):
        return NO_TIME_MS


def _topic_facts(files: TopicFiles, now_ms: int, runs_max: int) -> TopicFacts:
    return TopicFacts(
        name=files.name,
        topic_id=files.topic_id,
        configs=dict(files.configs),
        cleanup_policy=files.config.cleanup_policy,
        segment_bytes=files.config.segment_bytes,
        partitions=tuple(_partition_facts(each, now_ms, runs_max) for each in files.partitions),
    )


def _partition_facts(
    files: PartitionFiles | PartitionObjects | tuple[TopicPartition, str], now_ms: int, runs_max: int
) -> PartitionFacts:
    if isinstance(files, PartitionObjects):
        try:
            return object_facts(files.root, files.topic_partition, now_ms=now_ms, parts_max=runs_max)
        except (KafkalogError, OSError) as error:
            return PartitionFacts(topic_partition=files.topic_partition, error=str(error))
    if not isinstance(files, PartitionFiles):
        return PartitionFacts(topic_partition=files[0], error=files[1])
    try:
        return file_facts(files, now_ms=now_ms, runs_max=runs_max)
    except (KafkalogError, OSError) as error:
        state = files.state
        return PartitionFacts(
            topic_partition=files.topic_partition,
            leader_epoch=state.leader_epoch,
            log_start_offset=state.log_start_offset,
            high_watermark=state.log_end_offset,
            last_stable_offset=state.last_stable_offset,
            error=str(error),
        )


def _properties(root: Root) -> MetaProperties:
    if not root.directories:
        identity = root.identity
        return MetaProperties(
            cluster_id=None if identity is None else identity.cluster_id,
            node_id=root.native().store.image.node.broker_id,
        )
    try:
        return read_meta_properties(root.directories[0] / META_PROPERTIES)
    except (DiskFormatError, OSError):
        return MetaProperties()  # partition directories copied out of a broker's directory have none


def _runs(table: Path, root: Path | str, notes: list[str]) -> tuple[Mapping[str, object], ...]:
    """The rows of the table of runs for this root, including rows without a root."""
    rows = read_runs(table)

    def is_own(of: str) -> bool:
        return of == root if isinstance(root, str) else Path(of).resolve() == root.resolve()

    own = tuple(row for row in rows if row.get("root") is None or is_own(str(row["root"])))
    if rows and not own:
        notes.append(f"The runs in {table} are all of other log directories.")
    return own


def _renamed_files(root: Path) -> tuple[int, int]:
    """The numbers of directories of deleted and of stray partitions."""
    with os.scandir(root) as entries:
        names = [entry.name for entry in entries]
    return sum(name.endswith("-delete") for name in names), sum(name.endswith("-stray") for name in names)


def _history(root: Root, notes: list[str], failures: list[Advice]) -> WriteHistory | None:
    try:
        history = write_history(root)
    except DiskFormatError as error:
        failures.append(Advice("problem", "History cannot be read", f"{error}."))
        return None
    if not history.is_whole:
        notes.append(f"The write history is that of the newest {history.commits_read:,} commits.")
    return history


def _groups(root: Root, topics: Sequence[TopicFacts], notes: list[str], failures: list[Advice]) -> tuple[GroupLag, ...]:
    ends = {each.topic_partition: each for topic in topics for each in topic.partitions if each.error is None}
    found: list[GroupLag] = []
    for name in _group_names(root, failures):
        try:
            lags = open_group(root, name).lag()
        except (KafkalogError, OSError) as error:
            failures.append(Advice("problem", "Groups cannot be read", f"group {name}: {error}."))
            continue
        for each in lags:
            end = ends.get(each.topic_partition)
            found.append(
                GroupLag(
                    group=name,
                    topic_partition=each.topic_partition,
                    committed_offset=each.committed.offset,
                    log_start_offset=None if end is None else end.log_start_offset,
                    log_end_offset=each.log_end_offset,
                    lag=each.lag,
                    commit_ms=each.committed.commit_timestamp_ms,
                )
            )
        if len(found) > _GROUP_ROWS_MAX:
            notes.append(f"Consumer groups after {name} are left out: there are more than {_GROUP_ROWS_MAX:,} rows.")
            break
    return tuple(found)


def _group_names(root: Root, failures: list[Advice]) -> Sequence[str]:
    """The groups, without those of partitions that cannot be read."""
    names: list[str] = []
    try:
        numbers = offsets_partitions(root)
    except (KafkalogError, OSError) as error:
        failures.append(Advice("problem", "Groups cannot be read", f"{error}."))
        return names
    for number in numbers:
        try:
            names += group_names(root, (number,))
        except (KafkalogError, OSError) as error:
            failures.append(Advice("problem", "Groups cannot be read", f"partition {number}: {error}.", OFFSETS_TOPIC))
    return sorted(names)


def _keys(
    root: Root, topics: Iterable[TopicFacts], sample_bytes: int, notes: list[str], failures: list[Advice]
) -> tuple[KeySample, ...]:
    filled = [
        each
        for each in topics
        if each.name not in INTERNAL_TOPICS and any(partition.offsets_count for partition in each.partitions)
    ]
    if not sample_bytes or not filled:
        return ()

    # With too many topics for a useful share each, only the largest are sampled.
    filled.sort(key=lambda each: -each.size_bytes)
    share = min(max(sample_bytes // len(filled), 1 << 20), _TOPIC_SAMPLE_BYTES_MAX)
    chosen = filled[: max(sample_bytes // share, 1)]
    samples: list[KeySample] = []
    for topic in chosen:
        try:
            sample = sample_keys(root, topic, log_bytes_max=share)
        except (KafkalogError, OSError) as error:
            failures.append(Advice("problem", NO_SAMPLE, f"{error}.", topic.name))
            continue
        if sample is not None:
            samples.append(sample)
    if len(chosen) < len(filled):
        notes.append(f"Largest keys are those of the {len(chosen):,} largest of {len(filled):,} topics.")
    return tuple(samples)


@dataclass(slots=True)
class _Sketch:
    """Records and bytes by key, for at most about _SAMPLE_KEYS_MAX keys."""

    groups: pa.Table | None = None
    records: int = 0
    bytes: int = 0
    dropped_keys: int = 0
    error_records: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        """Count the records of `batch` (columns key, value)."""
        key, value = batch.column("key"), batch.column("value")
        sizes = pc.add(_lengths(key), _lengths(value))
        counted = pa.table({"key": key, "records": pa.repeat(1, len(batch)), "bytes": sizes})
        self.records += len(batch)
        self.bytes += pc.sum(sizes).as_py() or 0
        parts = [_grouped(counted)] if self.groups is None else [self.groups, _grouped(counted)]
        self.groups = _grouped(pa.concat_tables(parts))
        if len(self.groups) > _SAMPLE_KEYS_MAX:
            self._let_go()

    def _let_go(self) -> None:
        """Drop the lighter keys: keep the heavier half by records, and the heaviest by bytes."""
        assert self.groups is not None
        by_records = pc.select_k_unstable(self.groups, k=_SAMPLE_KEYS_MAX // 2, sort_keys=[("records", "descending")])
        by_bytes = pc.select_k_unstable(self.groups, k=TOP_KEYS * 8, sort_keys=[("bytes", "descending")])
        kept = pc.unique(pa.concat_arrays([by_records, by_bytes]))
        dropped = pc.invert(pc.is_in(pa.array(range(len(self.groups)), pa.uint64()), kept))
        lost = self.groups.filter(dropped)
        self.error_records += pc.max(lost["records"]).as_py() or 0
        self.dropped_keys += len(lost)
        self.groups = self.groups.take(kept)

    def top(self, by: str) -> tuple[HeavyKey, ...]:
        """The heaviest keys by the column `by`, heaviest first."""
        if self.groups is None:
            return ()
        rows = self.groups.take(pc.sort_indices(self.groups, sort_keys=[(by, "descending")])[:TOP_KEYS])
        return tuple(HeavyKey(row["key"], row["records"], row["bytes"]) for row in rows.to_pylist())


def sample_keys(root: Root, topic: TopicFacts, *, log_bytes_max: int) -> KeySample | None:
    """Read up to about `log_bytes_max` bytes of log from the ends of the topic's partitions, the largest ones first.

    None when there are no records to read. Raises DiskFormatError for a damaged log.
    """
    chosen = _partitions_to_sample(topic, log_bytes_max)
    sketch = _Sketch()
    read = 0
    for at, partition in enumerate(chosen):
        share = _SAMPLE_RECORDS_MAX * (at + 1) // len(chosen)
        before = sketch.records
        for batches in _slices_backwards(root, partition, log_bytes_max // len(chosen)):
            for batch in batches:
                sketch.add(batch)
            if sketch.records >= share:
                break
        read += sketch.records > before
    if not sketch.records:
        return None
    return KeySample(
        topic=topic.name,
        partitions=read,
        records=sketch.records,
        bytes=sketch.bytes,
        distinct_keys=(0 if sketch.groups is None else len(sketch.groups)) + sketch.dropped_keys,
        error_records=sketch.error_records,
        by_records=sketch.top("records"),
        by_bytes=sketch.top("bytes"),
    )


def _lengths(column: pa.Array) -> pa.Array:
    return pc.fill_null(pc.cast(pc.binary_length(column), pa.int64()), 0)


def _grouped(table: pa.Table) -> pa.Table:
    """One row for each key, with the sums of records and bytes."""
    found = table.group_by("key").aggregate([("records", "sum"), ("bytes", "sum")])
    return found.select(["key", "records_sum", "bytes_sum"]).rename_columns(["key", "records", "bytes"])


def _partitions_to_sample(topic: TopicFacts, log_bytes_max: int) -> Sequence[PartitionFacts]:
    """The largest partitions with records, as many as leave one slice of log for each."""
    filled = [each for each in topic.partitions if each.error is None and each.offsets_count > 0]
    filled.sort(key=lambda each: -each.size_bytes)
    return filled[: max(log_bytes_max // _SAMPLE_SLICE_BYTES, 1)]


def _slices_backwards(root: Root, partition: PartitionFacts, bytes_max: int) -> Iterator[Iterator[pa.RecordBatch]]:
    """The partition's records below its last stable offset, in slices of about _SAMPLE_SLICE_BYTES, the last first."""
    reader = root.reader(partition.topic_partition.topic, partition.topic_partition.partition)
    end_offset = partition.last_stable_offset
    left = bytes_max
    for run in reversed(partition.runs):
        start_offset = max(run.base_offset, partition.log_start_offset)
        if start_offset >= end_offset:
            continue
        for each in reversed(reader.split(start_offset, end_offset, _SAMPLE_SLICE_BYTES)):
            if left <= 0:
                return
            yield reader.read(each.start_offset, each.end_offset, schema=_SAMPLE_SCHEMA, committed=True)
            left -= max(each.size_bytes, 1)
        end_offset = start_offset
