"""Makes a directory that a new Kafka broker starts on, around logs that were copied into it.

    <target>/
      orders-0/ …                                      logs as a broker closes them
      __remote_log_metadata-0/ …                       if segments stay in remote storage: two records for each, in as
                                                       many partitions as the broker's own setting says
      *-offset-checkpoint, .kafka_cleanshutdown        as after a clean stop
      __cluster_metadata-0/<offset>-0000000000.checkpoint   KRaft's metadata: topics with ids, partitions,
                                                       configurations, access control entries, producer ids
      meta.properties                                  the root's cluster id and node id, a new directory id

The broker is a node with both roles, the only voter of its quorum. It starts without being formatted, elects itself,
and leads all partitions in the leader epochs after those of the log directory. Topics keep their ids, by which objects
in remote storage are named. So tiered segments can stay where they are, if the broker's remote storage is the same
place in the same layout. From then on they belong to the broker, which deletes them by its retention: the log directory
must not be used any more, or its own retention deletes them too. Otherwise they are copied back (file_copy.py).

Until all is on disk, the directory has the marker of an unfinished copy (copy.py), and meta.properties comes next to
last: after a crash no broker starts on it, and the next export into it removes its contents and starts over.

Source of what a broker expects: kafka.server.KafkaRaftServer, org.apache.kafka.controller.QuorumController,
org.apache.kafka.server.log.remote.storage.RemoteLogManager.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.broker import DYNAMIC_BROKER_CONFIGS, OWN_CONFIGS
from pyspark_kafkalog.config.topic import LogConfig
from pyspark_kafkalog.maintenance.export.copy import (
    CopiedLog,
    ExportedPartition,
    Source,
    exported_partition,
    make_partition,
    only_topics,
    unfinished_copy,
    write_checkpoints,
)
from pyspark_kafkalog.metadata.commit_log import LEADER_EPOCH
from pyspark_kafkalog.metadata.image import (
    BROKER_RESOURCE,
    MetadataImage,
    PartitionImage,
    TopicImage,
    broker_configs,
    image_records,
)
from pyspark_kafkalog.metadata.local.backend import write_snapshot as write_metadata_snapshot
from pyspark_kafkalog.metadata.messages.metadata_records import (
    ConfigRecord,
    MetadataRecord,
    PartitionRecord,
    RegisterBrokerRecord,
)
from pyspark_kafkalog.metadata.messages.records import NATIVE_API_KEYS_FROM
from pyspark_kafkalog.metadata.root_format import FORMAT_MARKER, metadata_dir
from pyspark_kafkalog.metadata.snapshots import SnapshotId
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.storage.artefacts.marker_files import MetaProperties, write_clean_shutdown, write_meta_properties
from pyspark_kafkalog.storage.artefacts.partition_listing import PartitionListing
from pyspark_kafkalog.storage.artefacts.producer_snapshot import write_snapshot
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.log.producer_replay import producer_state_at
from pyspark_kafkalog.storage.log.producers import java_hash_order
from pyspark_kafkalog.storage.log.unified_log import UnifiedLog
from pyspark_kafkalog.storage.names import (
    META_PROPERTIES,
    PRODUCER_SNAPSHOT_SUFFIX,
    TopicPartition,
    partition_path,
    random_uuid,
    segment_file,
)
from pyspark_kafkalog.tiered.own_location import LAYOUT_CONFIG, LOCATION_CONFIG
from pyspark_kafkalog.tiered.remote_log_metadata import (
    METADATA_TOPIC_CONFIGS,
    REMOTE_LOG_METADATA_TOPIC,
    copied_records,
    metadata_partition,
)
from pyspark_kafkalog.tiered.segments import RemoteSegment, TopicIdPartition

_NO_LEADER: Final = -1
_BATCH_BYTES_MAX: Final = 256 << 10
#: The features with which Kafka 4.1 formats a directory, and which a server of this package uses. Without them, the
#: broker could not continue transactional ids whose last transaction was of version 2, nor groups of the new protocol.
_FEATURES: Final[Mapping[str, int]] = {"group.version": 1, "transaction.version": 2}
_NOT_OF_KAFKA: Final = OWN_CONFIGS | {LAYOUT_CONFIG, LOCATION_CONFIG}


@dataclass(frozen=True, slots=True)
class ExportedBroker:
    """The exported partitions, what the broker's server.properties must say, and notes for the user."""

    partitions: list[ExportedPartition]
    server_properties: Mapping[str, str]
    notes: tuple[str, ...] = ()


