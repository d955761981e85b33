"""Copies the logs of a stopped broker's directory for a new broker, together with what it tiered.

This is for a directory that has lost its cluster: a disk of a broker whose controllers are gone, or one of several
brokers. Topics are those of its own metadata log, if the directory has it. Without it topics have the configurations
of a default broker, and those with segments in remote storage have remote.storage.enable. Strays of the directory are
left out.

Each log is recovered and closed in the copy as a starting and stopping broker does it (root/adopt/logs.py), so nothing
is written to the original. Its leader epochs stay those from the log start on, by which remote segments are found. Only
after a clean stop, which leaves nothing to recover, closed segments can be hard links. A segment whose indexes are
missing, or whose transaction index lacks an abort marker, is copied without its indexes, so that they are rebuilt.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, cast

from pyspark_kafkalog.errors import CorruptIndexError, LogDirError, UnknownTopicError
from pyspark_kafkalog.maintenance.export.copy import CopiedLog, CopyOptions, Source, exported_partition, make_partition
from pyspark_kafkalog.maintenance.export.file_copy import is_log, place_file
from pyspark_kafkalog.metadata.image import ALL_BROKERS, BrokerImage, MetadataImage, PartitionImage, TopicImage
from pyspark_kafkalog.root.adopt.adopt import adoption_lock, check_logs, next_producer_id_after, refuse_signs_of_life
from pyspark_kafkalog.root.adopt.logs import AdoptedLog, LogSummary, adopt_log
from pyspark_kafkalog.root.adopt.plan import AdoptionPlan, TopicPlan, make_plan
from pyspark_kafkalog.root.bootstrap import METADATA_VERSION_4_1, METADATA_VERSION_FEATURE
from pyspark_kafkalog.root.brokers.broker_root import BrokerRoot
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.below_root import scan
from pyspark_kafkalog.storage.log.loader import has_usable_indexes, kept_bases
from pyspark_kafkalog.storage.log.read_only import load_read_only
from pyspark_kafkalog.storage.log.reader import LocalExtents
from pyspark_kafkalog.storage.names import (
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    PARTITION_METADATA,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    parse_segment_file,
    random_uuid,
)
from pyspark_kafkalog.tiered.remote_log_metadata import REMOTE_LOG_METADATA_TOPIC
from pyspark_kafkalog.tiered.segments import RemoteSegment, TopicIdPartition

_INDEX_SUFFIXES: Final = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)
_REMOTE_STORAGE: Final = "remote.storage.enable"


@contextlib.contextmanager
def broker_source(options: CopyOptions, root: Root) -> Iterator[Source]:
    """The logs of the stopped broker's directory `root`, locked against brokers for the block.

    With `tiered`, segments in the remote storage with which `root` was opened stay there. Raises LogDirError for a
    running broker, for offsets that are in remote storage otherwise, and as `make_plan`; UnknownTopicError;
    DiskFormatError for a damaged log that a broker would refuse too; ReadOnlyLogDirError for several directories.
    """
    if len(root.directories) != 1 or not options.is_for_broker:
        root.native()  # raises: only a new broker takes a copy, and of one directory
    [directory] = root.directories
    with adoption_lock(directory, fs=options.fs, create=False):
        refuse_signs_of_life(directory)
        yield BrokerSource.of(cast(BrokerRoot, root), directory, options)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSource(Source):
    """The Source of `topics` of the plan, and of each partition with a directory as it was found.

    `unindexed`: the segments whose indexes are rebuilt in the copy.
    """

    plan: AdoptionPlan
    topics: tuple[TopicPlan, ...]
    found: Mapping[TopicPartition, PartitionSnapshot]
    unindexed: Mapping[TopicPartition, frozenset[int]]
    link: bool

    def copy(self, target: Path) -> list[_CopiedLog]:
        """See Source."""
        return [_copy_log(self, topic, each, target) for topic in self.topics for each in _partitions_of(topic)]

    def image(self, copied: Sequence[CopiedLog]) -> MetadataImage:
        return _image(self, {each.exported.topic_partition: each for each in cast(Sequence[_CopiedLog], copied)})

    @staticmethod
    def of(root: BrokerRoot, directory: Path, options: CopyOptions) -> BrokerSource:
        names = options.topics
        root.refresh()
        plan = make_plan(directory, server_properties=None, create_missing=True, rng=random.SystemRandom())
        known = {each.name: each for each in plan.topics if each.name != REMOTE_LOG_METADATA_TOPIC}
        missing = sorted(set(names or ()) - known.keys())
        if missing:
            raise UnknownTopicError(f"there is no topic {missing[0]!r} in {directory}")
        topics = tuple(each for name, each in known.items() if names is None or name in names)
        check_logs(replace(plan, topics=topics))
        found = {
            partition: root.partition(partition.topic, partition.partition)
            for topic in topics
            for partition in _partitions_of(topic)
            if partition.partition not in topic.missing
        }
        for each in found.values():
            if each.local_log_start_offset > each.log_start_offset and (each.remote is None or not options.tiered):
                raise LogDirError(
                    f"offsets {each.log_start_offset} to {each.local_log_start_offset - 1} of {each.topic_partition} "
                    "are in remote storage: name it with --remote-storage, and leave them there with --tiered"
                )
        unindexed = {each: _unindexed(plan, snapshot) for each, snapshot in found.items()}
        return BrokerSource(
            fs=options.fs,
            clock=root.clock,
            properties=plan.properties,
            cleaned=plan.cleaned,
            notes=plan.lost_notes,
            plan=plan,
            topics=topics,
            found=found,
            unindexed=unindexed,
            link=options.link and plan.clean_shutdown,
        )

    def segments_of(self, partition: TopicPartition) -> tuple[RemoteSegment, ...]:
        found = self.found.get(partition)
        return () if found is None or found.remote is None else found.remote.log.copies

    def remote_segments(self) -> dict[TopicIdPartition, Sequence[RemoteSegment]]:
        return {
            TopicIdPartition(topic.name, topic.topic_id, each.partition): segments
            for topic in self.topics
            for each in _partitions_of(topic)
            if (segments := self.segments_of(each))
        }


@dataclass(frozen=True, slots=True)
class _CopiedLog(CopiedLog):
    adopted: AdoptedLog


def _partitions_of(topic: TopicPlan) -> list[TopicPartition]:
    # bounded: by _plan_topic of root/adopt/plan.py
    return [TopicPartition(topic.name, number) for number in range(topic.partitions_count)]


def _unindexed(plan: AdoptionPlan, found: PartitionSnapshot) -> frozenset[int]:
    """The segments that a broker would not read as they are: their indexes have to be rebuilt from the `.log`.

    After a clean stop a broker believes transaction indexes. Raises DiskFormatError for a damaged log.
    """
    directory = found.directory
    recovery_point = None if plan.clean_shutdown else plan.recovery_points.get(found.topic_partition, 0)
    bases = kept_bases(directory, recovery_point)
    extents = LocalExtents(directory)
    ends = {each.base_offset: each.end_offset for each in extents.current()}
    unindexed = set()
    for base_offset in bases:
        end_offset = ends.get(base_offset)
        try:
            if has_usable_indexes(directory, base_offset):
                extents.check_transaction_index(
                    base_offset, load_read_only(directory).log_end_offset if end_offset is None else end_offset
                )
                continue
        except CorruptIndexError:
            pass
        unindexed.add(base_offset)
    return frozenset(unindexed)


def _copy_log(source: BrokerSource, topic: TopicPlan, partition: TopicPartition, target: Path) -> _CopiedLog:
    """Copy the files of the partition into a directory of `target`, recover the log there, and close it."""
    plan, fs = source.plan, source.fs
    directory = make_partition(target, partition, topic.topic_id, fs)
    linked_bytes = copied_bytes = 0
    found = source.found.get(partition)
    if found is not None:
        names = [each.name for each in scan(found.directory) if not each.is_dir(follow_symlinks=False)]
        for path in [found.directory / name for name in sorted(names)]:
            if path.name == PARTITION_METADATA or path.name.endswith(DELETED_SUFFIX):
                continue
            parsed = parse_segment_file(path.name)
            is_rebuilt = parsed is not None and parsed[0] in source.unindexed[partition]
            if is_rebuilt and path.name.endswith(_INDEX_SUFFIXES):
                continue
            is_closed = is_log(path.name, below=found.active_base_offset) and not is_rebuilt
            linked, copied = place_file(path, directory / path.name, fs, link=source.link and is_closed)
            linked_bytes, copied_bytes = linked_bytes + linked, copied_bytes + copied
    start_offset = 0 if found is None else found.log_start_offset
    summary = LogSummary(
        recovery_point=plan.recovery_points.get(partition, 0),
        log_start_offset=start_offset,
        leader_epoch=topic.leader_epochs.get(partition.partition, -1),
        clean_shutdown=plan.clean_shutdown,
    )
    adopted = adopt_log(
        directory,
        plan.broker_config.log_config(topic.configs),
        summary,
        producer_id_expiration_ms=plan.broker_config.producer_id_expiration_ms,
        clock=source.clock,
        fs=fs,
    )
    fs.fsync_dir(directory)
    exported = replace(
        exported_partition(partition, adopted.state, linked_bytes, copied_bytes), log_start_offset=start_offset
    )
    return _CopiedLog(exported, adopted.state, adopted)


def _image(source: BrokerSource, logs: Mapping[TopicPartition, _CopiedLog]) -> MetadataImage:
    """The image of the new broker's cluster."""
    plan = source.plan
    topics = {}
    for topic in source.topics:
        partitions = _partitions_of(topic)
        is_tiered = any(source.segments_of(each) for each in partitions)
        topics[topic.name] = TopicImage(
            topic.name,
            topic.topic_id,
            tuple(PartitionImage(each.partition, logs[each].adopted.state) for each in partitions),
            {**topic.configs, _REMOTE_STORAGE: "true"} if is_tiered else topic.configs,
        )
    assert plan.properties.node_id is not None  # the plan has put one there
    node = BrokerImage(plan.properties.node_id, random_uuid(random.SystemRandom()), -1, ())
    adopted = {each: log.adopted for each, log in logs.items()}
    return MetadataImage(
        next_offset=1,
        last_timestamp_ms=source.clock(),
        topics=topics,
        topic_names={each.topic_id: name for name, each in topics.items()},
        broker_configs={ALL_BROKERS: plan.broker_config.properties},
        brokers={node.broker_id: node},
        features={METADATA_VERSION_FEATURE: METADATA_VERSION_4_1},
        next_producer_id=next_producer_id_after(plan, adopted),
        acls=plan.acls,
        scram_credentials=plan.scram_credentials,
        client_quotas=plan.client_quotas,
    )
