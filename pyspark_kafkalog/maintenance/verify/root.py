"""Verifies a root apart from its partitions: its commit log, meta.properties, checkpoints, directories of no partition.

The commit log, in a directory or in an object store:

    commits       each follows the one before and keeps the invariants as of then
    snapshots     each equals the image of the commits before it
    small files   of a directory: the marker, partition.metadata, and hints (a wrong hint is harmless, except for the
                  head: a log that ends below it has lost commits)

No cached image is used: every commit and snapshot is read and decoded. The check applies the commits one after the
other, from the oldest start that exists. In an object store an object also carries commits before its own, so a commit
can be readable although its own object is missing.

The commit log is authoritative, and the checkpoint files are kept for a Kafka broker that may mount the directory: with
a wrong entry the broker would serve deleted records, or clean from a wrong offset.

Commits, snapshots and files change meanwhile: only findings that a further check confirms count.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import CorruptIndexError, DiskFormatError, InvalidRecordError, LogDirError
from pyspark_kafkalog.maintenance.retention.delete_records import first_base_offsets
from pyspark_kafkalog.maintenance.verify.findings import (
    NEXT_WRITER,
    REPAIR,
    RESTORE_OBJECT,
    Finding,
    FindingSink,
    Severity,
    confirmed,
)
from pyspark_kafkalog.metadata.commit_log import Commit, CommitLog, CommitsRemovedError
from pyspark_kafkalog.metadata.delta import ImageChanges, replay_commit, start_delta
from pyspark_kafkalog.metadata.image import UNKNOWN_ENDS, MetadataImage
from pyspark_kafkalog.metadata.invariants import check_invariants
from pyspark_kafkalog.metadata.local.backend import START_FILE, LocalSnapshots, read_pointer
from pyspark_kafkalog.metadata.local.log import LocalCommitLog
from pyspark_kafkalog.metadata.root_format import HEAD_FILE, METADATA_DIR, OffsetHint, check_marker, metadata_dir
from pyspark_kafkalog.metadata.snapshots import POINTER_FILE, Snapshots, image_of
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.root.adopt.plan import KEPT_METADATA_DIR, WORK_DIR
from pyspark_kafkalog.root.bootstrap import METADATA_TOPIC_ID
from pyspark_kafkalog.root.brokers.image import read_broker_metadata
from pyspark_kafkalog.root.file_root import FileRoot
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


@dataclass(frozen=True, slots=True)
class _Advice:
    """The advice on a damaged or missing commit, an inconsistent one, and snapshots that are damaged, old or wrong."""

    commit: str
    inconsistent_commit: str
    damaged_snapshot: str
    old_snapshot: str
    wrong_snapshot: str


_OF_FILES: Final = _Advice(
    commit="restore the file from a backup: what was committed after it cannot be read",
    inconsistent_commit="restore the metadata log from a copy made before this commit, with the data of that time",
    damaged_snapshot=REPAIR,
    old_snapshot=REPAIR,
    wrong_snapshot=REPAIR,
)
_OF_OBJECTS: Final = _Advice(
    commit=RESTORE_OBJECT,
    inconsistent_commit=RESTORE_OBJECT,
    damaged_snapshot=RESTORE_OBJECT,
    old_snapshot="kafkalog consumer-groups --delete-offsets of groups whose topic was created again, if they commit in "
    "transactions",
    wrong_snapshot="delete the snapshot if the commits from offset 0 on exist, else restore it",
)


def check_metadata(root: Path) -> list[Finding]:
    """The findings on the commit log of the native log directory at `root`. Raises OSError when it cannot be read."""
    return confirmed(lambda: _check_directory(metadata_dir(root)))


def check_stored_metadata(metadata: MetadataStore) -> list[Finding]:
    """The findings on the commit log of a root in an object store. Raises ObjectStoreError."""

    def check() -> list[Finding]:
        log = _CommitLogCheck(metadata.log, metadata.snapshots, _OF_OBJECTS, FindingSink(None))
        images = log.read_snapshots([each.end_offset for each in metadata.snapshots.listed()])
        log.check(sorted(metadata.log.listed_offsets()), images)
        return log.sink.result()

    return confirmed(check)


def _check_directory(directory: Path) -> list[Finding]:
    sink = FindingSink(None)
    _check_small_files(directory, sink)
    log = LocalCommitLog(directory)
    head = log.head()
    check = _CommitLogCheck(log, LocalSnapshots(directory, LOCAL), _OF_FILES, sink)
    listed = [each.end_offset for each in check.snapshots.listed()]
    images = check.read_snapshots(listed)
    offsets = sorted(log.listed_offsets())
    image = check.check(offsets, images)
    if image is not None:
        if head is not None and head > image.next_offset:
            expected = f"a commit, since the log has reached {head} ({HEAD_FILE})"
            check.report_missing(image.next_offset, expected, "no such file")
        _HintCheck(directory, sink).check(offsets, listed)
    return sink.result()


@dataclass(frozen=True, slots=True)
class _CommitLogCheck:
    """One check of the commits and snapshots."""

    log: CommitLog
    snapshots: Snapshots
    advice: _Advice
    sink: FindingSink

    def read_snapshots(self, end_offsets: Sequence[int]) -> dict[int, MetadataImage]:
        """The images of the readable snapshots at `end_offsets`."""
        images = {}
        for end_offset in end_offsets:
            try:
                name = self.snapshots.name_of(end_offset)
                images[end_offset] = image_of(self.snapshots.read(end_offset), end_offset, name)
            except FileNotFoundError:
                continue  # removed since the listing
            except DiskFormatError as error:
                self.sink.add_damage(Severity.ERROR, "metadata-snapshot", error, advice=self.advice.damaged_snapshot)
        return images

    def check(self, offsets: Sequence[int], images: Mapping[int, MetadataImage]) -> MetadataImage | None:
        """Apply all commits; return the resulting image, None without a commit or snapshot to start from.

        `offsets` are those of the listed commits, in order, `images` those of the snapshots.
        """
        image = self._start(offsets, images)
        if image is None:
            return None
        for offset in offsets:
            if offset < image.next_offset:
                self._read_unused(offset, image.next_offset)
        seen: set[int] = set()
        while True:
            for commit in self._commits(image.next_offset):
                image = self._applied(image, commit)
                seen.add(commit.listed_offset)
                self._compare(images.get(image.next_offset), image)
            later = [offset for offset in images if offset > image.next_offset]
            if not later:
                break
            image = images[min(later)]  # a damaged commit that a snapshot includes
        reached = max(offsets, default=-1)
        for offset in sorted(seen.difference(offsets)):
            if offset < reached:
                self.report_missing(offset, "a commit, which a later one repeats", "no such object")
        if reached >= image.next_offset:
            expected = f"a commit, since there is one at offset {reached}"
            self.report_missing(image.next_offset, expected, "none that can be read")
        self._check_static(image)
        return image

    def _start(self, offsets: Sequence[int], images: Mapping[int, MetadataImage]) -> MetadataImage | None:
        if offsets and offsets[0] == 0:
            return MetadataImage()
        starts = [end_offset for end_offset in images if not offsets or end_offset >= offsets[0]]
        if images:
            return images[min(starts, default=max(images))]
        self.sink.add(
            Severity.ERROR,
            "metadata-start",
            self.snapshots.location,
            expected="the first commit, or a complete snapshot to start from",
            found="neither",
            advice=self.advice.commit,
        )
        return None

    def _read_unused(self, offset: int, start_offset: int) -> None:
        """Read the commits of a file that come before the snapshot with which the check starts."""
        try:
            for _ in takewhile(lambda commit: commit.next_offset < start_offset, self.log.read_file(offset)):
                pass
        except DiskFormatError as error:
            self._report_damaged(error)

    def _commits(self, offset: int) -> Iterator[Commit]:
        """The commits from `offset` on, up to the first that is missing or damaged."""
        try:
            yield from self.log.read_from(offset, many=True)
        except DiskFormatError as error:
            self._report_damaged(error)
        except CommitsRemovedError:
            return

    def _report_damaged(self, error: DiskFormatError) -> None:
        self.sink.add_damage(Severity.ERROR, "commit", error, advice=self.advice.commit)

    def _applied(self, image: MetadataImage, commit: Commit) -> MetadataImage:
        """The image after `commit`; reports a commit that is not consistent with those before it."""
        delta = start_delta(image, base_offset=commit.base_offset, timestamp_ms=commit.timestamp_ms)
        is_first = image.format_version is None
        try:
            replay_commit(delta, commit)
            after = delta.build(commit.next_offset)
            if not is_first:
                # The log does not say who made a commit; while the root follows, it may be the follower.
                check_invariants(image, after, delta.changes, is_follower=image.following is not None)
        except InvalidRecordError as error:
            self.sink.add(
                Severity.ERROR,
                "commit-invariant",
                self.log.file_of(commit),
                position=commit.position,
                offset=commit.base_offset,
                expected="a commit that is consistent with those before it",
                found=str(error),
                advice=self.advice.inconsistent_commit,
            )
            after = delta.build(commit.next_offset)
        return after

    def _compare(self, snapshot: MetadataImage | None, image: MetadataImage) -> None:
        """Compare the snapshot at the end of `image`, if there is one, with the commits up to there."""
        if snapshot is None:
            return
        file = self.snapshots.name_of(image.next_offset)
        if not is_image_of(snapshot, image):
            self.sink.add(
                Severity.ERROR,
                "metadata-snapshot",
                file,
                position=0,
                expected="the image of the commits before it",
                found="a different image",
                advice=self.advice.wrong_snapshot,
            )
        elif _lacks_offsets_ends(snapshot, image):
            self.sink.add(
                Severity.WARNING,
                SNAPSHOT_WITHOUT_ENDS,
                file,
                position=0,
                expected="where the partitions of __consumer_offsets ended when each topic was created",
                found="a snapshot of an earlier version, which does not say: offsets without a topic id that were "
                "committed before a topic was created again count for the new topic",
                advice=self.advice.old_snapshot,
            )

    def report_missing(self, offset: int, expected: str, found: str) -> None:
        self.sink.add(
            Severity.ERROR,
            "commit-missing",
            self.log.name_of(offset),
            offset=offset,
            expected=expected,
            found=found,
            advice=self.advice.commit,
        )

    def _check_static(self, image: MetadataImage) -> None:
        """Check the invariants of everything in the newest image."""
        changes = ImageChanges(
            set(image.topics),
            {(topic.name, each.partition) for topic in image.topics.values() for each in topic.partitions},
            set(image.transactional_ids),
        )
        try:
            check_invariants(image, image, changes)
        except InvalidRecordError as error:
            self.sink.add(
                Severity.ERROR,
                "image-invariant",
                self.snapshots.location,
                offset=image.next_offset,
                expected="an image that satisfies the invariants",
                found=str(error),
                advice="restore the metadata log from a copy",
            )


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


def _lacks_offsets_ends(snapshot: MetadataImage, image: MetadataImage) -> bool:
    """Whether the snapshot does not know where offsets ended, and the commits up to `image`, its own, tell that."""
    return any(
        topic.offsets_ends == UNKNOWN_ENDS and image.topics[name].offsets_ends not in ((), UNKNOWN_ENDS)
        for name, topic in snapshot.topics.items()
    )


def _check_small_files(directory: Path, sink: FindingSink) -> None:
    try:
        check_marker(directory)
    except DiskFormatError as error:
        sink.add_damage(Severity.ERROR, "format-marker", error)
    path = directory / PARTITION_METADATA
    try:
        found = read_topic_id(path)
    except FileNotFoundError:
        found = "no file"
    except DiskFormatError as error:
        sink.add_damage(Severity.ERROR, "topic-id", error, advice=REPAIR)
        return
    if found != METADATA_TOPIC_ID:
        sink.add(Severity.ERROR, "topic-id", path, position=0, expected=METADATA_TOPIC_ID, found=found, advice=REPAIR)


@dataclass(frozen=True, slots=True)
class _HintCheck:
    """The check of the small files beside the commits, which are compared with what exists in `directory`."""

    directory: Path
    sink: FindingSink

    def check(self, offsets: Sequence[int], snapshots: Collection[int]) -> None:
        for name in (HEAD_FILE, START_FILE):
            if (self.directory / name).exists() and OffsetHint(self.directory / name, LOCAL).read() is None:
                self._report(name, "20 digits and their CRC", "other contents")
        start = OffsetHint(self.directory / START_FILE, LOCAL).read()
        if start is not None and offsets and start > offsets[0]:
            self._report(START_FILE, f"at most {offsets[0]}, the oldest commit", str(start))
        pointed = read_pointer(self.directory)
        if pointed is None:
            if (self.directory / POINTER_FILE).exists() or snapshots:
                self._report(POINTER_FILE, "the name of the newest snapshot", "no such name")
        elif pointed.end_offset not in snapshots or pointed.end_offset < max(snapshots):
            newest = max(snapshots, default="none")
            self._report(POINTER_FILE, f"the newest snapshot, {newest}", pointed.file_name)

    def _report(self, name: str, expected: str, found: str) -> None:
        file = self.directory / name
        self.sink.add(
            Severity.WARNING, "metadata-hint", file, position=0, expected=expected, found=found, advice=REPAIR
        )


_LEFTOVER_DIR = re.compile(r".+(-delete|-stray|-future)")


def check_native_root(root: FileRoot) -> list[Finding]:
    """The findings on a native log directory, without its commit log and partitions, that a second check confirms."""

    def check() -> list[Finding]:
        root.refresh()
        sink = FindingSink(None)
        image = root.store.image
        _check_meta_properties(root.path, sink, image)
        for name in CHECKPOINTS:
            _check_own_checkpoint(root.path, name, image, sink)
        _check_entries(root.path, sink, image)
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
