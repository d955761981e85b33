"""Verifies the root apart from its partitions: commit log, meta.properties, checkpoints, directories of no partition.

The commit log of a native log directory is read from disk: no cached image is used. Every commit file and snapshot is
decoded. From the oldest possible start on, commits are applied one after the other, and each is checked against the
invariants as of then; every snapshot must equal the image of the commits before it. The small files beside them are
hints: a wrong one is reported, and is harmless except for `kafkalog-head`.

The commit log is authoritative, and the checkpoint files are kept for a Kafka broker that may mount the directory: with
a wrong entry the broker would serve deleted records, or clean from a wrong offset.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import CorruptIndexError, DiskFormatError, InvalidRecordError, LogDirError
from pyspark_kafkalog.maintenance.retention.delete_records import first_base_offsets
from pyspark_kafkalog.maintenance.verify.findings import NEXT_WRITER, REPAIR, Finding, FindingSink, Severity, confirmed
from pyspark_kafkalog.metadata.commit_log import LEADER_EPOCH, Commit
from pyspark_kafkalog.metadata.delta import ImageChanges, replay_commit, start_delta
from pyspark_kafkalog.metadata.image import UNKNOWN_ENDS, MetadataImage
from pyspark_kafkalog.metadata.invariants import check_invariants
from pyspark_kafkalog.metadata.local.housekeeping import START_FILE
from pyspark_kafkalog.metadata.local.log import HEAD_FILE, LocalCommitLog
from pyspark_kafkalog.metadata.local.offset_hint import OffsetHint
from pyspark_kafkalog.metadata.local.snapshots import list_snapshots, read_pointer, read_snapshot
from pyspark_kafkalog.metadata.root_format import METADATA_DIR, check_marker, metadata_dir
from pyspark_kafkalog.metadata.snapshots import POINTER_FILE, SnapshotId, image_of
from pyspark_kafkalog.root.adopt.plan import KEPT_METADATA_DIR, WORK_DIR
from pyspark_kafkalog.root.bootstrap import METADATA_TOPIC_ID
from pyspark_kafkalog.root.brokers.metadata.image import read_broker_metadata
from pyspark_kafkalog.root.file_root import directory_of, on_file_system
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.artefacts.checkpoint_file import (
    CHECKPOINTS,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    REPLICATION_OFFSET_CHECKPOINT,
    read_offset_checkpoint,
)
from pyspark_kafkalog.storage.artefacts.marker_files import read_meta_properties, read_topic_id
from pyspark_kafkalog.storage.artefacts.partition_listing import list_partitions
from pyspark_kafkalog.storage.filesystem import LOCAL, TEMPORARY_SUFFIX
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import (
    META_PROPERTIES,
    PARTITION_METADATA,
    TopicPartition,
    parse_partition_dir,
    partition_path,
)

#: The kind of findings on snapshots of earlier versions.
SNAPSHOT_WITHOUT_ENDS: Final = "snapshot-without-ends"

_TRIES: Final = 3

_LEFTOVER_DIR = re.compile(r".+(-delete|-stray|-future)")

_RESTORE_COMMIT: Final = "restore the file from a backup: what was committed after it cannot be read"


def check_metadata(root: Path) -> list[Finding]:
    """The findings on the commit log of the native log directory at `root`. Raises OSError when it cannot be read."""
    findings: list[Finding] = []
    for number in range(_TRIES):
        # Old files are removed while they are read here: only findings of both checks count.
        again = _CommitLogCheck(root).run()
        if not again:
            return []
        findings = again if not number else [finding for finding in again if finding in findings]
    return findings


_RESTORE_BEFORE_COMMIT: Final = (
    "restore the metadata log from a copy made before this commit, with the data of that time"
)


def apply_checked(
    image: MetadataImage, commit: Commit, sink: FindingSink, *, file: str | Path, advice: str
) -> MetadataImage:
    """The image after `commit`, which is in `file`; reports a commit that is not consistent with those before it."""
    delta = start_delta(image, base_offset=commit.base_offset, timestamp_ms=commit.timestamp_ms)
    is_first = image.format_version is None
    try:
        replay_commit(delta, commit)
        after = delta.build(commit.next_offset)
        if not is_first:
            # The log does not say who made a commit; while the root follows, it may be the follower.
            check_invariants(image, after, delta.changes, is_follower=image.following is not None)
    except InvalidRecordError as error:
        sink.add(
            Severity.ERROR,
            "commit-invariant",
            file,
            position=0,
            offset=commit.base_offset,
            expected="a commit that is consistent with those before it",
            found=str(error),
            advice=advice,
        )
        after = delta.build(commit.next_offset)
    return after


def is_image_of(snapshot: MetadataImage, image: MetadataImage) -> bool:
    """Whether the snapshot is `image`, apart from where offsets ended (TopicImage), which it may not know."""
    if snapshot == image or snapshot.topics.keys() != image.topics.keys():
        return snapshot == image
    topics = {
        name: replace(topic, offsets_ends=image.topics[name].offsets_ends)
        if topic.offsets_ends == UNKNOWN_ENDS
        else topic
        for name, topic in snapshot.topics.items()
    }
    return replace(snapshot, topics=topics) == image


def lacks_offsets_ends(snapshot: MetadataImage, image: MetadataImage) -> bool:
    """Whether the snapshot does not know where offsets ended, and the commits up to `image`, its own, tell that."""
    return is_image_of(snapshot, image) and any(
        topic.offsets_ends == UNKNOWN_ENDS and image.topics[name].offsets_ends not in ((), UNKNOWN_ENDS)
        for name, topic in snapshot.topics.items()
    )


def report_old_snapshot(sink: FindingSink, file: Path | str, *, advice: str) -> None:
    """Report a snapshot of a version that did not know where offsets ended."""
    sink.add(
        Severity.WARNING,
        SNAPSHOT_WITHOUT_ENDS,
        file,
        position=0,
        expected="where the partitions of __consumer_offsets ended when each topic was created",
        found="a snapshot of an earlier version, which does not say: offsets without a topic id that were committed "
        "before a topic was created again count for the new topic",
        advice=advice,
    )


@dataclass(slots=True)
class _CommitLogCheck:
    """One check of the commit log."""

    root: Path
    sink: FindingSink = field(default_factory=lambda: FindingSink(None))

    @property
    def directory(self) -> Path:
        return metadata_dir(self.root)

    def run(self) -> list[Finding]:
        self._check_small_files()
        log = LocalCommitLog(self.directory)
        head = log.head()
        snapshots = [each.end_offset for each in list_snapshots(self.directory)]
        images = self._read_snapshots(snapshots)
        offsets = sorted(log.listed_offsets())
        image = self._replay(log, offsets, images)
        if image is not None:
            check_static(image, self.sink, self.directory)
            self._check_hints(log, image.next_offset, head, offsets, set(snapshots))
        return self.sink.result()

    def _check_small_files(self) -> None:
        try:
            check_marker(self.directory)
        except DiskFormatError as error:
            self.sink.add_damage(Severity.ERROR, "format-marker", error)
        try:
            found = read_topic_id(self.directory / PARTITION_METADATA)
            if found != METADATA_TOPIC_ID:
                self._topic_id(found)
        except FileNotFoundError:
            self._topic_id("no file")
        except DiskFormatError as error:
            self.sink.add_damage(Severity.ERROR, "topic-id", error, advice=REPAIR)

    def _topic_id(self, found: str) -> None:
        self.sink.add(
            Severity.ERROR,
            "topic-id",
            self.directory / PARTITION_METADATA,
            position=0,
            expected=METADATA_TOPIC_ID,
            found=found,
            advice=REPAIR,
        )

    def _read_snapshots(self, end_offsets: list[int]) -> dict[int, MetadataImage]:
        images = {}
        for end_offset in end_offsets:
            path = self.directory / SnapshotId(end_offset, LEADER_EPOCH).file_name
            try:
                images[end_offset] = image_of(read_snapshot(path), end_offset, str(path))
            except FileNotFoundError:
                continue
            except DiskFormatError as error:
                self.sink.add_damage(Severity.ERROR, "metadata-snapshot", error, advice=REPAIR)
        return images

    def _replay(
        self, log: LocalCommitLog, offsets: list[int], images: dict[int, MetadataImage]
    ) -> MetadataImage | None:
        """Apply all existing commits; return the resulting image, None without a commit or snapshot to start from."""
        starts = [offset for offset in images if not offsets or offset >= offsets[0]]
        first = offsets[0] if offsets else None
        if first == 0:
            image = MetadataImage()
        elif starts:
            image = images[min(starts)]
        elif images:
            image = images[max(images)]
        else:
            self.sink.add(
                Severity.ERROR,
                "metadata-start",
                self.directory,
                expected="the first commit, or a complete snapshot to start from",
                found="neither",
                advice=_RESTORE_COMMIT,
            )
            return None
        self._read_unused(log, [offset for offset in offsets if offset < image.next_offset])
        while True:
            commit = self._read(log, image.next_offset)
            if commit is None:
                later = [offset for offset in images if offset > image.next_offset]
                if not later:
                    break
                image = images[min(later)]  # a damaged commit that a snapshot includes
                continue
            image = apply_checked(
                image, commit, self.sink, file=log.path(commit.base_offset), advice=_RESTORE_BEFORE_COMMIT
            )
            known = images.get(image.next_offset)
            path = self.directory / SnapshotId(image.next_offset, LEADER_EPOCH).file_name
            if known is not None and lacks_offsets_ends(known, image):
                report_old_snapshot(self.sink, path, advice=REPAIR)
            elif known is not None and not is_image_of(known, image):
                self._snapshot_differs(path, "the image of the commits before it", "a different image")
        if offsets and offsets[-1] >= image.next_offset:
            self.sink.add(
                Severity.ERROR,
                "commit-missing",
                log.path(image.next_offset),
                offset=image.next_offset,
                expected=f"a commit, since there is one at offset {offsets[-1]}",
                found="none that can be read",
                advice=_RESTORE_COMMIT,
            )
        return image

    def _read_unused(self, log: LocalCommitLog, offsets: list[int]) -> None:
        """Check only the files of commits before the starting snapshot."""
        for offset in offsets:
            self._read(log, offset)

    def _read(self, log: LocalCommitLog, offset: int) -> Commit | None:
        try:
            return log.read(offset)
        except DiskFormatError as error:
            self.sink.add_damage(Severity.ERROR, "commit", error, advice=_RESTORE_COMMIT)
            return None

    def _check_hints(
        self, log: LocalCommitLog, next_offset: int, head: int | None, offsets: list[int], snapshots: set[int]
    ) -> None:
        if head is not None and head > next_offset:
            self.sink.add(
                Severity.ERROR,
                "commit-missing",
                log.path(next_offset),
                offset=next_offset,
                expected=f"a commit, since the log has reached {head} ({HEAD_FILE})",
                found="no such file",
                advice=_RESTORE_COMMIT,
            )
        for name in (HEAD_FILE, START_FILE):
            path = self.directory / name
            if path.exists() and OffsetHint(path, LOCAL).read() is None:
                self._hint(path, "20 digits and their CRC", "other contents")
        start = OffsetHint(self.directory / START_FILE, LOCAL).read()
        if start is not None and offsets and start > offsets[0]:
            self._hint(self.directory / START_FILE, f"at most {offsets[0]}, the oldest commit", str(start))
        pointer = self.directory / POINTER_FILE
        pointed = read_pointer(self.directory)
        if pointed is None:
            if pointer.exists() or snapshots:
                self._hint(pointer, "the name of the newest snapshot", "no such name")
        elif pointed.end_offset not in snapshots or pointed.end_offset < max(snapshots):
            self._hint(pointer, f"the newest snapshot, {max(snapshots, default='none')}", pointed.file_name)

    def _hint(self, path: Path, expected: str, found: str) -> None:
        self.sink.add(
            Severity.WARNING, "metadata-hint", path, position=0, expected=expected, found=found, advice=REPAIR
        )

    def _snapshot_differs(self, path: Path, expected: str, found: str) -> None:
        self.sink.add(
            Severity.ERROR,
            "metadata-snapshot",
            path,
            position=0,
            expected=expected,
            found=found,
            advice=REPAIR,
        )


def check_static(image: MetadataImage, sink: FindingSink, directory: Path | str) -> None:
    """Check the invariants of everything in the newest image."""
    changes = ImageChanges(
        set(image.topics),
        {(topic.name, each.partition) for topic in image.topics.values() for each in topic.partitions},
        set(image.transactional_ids),
    )
    try:
        check_invariants(image, image, changes)
    except InvalidRecordError as error:
        sink.add(
            Severity.ERROR,
            "image-invariant",
            directory,
            offset=image.next_offset,
            expected="an image that satisfies the invariants",
            found=str(error),
            advice="restore the metadata log from a copy",
        )


def check_native_root(root: Root) -> list[Finding]:
    """The findings on a native log directory, without its commit log and partitions, that a second check confirms."""

    def check() -> list[Finding]:
        root.refresh()
        sink = FindingSink(None)
        image = on_file_system(root).store.image
        _check_meta_properties(directory_of(root), sink, image)
        for name in CHECKPOINTS:
            _check_own_checkpoint(directory_of(root), name, image, sink)
        _check_entries(directory_of(root), sink, image)
        return sink.result()

    return confirmed(check)


def check_broker_root(root: Path) -> list[Finding]:
    """The findings on a broker's directory, without its partitions, that a second check confirms."""

    def check() -> list[Finding]:
        sink = FindingSink(None)
        _check_meta_properties(root, sink, None)
        offsets = {name: _read(root / name, sink, advice=None) for name in CHECKPOINTS}
        _check_named_directories(root, offsets, sink)
        _check_topic_ids(root, sink)
        _check_broker_metadata(root, sink)
        _check_entries(root, sink, None)
        return sink.result()

    return confirmed(check)


