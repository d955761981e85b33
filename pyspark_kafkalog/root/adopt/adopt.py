"""Converts a broker's directory into a native log directory in place. No records are copied.

A broker can still mount the adopted directory.

    1  refuse a running broker, take its lock; make the plan, which changes nothing
    2  make the directory of step 5, which tells verify of a half conversion; unlink .kafka_cleanshutdown: from here on
       a broker, or the next attempt, recovers the logs
    3  rename strays, create missing partitions, write missing topic ids
    4  recover each log as the broker would, and close it; its state is now known
    5  build the commit log, with the states of all partitions, in a separate directory
    6  rename the broker's metadata log to `__cluster_metadata-0.kafka-stray`, which Kafka ignores
    7  rename the new commit log to `__cluster_metadata-0`: this decides

A crash before step 7 leaves a broker's directory: the broker may start again, or another adoption may, which repeats
all steps from the state that it finds. After step 7 the directory is native, with all commits of step 5. What would
stop step 4 or 5 is looked for in step 1, in a dry run too. Damage of a cleanly stopped broker's logs that only step 4
meets puts the file of step 2 back: these logs are as they were, or closed again.

A broker holds a POSIX record lock on `.lock` while it runs; the kernel releases it when the process ends, also in a
crash. An adoption takes two locks on the same file: an flock, as writers of this package do, and an open file
description lock, which conflicts with the broker's. Both are on one descriptor, because NFS does not distinguish them.
If a file system does not share locks between hosts, a broker on another host is detected by its writes: it writes
`replication-offset-checkpoint` every five seconds. That file is watched if it is fresh and there was no clean shutdown.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import CommitStateUnknownError, DiskFormatError, KafkalogError, LogDirError
from pyspark_kafkalog.metadata.acl import acl_record
from pyspark_kafkalog.metadata.image import (
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    BrokerImage,
    partition_record,
    partition_state_record,
    topic_record,
)
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.metadata.messages.metadata_records import ConfigRecord, MetadataRecord, ProducerIdsRecord
from pyspark_kafkalog.metadata.root_format import METADATA_DIR, is_native_root, metadata_dir, write_marker
from pyspark_kafkalog.metadata.root_lock import LOCK_FILE, lock_records
from pyspark_kafkalog.metadata.users import credential_record, quota_records
from pyspark_kafkalog.root.admin import broker_config_record
from pyspark_kafkalog.root.adopt.logs import (
    AdoptedLog,
    LogSummary,
    adopt_log,
    check_log,
    damaged_tail_notes,
    transaction_index_notes,
    transactions_of_plan,
    transactions_of_root,
)
from pyspark_kafkalog.root.adopt.plan import (
    KEPT_METADATA_DIR,
    WORK_DIR,
    AdoptionPlan,
    TopicPlan,
    make_plan,
    unread_notes,
    without_remote_storage,
)
from pyspark_kafkalog.root.bootstrap import create_root
from pyspark_kafkalog.root.directories import renamed_directory
from pyspark_kafkalog.root.transactions.states import OpenTransactions
from pyspark_kafkalog.storage.artefacts.checkpoint_file import RECOVERY_POINT_CHECKPOINT, REPLICATION_OFFSET_CHECKPOINT
from pyspark_kafkalog.storage.artefacts.marker_files import (
    CLEAN_SHUTDOWN_FILE,
    read_topic_id,
    remove_clean_shutdown,
    was_clean_shutdown,
    write_meta_properties,
    write_topic_id,
)
from pyspark_kafkalog.storage.below_root import refuse_link, split_paths
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, read_text_file, time_ms
from pyspark_kafkalog.storage.names import (
    META_PROPERTIES,
    OFFSETS_TOPIC,
    PARTITION_METADATA,
    TopicPartition,
    partition_path,
)
from pyspark_kafkalog.threads import Workers
from pyspark_kafkalog.tiered.own_location import check_outside

#: A checkpoint written within this time may be a running broker's (replica.high.watermark.checkpoint.interval.ms: 5 s).
FRESH_S: Final = 15.0
WATCH_S: Final = 11.0
_POLL_S: Final = 0.25
_WATCHED: Final = (REPLICATION_OFFSET_CHECKPOINT, RECOVERY_POINT_CHECKPOINT)


_OPERATION: Final = "adopt"
_PARTITIONS_PER_COMMIT: Final = 10_000

#: Brokers receive producer ids in blocks of this size, and may have allocated any id of a block.
_PRODUCER_ID_BLOCK: Final = 1000
_CLEAN_BYTES_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class AdoptedPartition:
    """An adopted partition: its offsets [log_start_offset, high_watermark), and the results of its recovery.

    `cut_bytes` is the size of the damaged tail that was truncated, as in a broker's recovery. `last_stable_offset` is
    below the high watermark if a transaction is open.
    """

    topic_partition: TopicPartition
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    leader_epoch: int
    cut_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """The result of an adoption, or with `dry_run` its expected result.

    `was_native` means that the directory was already native, and nothing was done. `topics` are given with their ids.
    `partitions` is empty in a dry run, which recovers no log. The user has to end the `open_transactions`.
    """

    root: Path
    topics: Mapping[str, str]
    partitions: tuple[AdoptedPartition, ...]
    next_producer_id: int
    kept_metadata: Path | None
    notes: tuple[str, ...]
    open_transactions: OpenTransactions
    dry_run: bool = False
    was_native: bool = False


def adopt(
    root: Path,
    *,
    server_properties: Path | None = None,
    create_missing: bool = False,
    local_only: bool = False,
    dry_run: bool = False,
    clock: Callable[[], int] = time_ms,
    rng: random.Random | None = None,
    fs: FileSystem = LOCAL,
) -> Adoption:
    """Convert the broker's directory `root` into a native log directory. After a crash, call it again.

    - `server_properties`: the broker's configuration file, whose topic-level defaults become settings of the root
    - `create_missing`: create, empty, the partitions that the root does not contain
    - `local_only`: give up the offsets that a broker has moved to tiered storage; topics lose remote.storage.enable,
      with which retention would wait for copies in remote storage
    - `dry_run`: only check whether the directory can be adopted

    Raises LogDirError for a running broker's directory, for a path that is not a log directory, and for directories
    that `make_plan` refuses; InvalidConfigError for an rsm.config.location that is none; DiskFormatError for a damaged
    log that a broker would refuse too.
    """
    rng = rng if rng is not None else random.SystemRandom()
    if len(split_paths(root)) > 1:
        raise LogDirError(f"{root} names several directories: one directory of one broker is adopted, in place")
    if not root.is_dir():
        raise LogDirError(f"{root} is not a directory")
    if not dry_run and not (root / LOCK_FILE).exists() and not is_native_root(root):
        # Obstacles are reported before even that file is created.
        adopt(
            root,
            server_properties=server_properties,
            create_missing=create_missing,
            local_only=local_only,
            dry_run=True,
            clock=clock,
            rng=rng,
            fs=fs,
        )
    with adoption_lock(root, fs=fs, create=not dry_run):
        if is_native_root(root):
            return _finish(root, clock, fs)
        refuse_signs_of_life(root)
        plan = make_plan(root, server_properties=server_properties, create_missing=create_missing, rng=rng)
        check_outside(plan.broker_config.rsm_config_location, root)
        check_logs(plan)
        _check_writable(plan)
        notes = unread_notes(root, _partitions(plan), local_only=local_only, clock=clock)
        index_notes = transaction_index_notes(root, ((each, _recovery_point(plan, each)) for each in _partitions(plan)))
        plan = replace(plan, notes=(*plan.notes, *notes, *index_notes))
        if local_only:
            plan = without_remote_storage(plan)
        if dry_run:
            tails = damaged_tail_notes(root, ((each, _recovery_point(plan, each)) for each in _partitions(plan)))
            plan = replace(plan, notes=(*plan.notes, *tails))
            return _outcome(plan, {}, plan.next_producer_id, transactions_of_plan(plan, clock), dry_run=True)
        with _clean_again_after_damage(plan, fs):
            _prepare_directories(plan, fs)
            logs = _adopt_logs(plan, clock, fs)
            next_producer_id = next_producer_id_after(plan, logs)
            _build(plan, logs, next_producer_id, clock, rng, fs)
        _replace_metadata_log(plan, fs)
        return _outcome(plan, logs, next_producer_id, transactions_of_root(root, clock, fs))


def _finish(root: Path, clock: Callable[[], int], fs: FileSystem) -> Adoption:
    """Finish an adoption that was interrupted after step 7, if there was one."""
    shutil.rmtree(root / WORK_DIR, ignore_errors=True)
    store = LocalMetadataStore.open(root)
    topics = {name: topic.topic_id for name, topic in store.image.topics.items()}
    open_transactions, notes = transactions_of_root(root, clock, fs)
    return Adoption(
        root=root,
        topics=topics,
        partitions=(),
        next_producer_id=store.image.next_producer_id,
        kept_metadata=_if_exists(root / KEPT_METADATA_DIR),
        notes=notes,
        open_transactions=open_transactions,
        was_native=True,
    )


def check_logs(plan: AdoptionPlan) -> None:
    """Check what would stop the adoption of a log, or lose records in it; changes nothing.

    After a clean shutdown each log must be undamaged up to its high watermark, since a broker recovers none: the next
    attempt, without `.kafka_cleanshutdown`, would truncate the damage. Raises LogDirError, DiskFormatError.
    """
    for topic_partition in _partitions(plan):
        check_log(
            partition_path(plan.root, topic_partition),
            topic_partition,
            log_start_offset=plan.log_starts.get(topic_partition, 0),
            high_watermark=plan.high_watermarks.get(topic_partition, 0) if plan.clean_shutdown else 0,
            recovery_point=_recovery_point(plan, topic_partition),
        )


def _recovery_point(plan: AdoptionPlan, topic_partition: TopicPartition) -> int | None:
    """Where the recovery of the log begins; None after a clean shutdown, which needs none."""
    return None if plan.clean_shutdown else plan.recovery_points.get(topic_partition, 0)


def _check_writable(plan: AdoptionPlan) -> None:
    refuse_link(plan.root / WORK_DIR)
    for directory in (plan.root, *(partition_path(plan.root, each) for each in _partitions(plan))):
        if not os.access(directory, os.W_OK | os.X_OK):
            raise LogDirError(f"{directory} cannot be written to: adopt as the user who runs the broker")


@contextmanager
def _clean_again_after_damage(plan: AdoptionPlan, fs: FileSystem) -> Iterator[None]:
    """Puts `.kafka_cleanshutdown` back if the block finds damage; it changes no log of a broker that stopped cleanly.

    A failing file system, as a crash, leaves the logs to recovery.
    """
    path = plan.root / CLEAN_SHUTDOWN_FILE
    content = None
    if plan.clean_shutdown:
        content = read_text_file(
            path, max_bytes=_CLEAN_BYTES_MAX, kind=DiskFormatError, advice="it is no broker's file"
        )
    try:
        yield
    except KafkalogError:
        if content is not None:
            shutil.rmtree(plan.root / WORK_DIR, ignore_errors=True)
            fs.write_file_atomic(path, content)
        raise


def _partitions(plan: AdoptionPlan) -> Iterator[TopicPartition]:
    """The partitions that have a directory."""
    for topic in plan.topics:
        missing = set(topic.missing)
        for number in range(topic.partitions_count):
            if number not in missing:
                yield TopicPartition(topic.name, number)


def _prepare_directories(plan: AdoptionPlan, fs: FileSystem) -> None:
    work = plan.root / WORK_DIR
    if not work.exists():
        fs.mkdir(work)
    fs.fsync_dir(plan.root)
    remove_clean_shutdown(plan.root, fs=fs)
    fs.fsync_dir(plan.root)
    for name in plan.damaged_checkpoints:
        fs.unlink_if_there(plan.root / name)
    for stray in plan.strays:
        fs.rename(partition_path(plan.root, stray), plan.root / renamed_directory(stray, "-stray"))
    for topic in plan.topics:
        for number in topic.missing:
            fs.mkdir(partition_path(plan.root, TopicPartition(topic.name, number)))
        for number in range(topic.partitions_count):
            path = partition_path(plan.root, TopicPartition(topic.name, number)) / PARTITION_METADATA
            if not _has_topic_id(path, topic.topic_id):
                write_topic_id(path, topic.topic_id, fs=fs)
    fs.fsync_dir(plan.root)


def _has_topic_id(path: Path, topic_id: str) -> bool:
    try:
        return read_topic_id(path) == topic_id
    except (FileNotFoundError, DiskFormatError):
        return False


def _adopt_logs(plan: AdoptionPlan, clock: Callable[[], int], fs: FileSystem) -> Mapping[TopicPartition, AdoptedLog]:
    def adopt_one(topic: TopicPlan, topic_partition: TopicPartition) -> AdoptedLog:
        summary = LogSummary(
            recovery_point=plan.recovery_points.get(topic_partition, 0),
            log_start_offset=plan.log_starts.get(topic_partition, 0),
            leader_epoch=topic.leader_epochs.get(topic_partition.partition, -1),
            clean_shutdown=plan.clean_shutdown,
        )
        return adopt_log(
            partition_path(plan.root, topic_partition),
            plan.broker_config.log_config(topic.configs),
            summary,
            producer_id_expiration_ms=plan.broker_config.producer_id_expiration_ms,
            clock=clock,
            fs=fs,
        )

    partitions = [
        # bounded: by _plan_topic
        (topic, TopicPartition(topic.name, number))
        for topic in plan.topics
        for number in range(topic.partitions_count)
    ]
    if not partitions:
        return {}
    with Workers(min(len(partitions), plan.broker_config.num_recovery_threads_per_data_dir)) as pool:
        adopted = pool.map(adopt_one, *zip(*partitions, strict=True))
        return {topic_partition: log for (_, topic_partition), log in zip(partitions, adopted, strict=True)}


def next_producer_id_after(plan: AdoptionPlan, logs: Mapping[TopicPartition, AdoptedLog]) -> int:
    """A producer id above all that the cluster has allocated, as far as the directory shows."""
    largest = max((log.largest_producer_id for log in logs.values()), default=-1)
    if largest < 0:
        return plan.next_producer_id
    return max(plan.next_producer_id, (largest // _PRODUCER_ID_BLOCK + 1) * _PRODUCER_ID_BLOCK)


def _build(
    plan: AdoptionPlan,
    logs: Mapping[TopicPartition, AdoptedLog],
    next_producer_id: int,
    clock: Callable[[], int],
    rng: random.Random,
    fs: FileSystem,
) -> None:
    """Create the commit log, durably, in a root of its own inside the root."""
    work = plan.root / WORK_DIR
    refuse_link(work)
    if work.exists():
        shutil.rmtree(work)
    fs.mkdir(work)
    fs.mkdir(metadata_dir(work))
    # With the marker, the identity beside it is read as that of an unfinished native root.
    write_marker(metadata_dir(work), fs)
    write_meta_properties(work / META_PROPERTIES, plan.properties, fs=fs)
    if not (plan.root / META_PROPERTIES).exists():
        write_meta_properties(plan.root / META_PROPERTIES, plan.properties, fs=fs)
    try:
        store = create_root(work, clock=clock, rng=rng, fs=fs)
        for records in _commits(plan, logs, next_producer_id, store.image.node):
            store.commit(lambda image, records=records: records, operation=_OPERATION)  # type: ignore[misc]
    except CommitStateUnknownError as error:
        raise LogDirError(f"{plan.root} is still a broker's directory: adopt it again: {error}") from error


def _commits(
    plan: AdoptionPlan, logs: Mapping[TopicPartition, AdoptedLog], next_producer_id: int, node: BrokerImage
) -> Iterator[list[MetadataRecord]]:
    """The records of all topics, in commits of a bounded size; the first one also has the records of the root."""
    configs = sorted(plan.broker_config.properties.items())
    records: list[MetadataRecord] = [broker_config_record(*each) for each in configs]
    if next_producer_id:
        records.append(ProducerIdsRecord(broker_id=node.broker_id, next_producer_id=next_producer_id))
    records.extend(acl_record(acl_id, acl) for acl_id, acl in plan.acls.items())
    records.extend(credential_record(*key, credential) for key, credential in plan.scram_credentials.items())
    records.extend(quota_records(plan.client_quotas))
    records.extend(
        ConfigRecord(resource_type=GROUP_RESOURCE, resource_name=group_id, name=name, value=value)
        for group_id, configs in plan.group_configs.items()
        for name, value in configs.items()
    )
    partitions = 0
    for topic in plan.topics:
        records.append(topic_record(topic.name, topic.topic_id, _offsets_ends(topic, logs), is_final=True))
        records.extend(
            ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value)
            for name, value in topic.configs.items()
        )
        for number in range(topic.partitions_count):
            log = logs[TopicPartition(topic.name, number)]
            epoch = log.state.leader_epoch
            records.append(partition_record(topic.topic_id, number, leader_epoch=epoch, node=node))
            records.append(partition_state_record(topic.topic_id, number, log.state))
            partitions += 1
            if partitions % _PARTITIONS_PER_COMMIT == 0:
                yield records
                records = []
    if records:
        yield records


def _offsets_ends(topic: TopicPlan, logs: Mapping[TopicPartition, AdoptedLog]) -> tuple[int, ...]:
    """Of `__consumer_offsets`, where its partitions end: until there offsets may be of topics on other brokers."""
    if topic.name != OFFSETS_TOPIC:
        return ()
    # bounded: by _plan_topic
    return tuple(logs[TopicPartition(topic.name, each)].state.log_end_offset for each in range(topic.partitions_count))


def _replace_metadata_log(plan: AdoptionPlan, fs: FileSystem) -> None:
    root = plan.root
    if plan.metadata_dir == root / METADATA_DIR:
        fs.rename(plan.metadata_dir, root / KEPT_METADATA_DIR)
        fs.fsync_dir(root)
    fs.rename(metadata_dir(root / WORK_DIR), metadata_dir(root))
    fs.fsync_dir(root)
    shutil.rmtree(root / WORK_DIR, ignore_errors=True)


def _outcome(
    plan: AdoptionPlan,
    logs: Mapping[TopicPartition, AdoptedLog],
    next_producer_id: int,
    transactions: tuple[OpenTransactions, tuple[str, ...]],
    *,
    dry_run: bool = False,
) -> Adoption:
    open_transactions, notes = transactions
    return Adoption(
        root=plan.root,
        topics={topic.name: topic.topic_id for topic in plan.topics},
        partitions=tuple(
            AdoptedPartition(
                topic_partition,
                log.state.log_start_offset,
                log.state.log_end_offset,
                log.state.last_stable_offset,
                log.state.leader_epoch,
                log.cut_bytes,
            )
            for topic_partition, log in logs.items()
        ),
        next_producer_id=next_producer_id,
        kept_metadata=None if plan.metadata_dir is None else plan.root / KEPT_METADATA_DIR,
        notes=(*plan.notes, *notes),
        open_transactions=open_transactions,
        dry_run=dry_run,
    )


def _if_exists(path: Path) -> Path | None:
    return path if path.exists() else None


@contextmanager
def adoption_lock(root: Path, *, fs: FileSystem, create: bool = True) -> Iterator[None]:
    """Hold `.lock` of `root` against brokers and writers for the block; without `create`, only if the file exists.

    Raises LogDirError if a broker is running on `root`, or another process is adopting it or writing to it.
    """
    path = root / LOCK_FILE
    try:
        fd = fs.open(path, os.O_RDWR | (os.O_CREAT if create else 0))
    except FileNotFoundError:
        yield  # no broker has ever used the directory, and the caller changes nothing
        return
    try:
        _lock(fd, path)
        try:
            yield
        finally:
            # Closing is not enough: a child that another thread forked meanwhile also holds the descriptor.
            lock_records(fd, fcntl.F_UNLCK)
            fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        fs.close(fd)


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise LogDirError(
            f"{path} is held by another process, which writes to this log directory or adopts it"
        ) from None
    try:
        lock_records(fd, fcntl.F_WRLCK)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise LogDirError(
            f"a Kafka broker is running on {path.parent} (it holds {path.name}): stop it, or adopt a copy"
        ) from None


def refuse_signs_of_life(root: Path) -> None:
    """Watch the checkpoints of `root` for a while if they are fresh. Raises LogDirError if one is written."""
    before = _written(root)
    now_s = time.time()
    if was_clean_shutdown(root) or not any(abs(now_s - mtime_ns / 1e9) < FRESH_S for mtime_ns, _ in before.values()):
        return
    deadline = time.monotonic() + WATCH_S
    while time.monotonic() < deadline:
        time.sleep(_POLL_S)
        changed = [name for name, seen in _written(root).items() if seen != before.get(name)]
        if changed:
            raise LogDirError(f"{root / changed[0]} has just been written: a Kafka broker is running on this directory")


def _written(root: Path) -> dict[str, tuple[int, int]]:
    """Modification time and inode of the watched files; the inode changes because each checkpoint is a new file."""
    found = {}
    for name in _WATCHED:
        try:
            status = os.stat(root / name)
        except FileNotFoundError:
            continue
        found[name] = (status.st_mtime_ns, status.st_ino)
    return found
