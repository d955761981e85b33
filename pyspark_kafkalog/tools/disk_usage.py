"""Disk usage: the files of a log directory with their sizes, for the commands `du` and `log-dirs`.

Reads names and sizes only; no file is opened. Kinds of files:

log         .log                                        records
index       .index, .timeindex, .txnindex               can be rebuilt from the log
snapshot    .snapshot                                   producer state
staged      .staged                                     writes that are not committed
deleted     .deleted, .cleaned, .swap, *-delete/        pending deletion, or not yet swapped in
other       everything else: checkpoints, partition.metadata, ...

What a log directory has copied to remote storage is none of its files. The sizes of those segments are in the metadata
log; they are counted for themselves.

In an object store the names come from a listing of all objects, and from the metadata log:

log         segment objects
unmerged    runs, the parts of writes that are not merged yet, each counted as a file
index       .indexes
staged      objects that no commit names: being written, or left by abandoned writes
deleted     objects that commits have dropped, pending deletion
other       commits, snapshots, manifests, tables and footers, and what is in data objects of deleted records
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage, TopicImage
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.metadata.messages.codec import json_text
from pyspark_kafkalog.metadata.objects.log import commit_key
from pyspark_kafkalog.metadata.root_format import is_native_root
from pyspark_kafkalog.root.brokers.quorum import node_id_in, node_id_of
from pyspark_kafkalog.root.kinds import for_kind
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.below_root import absolute_paths, scan, split_paths
from pyspark_kafkalog.storage.names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    STAGED_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
    parse_partition_dir,
    parse_segment_file,
)
from pyspark_kafkalog.storage.objects.data_object import DataKey
from pyspark_kafkalog.tiered.aiven_layout import parse_key
from pyspark_kafkalog.tiered.own_segments import dropped_keys, segment_keys
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.tools.command import Command, Failures, UsageError, add_path, positive, topic_pattern
from pyspark_kafkalog.tools.output import add_output, output_of, table
from pyspark_kafkalog.tools.running import describe_topic
from pyspark_kafkalog.tools.terminal import NO_VALUE, Grid, Heading, number_text
from pyspark_kafkalog.units import size_text
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    from pyspark_kafkalog.root.object_root import ObjectRoot

_DU_HELP: Final = """\
`kafkalog du`: disk usage of a log directory, by topic, partition, segment or kind of file, largest first.

SIZE columns add up the lengths of files: LOG of records, INDEX of offset, time and transaction indexes, OTHER of
producer snapshots, staged writes, deleted files and the rest. ON-DISK is the space allocated by the file system, which
is less for files with holes: the indexes of an active segment are preallocated. Files that belong to no partition are
those of "(deleted)" topics, which are removed after file.delete.delay.ms, and of the "(root)" itself. Works on any
directory, also a running broker's.

If segments were copied to remote storage (kafkalog tier), a further column REMOTE has the bytes of their records. They
are not part of TOTAL, and their local files may be removed.

In an object store LOG includes what is not merged yet, and --by kind tells how much that is, in how many runs, and what
no commit names ("staged").

examples:
  kafkalog du --path /data/log
  kafkalog du --path /data/log --by partition --topic 'orders.*' --limit 20
  kafkalog du --path /data/log --by kind --output json
  kafkalog du --path s3://bucket/log --by kind
"""


_LOG_DIRS_HELP: Final = """\
`kafkalog log-dirs`: print the sizes of partitions as kafka-log-dirs does, in its JSON.

A size is that of the partition's .log files, up to the high watermark; offsetLag is 0, because there is one replica.
Several directories of brokers are listed one by one, each with the replicas in it.
kafkalog du shows all other disk usage.

examples:
  kafkalog log-dirs --path /data/log --describe
  kafkalog log-dirs --path /data/log --describe --topic-list orders,returns
  kafkalog log-dirs --path /data/log --describe --output json | jq '.brokers[].logDirs[].partitions'