def _check_named_directories(
    root: Path, offsets: Mapping[str, Mapping[TopicPartition, int]], sink: FindingSink
) -> None:
    """Check that each partition of a broker's checkpoints, which it writes for all its logs, has its directory."""
    names = set(os.listdir(root))
    pending = {name.rpartition(".")[0] for name in names if _LEFTOVER_DIR.fullmatch(name)}
    named = {**offsets[RECOVERY_POINT_CHECKPOINT], **offsets[REPLICATION_OFFSET_CHECKPOINT]}
    for topic_partition, offset in named.items():
        if partition_path(root, topic_partition).is_dir():
            continue
        is_deleted = str(topic_partition) in pending
        sink.add(
            Severity.WARNING if is_deleted or not offset else Severity.ERROR,
            "directory-missing",
            f"{root}/{topic_partition}",
            offset=offset,
            expected=f"the directory of a partition that the broker's checkpoints have up to offset {offset}",
            found="one that is pending deletion" if is_deleted else "none",
            advice="restore it from a copy, unless its topic was deleted: committed records are missing",
        )


def _check_broker_metadata(root: Path, sink: FindingSink) -> None:
    """Check that all records of a broker's metadata log can be read, and that no adoption has stopped half-way."""
    directory = root / METADATA_DIR
    damage = read_broker_metadata(directory).damage if directory.is_dir() else None
    if damage is not None:
        sink.add(
            Severity.ERROR,
            "metadata-log",
            directory,
            expected="records that can all be read",
            found=damage,
            advice="restore the log from another node of the cluster, or upgrade pyspark_kafkalog: until then, "
            "configurations, topics or entries may be missing",
        )
    for name in (WORK_DIR, KEPT_METADATA_DIR):
        if (root / name).is_dir():
            sink.add(
                Severity.ERROR,
                "unfinished-adoption",
                root / name,
                expected="a broker's directory, or an adopted one",
                found="a directory of an adoption that has not ended",
                advice="run kafkalog adopt again, which completes it; or remove what it left and start the broker: "
                f"rename {KEPT_METADATA_DIR} back to {METADATA_DIR}, and delete {WORK_DIR}",
            )


