"""The snapshots of an object root: objects, and the pointer to the newest.

    __cluster_metadata-0/kafkalog-newest-snapshot      file name, a blank, size in bytes, a line end

A snapshot is created under its name, the pointer is put after that. A crash in between leaves the pointer to the
previous one, which costs reading more commits.
"""

from __future__ import annotations

import re
from typing import Final

from pyspark_kafkalog.metadata.commit_log import LEADER_EPOCH, KnownSnapshot
from pyspark_kafkalog.metadata.image import MetadataImage, image_records
from pyspark_kafkalog.metadata.objects.boundary import Boundary
from pyspark_kafkalog.metadata.objects.layout import (
    metadata_key,
    name_of,
    parse_snapshot_key,
    read_if_there,
    snapshot_key,
)
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.metadata.snapshots import (
    MAX_SNAPSHOT_BYTES,
    POINTER_FILE,
    Snapshot,
    SnapshotId,
    Snapshots,
    decode_snapshot,
    encode_snapshot,
    is_native,
)
from pyspark_kafkalog.object_store.store import ObjectExistsError, ObjectStore

POINTER_KEY: Final = metadata_key(POINTER_FILE)

_POINTER: Final = re.compile(r"(\S+) ([0-9]{1,12})\n")


class ObjectSnapshots(Snapshots):
    """The snapshots in `store`, down to the boundary of its commits."""

    def __init__(self, store: ObjectStore, boundary: Boundary) -> None:
        self._store = store
        self._boundary = boundary

    @property
    def location(self) -> str:
        return f"{self._store.url}/{METADATA_DIR}"

    def name_of(self, end_offset: int) -> str:
        return name_of(self._store, snapshot_key(SnapshotId(end_offset, LEADER_EPOCH)))

    def pointed_to(self) -> SnapshotId | None:
        pointed = self.pointed_to_with_size()
        return None if pointed is None or pointed[0].end_offset < self._boundary.offset else pointed[0]

    def pointed_to_with_size(self) -> tuple[SnapshotId, int] | None:
        data = read_if_there(self._store, POINTER_KEY)
        if data is None:
            return None
        match = _POINTER.fullmatch(data.decode("ascii", errors="replace"))
        snapshot = None if match is None else SnapshotId.parse(match[1])
        return None if match is None or snapshot is None or not is_native(snapshot) else (snapshot, int(match[2]))

    def listed(self) -> list[SnapshotId]:
        found = (parse_snapshot_key(each.key) for each in self._store.list_objects(METADATA_DIR))
        return sorted(each for each in found if each is not None and is_native(each))

    def read(self, end_offset: int) -> Snapshot:
        key = snapshot_key(SnapshotId(end_offset, LEADER_EPOCH))
        return decode_snapshot(self._store.get(key, max_bytes=MAX_SNAPSHOT_BYTES), self.name_of(end_offset))

    def write(self, image: MetadataImage) -> KnownSnapshot:
        """Write the snapshot of `image` and set the pointer to it, unless it exists. Raises ObjectStoreError."""
        snapshot = SnapshotId(image.next_offset, LEADER_EPOCH)
        data = b"".join(
            encode_snapshot(
                image_records(image), last_contained_timestamp_ms=image.last_timestamp_ms, epoch=LEADER_EPOCH
            )
        )
        try:
            self._store.create(snapshot_key(snapshot), data)
        except ObjectExistsError:
            return KnownSnapshot(image.next_offset, len(data), image.last_timestamp_ms, is_sound=False)
        self._store.put(POINTER_KEY, f"{snapshot.file_name} {len(data)}\n".encode("ascii"))
        return KnownSnapshot(image.next_offset, len(data), image.last_timestamp_ms, is_sound=True)