"""


#: The unit of st_blocks, whatever the block size of the file system.
_STAT_BLOCK_BYTES: Final = 512
_KIND_BY_SUFFIX: Final = {
    LOG_SUFFIX: "log",
    INDEX_SUFFIX: "index",
    TIME_INDEX_SUFFIX: "index",
    TXN_INDEX_SUFFIX: "index",
    PRODUCER_SNAPSHOT_SUFFIX: "snapshot",
    STAGED_SUFFIX: "staged",
    DELETED_SUFFIX: "deleted",
    CLEANED_SUFFIX: "deleted",
    SWAP_SUFFIX: "deleted",
}
#: The runs of a log in an object store.
UNMERGED: Final = "unmerged"
#: The segments of a log on a file system that are in remote storage.
REMOTE: Final = "remote"
KINDS: Final = ("log", "index", "snapshot", "staged", "deleted", "other")


@dataclass(frozen=True, slots=True)
class StoredFile:
    """One file: its length, and its bytes on disk, which are fewer if it has holes (preallocated indexes).

    `topic_partition` is None outside of a partition's directory; `base_offset` is None unless it is part of a segment.
    """

    topic_partition: TopicPartition | None
    name: str
    kind: str
    base_offset: int | None
    size_bytes: int
    disk_bytes: int


def list_root(root: Path, failed: Callable[[OSError], None]) -> Iterator[StoredFile]:
    """All files below `root`, by directory, except those deleted meanwhile. Raises LogDirError, OSError.

    `failed` takes the error of a partition whose directory cannot be listed.
    """
    try:
        with os.scandir(root) as entries:
            top = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise LogDirError(error.errno, f"cannot open the log directory: {error.strerror}", str(root)) from error
    for entry in top:
        if not entry.is_dir(follow_symlinks=False):
            yield from _stored(entry, None, "other")
        else:
            topic_partition = parse_partition_dir(entry.name)
            try:
                yield from _list_directory(Path(entry.path), topic_partition, is_gone=entry.name.endswith("-delete"))
            except OSError as error:
                failed(error)


def list_object_root(root: ObjectRoot) -> Iterator[StoredFile]:
    """The objects of a log directory, with each run of a partition as a file. Raises ObjectStoreError."""
    left = {each.key: each.size_bytes for each in root.objects.list_objects("")}
    root.refresh()  # behind the listing, so that it names all that was committed by then
    image = root.store.image
    homes = {each.object_id: each.key or commit_key(each.commit_offset) for each in image.objects}
    for topic in image.topics.values():
        for partition in topic.partitions:
            for file in _partition_objects(topic, partition, homes):
                if file.name in left:
                    left[file.name] = max(left[file.name] - file.size_bytes, 0)
                yield file
    named = {*homes.values(), *_segment_objects(image)}
    dropped = {key for each in image.dropped for key in each.data_keys}
    dropped.update(key for each in image.dropped for segment in each.segments for key in dropped_keys(segment))
    for key, size_bytes in left.items():
        is_data = DataKey.parse(key) is not None or parse_key(key) is not None
        kind = "deleted" if key in dropped else "staged" if is_data and key not in named else "other"
        if size_bytes:
            yield StoredFile(None, key, kind, None, size_bytes, size_bytes)


def list_remote_segments(root: Path) -> Iterator[StoredFile]:
    """The segments that the log directory has copied to remote storage; none for a broker's.

    Raises LogDirError, DiskFormatError if the metadata log cannot be read.
    """
    if not is_native_root(root):
        return
    for topic in LocalMetadataStore.open(root).image.topics.values():
        for partition in topic.partitions:
            for each in partition.segments:
                of = TopicPartition(topic.name, partition.partition)
                yield StoredFile(of, each.segment_id, REMOTE, each.base_offset, each.size_bytes, 0)


def _partition_objects(topic: TopicImage, partition: PartitionImage, homes: Mapping[int, str]) -> Iterator[StoredFile]:
    name = TopicPartition(topic.name, partition.partition)
    of = TopicIdPartition(topic.name, topic.topic_id, partition.partition)
    for each in partition.segments:
        log, indexes, _ = segment_keys(of, each.base_offset, each.segment_id)
        index_bytes = (
            each.offset_index_bytes
            + each.time_index_bytes
            + each.producer_snapshot_bytes
            + each.leader_epoch_index_bytes
            + each.transaction_index_bytes
        )
        yield StoredFile(name, log, "log", each.base_offset, each.size_bytes, each.size_bytes)
        yield StoredFile(name, indexes, "index", each.base_offset, index_bytes, index_bytes)
    rows = partition.runs.table
    columns = (rows[column].tolist() for column in ("base_offset", "object_id", "size_bytes"))
    for base_offset, object_id, size_bytes in zip(*columns, strict=True):
        yield StoredFile(name, homes[object_id], UNMERGED, base_offset, size_bytes, size_bytes)


def _segment_objects(image: MetadataImage) -> Iterator[str]:
    for topic in image.topics.values():
        for partition in topic.partitions:
            of = TopicIdPartition(topic.name, topic.topic_id, partition.partition)
            for each in partition.segments:
                yield from segment_keys(of, each.base_offset, each.segment_id)


def list_partition(directory: Path, topic_partition: TopicPartition) -> Iterator[StoredFile]:
    """The files of one partition. Raises OSError if its directory cannot be listed."""
    for entry in scan(directory):
        if entry.is_file(follow_symlinks=False):
            yield from _stored(entry, topic_partition, _kind(entry.name))


def _list_directory(directory: Path, topic_partition: TopicPartition | None, *, is_gone: bool) -> Iterator[StoredFile]:
    if topic_partition is not None:
        try:
            yield from list_partition(directory, topic_partition)
        except FileNotFoundError:
            return
        return
    for path, _, names in os.walk(directory):
        for name in names:
            try:
                found = os.stat(os.path.join(path, name), follow_symlinks=False)
            except FileNotFoundError:
                continue
            kind = "deleted" if is_gone else "other"
            yield StoredFile(None, name, kind, None, found.st_size, found.st_blocks * _STAT_BLOCK_BYTES)


def _stored(entry: os.DirEntry[str], topic_partition: TopicPartition | None, kind: str) -> Iterator[StoredFile]:
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return
    parsed = parse_segment_file(entry.name)
    base_offset = None if parsed is None or topic_partition is None else parsed[0]
    disk_bytes = found.st_blocks * _STAT_BLOCK_BYTES
    yield StoredFile(topic_partition, entry.name, kind, base_offset, found.st_size, disk_bytes)


def _kind(name: str) -> str:
    return _KIND_BY_SUFFIX.get(name[name.rfind(".") :], "other") if "." in name else "other"


_DELETED: Final = "(deleted)"
_ROOT: Final = "(root)"
_TOTAL: Final = "(total)"
#: The columns that identify a line, and their value for a file.
_GROUPINGS: Final = {
    "topic": ("TOPIC",),
    "partition": ("TOPIC", "PARTITION"),
    "segment": ("TOPIC", "PARTITION", "SEGMENT"),
    "kind": ("KIND",),
}
_NAMES: Final = ("TOPIC", "KIND")
_SIZES: Final = ("FILES", "LOG", "INDEX", "OTHER", "TOTAL", "ON-DISK")


def _add_du(parser: argparse.ArgumentParser) -> None:
    """`--path`, the grouping, the order and the form of the output."""
    add_path(parser)
    parser.add_argument("--by", choices=tuple(_GROUPINGS), default="topic", help="what a line is for (%(default)s)")
    parser.add_argument("--topic", metavar="TOPIC", help="only a topic, or a regular expression of topics")
    parser.add_argument("--sort", choices=("size", "name"), default="size", help="default %(default)s, largest first")
    parser.add_argument("--limit", type=positive, metavar="N", help="only the first N lines, and the total")
    parser.add_argument("--bytes", action="store_true", help="numbers of bytes instead of KiB, MiB, ...")
    add_output(parser, "one object a line, sizes in bytes, the total last")


class _Usage:
    """Sums of sizes. Those of remote segments, whose files may not be here, are apart."""

    __slots__ = ("by_kind", "disk_bytes", "files", "remote_bytes")

    def __init__(self) -> None:
        self.files = 0
        self.disk_bytes = 0
        self.remote_bytes = 0
        self.by_kind = dict.fromkeys(KINDS, 0)

    def add(self, file: StoredFile) -> None:
        if file.kind == REMOTE:
            self.remote_bytes += file.size_bytes
            return
        self.files += 1
        self.disk_bytes += file.disk_bytes
        self.by_kind[file.kind] = self.by_kind.get(file.kind, 0) + file.size_bytes

    @property
    def size_bytes(self) -> int:
        return sum(self.by_kind.values())

    def sizes(self, *, with_remote: bool) -> tuple[int, ...]:
        """The columns LOG to ON-DISK, or to REMOTE."""
        log, index = self.by_kind["log"] + self.by_kind.get(UNMERGED, 0), self.by_kind["index"]
        sizes = (log, index, self.size_bytes - log - index, self.size_bytes, self.disk_bytes)
        return (*sizes, self.remote_bytes) if with_remote else sizes


_UsageName = tuple[Any, ...]


def _run_du(options: argparse.Namespace) -> int:
    """Print the sizes to sys.stdout."""
    failures = Failures("du")
    by_name, total = _add_up(_files(options, failures), options.by)
    names = sorted(by_name, key=_in_order)
    if options.sort == "size":
        names.sort(key=lambda name: (by_name[name].size_bytes, by_name[name].remote_bytes), reverse=True)
    shown = [(name, by_name[name]) for name in names[: options.limit]]
    columns = _GROUPINGS[options.by]
    with_remote = total.remote_bytes > 0
    sizes = (*_SIZES, "REMOTE") if with_remote else _SIZES
    shown.append(((_TOTAL, *[None] * (len(columns) - 1)), total))
    output_of(options).show_all(
        shown,
        lambda each: _usage_tree(columns, *each),
        lambda all_shown: table(
            (*columns, *sizes),
            (
                tuple(_usage_line(name, usage, in_bytes=options.bytes, with_remote=with_remote))
                for name, usage in all_shown
            ),
        ),
        lambda all_shown: _usage_grid(columns, sizes, all_shown, in_bytes=options.bytes, with_remote=with_remote),
    )
    return failures.exit_code


def _files(options: argparse.Namespace, failures: Failures) -> Iterable[StoredFile]:
    files: Iterable[StoredFile]
    if isinstance(options.path, str):
        root = LogDir.open(options.path).root
        files = for_kind(root, lambda root: list_root(root.path, failures.add), list_object_root)
    else:
        paths = split_paths(options.path)
        files = chain.from_iterable(chain(list_root(each, failures.add), list_remote_segments(each)) for each in paths)
    if options.topic is None:
        return files

    pattern = topic_pattern(options.topic)
    return (each for each in files if each.topic_partition is not None and pattern.matches(each.topic_partition.topic))


def _add_up(files: Iterable[StoredFile], by: str) -> tuple[dict[_UsageName, _Usage], _Usage]:
    by_name: dict[_UsageName, _Usage] = {}
    total = _Usage()
    for file in files:
        total.add(file)
        by_name.setdefault(_usage_name(file, by), _Usage()).add(file)
    return by_name, total


def _usage_name(file: StoredFile, by: str) -> _UsageName:
    if by == "kind":
        return (file.kind,)
    topic_partition = file.topic_partition
    if topic_partition is None:
        name: _UsageName = (_DELETED if file.kind == "deleted" else _ROOT, None, None)
    else:
        name = (topic_partition.topic, topic_partition.partition, file.base_offset)
    return name[: len(_GROUPINGS[by])]


def _in_order(name: _UsageName) -> list[tuple[bool, Any]]:
    return [(part is not None, part) for part in name]


def _usage_tree(columns: tuple[str, ...], name: _UsageName, usage: _Usage) -> dict[str, Any]:
    tree: dict[str, Any] = {column.lower(): part for column, part in zip(columns, name, strict=True)}
    tree |= {"files": usage.files, "sizeBytes": usage.size_bytes, "diskBytes": usage.disk_bytes}
    return tree | {"bytesByKind": usage.by_kind} | ({"remoteBytes": usage.remote_bytes} if usage.remote_bytes else {})


def _usage_line(name: _UsageName, usage: _Usage, *, in_bytes: bool, with_remote: bool) -> Iterator[str]:
    yield from (NO_VALUE if part is None else str(part) for part in name)
    yield str(usage.files)
    # Without a blank, so that other programs can split the table at blanks.
    sizes = usage.sizes(with_remote=with_remote)
    yield from (str(size) if in_bytes else size_text(size).replace(" ", "") for size in sizes)


def _usage_grid(
    columns: tuple[str, ...],
    sizes: tuple[str, ...],
    shown: Iterable[tuple[_UsageName, _Usage]],
    *,
    in_bytes: bool,
    with_remote: bool,
) -> Grid:
    """The same lines for people; the total is the last."""
    headings = [Heading(title, is_number=title not in _NAMES) for title in (*columns, *sizes)]
    text = number_text if in_bytes else size_text
    rows = (
        [
            *(NO_VALUE if part is None else str(part) for part in name),
            number_text(usage.files),
            *map(text, usage.sizes(with_remote=with_remote)),
        ]
        for name, usage in shown
    )
    return Grid(headings, rows, has_total=True)


_NO_NODE = -1


def _add_log_dirs(parser: argparse.ArgumentParser) -> None:
    """The options of kafka-log-dirs, `--path` and `--output`."""
    add_path(parser)
    parser.add_argument("--describe", action="store_true", required=True, help="print the sizes of partitions")
    parser.add_argument("--topic-list", default="", metavar="T[,T]", help="only these topics")
    parser.add_argument("--broker-list", default="", metavar="ID[,ID]", help="the node's number, if any is given")
    add_output(parser, "the JSON alone, without the two lines that kafka-log-dirs prints before")


def _run_log_dirs(options: argparse.Namespace) -> int:
    """Print Kafka's JSON to sys.stdout."""
    by_node: dict[int, list[Path | str]] = {}
    paths: Sequence[Path | str] = (options.path,) if isinstance(options.path, str) else split_paths(options.path)
    for directory in paths:
        node_id = node_id_of(LogDir.open(directory).root) if isinstance(directory, str) else node_id_in([directory])
        by_node.setdefault(_NO_NODE if node_id is None else node_id, []).append(directory)
    nodes = _chosen_brokers(options.broker_list, sorted(by_node))
    selected = {name for name in options.topic_list.split(",") if name}
    failures = Failures("log-dirs")
    brokers = [
        {"broker": node, "logDirs": [_log_dir_tree(LogDir.open(each), selected, failures) for each in by_node[node]]}
        for node in nodes
    ]
    tree = {"brokers": brokers, "version": 1}
    output = output_of(options)
    output.text("Querying brokers for log directories information\n")
    output.text(f"Received log directory information from brokers {','.join(map(str, nodes))}\n")
    sys.stdout.write(json_text(tree) + "\n")  # Kafka's JSON in both forms, with its null for no error
    return failures.exit_code


