"""The layout `aiven`: that of Aiven's plugin for tiered storage (tiered-storage-for-apache-kafka).

    <prefix><topic>-<topic id>/<partition>/<20 digit start offset>-<segment id>.<suffix>

    .log            the segment in chunks, each perhaps compressed with zstd, then perhaps encrypted
    .indexes        offset, time, producers, leader epochs and transactions, one after the other; each perhaps encrypted
    .rsm-manifest   how to read the other two (aiven_manifest); uploaded last, so that with it the copy is complete

The prefix (the plugin's key.prefix) is put in front as it is, with or without a slash. A segment's custom metadata can
name another prefix or path for `.log` and `.indexes`, as those that the plugin has written are.

Source: io.aiven.kafka.tieredstorage.ObjectKeyFactory, KafkaRemoteStorageManager and SegmentCustomMetadataSerde.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import ClassVar, Final

from pyspark_kafkalog.errors import CorruptRecordError, KafkalogError
from pyspark_kafkalog.metadata.messages.schema import MessageReader
from pyspark_kafkalog.object_store.store import ByteRange, ObjectMetadata, ObjectNotFoundError, check_key
from pyspark_kafkalog.storage.names import offset_file_name, parse_partition_dir
from pyspark_kafkalog.tiered.aiven_manifest import MANIFEST_BYTES_MAX, Decrypt, Manifest, decryption, parse_manifest
from pyspark_kafkalog.tiered.local_layout import PlainLog
from pyspark_kafkalog.tiered.objects import (
    INDEX_BYTES_MAX,
    WINDOW_BYTES,
    Copy,
    IndexBytes,
    IndexKind,
    LogContent,
    ReadableObjects,
    Window,
    for_each,
    object_name,
    process_cache,
    read_range,
    wrong_bytes,
)
from pyspark_kafkalog.tiered.segments import UUID_CHARS, RemoteSegment, TopicIdPartition, is_uuid
from pyspark_kafkalog.units import INT32_MAX, INT64_MAX, content_text
from pyspark_kafkalog.values import dataclass

LOG: Final = ".log"
INDEXES: Final = ".indexes"
MANIFEST: Final = ".rsm-manifest"
_SUFFIXES: Final = frozenset((LOG, INDEXES, MANIFEST))
_KEY: Final = re.compile(
    rf"(?P<topic>.+)-(?P<id>.{{{UUID_CHARS}}})/(?P<partition>[0-9]{{1,10}})/"
    rf"(?P<offset>[0-9]{{20}})-(?P<segment>.{{{UUID_CHARS}}})(?P<suffix>\.log|\.indexes|\.rsm-manifest)"
)
_PREFIX_TAG, _PATH_TAG = 1, 2


@dataclass(frozen=True, slots=True)
class SegmentKey:
    """The key of a segment's object, in its parts."""

    partition: TopicIdPartition
    start_offset: int
    segment_id: str
    suffix: str


