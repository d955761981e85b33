"""The invariants of every commit, one named predicate each, checked before the commit is published.

A predicate gets the image before, the image after and the commit's changes, and returns None or a description of the
violation. It checks only the changes, so its cost does not depend on the size of the root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from pyspark_kafkalog.errors import InvalidRecordError
from pyspark_kafkalog.metadata.delta import ImageChanges
from pyspark_kafkalog.metadata.image import MetadataImage, PartitionImage, TopicImage
from pyspark_kafkalog.metadata.root_format import FORMAT_VERSION, TIERED_FORMAT_VERSION

Invariant = Callable[[MetadataImage, MetadataImage, ImageChanges], str | None]


def _kept_topics(
    before: MetadataImage, after: MetadataImage, changes: ImageChanges
) -> Iterator[tuple[TopicImage, TopicImage]]:
    """The changed topics that exist before and after, with the same id."""
    for name in changes.topics:
        old, new = before.topics.get(name), after.topics.get(name)
        if old is not None and new is not None and old.topic_id == new.topic_id:
            yield old, new


def _kept_partitions(
    before: MetadataImage, after: MetadataImage, changes: ImageChanges
) -> Iterator[tuple[str, PartitionImage, PartitionImage]]:
    """The changed partitions that exist before and after."""
    for name, number in changes.partitions:
        old, new = before.topics.get(name), after.topics.get(name)
        if old is None or new is None or old.topic_id != new.topic_id:
            continue
        if number < len(old.partitions) and number < len(new.partitions):
            yield f"{name}-{number}", old.partitions[number], new.partitions[number]


def _changed_partitions(after: MetadataImage, changes: ImageChanges) -> Iterator[tuple[str, PartitionImage]]:
    """The changed partitions that exist after."""
    for name, number in changes.partitions:
        new = after.topics.get(name)
        if new is not None and number < len(new.partitions):
            yield f"{name}-{number}", new.partitions[number]


def high_watermark_never_falls(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    for name, old, new in _kept_partitions(before, after, changes):
        if new.high_watermark < old.high_watermark:
            return f"the high watermark of {name} falls from {old.high_watermark} to {new.high_watermark}"
    return None


def log_start_never_falls(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    for name, old, new in _kept_partitions(before, after, changes):
        if new.state.log_start_offset < old.state.log_start_offset:
            return f"the log start of {name} falls from {old.state.log_start_offset} to {new.state.log_start_offset}"
    return None


def local_log_start_never_falls(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    for name, old, new in _kept_partitions(before, after, changes):
        was, would_be = old.state.local_log_start_offset, new.state.local_log_start_offset
        if would_be < was:
            return f"the local log start of {name} falls from {was} to {would_be}"
    return None


def leader_epoch_never_falls(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    for name, old, new in _kept_partitions(before, after, changes):
        if new.state.leader_epoch < old.state.leader_epoch:
            return f"the leader epoch of {name} falls from {old.state.leader_epoch} to {new.state.leader_epoch}"
    return None


def log_start_within_log(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    for name, partition in _changed_partitions(after, changes):
        state = partition.state
        if not 0 <= state.log_start_offset <= state.log_end_offset:
            return f"the log of {name} starts at {state.log_start_offset} and ends at {state.log_end_offset}"
    return None


def active_segment_within_log(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    for name, partition in _changed_partitions(after, changes):
        state = partition.state
        if not 0 <= state.active_base_offset <= state.log_end_offset or state.active_size_bytes < 0:
            return (
                f"the active segment of {name} has base {state.active_base_offset} and size "
                f"{state.active_size_bytes}, the log ends at {state.log_end_offset}"
            )
    return None


def partitions_are_never_removed(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    for old, new in _kept_topics(before, after, changes):
        if len(new.partitions) < len(old.partitions):
            return f"topic {old.name} would change from {len(old.partitions)} to {len(new.partitions)} partitions"
    return None


def topics_have_partitions(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    for name in changes.topics:
        topic = after.topics.get(name)
        if topic is not None and not topic.partitions:
            return f"topic {name} has no partition"
    return None


def topic_ids_unique(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    if len(after.topic_names) != len(after.topics):
        return f"{len(after.topics)} topics have {len(after.topic_names)} ids"
    for name in changes.topics:
        topic = after.topics.get(name)
        if topic is not None and after.topic_names.get(topic.topic_id) != name:
            return f"topic {name} has the id {topic.topic_id} of another topic"
    return None


def transaction_versions_rise(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    for name in changes.transactional_ids:
        old, new = before.transactional_ids.get(name), after.transactional_ids[name]
        if old is None:
            continue
        if new.version < old.version:
            return f"the version of transactional id {name} falls from {old.version} to {new.version}"
        if new.version == old.version and new.last_commit_offset != old.last_commit_offset:
            return f"version {old.version} of transactional id {name} was committed at offset {old.last_commit_offset}"
    return None


def producer_epochs_never_fall(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    for name in changes.transactional_ids:
        old, new = before.transactional_ids.get(name), after.transactional_ids[name]
        if old is not None and old.producer_id == new.producer_id and new.producer_epoch < old.producer_epoch:
            return f"the producer epoch of {name} falls from {old.producer_epoch} to {new.producer_epoch}"
    return None


def fenced_incarnations_stay_fenced(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    for name in changes.transactional_ids:
        old, new = before.transactional_ids.get(name), after.transactional_ids[name]
        if old is None or new.incarnation == old.incarnation:
            continue
        if new.incarnation in old.fenced:
            return f"incarnation {new.incarnation} of {name} was fenced and takes it over again"
        if old.incarnation and old.incarnation not in new.fenced:
            return f"incarnation {old.incarnation} of {name} is replaced and not fenced"
    return None


def format_version_stays(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    """Except that remote storage may be configured for a root on a file system."""
    is_upgrade = (before.format_version, after.format_version) == (FORMAT_VERSION, TIERED_FORMAT_VERSION)
    if after.format_version != before.format_version and not (is_upgrade and not after.is_object_root):
        return f"the format version would change from {before.format_version} to {after.format_version}"
    return None


def producer_ids_allocated_once(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    if after.next_producer_id < before.next_producer_id:
        return f"the next producer id falls from {before.next_producer_id} to {after.next_producer_id}"
    return None


def extents_cover_log(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    """Extents begin at or below the log start. In an object root they end at the log end, elsewhere not above it.

    That each follows the one before is checked where they are added (extent_changes.py).
    """
    for name, partition in _changed_partitions(after, changes):
        state = partition.state
        base_offset, end_offset = partition.extents_range
        if base_offset == end_offset:
            if after.is_object_root and state.log_start_offset != state.log_end_offset:
                return f"no object holds the offsets {state.log_start_offset} to {state.log_end_offset - 1} of {name}"
        elif base_offset > state.log_start_offset or end_offset > state.log_end_offset:
            return (
                f"the objects of {name} hold offsets {base_offset} to {end_offset - 1}, its log is from "
                f"{state.log_start_offset} to {state.log_end_offset - 1}"
            )
        elif after.is_object_root and end_offset != state.log_end_offset:
            return f"the objects of {name} end at {end_offset}, its log at {state.log_end_offset}"
    return None


def segments_reach_local_log_start(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    """What is not in a partition's directory any more must be in remote storage; the active segment stays."""
    for name, partition in _changed_partitions(after, changes):
        state = partition.state
        if not state.has_remote_start:
            continue
        end_offset = min(partition.extents_range[1] if partition.has_extents else 0, state.active_base_offset)
        if after.is_object_root or state.local_log_start_offset > end_offset:
            return (
                f"{name} would have no local log below {state.local_log_start_offset}, and its closed segments in "
                f"remote storage end at {end_offset}"
            )
    return None