def make_new_broker(source: Source, target: Path, metadata_partitions: int) -> ExportedBroker:
    """Make `target`, which is absent, empty or an unfinished copy, a new broker's directory with the logs of `source`.

    `metadata_partitions` is the number of partitions of `__remote_log_metadata`.
    """
    with unfinished_copy(target, source.fs):
        copied = source.copy(target)
        return _finish(source, target, copied, source.image(copied), metadata_partitions)


def _finish(
    source: Source, target: Path, copied: Sequence[CopiedLog], image: MetadataImage, metadata_partitions: int
) -> ExportedBroker:
    rng, fs = random.SystemRandom(), source.fs
    properties = _server_properties(image, target, metadata_partitions)
    config = broker_config(image)
    tiered = {name for name, each in image.topics.items() if has_remote_storage(image, each)}
    exported = [replace(each.exported, is_tiered=each.exported.topic_partition.topic in tiered) for each in copied]
    for each in exported:
        if each.is_tiered:
            directory = partition_path(target, each.topic_partition)
            _complete_snapshots(directory, config.producer_id_expiration_ms, source.clock(), fs)
    written = list(exported)
    segments = source.remote_segments()
    if segments:
        values = _remote_log_records(segments, metadata_partitions, image.node.broker_id, source.clock())
        topic, partitions = _write_remote_log_topic(target, values, random_uuid(rng), source)
        image = only_topics(image, [*image.topics.values(), topic])
        written += partitions
    write_checkpoints(target, written, cleaned=source.cleaned, keep={}, fs=fs)
    directory_id = random_uuid(rng)
    _write_metadata(metadata_dir(target), image, directory_id, fs)
    write_clean_shutdown(target, fs=fs)
    cluster_id = source.properties.cluster_id or random_uuid(rng)
    ids = MetaProperties(cluster_id=cluster_id, node_id=image.node.broker_id, directory_id=directory_id)
    write_meta_properties(target / META_PROPERTIES, ids, fs=fs)
    fs.fsync_dir(target)
    fs.unlink(metadata_dir(target) / FORMAT_MARKER)  # now it is whole
    fs.fsync_dir(metadata_dir(target))
    return ExportedBroker(exported, properties, source.notes)


def _complete_snapshots(directory: Path, expiration_ms: int, now_ms: int, fs: FileSystem) -> None:
    """Write the producer snapshots that are missing at the bases of the segments, without which no broker copies them.

    A log that was adopted, or repaired, may lack some.
    """
    listing = PartitionListing.read(directory)
    known = set(listing.snapshot_offsets)
    for base_offset in listing.base_offsets:
        if base_offset and base_offset not in known:
            producers = producer_state_at(
                directory,
                base_offset,
                log_start_offset=listing.base_offsets[0],
                expiration_ms=expiration_ms,
                now_ms=now_ms,
            )
            entries = [each.entry() for each in java_hash_order(producers.producers)]
            write_snapshot(segment_file(directory, base_offset, PRODUCER_SNAPSHOT_SUFFIX), entries, fs=fs, durable=True)
    fs.fsync_dir(directory)


def _write_metadata(directory: Path, image: MetadataImage, directory_id: str, fs: FileSystem) -> None:
    node = replace(image.node, log_dirs=(directory_id,))
    image = replace(image, brokers={node.broker_id: node}, features={**_FEATURES, **image.features})
    write_metadata_snapshot(
        directory / SnapshotId(image.next_offset, LEADER_EPOCH).file_name,
        _broker_records(image),
        last_contained_timestamp_ms=image.last_timestamp_ms,
        epoch=LEADER_EPOCH,
        fs=fs,
    )