@dataclass(frozen=True, slots=True)
class AivenLayout:
    """`prefix`: the plugin's key.prefix, without `base`, the folder of the bucket that the store is.

    `key_files`: paths of PEM files with private keys, by key id (aiven_encryption.ANY_KEY: for every key).
    """

    prefix: str = ""
    base: str = ""
    key_files: tuple[tuple[str, str], ...] = ()
    name: str = "aiven"
    keeps_indexes: ClassVar[bool] = False

    def log_content(self, store: ReadableObjects, of: TopicIdPartition, segment: RemoteSegment) -> LogContent:
        manifest = self._manifest(store, self._path(of, segment) + MANIFEST)
        key = self._data_path(store, of, segment) + LOG
        if segment.size_bytes != manifest.chunks.size_bytes:
            wrong_bytes(
                object_name(store, self._path(of, segment) + MANIFEST),
                0,
                f"originalFileSize: {segment.size_bytes}, as the segment's metadata say",
                str(manifest.chunks.size_bytes),
            )
        if manifest.is_plain:
            return PlainLog(store, key, manifest.chunks.size_bytes)
        return ChunkedLog(store, key, manifest, self._decrypt(store, of, segment, manifest))

    def index(
        self, store: ReadableObjects, of: TopicIdPartition, segment: RemoteSegment, kind: IndexKind
    ) -> IndexBytes | None:
        manifest = self._manifest(store, self._path(of, segment) + MANIFEST)
        place = manifest.indexes.get(kind)
        if place is None:
            return None
        key = self._data_path(store, of, segment) + INDEXES
        name = f"{object_name(store, key)} ({kind.value})"
        position, size_bytes = place
        if size_bytes == 0:
            return IndexBytes(name, b"")
        if size_bytes > INDEX_BYTES_MAX:
            wrong_bytes(name, position, f"an index of at most {INDEX_BYTES_MAX} bytes", f"{size_bytes} bytes")
        data = read_range(store, key, ByteRange(position, size_bytes))
        decrypt = self._decrypt(store, of, segment, manifest)
        return IndexBytes(name, data if decrypt is None else decrypt(memoryview(data), name, position))

    def partitions(self, store: ReadableObjects) -> dict[TopicIdPartition, list[ObjectMetadata]]:
        found: dict[TopicIdPartition, list[ObjectMetadata]] = defaultdict(list)
        for each in store.list_objects(self.prefix.rpartition("/")[0]):
            key = self.parse(each.key)
            if key is not None:
                found[key.partition].append(each)
        return dict(found)

    def objects_of(self, store: ReadableObjects, of: TopicIdPartition) -> list[ObjectMetadata]:
        return list(store.list_objects(self._folder(of)))

    @property
    def required(self) -> frozenset[str]:
        return _SUFFIXES

    def copies(self, objects: Sequence[ObjectMetadata]) -> dict[Copy, dict[str, int]]:
        copies: dict[Copy, dict[str, int]] = defaultdict(dict)
        for each in objects:
            key = self.parse(each.key)
            if key is not None:
                copies[key.start_offset, key.segment_id][key.suffix] = each.size_bytes
        return dict(copies)

    def segments(
        self, store: ReadableObjects, of: TopicIdPartition, objects: Sequence[ObjectMetadata]
    ) -> list[RemoteSegment]:
        whole = sorted(copy for copy, sizes in self.copies(objects).items() if self.required.issubset(sizes))
        return for_each(lambda copy: self._segment(store, of, *copy), whole)

    def parse(self, key: str) -> SegmentKey | None:
        """The parts of a key of this layout, None for any other key."""
        return parse_key(key.removeprefix(self.prefix)) if key.startswith(self.prefix) else None

    def _segment(
        self, store: ReadableObjects, of: TopicIdPartition, start_offset: int, segment_id: str
    ) -> RemoteSegment | None:
        """The segment as its manifest describes it; None if it is deleted meanwhile."""
        key = f"{self._folder(of)}/{offset_file_name(start_offset, f'-{segment_id}{MANIFEST}')}"
        try:
            manifest = self._manifest(store, key)
        except ObjectNotFoundError:
            return None
        segment = manifest.segment
        described = None if segment is None else (manifest.partition, segment.start_offset, segment.segment_id)
        if segment is None or described != (of, start_offset, segment_id):
            wrong_bytes(object_name(store, key), 0, f"remoteLogSegmentMetadata of {segment_id} of {of}", f"{described}")
        return segment

    def _manifest(self, store: ReadableObjects, key: str) -> Manifest:
        def load() -> tuple[Manifest, int]:
            data = store.get(key, max_bytes=MANIFEST_BYTES_MAX)
            manifest = parse_manifest(data, name=object_name(store, key))
            return manifest, 1000 + manifest.chunks.positions.nbytes

        manifest: Manifest = process_cache().get((store.url, key), load)
        return manifest

    def _decrypt(
        self, store: ReadableObjects, of: TopicIdPartition, segment: RemoteSegment, manifest: Manifest
    ) -> Decrypt | None:
        if manifest.encryption is None:
            return None
        name = object_name(store, self._path(of, segment) + MANIFEST)
        return decryption(manifest.encryption, dict(self.key_files), name=name)

    def _folder(self, of: TopicIdPartition) -> str:
        return check_key(f"{self.prefix}{of.topic}-{of.topic_id}/{of.partition}")

    def _path(self, of: TopicIdPartition, segment: RemoteSegment) -> str:
        """The key of the segment's objects without suffix."""
        return f"{self._folder(of)}/{offset_file_name(segment.start_offset, f'-{segment.segment_id}')}"

    def _data_path(self, store: ReadableObjects, of: TopicIdPartition, segment: RemoteSegment) -> str:
        """As `_path`, for `.log` and `.indexes`: by the custom metadata, if they say.

        Raises CorruptRecordError for custom metadata that are damaged, or name a place outside of the store.
        """
        path = self._path(of, segment)
        if not segment.custom_metadata:
            return path
        what = f"custom metadata of segment {segment.segment_id} of {of}"
        fields = _tagged_fields(segment.custom_metadata, what)
        if not fields.keys() & {_PREFIX_TAG, _PATH_TAG}:
            return path
        own_base = f"{self.base}/" if self.base else ""
        prefix = _text(fields[_PREFIX_TAG], what) if _PREFIX_TAG in fields else own_base + self.prefix
        main = _text(fields[_PATH_TAG], what) if _PATH_TAG in fields else path.removeprefix(self.prefix)
        found = prefix + main
        try:
            return check_key(found.removeprefix(own_base) if found.startswith(own_base) else "")
        except ValueError:
            raise CorruptRecordError(
                file=what,
                position=0,
                expected=f"a key in {store.url}",
                found=content_text(found),
                advice="name a bucket and prefix as remote storage that all segments are below",
            ) from None


