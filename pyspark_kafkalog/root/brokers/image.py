"""Topics, configurations and access control entries from a broker's metadata log, of which every node has a copy.

    __cluster_metadata-0/<20 digit end offset>-<10 digit epoch>.checkpoint   snapshots, the newest whole one counts
    __cluster_metadata-0/<base offset>.log                                   the log after the snapshot

It is read up to the first damage. The broker may be running: an incomplete batch at the end is ignored, as after a
crash.

Unknown record types and versions are ignored. Records between a BeginTransactionRecord and an EndTransactionRecord
apply together; after an AbortTransactionRecord, or without an end, they do not apply. A log that is damaged, or has an
access control entry that cannot be read, does not say whom the entries keep out: it counts as that of a cluster with an
authorizer (`BrokerMetadata.has_authorizer`). `GrowingMetadata` follows the log of a running broker.

Source of the rules: org.apache.kafka.image.loader.MetadataBatchLoader.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import BinaryIO, Final

from pyspark_kafkalog.config.broker import AUTHORIZER_CONFIG
from pyspark_kafkalog.errors import CorruptRecordError, DiskFormatError, InvalidRecordError, InvalidTopicError
from pyspark_kafkalog.metadata.acl import Acl, parse_acl
from pyspark_kafkalog.metadata.image import BROKER_RESOURCE, GROUP_RESOURCE, TOPIC_RESOURCE, MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import (
    AbortTransactionRecord,
    AccessControlEntryRecord,
    BeginTransactionRecord,
    ClientQuotaRecord,
    ConfigRecord,
    EndTransactionRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UserScramCredentialRecord,
)
from pyspark_kafkalog.metadata.messages.records import decode_record
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.metadata.users import (
    QuotaEntity,
    ScramCredential,
    ScramMechanism,
    apply_quota_record,
    credential_key,
    parse_credential,
)
from pyspark_kafkalog.record.control import ControlRecordType, parse_control_type
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, BatchHeader, parse_header
from pyspark_kafkalog.record.reference import Record, check_crc, decode_batch
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.artefacts.partition_listing import list_base_offsets
from pyspark_kafkalog.storage.below_root import scan
from pyspark_kafkalog.storage.filesystem import open_to_read
from pyspark_kafkalog.storage.names import LOG_SUFFIX, parse_metadata_snapshot, segment_file, validate_topic_name
from pyspark_kafkalog.units import MIB
from pyspark_kafkalog.values import dataclass

#: No controller writes a larger batch (KafkaRaftClient.MAX_BATCH_SIZE_BYTES is 8 MiB).
_BATCH_BYTES_MAX: Final = 64 * MIB
#: The records of a larger snapshot are not kept in memory all at once.
_KEPT_BYTES_MAX: Final = 32 * MIB
#: Where the value of a record has its API key, and that of an AccessControlEntryRecord.
_API_KEY_AT: Final = 1
_ENTRY_API_KEY: Final = bytes([AccessControlEntryRecord.schema().api_key])
#: Settings that say that a cluster checks access control entries.
_AUTHORIZER: Final = (AUTHORIZER_CONFIG, "super.users")


@dataclass(frozen=True, slots=True)
class BrokerBatch:
    """Records of a batch in `file` at byte `position`, without those that a snapshot before it holds."""

    file: str
    position: int
    is_control: bool
    records: tuple[Record, ...]


class BrokerLog:
    """The newest whole snapshot in `directory` and the log after it; read once.

    `damage` describes the first damage, None if there is none; a torn batch at the end, which a crash leaves, is not
    damage. `undecoded`: the first record of an unknown type or version. `end_offset` is the offset after the last
    batch read, `leader_epoch` the last epoch.
    """

    def __init__(self, directory: Path) -> None:
        self.damage: str | None = None
        self.undecoded: str | None = None
        self.end_offset = 0
        self.leader_epoch = 0
        #: Whether there may be access control entries that were not read.
        self.hides_entries = False
        self._directory = directory
        self._has_footer = False

    def snapshot(self, *, control_only: bool = False) -> Iterator[BrokerBatch]:
        """The batches of the newest whole snapshot; newer, damaged ones are noted as damage. Raises OSError.

        Whether it is whole is known at its end. One that is too large to be kept until then is read twice.
        """
        for end_offset, epoch, path in _snapshots(self._directory):
            self.end_offset = 0
            self._has_footer = False
            is_kept = path.stat().st_size <= _KEPT_BYTES_MAX
            batches = [each for each in self._batches(path, 0, control_only) if is_kept]
            if self._has_footer:
                self.end_offset = 0
                yield from batches if is_kept else self._batches(path, 0, control_only)
                self.end_offset, self.leader_epoch = end_offset, epoch
                return
            self.note(f"{path} has no snapshot footer")
        self.end_offset = self.leader_epoch = 0

    def after_snapshot(self, *, control_only: bool = False) -> Iterator[BrokerBatch]:
        """The batches of the log after the end of the snapshot. Raises OSError."""
        start_offset = self.end_offset
        for base_offset in list_base_offsets(self._directory):
            yield from self._batches(segment_file(self._directory, base_offset, LOG_SUFFIX), start_offset, control_only)

    def note(self, damage: str) -> None:
        """Set `damage`, unless it is already set."""
        if self.damage is None:
            self.damage = damage

    def _batches(self, path: Path, start_offset: int, control_only: bool) -> Iterator[BrokerBatch]:
        """The batches of a file that end at or after `start_offset`, up to the first damaged one.

        With `control_only`, batches of metadata records are checked but not decoded.
        """
        file = str(path)
        at = 0
        with open_to_read(path) as stream:
            try:
                while (found := _read_batch(stream, at, file)) is not None:
                    data, header = found
                    if header.last_offset >= start_offset:
                        self._check_follows(file, at, max(header.base_offset, start_offset))
                        if header.is_control or not control_only:
                            yield self._decode(data, at, header, file, start_offset)
                        else:
                            check_crc(memoryview(data), header, file=file, file_position=at)
                        self.end_offset, self.leader_epoch = header.next_offset, header.leader_epoch
                    at += header.size_bytes
            except DiskFormatError as error:
                self.note(str(error))
                self.hides_entries = True

    def _decode(self, data: bytes, at: int, header: BatchHeader, file: str, start_offset: int) -> BrokerBatch:
        """The batch in `data`, which is at byte `at` of `file`."""
        records = decode_batch(data, 0, file=file, file_position=at).records
        if header.is_control:
            types = [parse_control_type(each.key, file=file, file_position=at) for each in records]
            self._has_footer |= ControlRecordType.SNAPSHOT_FOOTER in types
        kept = tuple(each for each in records if each.offset >= start_offset)
        return BrokerBatch(file, at, header.is_control, kept)

    def _check_follows(self, file: str, at: int, offset: int) -> None:
        if offset != self.end_offset:
            raise CorruptRecordError(
                file=file, position=at, expected=f"a batch at offset {self.end_offset}", found=str(offset)
            )


def _read_batch(stream: BinaryIO, at: int, file: str) -> tuple[bytes, BatchHeader] | None:
    """The next batch, which is at byte `at`; None at the end, also for a torn one. Raises CorruptRecordError."""
    head = stream.read(RECORD_BATCH_OVERHEAD_BYTES)
    if len(head) < RECORD_BATCH_OVERHEAD_BYTES:
        return None
    header = parse_header(head, 0, file=file, file_position=at)
    if header.size_bytes > _BATCH_BYTES_MAX:
        raise CorruptRecordError(
            file=file,
            position=at,
            expected=f"a batch of at most {_BATCH_BYTES_MAX} bytes",
            found=f"one of {header.size_bytes}",
        )
    data = head + stream.read(header.size_bytes - len(head))  # bounded: _BATCH_BYTES_MAX, above
    return (data, header) if len(data) == header.size_bytes else None


def _snapshots(directory: Path) -> list[tuple[int, int, Path]]:
    """End offsets, epochs and paths of the snapshots, the newest first."""
    found = []
    for entry in scan(directory):
        parsed = parse_metadata_snapshot(entry.name)
        if parsed is not None:
            found.append((*parsed, directory / entry.name))
    return sorted(found, reverse=True)


_NO_LEADER_CHANGE: Final = -2


@dataclass(slots=True)
class BrokerPartition:
    """A partition: the nodes that hold it, its leader epoch, and the ids of the log directories, one for each node.

    `leader` is -1 without one; `isr`: the replicas in sync. `elr` and `last_known_elr`: replicas that may become the
    leader without loss, and those that could (KIP-966).
    """

    replicas: tuple[int, ...]
    leader_epoch: int
    directories: tuple[str, ...] = ()
    leader: int = -1
    isr: tuple[int, ...] = ()
    elr: tuple[int, ...] = ()
    last_known_elr: tuple[int, ...] = ()


@dataclass(slots=True)
class BrokerTopic:
    """A topic of the broker's cluster: id, partitions by number, configuration overrides."""

    name: str
    topic_id: str
    partitions: dict[int, BrokerPartition] = field(default_factory=dict)