def _chosen_brokers(text: str, nodes: Sequence[int]) -> Sequence[int]:
    """Those of `nodes` that --broker-list names; all if it is empty."""
    asked = [each for each in text.split(",") if each]
    if not all(each.isdecimal() for each in asked):
        raise UsageError(f"--broker-list expects numbers with commas between them, but received: {text}")
    unknown = [each for each in asked if int(each) not in nodes]
    if unknown:
        raise UsageError(
            f"ERROR: The given brokers do not exist from --broker-list: {','.join(unknown)}. "
            f"Current existent brokers: {','.join(map(str, nodes))}"
        )
    return [node for node in nodes if not asked or node in map(int, asked)]


def _log_dir_tree(log_dir: LogDir, selected: Collection[str], failures: Failures) -> dict[str, Any]:
    sizes = for_kind(log_dir.root, lambda _: None, _object_sizes, lambda _: None)
    partitions = []
    for topic in log_dir.topics():
        if selected and topic not in selected:
            continue
        for each in describe_topic(failures, log_dir, topic).partitions:
            with failures.kept(str(each.topic_partition)):
                partitions.append(_size_tree(each, sizes))
    path = log_dir.path
    location = absolute_paths(path) if isinstance(path, Path) else path
    return {"partitions": partitions, "error": None, "logDir": str(location)}


