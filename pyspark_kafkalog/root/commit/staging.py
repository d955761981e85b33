"""The place for the staged records of one task of a write, before the commit.

A task stages records with the root's `Staging`; `hand_over` returns what its commit takes, which can be pickled. A
crash leaves files or objects that no commit names: clean-up removes them.

    LocalStaging      `.staged` files in partitions' directories (storage/staged_file.py), which the commit copies or
                      links
    ObjectStaging     files in a scratch directory of this machine, then data objects in the store (storage/objects/)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, TypeAlias

from pyspark_kafkalog.object_store.store import ObjectStore
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, flushing_file_system
from pyspark_kafkalog.storage.objects.spool import ScratchDirectory
from pyspark_kafkalog.storage.objects.upload import UploadTask, WrittenObject, upload
from pyspark_kafkalog.storage.staged_file import StagedFile, StagingTask, discard_staged

#: What one task of a write has made durable, for the commit.
Staged: TypeAlias = StagedFile | WrittenObject


class Staging(Protocol):
    """The place for the staged records of one task of a write."""

    @property
    def task(self) -> StagingTask:
        """What the writers of staged files take."""
        ...

    @property
    def fs(self) -> FileSystem:
        """The calls that they make."""
        ...

    def hand_over(self, files: Sequence[StagedFile], topic_ids: Mapping[str, str]) -> tuple[Staged, ...]:
        """What the commit takes of the finished `files`; `topic_ids` by topic. They are not used afterwards.

        Raises ObjectStoreError, in which case `discard` is to be called.
        """
        ...

    def discard(self, files: Sequence[StagedFile]) -> None:
        """Remove what is staged, after an error."""
        ...


class LocalStaging:
    """Stages in the directories of the root at `root`; `fs` decides when the files are on disk.

    `planned_ns`: see StagingTask.
    """

    def __init__(self, root: Path, write_id: str, task: int, *, planned_ns: int = 0, fs: FileSystem) -> None:
        self.task = StagingTask(root=root, write_id=write_id, task=task, planned_ns=planned_ns)
        self.fs = fs

    def hand_over(self, files: Sequence[StagedFile], topic_ids: Mapping[str, str]) -> tuple[Staged, ...]:
        """See Staging."""
        return tuple(replace(each, topic_id=topic_ids[each.topic_partition.topic]) for each in files)

    def discard(self, files: Sequence[StagedFile]) -> None:
        """See Staging."""
        discard_staged(self.task.root, files, self.fs)


class ObjectStaging:
    """Stages in a scratch directory (TMPDIR), then in `store`.

    `planned_at` is the end of the metadata log when the write was planned: see metadata/image.StagingHorizon.
    """

    def __init__(self, store: ObjectStore, write_id: str, task: int, *, planned_at: int) -> None:
        self._store = store
        self._planned_at = planned_at
        self._scratch = ScratchDirectory("stage")
        self.task = StagingTask(root=self._scratch.path, write_id=write_id, task=task, is_scratch=True)
        self.fs = flushing_file_system(LOCAL, "os")

    def hand_over(self, files: Sequence[StagedFile], topic_ids: Mapping[str, str]) -> tuple[Staged, ...]:
        """See Staging."""
        task = UploadTask(self.task.write_id, self.task.task, self._planned_at)
        with self._scratch:
            return tuple(upload(self._store, task, files, topic_ids, directory=self.task.root))

    def discard(self, files: Sequence[StagedFile]) -> None:
        """See Staging."""
        self._scratch.cleanup()
