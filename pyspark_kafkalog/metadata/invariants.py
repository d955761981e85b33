"""The checks of every commit before it is published: invariants, a named predicate each; and who may change a follower.

A predicate gets the images before and after with the commit's changes, and returns None or a description of the
violation. It checks only the changes, so its cost does not depend on the size of the root.

*Following.* While the image has a `Following`, the root is a copy of its leader. Only the follower that knows its id
changes what is copied: topics, partitions, their log ends and leader epochs, configurations, access control entries,
quotas, transactional ids. All others are refused with FollowingRootError, whichever way they commit. Maintenance stays
possible: it raises log starts, and replaces segments and objects by others with the same records. SCRAM credentials and
`super.users` are free, as no cluster gives them away: a served copy has users of its own.

A FollowingRecord begins following, or takes it over from an earlier follower, whose commits then fail with
FollowingEndedError. One with an empty id ends it. The check is made on the newest image of each attempt to commit, so a
writer that was admitted earlier is refused too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import FollowingEndedError, FollowingRootError, InvalidRecordError
from pyspark_kafkalog.metadata.delta import ImageChanges
from pyspark_kafkalog.metadata.image import Following, MetadataImage, PartitionImage, TopicImage, log_state
from pyspark_kafkalog.metadata.messages.metadata_records import CommitRecord, MetadataRecord, PartitionStateRecord
from pyspark_kafkalog.storage.log.log_state import LogState

if TYPE_CHECKING:
    from pyspark_kafkalog.metadata.delta import ImageChanges


class ProposedCommit:
    """A commit that turns the image `before` into `after`, with the topics and partitions that it changes.

    - `kept_topics`: those that exist before and after, with the same id
    - `kept_partitions`: those that exist before and after, by name
    - `changed_partitions`: those that exist after, by name
    """

    __slots__ = ("after", "before", "changed_partitions", "changes", "kept_partitions", "kept_topics")

    def __init__(self, before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> None:
        self.before = before
        self.after = after
        self.changes = changes
        self.kept_topics: list[tuple[TopicImage, TopicImage]] = []
        self.kept_partitions: list[tuple[str, PartitionImage, PartitionImage]] = []
        self.changed_partitions: list[tuple[str, PartitionImage]] = []
        for topic in changes.topics:
            old, new = before.topics.get(topic), after.topics.get(topic)
            if old is not None and new is not None and old.topic_id == new.topic_id:
                self.kept_topics.append((old, new))
        for topic, number in changes.partitions:
            self._add_partition(topic, number)

    def _add_partition(self, topic: str, number: int) -> None:
        new = self.after.topics.get(topic)
        if new is None or number >= len(new.partitions):
            return
        name = f"{topic}-{number}"
        self.changed_partitions.append((name, new.partitions[number]))
        old = self.before.topics.get(topic)
        if old is not None and old.topic_id == new.topic_id and number < len(old.partitions):
            self.kept_partitions.append((name, old.partitions[number], new.partitions[number]))


Invariant = Callable[[ProposedCommit], str | None]


def high_watermark_never_falls(commit: ProposedCommit) -> str | None:
    for name, old, new in commit.kept_partitions:
        if new.high_watermark < old.high_watermark:
            return f"the high watermark of {name} falls from {old.high_watermark} to {new.high_watermark}"
    return None


def log_start_never_falls(commit: ProposedCommit) -> str | None:
    for name, old, new in commit.kept_partitions:
        if new.state.log_start_offset < old.state.log_start_offset:
            return f"the log start of {name} falls from {old.state.log_start_offset} to {new.state.log_start_offset}"
    return None


def local_log_start_never_falls(commit: ProposedCommit) -> str | None:
    for name, old, new in commit.kept_partitions:
        was, would_be = old.state.local_log_start_offset, new.state.local_log_start_offset
        if would_be < was:
            return f"the local log start of {name} falls from {was} to {would_be}"
    return None


def leader_epoch_never_falls(commit: ProposedCommit) -> str | None:
    for name, old, new in commit.kept_partitions:
        if new.state.leader_epoch < old.state.leader_epoch:
            return f"the leader epoch of {name} falls from {old.state.leader_epoch} to {new.state.leader_epoch}"
    return None


def log_start_within_log(commit: ProposedCommit) -> str | None:
    for name, partition in commit.changed_partitions:
        state = partition.state
        if not 0 <= state.log_start_offset <= state.log_end_offset:
            return f"the log of {name} starts at {state.log_start_offset} and ends at {state.log_end_offset}"
    return None


def active_segment_within_log(commit: ProposedCommit) -> str | None:
    for name, partition in commit.changed_partitions:
        state = partition.state
        if not 0 <= state.active_base_offset <= state.log_end_offset or state.active_size_bytes < 0:
            return (
                f"the active segment of {name} has base {state.active_base_offset} and size "
                f"{state.active_size_bytes}, the log ends at {state.log_end_offset}"
            )
    return None


def partitions_are_never_removed(commit: ProposedCommit) -> str | None:
    for old, new in commit.kept_topics:
        if len(new.partitions) < len(old.partitions):
            return f"topic {old.name} would change from {len(old.partitions)} to {len(new.partitions)} partitions"
    return None


def topics_have_partitions(commit: ProposedCommit) -> str | None:
    for name in commit.changes.topics:
        topic = commit.after.topics.get(name)
        if topic is not None and not topic.partitions:
            return f"topic {name} has no partition"
    return None


def topic_ids_unique(commit: ProposedCommit) -> str | None:
    if len(commit.after.topic_names) != len(commit.after.topics):
        return f"{len(commit.after.topics)} topics have {len(commit.after.topic_names)} ids"
    for name in commit.changes.topics:
        topic = commit.after.topics.get(name)
        if topic is not None and commit.after.topic_names.get(topic.topic_id) != name:
            return f"topic {name} has the id {topic.topic_id} of another topic"
    return None


def transaction_versions_rise(commit: ProposedCommit) -> str | None:
    for name in commit.changes.transactional_ids:
        old, new = commit.before.transactional_ids.get(name), commit.after.transactional_ids.get(name)
        if old is None or new is None:
            continue
        if new.version < old.version:
            return f"the version of transactional id {name} falls from {old.version} to {new.version}"
        if new.version == old.version and new.last_commit_offset != old.last_commit_offset:
            return f"version {old.version} of transactional id {name} was committed at offset {old.last_commit_offset}"
    return None


def producer_epochs_never_fall(commit: ProposedCommit) -> str | None:
    for name in commit.changes.transactional_ids:
        old, new = commit.before.transactional_ids.get(name), commit.after.transactional_ids.get(name)
        if old is None or new is None:
            continue
        if old.producer_id == new.producer_id and new.producer_epoch < old.producer_epoch:
            return f"the producer epoch of {name} falls from {old.producer_epoch} to {new.producer_epoch}"
    return None


def fenced_incarnations_stay_fenced(commit: ProposedCommit) -> str | None:
    for name in commit.changes.transactional_ids:
        old, new = commit.before.transactional_ids.get(name), commit.after.transactional_ids.get(name)
        if old is None or new is None or new.incarnation == old.incarnation:
            continue
        if new.incarnation in old.fenced:
            return f"incarnation {new.incarnation} of {name} was fenced and takes it over again"
        if old.incarnation and old.incarnation not in new.fenced:
            return f"incarnation {old.incarnation} of {name} is replaced and not fenced"
    return None


def format_version_stays(commit: ProposedCommit) -> str | None:
    """Except that it may rise to another one that this package writes, for a root on a file system."""
    if not commit.before.format.may_become(commit.after.format):
        return f"the format version would change from {commit.before.format_version} to {commit.after.format_version}"
    return None


def producer_ids_allocated_once(commit: ProposedCommit) -> str | None:
    if commit.after.next_producer_id < commit.before.next_producer_id:
        return f"the next producer id falls from {commit.before.next_producer_id} to {commit.after.next_producer_id}"
    return None


def extents_cover_log(commit: ProposedCommit) -> str | None:
    """Extents begin at or below the log start. In an object root they end at the log end, elsewhere not above it.

    That each follows the one before is checked where they are added (extent_changes.py).
    """
    for name, partition in commit.changed_partitions:
        state = partition.state
        base_offset, end_offset = partition.extents_range
        if base_offset == end_offset:
            if commit.after.format.in_object_store and state.log_start_offset != state.log_end_offset:
                return f"no object holds the offsets {state.log_start_offset} to {state.log_end_offset - 1} of {name}"
        elif base_offset > state.log_start_offset or end_offset > state.log_end_offset:
            return (
                f"the objects of {name} hold offsets {base_offset} to {end_offset - 1}, its log is from "
                f"{state.log_start_offset} to {state.log_end_offset - 1}"
            )
        elif commit.after.format.in_object_store and end_offset != state.log_end_offset:
            return f"the objects of {name} end at {end_offset}, its log at {state.log_end_offset}"
    return None


def segments_reach_local_log_start(commit: ProposedCommit) -> str | None:
    """What is not in a partition's directory any more must be in remote storage; the active segment stays."""
    for name, partition in commit.changed_partitions:
        state = partition.state
        if not state.has_remote_start:
            continue
        end_offset = min(partition.extents_range[1] if partition.has_extents else 0, state.active_base_offset)
        if commit.after.format.in_object_store or state.local_log_start_offset > end_offset:
            return (
                f"{name} would have no local log below {state.local_log_start_offset}, and its closed segments in "
                f"remote storage end at {end_offset}"
            )
    return None


