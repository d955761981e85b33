"""Where segments in a store are: the storage of brokers, and that of a root which copies its own segments.

`RemoteStorage` is the store that brokers copied segments to, with the layout of its objects, which is found by looking
at some objects if the user has not named it. `OwnStorage` is where a root on a file system copies its closed segments
to, by the root's broker-level configurations (own_location.py).

The configurations are in the commit log, like all others; they hold no credentials. Those come from the environment of
each process, or from the store options with which the root was opened. Both storages are small records that travel to
tasks; each process opens the store once, after its fork.

The image names the segments of a partition in the own storage (metadata/image.PartitionImage), so that nothing is
listed, and a plan carries what its tasks read.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.metadata.image import PartitionImage, TopicImage
from pyspark_kafkalog.metadata.messages.metadata_records import DroppedSegment, SegmentObject
from pyspark_kafkalog.object_store.client import open_store
from pyspark_kafkalog.object_store.location import parse_location
from pyspark_kafkalog.object_store.settings import StoreSettings, store_settings
from pyspark_kafkalog.tiered.aiven_layout import MANIFEST, AivenLayout, find_prefix, parse_key
from pyspark_kafkalog.tiered.local_layout import FOLDER, LocalLayout, parse_file, parse_folder
from pyspark_kafkalog.tiered.objects import DirectoryObjects, ReadableObjects, SegmentLayout, SegmentStore
from pyspark_kafkalog.tiered.own_location import check_permitted, parse_own_location
from pyspark_kafkalog.tiered.own_segments import OwnLayout, dropped_keys, segment_keys
from pyspark_kafkalog.tiered.remote_log import RemoteExtent, RemoteLog, has_transaction_index
from pyspark_kafkalog.tiered.segments import TopicIdPartition
from pyspark_kafkalog.values import dataclass

LAYOUTS: Final = ("local", "aiven")
_LOOKED_AT_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class RemoteStorage:
    """Where remote segments are: `location` is an absolute path or a URL, `settings` are those of an object store."""

    location: str
    layout: SegmentLayout
    settings: StoreSettings | None = None

    def store(self) -> ReadableObjects:
        """The store, opened once a process."""
        return open_objects(self.location, self.settings)


@dataclass(frozen=True, slots=True)
class RemoteStorageOption:
    """What the user gave: a path or URL, and a layout (one of LAYOUTS) or None to find it.

    `key_files`: paths of PEM files with private keys, by key id ("" for every key); for encrypted segments.
    """

    location: str
    layout: str | None = None
    settings: StoreSettings | None = None
    key_files: tuple[tuple[str, str], ...] = ()

    def without_objects(self) -> RemoteStorage:
        """The storage as long as it holds no segments: then its layout is of no importance."""
        return RemoteStorage(self.location, LocalLayout(), self.settings)

    def find(self) -> RemoteStorage:
        """The storage with its layout. Raises InvalidOptionError if the layout cannot be found, ObjectStoreError."""
        store = open_objects(self.location, self.settings)
        place = parse_location(self.location)
        found = _layout_of(store, self.layout, "" if isinstance(place, Path) else place.prefix, self.key_files)
        if found is None:
            raise InvalidOptionError(
                f"{self.location} holds no remote log segments"
                f"{'' if self.layout is None else f' in the layout {self.layout}'}: expected "
                f"[{FOLDER}/]<topic>-<partition>-<topic id>/<offset>-<segment id>.log (local) or "
                "<topic>-<topic id>/<partition>/<offset>-<segment id>.rsm-manifest (aiven); name the directory or the "
                "bucket and prefix that the broker writes to"
            )
        return RemoteStorage(self.location, found, self.settings)


def parse_remote_storage(
    location: str,
    layout: str | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
    *,
    key_files: str | None = None,
) -> RemoteStorageOption:
    """The option of a path or URL. `options` may hold those of an object store (object_store.settings).

    `key_files` is a comma-separated list of <key id>:<path>, or the one path of all keys.

    Raises InvalidOptionError.
    """
    if layout is not None and layout not in LAYOUTS:
        raise InvalidOptionError(f"the layout of remote storage must be one of {', '.join(LAYOUTS)}, not {layout!r}")
    place = parse_location(location)
    if isinstance(place, Path):
        return RemoteStorageOption(str(place.absolute()), layout, key_files=_key_files(key_files))
    return RemoteStorageOption(place.url, layout, store_settings(place, options, hadoop=options), _key_files(key_files))


def _key_files(text: str | None) -> tuple[tuple[str, str], ...]:
    """The paths by key id, absolute: tasks run in other working directories."""
    found = []
    for each in () if text is None else text.split(","):
        key_id, colon, path = each.strip().rpartition(":")
        if not path or (colon and not key_id):
            raise InvalidOptionError(f"expected <key id>:<path of a PEM file>[,...], found {text!r}")
        found.append((key_id, str(Path(path).absolute())))
    return tuple(found)


def open_objects(location: str, settings: StoreSettings | None) -> SegmentStore:
    """The store at a path or URL, one for each process. Makes no request."""
    place = parse_location(location)
    if isinstance(place, Path):
        return DirectoryObjects(place)
    return open_store(place, settings)


def _layout_of(
    store: ReadableObjects, wanted: str | None, base: str, key_files: tuple[tuple[str, str], ...]
) -> SegmentLayout | None:
    """The layout of the first object that is one of a whole segment."""
    for each in islice(store.list_objects(""), _LOOKED_AT_MAX):
        parts = each.key.split("/")
        if wanted in (None, "local") and len(parts) >= 2 and parse_file(parts[-1]) and parse_folder(parts[-2]):
            return LocalLayout("/".join(parts[:-2]))
        if wanted in (None, "aiven") and each.key.endswith(MANIFEST) and parse_key("/".join(parts[-3:])):
            return AivenLayout(find_prefix(store, each.key), base, key_files)
    return None


@dataclass(frozen=True, slots=True)
class OwnStorage:
    """`location` is an absolute path or a URL; `settings` are those of an object store. Can be pickled."""

    location: str
    layout: OwnLayout
    settings: StoreSettings | None = None

    @staticmethod
    def of(config: BrokerConfig, store_options: Mapping[str, str]) -> OwnStorage | None:
        """The storage of a root with these configurations; None without a location.

        Raises InvalidConfigError for a location that is none, InvalidOptionError for wrong store options.
        """
        if not config.rsm_config_location:
            return None
        place = parse_own_location(config.rsm_config_location)
        layout = OwnLayout(config.rsm_config_layout)
        if isinstance(place, Path):
            return OwnStorage(str(place), layout)
        return OwnStorage(place.url, layout, store_settings(place, store_options, hadoop=store_options))

    def store(self) -> SegmentStore:
        """The store, opened once a process. Makes no request.

        Raises InvalidConfigError if the machine's settings do not permit the place.
        """
        check_permitted(self.location)
        return open_objects(self.location, self.settings)

    def extent(self, of: TopicIdPartition, segment: SegmentObject) -> RemoteExtent[SegmentObject]:
        """A segment there, to be read."""
        return RemoteExtent(self.store(), of, segment, self.layout)

    def keys(self, of: TopicIdPartition, segment: SegmentObject) -> tuple[str, ...]:
        """The keys of all objects that the segment can have."""
        return segment_keys(of, segment.base_offset, segment.segment_id, self.layout)

    def dropped_keys(self, dropped: DroppedSegment) -> tuple[str, ...]:
        """The keys of all objects that a dropped segment can have."""
        return dropped_keys(dropped, self.layout)


def own_remote_log(storage: OwnStorage, topic: TopicImage, partition: PartitionImage) -> RemoteLog:
    """The segments that a root has copied, as of one image; what begins at the local log start is local."""
    segments = partition.segments
    end_offset = segments[-1].end_offset if segments else 0
    return RemoteLog(
        segments=segments,
        indexed=tuple(filter(has_transaction_index, segments)),
        storage=storage,
        partition=TopicIdPartition(topic.name, topic.topic_id, partition.partition),
        highest_offset=end_offset - 1,
        known_end_offset=max(end_offset, partition.state.local_log_start_offset),
    )