def _object_sizes(root: ObjectRoot) -> dict[TopicPartition, int]:
    from pyspark_kafkalog.maintenance.metrics import object_log_size

    return {
        TopicPartition(topic.name, each.partition): object_log_size(each).size_bytes
        for topic in root.store.image.topics.values()
        for each in topic.partitions
    }


def _size_tree(partition: PartitionSnapshot, sizes: Mapping[TopicPartition, int] | None) -> dict[str, Any]:
    name = TopicPartition(partition.topic, partition.partition)
    size_bytes = _size_bytes(partition, name) if sizes is None else sizes[name]
    return {"partition": str(name), "size": size_bytes, "offsetLag": 0, "isFuture": False}


def _size_bytes(partition: PartitionSnapshot, name: TopicPartition) -> int:
    """Bytes of the segments; of the active one only the committed bytes."""
    try:
        sizes = {
            each.base_offset: each.size_bytes
            for each in list_partition(partition.directory, name)
            if each.base_offset is not None and each.name.endswith(LOG_SUFFIX)
        }
    except FileNotFoundError:
        return 0  # its creator was killed before it created the directory
    if partition.active_size_bytes >= 0:
        sizes = {base: size for base, size in sizes.items() if base < partition.active_base_offset}
        return sum(sizes.values()) + partition.active_size_bytes
    return sum(sizes.values())


COMMANDS: Final = {
    "du": Command(_DU_HELP, _add_du, _run_du),
    "log-dirs": Command(_LOG_DIRS_HELP, _add_log_dirs, _run_log_dirs),
}