def segments_need_format_that_has_them(commit: ProposedCommit) -> str | None:
    """An earlier version of this package must not read a root on a file system that has remote segments."""
    if commit.after.format.may_have_segments:
        return None
    for name, partition in commit.changed_partitions:
        if partition.segments:
            return (
                f"{name} would have segments in remote storage in a root of format version "
                f"{commit.after.format_version}: set rsm.config.location, which makes it one of version 2"
            )
    return None


def expired_writes_stay_out(commit: ProposedCommit) -> str | None:
    """The objects of writes planned below the staging horizon may have been deleted."""
    for planned_at in commit.changes.planned_at:
        if commit.before.staging_horizon.has_expired(planned_at):
            return (
                f"the write was planned at metadata offset {planned_at}; what was planned below "
                f"{commit.before.staging_horizon.offset} has expired (staging.retention.ms): write again"
            )
    return None


def staging_horizon_never_falls(commit: ProposedCommit) -> str | None:
    old, new = commit.before.staging_horizon, commit.after.staging_horizon
    if new.offset < old.offset:
        return f"the staging horizon falls from {old.offset} to {new.offset}"
    return None


def staging_horizon_moves_to_where_it_was_set(commit: ProposedCommit) -> str | None:
    """So that writers have time. A follower that truncates lets all that was planned before expire at once."""
    old, new = commit.before.staging_horizon, commit.after.staging_horizon
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
    commit = ProposedCommit(before, after, changes)
    for invariant in FOLLOWER_INVARIANTS if is_follower else INVARIANTS:
        wrong = invariant(commit)
        if wrong is not None:
            raise InvalidRecordError(f"the commit would break {invariant.__name__}: {wrong}")


