"""Gathers all facts of a log directory for its report, in one pass with bounded time and memory, whatever its size.

Nothing is locked or written. Files may appear and disappear meanwhile. Parts that cannot be read are reported as such,
and the pass continues.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import DiskFormatError, KafkalogError
from pyspark_kafkalog.groups.guarded_group import list_groups, open_group
from pyspark_kafkalog.maintenance.cleaner.run_record import read_last_run, read_uncleanable
from pyspark_kafkalog.report.facts import (
    GroupLag,
    KeySample,
    PartitionFacts,
    PartitionFiles,
    RootFacts,
    TopicFacts,
    WriteHistory,
    file_facts,
)
from pyspark_kafkalog.report.findings import find
from pyspark_kafkalog.report.maintenance_runs import read_runs
from pyspark_kafkalog.report.root_files import TopicFiles, read_topics
from pyspark_kafkalog.report.write_history import write_history
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.artefacts.marker_files import MetaProperties, read_meta_properties
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.storage.names import INTERNAL_TOPICS, META_PROPERTIES, TopicPartition

_LOG: Final = logging.getLogger(__name__)

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

    `runs_table` is the Delta table to which maintenance jobs append their runs.
    """

    sample_bytes: int = SAMPLE_BYTES
    runs_table: Path | None = None


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
    if any(run.segments > 1 for topic in topics for each in topic.partitions for run in each.runs):
        notes.append(
            f"Where a partition has more than {runs_max} segments, neighbours are drawn as one; "
            "the table of partitions and the segment sizes count each."
        )
    properties = _properties(root.path)
    deleted, stray = _renamed_files(root.path)
    facts = RootFacts(
        path=root.path.absolute(),
        is_broker_directory=root.is_broker_directory,
        cluster_id=properties.cluster_id,
        node_id=properties.node_id,
        now_ms=now_ms,
        topics=topics,
        deleted_directories=deleted,
        stray_directories=stray,
        history=None if root.is_broker_directory else _history(root, notes),
        groups=_groups(root, topics, notes),
        last_cleaning=read_last_run(root.path),
        uncleanable=read_uncleanable(root.path),
        runs=() if options.runs_table is None else _runs(options.runs_table, root.path, notes),
        keys=_keys(root, topics, options.sample_bytes, notes),
    )
    return replace(facts, findings=find(facts), notes=tuple(notes))


def _topic_facts(files: TopicFiles, now_ms: int, runs_max: int) -> TopicFacts:
    return TopicFacts(
        name=files.name,
        topic_id=files.topic_id,
        configs=dict(files.configs),
        cleanup_policy=files.config.cleanup_policy,
        segment_bytes=files.config.segment_bytes,
        partitions=tuple(_partition_facts(each, now_ms, runs_max) for each in files.partitions),
    )


def _partition_facts(files: PartitionFiles | tuple[TopicPartition, str], now_ms: int, runs_max: int) -> PartitionFacts:
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


def _properties(root: Path) -> MetaProperties:
    try:
        return read_meta_properties(root / META_PROPERTIES)
    except (DiskFormatError, OSError):
        return MetaProperties()  # partition directories copied out of a broker's directory have none


def _runs(table: Path, root: Path, notes: list[str]) -> tuple[Mapping[str, object], ...]:
    """The rows of the table of runs for this root, including rows without a root."""
    rows = read_runs(table)
    own = tuple(row for row in rows if row.get("root") is None or Path(str(row["root"])).resolve() == root.resolve())
    if rows and not own:
        notes.append(f"The runs in {table} are all of other log directories.")
    return own


def _renamed_files(root: Path) -> tuple[int, int]:
    """The numbers of directories of deleted and of stray partitions."""
    with os.scandir(root) as entries:
        names = [entry.name for entry in entries]
    return sum(name.endswith("-delete") for name in names), sum(name.endswith("-stray") for name in names)


def _history(root: Root, notes: list[str]) -> WriteHistory | None:
    try:
        history = write_history(root)
    except DiskFormatError as error:
        notes.append(f"The write history cannot be read: {error}")
        return None
    if not history.is_whole:
        notes.append(f"The write history is that of the newest {history.commits_read:,} commits.")
    return history


def _groups(root: Root, topics: Sequence[TopicFacts], notes: list[str]) -> tuple[GroupLag, ...]:
    ends = {each.topic_partition: each for topic in topics for each in topic.partitions if each.error is None}
    found: list[GroupLag] = []
    try:
        for name in list_groups(root):
            for each in open_group(root, name).lag():
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
                notes.append(
                    f"Consumer groups after {name} are left out: there are more than {_GROUP_ROWS_MAX:,} rows."
                )
                break
    except (KafkalogError, OSError) as error:
        notes.append(f"The consumer groups cannot all be read: {error}")
    return tuple(found)


def _keys(root: Root, topics: Iterable[TopicFacts], sample_bytes: int, notes: list[str]) -> tuple[KeySample, ...]:
    filled = [
        each
        for each in topics
        if each.name not in INTERNAL_TOPICS and any(partition.offsets_count for partition in each.partitions)
    ]
    if not sample_bytes or not filled:
        return ()
    from pyspark_kafkalog.report.heavy_keys import sample_keys  # loads compiled code

    # With too many topics for a useful share each, only the largest are sampled.
    filled.sort(key=lambda each: -each.size_bytes)
    share = min(max(sample_bytes // len(filled), 1 << 20), _TOPIC_SAMPLE_BYTES_MAX)
    chosen = filled[: max(sample_bytes // share, 1)]
    samples: list[KeySample] = []
    for topic in chosen:
        try:
            sample = sample_keys(root, topic, log_bytes_max=share)
        except (KafkalogError, OSError) as error:
            notes.append(f"The keys of {topic.name} cannot be read: {error}")
            continue
        if sample is not None:
            samples.append(sample)
    if len(chosen) < len(filled):
        notes.append(f"Largest keys are those of the {len(chosen):,} largest of {len(filled):,} topics.")
    return tuple(samples)