def _check_topic_ids(root: Path, sink: FindingSink) -> None:
    """Check that no two topics of a broker's directory have the same id, as a copied folder leaves it."""
    topics: dict[str, str] = {}
    for topic_partition in list_partitions(root):
        path = partition_path(root, topic_partition) / PARTITION_METADATA
        try:
            topic_id = read_topic_id(path)
        except (OSError, DiskFormatError):
            continue  # reported with the partition
        topic = topics.setdefault(topic_id, topic_partition.topic)
        if topic != topic_partition.topic:
            sink.add(
                Severity.ERROR,
                "topic-id-twice",
                path,
                position=0,
                expected=f"an id of topic {topic_partition.topic} alone",
                found=f"{topic_id}, which is also that of topic {topic}",
                advice="remove the folder that is a copy, or its partition.metadata: a broker does not start with both",
            )


def _check_meta_properties(root: Path, sink: FindingSink, image: MetadataImage | None) -> None:
    path = root / META_PROPERTIES
    try:
        properties = read_meta_properties(path)
    except FileNotFoundError:
        if image is not None:
            _properties(path, sink, "the root's ids", "no file")
        return
    except DiskFormatError as error:
        sink.add_damage(Severity.ERROR, "meta-properties", error)
        return
    if image is None:
        if properties.node_id is None and properties.cluster_id is None:
            _properties(path, sink, "the ids of the cluster and the broker", "neither")
        return
    if properties.node_id not in image.brokers:
        _properties(path, sink, f"node.id {image.node.broker_id}", str(properties.node_id))
    log_dirs = image.node.log_dirs
    if properties.directory_id is not None and log_dirs and properties.directory_id not in log_dirs:
        _properties(path, sink, f"directory.id {' or '.join(log_dirs)}", properties.directory_id)