def image_after_appends(
    image: MetadataImage, records: Sequence[MetadataRecord], *, timestamp_ms: int
) -> MetadataImage | None:
    """The image after a commit of `records` that only appends to logs on a file system, as most commits do.

    It holds every invariant. None for any other commit, of which the delta makes the image.
    """
    states: list[tuple[str, int, LogState]] = []
    for record in records:
        if type(record) is PartitionStateRecord:
            states.append((image.topic_names.get(record.topic_id, ""), record.partition, log_state(record)))
        elif type(record) is not CommitRecord:
            return None
    return image_with_states(image, states, next_offset=image.next_offset + len(records), timestamp_ms=timestamp_ms)


def image_with_states(
    image: MetadataImage, states: Iterable[tuple[str, int, LogState]], *, next_offset: int, timestamp_ms: int
) -> MetadataImage | None:
    """As `image_after_appends`, of a commit that gives these states to partitions, by topic and number."""
    if image.format.in_object_store or image.following is not None or len(image.topics) != len(image.topic_names):
        return None
    changed: dict[str, list[PartitionImage]] = {}
    for name, number, state in states:
        if name not in changed:
            if name not in image.topics:
                return None
            changed[name] = list(image.topics[name].partitions)
        partitions = changed[name]
        if not 0 <= number < len(partitions):
            return None
        partition = partitions[number]
        if partition.has_extents or not _is_appended(partition.state, state):
            return None
        partitions[number] = PartitionImage(
            partition.partition, state, partition.segments, partition.runs, partition.producer_batches
        )
    topics = dict(image.topics)
    for name, partitions in changed.items():
        was = topics[name]
        topics[name] = TopicImage(name, was.topic_id, tuple(partitions), was.configs, was.offsets_ends)
    return MetadataImage(
        next_offset=next_offset,
        last_timestamp_ms=max(image.last_timestamp_ms, timestamp_ms),
        format=image.format,
        topics=topics,
        topic_names=image.topic_names,
        broker_configs=image.broker_configs,
        group_configs=image.group_configs,
        brokers=image.brokers,
        features=image.features,
        transactional_ids=image.transactional_ids,
        next_producer_id=image.next_producer_id,
        acls=image.acls,
        scram_credentials=image.scram_credentials,
        client_quotas=image.client_quotas,
        objects=image.objects,
        dropped=image.dropped,
        staging_horizon=image.staging_horizon,
    )


