"""`OwnStorage`: where a root on a file system copies its closed segments to, by the root's broker-level configurations.

    rsm.config.location   URL of a place in an object store, or absolute path of a directory that all machines see
    rsm.config.layout     the layout of the objects (own_layouts.py)

The configurations are in the commit log, like all others; they hold no credentials. Those come from the environment of
each process, or from the store options with which the root was opened.

An `OwnRemoteLog` is what of one partition is there. The image names the segments (metadata/image.PartitionImage), so
that nothing is listed, and a plan carries what its tasks read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from pyspark_kafkalog.config.broker import BrokerConfig
from pyspark_kafkalog.errors import InvalidConfigError, InvalidOptionError
from pyspark_kafkalog.metadata.image import PartitionImage, TopicImage
from pyspark_kafkalog.metadata.messages.metadata_records import DroppedSegment, SegmentObject
from pyspark_kafkalog.object_store.location import ObjectLocation, parse_location
from pyspark_kafkalog.object_store.settings import StoreSettings, store_settings
from pyspark_kafkalog.tiered.objects import SegmentStore
from pyspark_kafkalog.tiered.own_layouts import OwnLayout, dropped_keys, segment_keys
from pyspark_kafkalog.tiered.own_segments import SegmentObjectExtent
from pyspark_kafkalog.tiered.remote_storage import open_objects
from pyspark_kafkalog.tiered.segments import TopicIdPartition

LOCATION_CONFIG: Final = "rsm.config.location"
LAYOUT_CONFIG: Final = "rsm.config.layout"

#: Segments with transaction indexes behind a task's range that travel with its plan.
_LATER_SEGMENTS_MAX: Final = 64
_NEVER_COPIED: Final = -1


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
        place = _parse(config.rsm_config_location)
        layout = OwnLayout(config.rsm_config_layout)
        if isinstance(place, Path):
            return OwnStorage(str(place), layout)
        return OwnStorage(place.url, layout, store_settings(place, store_options, hadoop=store_options))

    def store(self) -> SegmentStore:
        """The store, opened once a process. Makes no request."""
        return open_objects(self.location, self.settings)

    def extent(self, of: TopicIdPartition, segment: SegmentObject) -> SegmentObjectExtent:
        """A segment there, to be read."""
        return SegmentObjectExtent(self.store(), of, segment, self.layout)

    def keys(self, of: TopicIdPartition, segment: SegmentObject) -> tuple[str, ...]:
        """The keys of all objects that the segment can have."""
        return segment_keys(of, segment.base_offset, segment.segment_id, self.layout)

    def dropped_keys(self, dropped: DroppedSegment) -> tuple[str, ...]:
        """The keys of all objects that a dropped segment can have."""
        return dropped_keys(dropped, self.layout)


@dataclass(frozen=True, slots=True)
class OwnRemoteLog:
    """A RemoteLog of segments that the root has copied, as of one image."""

    storage: OwnStorage
    partition: TopicIdPartition
    segments: tuple[SegmentObject, ...]
    highest_offset: int
    known_end_offset: int
    is_whole: bool = True

    @staticmethod
    def of(storage: OwnStorage, topic: TopicImage, partition: PartitionImage) -> OwnRemoteLog:
        """The remote part of a partition; what begins at the local log start is local."""
        segments = partition.segments
        end_offset = segments[-1].end_offset if segments else 0
        return OwnRemoteLog(
            storage,
            TopicIdPartition(topic.name, topic.topic_id, partition.partition),
            segments,
            end_offset - 1 if segments else _NEVER_COPIED,
            max(end_offset, partition.state.local_log_start_offset),
        )

    @property
    def location(self) -> str:
        return self.storage.location

    def extents_below(self, offset: int) -> list[SegmentObjectExtent]:
        return [self.storage.extent(self.partition, each) for each in self.segments if each.base_offset < offset]

    def part(self, start_offset: int, end_offset: int, *, committed: bool) -> OwnRemoteLog:
        inside = tuple(
            each for each in self.segments if each.end_offset > start_offset and each.base_offset < end_offset
        )
        later = [each for each in self.segments if each.base_offset >= end_offset and each.transaction_index_bytes]
        kept = later[:_LATER_SEGMENTS_MAX] if committed else []
        return replace(self, segments=(*inside, *kept), is_whole=not committed or len(kept) == len(later))


def check_location(text: str) -> None:
    """Raise InvalidConfigError unless `text` can be rsm.config.location."""
    _parse(text)


def check_outside(text: str, root: Path) -> None:
    """Raise InvalidConfigError if the location is in the log directory `root`, or the other way round."""
    place = _parse(text) if text else None
    if not isinstance(place, Path):
        return
    place, root = place.resolve(), root.resolve()
    if place == root or place in root.parents or root in place.parents:
        raise InvalidConfigError(
            f"{LOCATION_CONFIG}={text} is not allowed: expected a directory of its own, outside of the log directory "
            f"{root}"
        )


def _parse(text: str) -> Path | ObjectLocation:
    try:
        place = parse_location(text)
    except InvalidOptionError as error:
        raise InvalidConfigError(f"{LOCATION_CONFIG} is not allowed: {error}") from None
    if isinstance(place, Path) and (not place.is_absolute() or ".." in place.parts):
        raise InvalidConfigError(
            f"{LOCATION_CONFIG}={text} is not allowed: expected a URL, or an absolute path without '..'"
        )
    return place
