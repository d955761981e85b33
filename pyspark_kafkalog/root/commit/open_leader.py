"""Makes the `LeaderWriter` of a root."""

from __future__ import annotations

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.root.commit.changes import LeaderWriter
from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.objects.object_root import ObjectRoot
from pyspark_kafkalog.storage.filesystem import FlushMode


def leader_writer(root: NativeRoot, *, flush: FlushMode, operation: str = "append") -> LeaderWriter:
    """The writer of `root`, whose commits wait for the disk as `flush` says. Used by one thread; the caller closes it.

    `operation` is what the history says of its commits. What is in an object store is durable, whatever `flush` says.
    Raises LogDirError for a root that has no such writer.
    """
    # They load numba, which planning does not need.
    from pyspark_kafkalog.root.commit.committer import FileLeaderWriter
    from pyspark_kafkalog.root.commit.object_engine import ObjectLeaderWriter

    if isinstance(root, FileRoot):
        return FileLeaderWriter(root, flush=flush, operation=operation)
    if isinstance(root, ObjectRoot):
        return ObjectLeaderWriter(root, operation=operation)
    raise LogDirError(f"{root.path} is a root to which batches of producers cannot be committed")