@dataclass(slots=True)
class BrokerMetadata:
    """The state that a broker's metadata log adds up to.

    `topic_configs` by topic name, `broker_configs` by node id as text ("" for all nodes), `group_configs` by group,
    `acls` by id. `damage` describes why something may be missing; None if the whole log was read. `undecoded`: the
    first record of a type or version that this package does not know, which is damage, too. `hides_entries`: access
    control entries may be missing.
    """

    topics: dict[str, BrokerTopic] = field(default_factory=dict)
    topic_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    broker_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    group_configs: dict[str, dict[str, str]] = field(default_factory=dict)
    next_producer_id: int = 0
    acls: dict[str, Acl] = field(default_factory=dict)
    scram_credentials: dict[tuple[str, ScramMechanism], ScramCredential] = field(default_factory=dict)
    client_quotas: dict[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    damage: str | None = None
    undecoded: str | None = None
    hides_entries: bool = False
    _names: dict[str, str] = field(default_factory=dict)

    @property
    def has_authorizer(self) -> bool:
        """Whether the cluster seems to check access control entries.

        Its nodes do so by their server.properties, which are elsewhere. Entries tell of it, and so do settings that
        somebody made for brokers, although no broker takes these from its metadata log.
        """
        own = self.broker_configs.values()
        return bool(self.acls) or self.hides_entries or any(each.get(name) for each in own for name in _AUTHORIZER)

    def apply(self, record: MetadataRecord) -> None:
        """Apply one record. Records of unknown topics are ignored."""
        if isinstance(record, TopicRecord):
            self.topics[record.name] = BrokerTopic(record.name, record.topic_id)
            self._names[record.topic_id] = record.name
        elif isinstance(record, RemoveTopicRecord):
            topic = self._topic(record.topic_id)
            if topic is not None:
                del self.topics[topic.name]
                self.topic_configs.pop(topic.name, None)
        elif isinstance(record, PartitionRecord):
            self._partition(record)
        elif isinstance(record, PartitionChangeRecord):
            self._partition_change(record)
        elif isinstance(record, ConfigRecord):
            self._config(record)
        elif isinstance(record, ProducerIdsRecord):
            self.next_producer_id = record.next_producer_id
        elif isinstance(record, AccessControlEntryRecord):
            self._access_control_entry(record)
        elif isinstance(record, RemoveAccessControlEntryRecord):
            self.acls.pop(record.id, None)
        elif isinstance(record, UserScramCredentialRecord | RemoveUserScramCredentialRecord | ClientQuotaRecord):
            self._client_setting(record)

    def _topic(self, topic_id: str) -> BrokerTopic | None:
        """The topic with the id, if it exists."""
        topic = self.topics.get(self._names.get(topic_id, ""))
        return topic if topic is not None and topic.topic_id == topic_id else None

    def _partition(self, record: PartitionRecord) -> None:
        topic = self._topic(record.topic_id)
        if topic is not None and record.partition_id >= 0:
            topic.partitions[record.partition_id] = BrokerPartition(
                record.replicas,
                record.leader_epoch,
                record.directories,
                leader=record.leader,
                isr=record.isr,
                elr=record.eligible_leader_replicas or (),
                last_known_elr=record.last_known_elr or (),
            )

    def _partition_change(self, record: PartitionChangeRecord) -> None:
        topic = self._topic(record.topic_id)
        partition = None if topic is None else topic.partitions.get(record.partition_id)
        if partition is None:
            return
        if record.replicas is not None:
            partition.replicas = record.replicas
        if record.directories is not None:
            partition.directories = record.directories
        if record.isr is not None:
            partition.isr = record.isr
        if record.eligible_leader_replicas is not None:
            partition.elr = record.eligible_leader_replicas
        if record.last_known_elr is not None:
            partition.last_known_elr = record.last_known_elr
        if record.leader != _NO_LEADER_CHANGE:
            partition.leader = record.leader
            partition.leader_epoch += 1

    def _access_control_entry(self, record: AccessControlEntryRecord) -> None:
        try:
            self.acls[record.id] = parse_acl(record)
        except InvalidRecordError as error:  # a later version's: it may deny, so its omission must be reported
            self._not_decoded(str(error))
            self.hides_entries = True

    def _not_decoded(self, what: str) -> None:
        self.undecoded = self.undecoded or what
        self.damage = self.damage or what

    def _client_setting(
        self, record: UserScramCredentialRecord | RemoveUserScramCredentialRecord | ClientQuotaRecord
    ) -> None:
        try:
            if isinstance(record, UserScramCredentialRecord):
                key, credential = parse_credential(record)
                self.scram_credentials[key] = credential
            elif isinstance(record, RemoveUserScramCredentialRecord):
                self.scram_credentials.pop(credential_key(record.name, record.mechanism), None)
            else:
                apply_quota_record(self.client_quotas, record)
        except InvalidRecordError as error:  # a later version's
            self._not_decoded(str(error))

    def _config(self, record: ConfigRecord) -> None:
        by_resource = {
            TOPIC_RESOURCE: self.topic_configs,
            BROKER_RESOURCE: self.broker_configs,
            GROUP_RESOURCE: self.group_configs,
        }
        resources = by_resource.get(record.resource_type)
        if resources is None:
            return
        configs = resources.setdefault(record.resource_name, {})
        if record.value is None:
            configs.pop(record.name, None)
        else:
            configs[record.name] = record.value


def read_topic_configs(root: Path) -> Mapping[str, Mapping[str, str]]:
    """Configuration overrides by topic name; empty if `root` has no metadata log."""
    directory = root / METADATA_DIR
    return read_broker_metadata(directory).topic_configs if directory.is_dir() else {}


def read_broker_metadata(directory: Path) -> BrokerMetadata:
    """The state of the metadata log in `directory`. Raises OSError if it cannot be read."""
    metadata = BrokerMetadata()
    log = BrokerLog(directory)
    for record in _metadata_records(log.snapshot(), log):
        metadata.apply(record)
    for record in committed_records(_metadata_records(log.after_snapshot(), log)):
        metadata.apply(record)
    metadata.damage = metadata.damage or log.damage
    metadata.undecoded = metadata.undecoded or log.undecoded
    metadata.hides_entries |= log.hides_entries
    return metadata


def _metadata_records(batches: Iterable[BrokerBatch], log: BrokerLog) -> Iterator[MetadataRecord]:
    for batch in batches:
        for each in () if batch.is_control else batch.records:
            if each.value is None:
                continue
            try:
                record = decode_record(each.value, file=batch.file)
                if isinstance(record, TopicRecord):
                    validate_topic_name(record.name)  # it becomes part of paths
                yield record
            except (DiskFormatError, InvalidTopicError) as error:
                where = f"{batch.file} at byte {batch.position}: the record at offset {each.offset}: "
                text = str(error) if isinstance(error, DiskFormatError) else where + str(error)
                log.undecoded = log.undecoded or text
                log.note(text)
                log.hides_entries |= each.value[_API_KEY_AT : _API_KEY_AT + 1] == _ENTRY_API_KEY


def metadata_of(root: Root) -> MetadataImage | BrokerMetadata:
    """What the metadata log of a root says, a native root's or a broker's. Raises OSError if it cannot be read."""
    return read_metadata_of(root.directories) if root.is_broker_directory else root.native().store.image


def read_metadata_of(directories: Sequence[Path]) -> BrokerMetadata:
    """The state of the metadata log in the first of a root's directories; nothing without one. Raises OSError."""
    directory = directories[0] / METADATA_DIR if directories else None
    return BrokerMetadata() if directory is None or not directory.is_dir() else read_broker_metadata(directory)


class GrowingMetadata:
    """The `state` of the metadata log in the first of a root's directories, to which a running broker appends.

    Its controller appends a NoOpRecord twice a second. A refresh reads the batches after those that it knows, and all
    of the log only if they say something, or if there are other files. The state is replaced, never changed.
    """

    def __init__(self, directories: Sequence[Path]) -> None:
        self._read(directories)

    def refresh(self, directories: Sequence[Path]) -> None:
        """Read what has changed. Raises OSError, and keeps the state, if the log cannot be read or is gone."""
        files = _files_of(directories)
        if self._files and not files:
            raise FileNotFoundError(errno.ENOENT, "the metadata log is gone", str(self._files[0].parent))
        if files != self._files or self._has_news():
            self._read(directories)

    def _read(self, directories: Sequence[Path]) -> None:
        self._files = _files_of(directories)
        logs = [each for each in self._files if each.suffix == LOG_SUFFIX]
        self._position = _end_of(logs[-1]) if logs else 0  # before the rest: what is appended meanwhile is news
        self.state = read_metadata_of(directories)

    def _has_news(self) -> bool:
        logs = [each for each in self._files if each.suffix == LOG_SUFFIX]
        if not logs:
            return False
        if logs[-1].stat().st_size < self._position:
            return True
        try:
            for size_bytes, data in _batches_from(logs[-1], self._position):
                if not _says_nothing(data, logs[-1], self._position):
                    return True
                self._position += size_bytes
        except DiskFormatError:
            return True
        return False


def _files_of(directories: Sequence[Path]) -> tuple[Path, ...]:
    """The snapshots and segments of the metadata log, in order; none without one. Raises OSError."""
    directory = directories[0] / METADATA_DIR if directories else None
    if directory is None or not directory.is_dir():
        return ()
    snapshots = [path for _, _, path in _snapshots(directory)]
    logs = [segment_file(directory, each, LOG_SUFFIX) for each in list_base_offsets(directory)]
    return (*snapshots, *logs)


def _end_of(path: Path) -> int:
    """The byte after the last whole batch that can be read. Raises OSError."""
    position = 0
    with contextlib.suppress(DiskFormatError):
        for size_bytes, _ in _batches_from(path, 0):
            position += size_bytes
    return position


def _batches_from(path: Path, position: int) -> Iterator[tuple[int, bytes]]:
    """Size and bytes of the whole batches from that byte on. Raises OSError, DiskFormatError."""
    with open_to_read(path) as stream:
        stream.seek(position)
        while (found := _read_batch(stream, position, str(path))) is not None:
            data, header = found
            yield header.size_bytes, data
            position += header.size_bytes


def _says_nothing(data: bytes, path: Path, position: int) -> bool:
    """Whether the batch, at byte `position` of the file, has NoOpRecords only. Raises DiskFormatError."""
    batch = decode_batch(data, 0, file=str(path), file_position=position)
    return not batch.header.is_control and all(
        each.value is not None and isinstance(decode_record(each.value), NoOpRecord) for each in batch.records
    )


def committed_records(records: Iterator[MetadataRecord]) -> Iterator[MetadataRecord]:
    """`records` without those of aborted or unfinished metadata transactions."""
    pending: list[MetadataRecord] | None = None
    for record in records:
        if isinstance(record, BeginTransactionRecord):
            pending = []
        elif isinstance(record, EndTransactionRecord):
            yield from pending or ()
            pending = None
        elif isinstance(record, AbortTransactionRecord):
            pending = None
        elif pending is not None:
            pending.append(record)
        else:
            yield record