def parse_key(key: str) -> SegmentKey | None:
    """The parts of a key without prefix, None for any other key."""
    match = _KEY.fullmatch(key)
    if match is None or not is_uuid(match["id"]) or not is_uuid(match["segment"]):
        return None
    of = parse_partition_dir(f"{match['topic']}-{match['partition']}")
    if of is None or of.partition > INT32_MAX or int(match["offset"]) > INT64_MAX:
        return None
    partition = TopicIdPartition(of.topic, match["id"], of.partition)
    return SegmentKey(partition, int(match["offset"]), match["segment"], match["suffix"])


def find_prefix(store: ReadableObjects, key: str) -> str:
    """The plugin's key.prefix in the key of a manifest, as the manifest names topic and id. Raises DiskFormatError."""
    manifest = parse_manifest(store.get(key, max_bytes=MANIFEST_BYTES_MAX), name=object_name(store, key))
    if manifest.partition is None:
        return ""
    folder = f"{manifest.partition.topic}-{manifest.partition.topic_id}/"
    before, found, _ = key.rpartition(folder)
    return before if found else ""


def _tagged_fields(data: bytes, what: str) -> dict[int, bytes]:
    """Kafka's tagged fields. Raises CorruptRecordError."""
    reader = MessageReader(data, file=what)
    fields = {}
    for _ in range(reader.unsigned_varint("the number of fields")):
        tag = reader.unsigned_varint("a tag")
        fields[tag] = reader.take(reader.unsigned_varint("a size"), "a field")
    return fields


def _text(field: bytes, what: str) -> str:
    """A compact string. Raises CorruptRecordError."""
    reader = MessageReader(field, file=what)
    size = reader.unsigned_varint("a length") - 1
    try:
        return reader.take(size, "a text").decode()
    except UnicodeDecodeError:
        raise reader.error(expected="a text in UTF-8", found="other bytes") from None


@dataclass(frozen=True, slots=True)
class ChunkedLog:
    """A LogContent whose object holds compressed or encrypted chunks."""

    store: ReadableObjects
    key: str
    manifest: Manifest
    decrypt: Decrypt | None

    @property
    def name(self) -> str:
        return object_name(self.store, self.key)

    @property
    def size_bytes(self) -> int:
        return self.manifest.chunks.size_bytes

    def window_end(self, start: int) -> int:
        """The end of the chunk that holds the last byte of a window from `start` on."""
        chunk_bytes = self.manifest.chunks.chunk_bytes
        return min(-(-(start + WINDOW_BYTES) // chunk_bytes) * chunk_bytes, self.size_bytes)

    def window(self, start: int, end: int) -> Window:
        """The chunks that hold the bytes [start, end), by one request."""
        chunks = self.manifest.chunks
        first, last = start // chunks.chunk_bytes, (end - 1) // chunks.chunk_bytes
        begin, after = int(chunks.positions[first]), int(chunks.positions[last + 1])
        stored = memoryview(read_range(self.store, self.key, ByteRange(begin, after - begin)))
        parts = []
        for number in range(first, last + 1):
            position = int(chunks.positions[number])
            size_bytes = min(chunks.chunk_bytes, chunks.size_bytes - number * chunks.chunk_bytes)
            chunk = stored[position - begin : int(chunks.positions[number + 1]) - begin]
            parts.append(self._original(chunk, position, size_bytes))
        return Window(first * chunks.chunk_bytes, memoryview(parts[0] if len(parts) == 1 else b"".join(parts)))

    def _original(self, chunk: memoryview, position: int, size_bytes: int) -> bytes:
        """The chunk's bytes of the `.log`, of which there must be `size_bytes`."""
        data = bytes(chunk) if self.decrypt is None else self.decrypt(chunk, self.name, position)
        if self.manifest.is_compressed:
            data = self._decompressed(data, position, size_bytes)
        if len(data) != size_bytes:
            wrong_bytes(self.name, position, f"a chunk of {size_bytes} bytes of the segment", f"{len(data)} bytes")
        return data

    def _decompressed(self, data: bytes, position: int, size_bytes: int) -> bytes:
        import numpy as np

        from pyspark_kafkalog.record.codecs.zstd import decompress  # loads zstandard

        try:
            return decompress(np.frombuffer(data, np.uint8), size_bytes).tobytes()
        except KafkalogError as error:
            wrong_bytes(self.name, position, f"a chunk of {size_bytes} bytes, compressed with zstd", str(error))
