"""Deletes objects that are not needed any more: what commits have dropped, and what was never committed.

The objects are those of an object root, or what a root on a file system has in remote storage.

*Dropped objects.* A merge replaces objects, retention and the deletion of a topic drop them, and so does switching off
the remote storage of one; the image lists them by the commit that did it. After file.delete.delay.ms they are deleted,
those of earlier commits first, then a commit says so. Two clean-ups at once, or one that was killed in between, delete
the same objects again, which changes nothing.

*Orphans* are objects of writes, merges and copies that were abandoned: no commit names them. Their keys tell when they
were planned, as an offset of the metadata log. A commit sets the staging horizon, behind the commit that set it last,
if that was at least staging.retention.ms ago; what was planned below the horizon can never be committed afterwards
(metadata/invariants.py). So an object that was planned below it and that the image does not name is deleted. That
happens after one to two times staging.retention.ms, if a clean-up runs that often. No clock decides about data: a wrong
one makes writes expire early, which fail then.

Remote storage may be shared with other roots and with brokers. So only segments of topics that the image knows, by
their ids, are orphans there. Those of a deleted topic are deleted with what its deletion has dropped: no commit can
name them any more. If nothing of it was ever committed, what a killed copy has left stays, and verify finds it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.metadata.extents import planned_at_of
from pyspark_kafkalog.metadata.image import MetadataImage, StagingHorizon, broker_configs
from pyspark_kafkalog.metadata.messages.metadata_records import (
    DroppedObjectsRecord,
    MetadataRecord,
    ObjectsDeletedRecord,
    StagingHorizonRecord,
)
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.metadata.store import Build, MetadataStore
from pyspark_kafkalog.object_store.retries import is_old_probe
from pyspark_kafkalog.object_store.store import ObjectMetadata
from pyspark_kafkalog.root.admin import broker_config
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.kinds import for_kind
from pyspark_kafkalog.root.object_root import ObjectRoot
from pyspark_kafkalog.storage.objects.data_object import DataKey
from pyspark_kafkalog.storage.objects.spool import remove_abandoned
from pyspark_kafkalog.tiered.objects import SegmentStore
from pyspark_kafkalog.tiered.own_segments import OwnLayout, dropped_keys, parse_key
from pyspark_kafkalog.units import HOUR_MS

_LOG: Final = logging.getLogger(__name__)

OPERATION: Final = "clean-up"
_DELETED_AT_ONCE: Final = 1000
_DELETE_DELAY: Final = "log.segment.delete.delay.ms"
_TOPIC_DELAY: Final = "file.delete.delay.ms"


@dataclass(frozen=True, slots=True)
class CleanedUp:
    """The number of objects that were deleted, and bytes of orphans among them."""

    dropped_count: int
    orphans_count: int
    orphans_bytes: int


def clean_up(
    metadata: MetadataStore,
    objects: SegmentStore,
    *,
    commit: Callable[[Build], object] | None = None,
    layout: OwnLayout = OwnLayout.AIVEN,
    delay_ms: Callable[[MetadataImage, DroppedObjectsRecord], int],
    staging_retention_ms: int,
    clock: Callable[[], int],
) -> CleanedUp:
    """Delete dropped objects and orphans. Lists all objects in the store. Raises ObjectStoreError, KafkalogError.

    `delay_ms` is how long the objects that a commit has dropped remain. `commit` keeps other writers away if they have
    to be; by default it is that of `metadata`.
    """
    commit = partial(metadata.commit, operation=OPERATION) if commit is None else commit
    commit(partial(_moved_horizon, clock() - staging_retention_ms))
    image = metadata.image
    # In the order of the commits: that those below an offset are deleted is all that the image can say.
    now_ms = clock()
    due = list(takewhile(lambda each: each.timestamp_ms <= now_ms - delay_ms(image, each), image.dropped))
    dropped = _dropped(image, due, layout)
    if dropped:
        objects.delete(dropped)
    gone = {segment.topic_id for each in due for segment in each.segments} - image.topic_names.keys()
    orphans_count = orphans_bytes = 0
    found: list[ObjectMetadata] = []
    for each in orphans(image, objects, layout, gone_topic_ids=gone, now_ms=now_ms):
        found.append(each)
        if len(found) == _DELETED_AT_ONCE:
            objects.delete([orphan.key for orphan in found])
            found = []
        orphans_count += 1
        orphans_bytes += each.size_bytes
    if found:
        objects.delete([orphan.key for orphan in found])
    if due:
        commit(partial(_forgotten, due[-1].commit_offset + 1))
    return CleanedUp(len(dropped), orphans_count, orphans_bytes)


def _dropped(image: MetadataImage, due: Sequence[DroppedObjectsRecord], layout: OwnLayout) -> list[str]:
    """The keys of the objects that the commits `due` have dropped, without those that the image still needs.

    A log that was not written by this package could name the same object twice.
    """
    if not due:
        return []
    needed = {each.key for each in image.objects}
    segments = _segment_ids(image)
    keys = [key for each in due for key in each.data_keys if key not in needed]
    for each in due:
        for segment in each.segments:
            if segment.segment_id not in segments:
                keys += dropped_keys(segment, layout)
    return keys


def _segment_ids(image: MetadataImage) -> set[str]:
    """The ids of all segments that partitions consist of."""
    return {
        segment.segment_id
        for topic in image.topics.values()
        for partition in topic.partitions
        for segment in partition.segments
    }


def _forgotten(below: int, image: MetadataImage) -> list[MetadataRecord]:
    """The record that what was dropped below that metadata offset does not exist any more."""
    is_left = any(each.commit_offset < below for each in image.dropped)
    return [ObjectsDeletedRecord(dropped_below=below)] if is_left else []


def _moved_horizon(until_ms: int, image: MetadataImage) -> list[MetadataRecord]:
    """Lets expire what was planned before the last time this was done, if that was until `until_ms`."""
    last = image.staging_horizon
    if last != StagingHorizon() and last.timestamp_ms > until_ms:
        return []
    return [StagingHorizonRecord(horizon_offset=last.commit_offset + 1)]


@dataclass(frozen=True, slots=True)
class Unnamed:
    """An object that no commit names. It was planned at the metadata offset `planned_at`, for the topic `topic_id`.

    `planned_at` None: it is neither a data object nor one of a segment. `topic_id` None: it is not one of a segment.
    """

    found: ObjectMetadata
    planned_at: int | None = None
    topic_id: str | None = None


def unnamed(image: MetadataImage, listed: Iterable[ObjectMetadata], layout: OwnLayout) -> Iterator[Unnamed]:
    """Those of the `listed` objects of a store, without the commit log, that `image` does not name.

    What a commit has dropped is named until it is deleted. In remote storage, objects with other keys than those of
    segments are left out, and segments of topics that `image` does not know.
    """
    named = {each.key for each in image.objects}
    named.update(key for each in image.dropped for key in each.data_keys)
    segments = _segment_ids(image)
    segments.update(segment.segment_id for each in image.dropped for segment in each.segments)
    topic_ids = {*image.topic_names, *(segment.topic_id for each in image.dropped for segment in each.segments)}
    owns_store = image.format.in_object_store
    for each in listed:
        if each.key.startswith(f"{METADATA_DIR}/") or each.key in named:
            continue
        data, segment = DataKey.parse(each.key), parse_key(each.key, layout)
        if owns_store and data is not None:
            yield Unnamed(each, data.planned_at)
        elif segment is not None and (owns_store or segment.partition.topic_id in topic_ids):
            if segment.segment_id not in segments:
                yield Unnamed(each, planned_at_of(segment.segment_id), segment.partition.topic_id)
        elif owns_store:
            yield Unnamed(each)


def orphans(
    image: MetadataImage,
    objects: SegmentStore,
    layout: OwnLayout = OwnLayout.AIVEN,
    *,
    gone_topic_ids: Collection[str] = (),
    now_ms: int,
) -> Iterator[ObjectMetadata]:
    """The data and segment objects that have expired and that `image` does not name, and what probes have left.

    Lists all objects in the store. All that was put for `gone_topic_ids`, of deleted topics, has expired.
    """
    for each in unnamed(image, objects.list_objects(""), layout):
        expires_below = image.next_offset + 1 if each.topic_id in gone_topic_ids else image.staging_horizon.offset
        if is_old_probe(each.found, now_ms=now_ms) if each.planned_at is None else each.planned_at < expires_below:
            yield each.found


def clean_up_root(root: ObjectRoot | FileRoot, *, now_ms: int | None = None) -> CleanedUp:
    """Delete dropped objects after their topic's file.delete.delay.ms, and orphans.

    Its default is log.segment.delete.delay.ms, an hour unless that is set. A data object may be of several topics: it
    remains for the longest of the delays of all topics.
    `now_ms` is the current time, by default the clock's. Does nothing for a file root without remote storage. Raises
    ObjectStoreError, and the errors of a commit.
    """
    image = root.store.refresh()
    config = broker_config(image)
    is_set = _DELETE_DELAY in broker_configs(image)
    place = for_kind(root, _remote_storage, _object_store)
    if place is None:
        return CleanedUp(0, 0, 0)
    objects, layout = place
    cleaned = clean_up(
        root.store,
        objects,
        commit=partial(root.commit, operation=OPERATION),
        layout=layout,
        delay_ms=partial(_delay_ms, config.log_config({}).file_delete_delay_ms if is_set else HOUR_MS),
        staging_retention_ms=config.staging_retention_ms,
        clock=root.clock if now_ms is None else lambda: now_ms,
    )
    if cleaned != CleanedUp(0, 0, 0):
        _LOG.info(
            "deleted %d objects that were dropped, and %d of abandoned work with %d bytes",
            cleaned.dropped_count,
            cleaned.orphans_count,
            cleaned.orphans_bytes,
        )
    return cleaned


def _object_store(root: ObjectRoot) -> tuple[SegmentStore, OwnLayout]:
    remove_abandoned()
    return root.objects, OwnLayout.AIVEN


def _remote_storage(root: FileRoot) -> tuple[SegmentStore, OwnLayout] | None:
    storage = root.remote_storage
    return None if storage is None else (storage.store(), storage.layout)


def finish_job(root: ObjectRoot) -> None:
    """Clean up after a job. What fails is left to the next run, with a warning, as retention leaves it."""
    try:
        clean_up_root(root)
    except (KafkalogError, OSError) as error:
        _LOG.warning("what was dropped or abandoned is left to the next run: %s", error)


def _delay_ms(default_ms: int, image: MetadataImage, dropped: DroppedObjectsRecord) -> int:
    """How long the objects that a commit has dropped remain; `default_ms` of topics without a setting, or deleted."""

    def of_topic(topic_id: str) -> int:
        name = image.topic_names.get(topic_id)
        configs = {} if name is None else image.topics[name].configs
        return int(configs[_TOPIC_DELAY]) if _TOPIC_DELAY in configs else default_ms

    topic_ids = {each.topic_id for each in dropped.segments}
    if dropped.data_keys:
        topic_ids |= image.topic_names.keys()
    return max(map(of_topic, topic_ids), default=default_ms)
