"""A root that follows a leader: who may change what, checked for every commit before it is published.

While the image has a `Following`, the root is a copy of its leader. Only the follower that knows its id changes what is
copied: topics, partitions, their log ends and leader epochs, configurations, access control entries, quotas,
transactional ids. All others are refused with FollowingRootError, whichever way they commit. Maintenance stays
possible: it raises log starts, and replaces segments and objects by others with the same records. SCRAM credentials and
`super.users` are free, as no cluster gives them away: a served copy has users of its own.

A FollowingRecord begins following, or takes it over from an earlier follower, whose commits then fail with
FollowingEndedError. One with an empty id ends it. The check is made on the newest image of each attempt to commit, so a
writer that was admitted earlier is refused too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import FollowingEndedError, FollowingRootError
from pyspark_kafkalog.metadata.image import Following, MetadataImage

if TYPE_CHECKING:
    from pyspark_kafkalog.metadata.delta import ImageChanges

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
    subject = f"{change} cannot be changed: the root" if change else "the root"
    return FollowingRootError(
        f"{subject} follows {following.leader}, and only its follower may write to it; kafkalog promote makes it a "
        "root that takes writes"
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
        raise FollowingEndedError("the root does not follow a leader any more: it was promoted")
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