def _is_appended(was: LogState, now: LogState) -> bool:
    """Whether a log without extents in a store may go from one state to the other, by every invariant."""
    return (
        0 <= now.log_start_offset == was.log_start_offset <= now.log_end_offset
        and now.local_log_start_offset == was.local_log_start_offset == now.log_start_offset
        and now.log_end_offset >= was.log_end_offset
        and now.leader_epoch >= was.leader_epoch
        and 0 <= now.active_base_offset <= now.log_end_offset
        and now.active_size_bytes >= 0
    )


_SUPER_USERS: Final = "super.users"
#: What a commit must leave as it is, besides topics: by the words for it in errors.
_COPIED: Final[tuple[tuple[str, Callable[[MetadataImage], object]], ...]] = (
    ("broker-level settings", lambda image: _copied_settings(image)),
    ("access control entries", lambda image: image.acls),
    ("client quotas", lambda image: image.client_quotas),
    ("transactional ids", lambda image: image.transactional_ids),
    ("producer ids", lambda image: image.next_producer_id),
)


def check_not_following(image: MetadataImage) -> None:
    """Raise FollowingRootError if the root follows a leader. For what is about to write, before it does any work."""
    if image.following is not None:
        raise following_error(image.following)


def following_error(following: Following, change: str = "") -> FollowingRootError:
    """The error for who would change a root that follows; `change` says what."""
    subject = f"{change} cannot be changed: the log directory" if change else "the log directory"
    return FollowingRootError(
        f"{subject} follows {following.leader}, and only its follower may write to it; kafkalog promote ends that, and "
        "lets it accept writes"
    )


def _copied_settings(image: MetadataImage) -> Mapping[str, Mapping[str, str]]:
    """By broker the settings, but for those that never come from a leader."""
    return {
        broker: {name: value for name, value in settings.items() if name != _SUPER_USERS}
        for broker, settings in image.broker_configs.items()
        if settings.keys() - {_SUPER_USERS}
    }


def following_text(image: MetadataImage) -> str | None:
    """Which leader the root follows, since when, and as of when; None if it takes writes itself."""
    following = image.following
    if following is None:
        return None
    since, until = (
        datetime.fromtimestamp(each / 1000, timezone.utc).isoformat(timespec="seconds")
        for each in (following.since_ms, image.last_timestamp_ms)
    )
    return f"follows {following.leader} since {since}, with the last change at {until}"


def check_follower(image: MetadataImage, following_id: str) -> None:
    """Raise FollowingEndedError unless the root still follows with this id."""
    following = image.following
    if following is None:
        raise FollowingEndedError("the log directory no longer follows a leader: it was promoted")
    if following.following_id != following_id:
        raise FollowingEndedError(f"another follower has taken over this root, which now follows {following.leader}")


def check_unchanged_by_others(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> None:
    """Raise FollowingRootError if `before` follows and the commit changes what only its follower may change.

    A commit that ends following, or begins it again, is not held to that.
    """
    following = before.following
    if following is None or after.following != following:
        return
    changed = next(_changed_by_others(before, after, changes), None)
    if changed is not None:
        raise following_error(following, changed)


def _changed_by_others(before: MetadataImage, after: MetadataImage, changes: ImageChanges) -> Iterator[str]:
    for words, part in _COPIED:
        if part(before) is not part(after) and part(before) != part(after):
            yield words
    for name in changes.topics:
        old, new = before.topics.get(name), after.topics.get(name)
        if old is None or new is None or old.topic_id != new.topic_id or len(old.partitions) != len(new.partitions):
            yield f"topic {name}"
        elif old.configs != new.configs:
            yield f"the configuration of topic {name}"
    for name, number in changes.partitions:
        was, now = before.find(name, number), after.find(name, number)
        if was is None or now is None:
            yield f"{name}-{number}"
        elif (was.state.log_end_offset, was.state.leader_epoch) != (now.state.log_end_offset, now.state.leader_epoch):
            yield f"the log end of {name}-{number}"
