"""Begins and ends following, and makes the `FollowerWriter` of a root.

The commit log says that a root follows (`Following` in metadata/image.py). Beginning again for the same leader replaces
the id, so that the follower before it, if it still runs, cannot commit any more. A crash leaves the root following or
not: each of the changes is one commit.
"""

from __future__ import annotations

import os
from typing import Final

from pyspark_kafkalog.errors import FollowingRootError, LogDirError
from pyspark_kafkalog.metadata.image import Following, MetadataImage, following_record
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord
from pyspark_kafkalog.root.commit.cut_files import KeptRecords, ignore_kept
from pyspark_kafkalog.root.commit.follower_changes import FollowerWriter
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.storage.filesystem import FlushMode
from pyspark_kafkalog.storage.names import encode_uuid

_BEGIN_OPERATION: Final = "follow"


def begin_following(root: NativeRoot, *, leader: str, cluster_id: str, topics: str) -> str:
    """Make `root` follow the leader called `leader`, whose cluster has the id `cluster_id`; returns the following id.

    `topics` is the regular expression of the topics that are followed. Whoever follows the same cluster already is
    replaced. Raises FollowingRootError if the root follows another cluster.
    """
    # Never from a seeded generator: two followers must not take each other's id for their own.
    following_id = encode_uuid(os.urandom(16))

    def build(image: MetadataImage) -> list[MetadataRecord]:
        known = image.following
        if known is not None and known.cluster_id != cluster_id:
            raise FollowingRootError(
                f"the root follows {known.leader}, whose cluster id is {known.cluster_id}, not {leader} with "
                f"{cluster_id}: kafkalog promote ends following, and then it may follow another leader"
            )
        following = Following(
            following_id=following_id,
            leader=leader,
            cluster_id=cluster_id,
            topics=topics,
            since_ms=root.clock() if known is None else known.since_ms,
            had_records=_has_records(image) if known is None else known.had_records,
        )
        return [following_record(following)]

    root.commit(build, operation=_BEGIN_OPERATION)
    return following_id


def _has_records(image: MetadataImage) -> bool:
    states = (each.state for topic in image.topics.values() for each in topic.partitions)
    return any(state.log_start_offset < state.log_end_offset for state in states)


def follower_writer(
    root: NativeRoot, following_id: str, *, flush: FlushMode, on_kept: KeptRecords = ignore_kept
) -> FollowerWriter:
    """The writer of `root` for the follower with `following_id`, whose commits wait for the disk as `flush` says.

    `on_kept` is called before each commit that drops records, once they are kept in files. Used by one thread; the
    caller closes it. What is in an object store is durable, whatever `flush` says. Raises LogDirError for a root that
    has no such writer.
    """
    # Each loads much that the other one does not need.
    if isinstance(root, FileRoot):
        from pyspark_kafkalog.root.commit.follower_files import FileFollowerWriter

        return FileFollowerWriter(root, following_id, flush=flush, on_kept=on_kept)
    if isinstance(root, ObjectRoot):
        from pyspark_kafkalog.root.commit.follower_objects import ObjectFollowerWriter

        return ObjectFollowerWriter(root, following_id, on_kept=on_kept)
    raise LogDirError(f"{root.path} is a root that cannot follow a leader")