def _broker_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Kafka's own records of the image, as of a node that is not running.

    The broker registers itself when it starts, and is elected leader of each partition then.
    """
    for record in image_records(image):
        if record.schema().api_key >= NATIVE_API_KEYS_FROM or isinstance(record, RegisterBrokerRecord):
            continue
        if not _is_of_file(record):
            yield record.replace(leader=_NO_LEADER) if isinstance(record, PartitionRecord) else record


def _is_of_file(record: MetadataRecord) -> bool:
    """Whether it is a setting that a broker takes only from its file."""
    return (
        isinstance(record, ConfigRecord)
        and record.resource_type == BROKER_RESOURCE
        and record.name not in DYNAMIC_BROKER_CONFIGS
    )


#: A broker's own topics have three replicas by default, for which a single broker cannot create them.
_SINGLE_BROKER: Final = {
    "offsets.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.replication.factor": "1",
}


def _server_properties(image: MetadataImage, target: Path, metadata_partitions: int) -> dict[str, str]:
    """What the file of the broker on `target` must say; the host and port of the voter are to be changed.

    Its listeners, and remote.log.storage.manager.* with rsm.config.*, depend on where it runs.
    """
    node_id = image.node.broker_id
    settings = {
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "controller.quorum.voters": f"{node_id}@localhost:9093",
        "log.dirs": str(target.resolve()),
    }
    own = {name: value for name, value in broker_configs(image).items() if name not in _NOT_OF_KAFKA}
    settings |= {name: value for name, value in sorted(own.items()) if name not in DYNAMIC_BROKER_CONFIGS}
    settings |= _SINGLE_BROKER
    if "__consumer_offsets" in image.topics:
        settings["offsets.topic.num.partitions"] = str(len(image.topics["__consumer_offsets"].partitions))
    if any(has_remote_storage(image, each) for each in image.topics.values()):
        settings["remote.log.storage.system.enable"] = "true"
        settings["rlmm.config.remote.log.metadata.topic.num.partitions"] = str(metadata_partitions)
    return settings


def has_remote_storage(image: MetadataImage, topic: TopicImage) -> bool:
    return broker_config(image).log_config(topic.configs).remote_storage_enable


def _remote_log_records(
    tiered: Mapping[TopicIdPartition, Sequence[RemoteSegment]], partitions_count: int, broker_id: int, now_ms: int
) -> list[list[bytes]]:
    """The values of the records of each partition of `__remote_log_metadata`: two for each segment, by offset."""
    values: list[list[bytes]] = [[] for _ in range(partitions_count)]  # bounded: an option of the export
    for of, segments in sorted(tiered.items()):
        number = metadata_partition(of, partitions_count)
        for segment in segments:
            values[number] += copied_records(of, segment, broker_id=broker_id, now_ms=now_ms)
    return values


def _write_remote_log_topic(
    target: Path, values: Sequence[Sequence[bytes]], topic_id: str, source: Source
) -> tuple[TopicImage, list[ExportedPartition]]:
    """Make the topic's partition directories in `target`, durably; the topic, and its partitions' offsets."""
    partitions, exported = [], []
    for number, records in enumerate(values):
        topic_partition = TopicPartition(REMOTE_LOG_METADATA_TOPIC, number)
        directory = make_partition(target, topic_partition, topic_id, source.fs)
        state = _write_log(directory, records, source.clock, source.fs)
        source.fs.fsync_dir(directory)
        partitions.append(PartitionImage(number, state))
        exported.append(exported_partition(topic_partition, state))
    return TopicImage(REMOTE_LOG_METADATA_TOPIC, topic_id, tuple(partitions), METADATA_TOPIC_CONFIGS), exported


def _write_log(directory: Path, values: Sequence[bytes], clock: Callable[[], int], fs: FileSystem) -> LogState:
    config = LogConfig.from_properties(METADATA_TOPIC_CONFIGS)
    with UnifiedLog.open(directory, config, clean_shutdown=True, clock=clock, fs=fs) as log:
        for batch in _batches(values, clock()):
            log.append_as_coordinator(batch, leader_epoch=LEADER_EPOCH)
        state = log.state()
        log.close()
    return state


def _batches(values: Iterable[bytes], now_ms: int) -> Iterator[bytes]:
    """Batches of at most _BATCH_BYTES_MAX bytes of values, or of one value."""
    waiting: list[bytes] = []
    for value in values:
        if waiting and sum(map(len, waiting)) + len(value) > _BATCH_BYTES_MAX:
            yield _batch(waiting, now_ms)
            waiting = []
        waiting.append(value)
    if waiting:
        yield _batch(waiting, now_ms)


def _batch(values: Sequence[bytes], now_ms: int) -> bytes:
    return encode_batch(
        [Record(offset=number, timestamp_ms=now_ms, key=None, value=value) for number, value in enumerate(values)]
    )