def _properties(path: Path, sink: FindingSink, expected: str, found: str) -> None:
    sink.add(
        Severity.ERROR,
        "meta-properties",
        path,
        position=0,
        expected=expected,
        found=found,
        advice="restore the file from a copy: a Kafka broker needs it to mount the root",
    )


def _read(path: Path, sink: FindingSink, *, advice: str | None = REPAIR) -> Mapping[TopicPartition, int]:
    try:
        return read_offset_checkpoint(path)
    except CorruptIndexError as error:
        sink.add_damage(Severity.ERROR, "checkpoint", error, advice=advice)
        return {}


def _check_own_checkpoint(root: Path, name: str, image: MetadataImage, sink: FindingSink) -> None:
    path = root / name
    offsets = _read(path, sink)
    for topic_partition, offset in offsets.items():
        partition = image.find(topic_partition.topic, topic_partition.partition)
        if partition is None:
            _checkpoint(path, sink, topic_partition, "a partition of the root", "none of that name", Severity.INFO)
            continue
        state = partition.state
        if name == LOG_START_OFFSET_CHECKPOINT:
            if offset != state.log_start_offset:
                _checkpoint(path, sink, topic_partition, f"the log start {state.log_start_offset}", str(offset))
        elif not 0 <= offset <= state.log_end_offset:
            _checkpoint(path, sink, topic_partition, f"an offset up to the log end {state.log_end_offset}", str(offset))
    if name == LOG_START_OFFSET_CHECKPOINT:
        for topic_partition, state in _starts_inside(root, image):
            if topic_partition not in offsets:
                _checkpoint(path, sink, topic_partition, f"a line with the log start {state.log_start_offset}", "none")