def segments_need_format_that_has_them(
    before: MetadataImage, after: MetadataImage, changes: ImageChanges
) -> str | None:
    """An earlier version of this package must not read a root on a file system that has remote segments."""
    if after.is_object_root or after.format_version == TIERED_FORMAT_VERSION:
        return None
    for name, partition in _changed_partitions(after, changes):
        if partition.segments:
            return (
                f"{name} would have segments in remote storage in a root of format version {after.format_version}: set "
                "rsm.config.location, which makes it one of version 2"
            )
    return None


def runs_only_in_object_roots(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    for name, partition in _changed_partitions(after, changes):
        if len(partition.runs) and not after.is_object_root:
            return f"{name} would have runs of a data object, in a root on a file system"
    return None


def kind_of_root_stays(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    if before.format_version is not None and after.is_object_root != before.is_object_root:
        return f"the root would change from is_object_root={before.is_object_root} to {after.is_object_root}"
    return None


def expired_writes_stay_out(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    """The objects of writes planned below the staging horizon may have been deleted."""
    for planned_at in changes.planned_at:
        if planned_at < before.staging_horizon.offset:
            return (
                f"the write was planned at metadata offset {planned_at}; what was planned below "
                f"{before.staging_horizon.offset} has expired (staging.retention.ms): write again"
            )
    return None


def staging_horizon_never_falls(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> str | None:
    old, new = before.staging_horizon, after.staging_horizon
    if new.offset < old.offset:
        return f"the staging horizon falls from {old.offset} to {new.offset}"
    return None


def staging_horizon_moves_to_where_it_was_set(
    before: MetadataImage, after: MetadataImage, changes: ImageChanges
) -> str | None:
    """So that writers have time. A follower that truncates lets all that was planned before expire at once."""
    old, new = before.staging_horizon, after.staging_horizon
    if new != old and new.offset > old.commit_offset + 1:
        return f"the staging horizon {new.offset} is above {old.commit_offset + 1}, where it was last set"
    return None


INVARIANTS: Final[tuple[Invariant, ...]] = (
    high_watermark_never_falls,
    log_start_never_falls,
    local_log_start_never_falls,
    leader_epoch_never_falls,
    log_start_within_log,
    active_segment_within_log,
    partitions_are_never_removed,
    topics_have_partitions,
    topic_ids_unique,
    transaction_versions_rise,
    producer_epochs_never_fall,
    fenced_incarnations_stay_fenced,
    producer_ids_allocated_once,
    format_version_stays,
    extents_cover_log,
    segments_reach_local_log_start,
    segments_need_format_that_has_them,
    runs_only_in_object_roots,
    kind_of_root_stays,
    expired_writes_stay_out,
    staging_horizon_never_falls,
    staging_horizon_moves_to_where_it_was_set,
)


#: What holds for all but a follower, whose log is truncated to where it agrees with the log of its leader.
_NOT_OF_FOLLOWERS: Final = {
    high_watermark_never_falls,
    log_start_never_falls,
    local_log_start_never_falls,
    staging_horizon_moves_to_where_it_was_set,
}
FOLLOWER_INVARIANTS: Final[tuple[Invariant, ...]] = tuple(each for each in INVARIANTS if each not in _NOT_OF_FOLLOWERS)


def check_invariants(
    before: MetadataImage, after: MetadataImage, changes: ImageChanges, *, is_follower: bool = False
) -> None:
    """Raise InvalidRecordError, with the name of the first violated invariant, if the commit would violate one.

    `is_follower`: the commit is made by the follower of the root.
    """
    for invariant in FOLLOWER_INVARIANTS if is_follower else INVARIANTS:
        wrong = invariant(before, after, changes)
        if wrong is not None:
            raise InvalidRecordError(f"the commit would break {invariant.__name__}: {wrong}")