def _starts_inside(root: Path, image: MetadataImage) -> list[tuple[TopicPartition, LogState]]:
    """Partitions whose log start offset is above the base of their first segment."""
    states = {
        TopicPartition(topic.name, each.partition): each.state
        for topic in image.topics.values()
        for each in topic.partitions
        if each.state.log_start_offset
    }
    first_bases = first_base_offsets(root, states)
    return [(each, states[each]) for each, base in first_bases.items() if states[each].log_start_offset > base]


def _checkpoint(
    path: Path,
    sink: FindingSink,
    topic_partition: TopicPartition,
    expected: str,
    found: str,
    severity: Severity = Severity.WARNING,
) -> None:
    sink.add(
        severity,
        "checkpoint-entry",
        path,
        position=0,
        expected=f"{expected}, for {topic_partition}",
        found=found,
        advice=REPAIR,
    )


def _check_entries(root: Path, sink: FindingSink, image: MetadataImage | None) -> None:
    """Directories and files that belong to no partition."""
    try:
        entries = sorted(os.scandir(root), key=lambda entry: entry.name)
    except OSError as error:
        raise LogDirError(error.errno, f"cannot open the log directory: {error.strerror}", str(root)) from error
    for entry in entries:
        topic_partition = parse_partition_dir(entry.name)
        if _LEFTOVER_DIR.fullmatch(entry.name) and entry.is_dir():
            sink.add(
                Severity.INFO,
                "leftover-directory",
                entry.path,
                expected="no leftover",
                found="a directory pending deletion, or a stray one",
                advice="a deleted topic's is removed after file.delete.delay.ms; inspect a stray one yourself",
            )
        elif entry.name.endswith(TEMPORARY_SUFFIX):
            sink.add(
                Severity.INFO,
                "temporary-file",
                entry.path,
                expected="no leftover",
                found="a small file being written, or left by a crash",
                advice=NEXT_WRITER,
            )
        elif image is not None and entry.is_dir() and _is_stray(topic_partition, entry.name, image):
            sink.add(
                Severity.WARNING,
                "stray-directory",
                entry.path,
                expected="a partition of the root",
                found="none of that name",
                advice="check whether it is needed; no reader sees it",
            )


def _is_stray(topic_partition: TopicPartition | None, name: str, image: MetadataImage) -> bool:
    if topic_partition is None or name == METADATA_DIR:
        return False
    return image.find(topic_partition.topic, topic_partition.partition) is None
