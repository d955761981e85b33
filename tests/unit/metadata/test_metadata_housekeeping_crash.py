"""A committer that is killed, or meets a failing disk, at any call: the root opens, keeps its commits, and goes on."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from metadata_roots import Clock, add_topic, commit_files, forget_images, settings_of, snapshot_files, write_to

from pyspark_kafkalog.errors import CommitStateUnknownError
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.record.header import Buffer
from pyspark_kafkalog.storage.filesystem import FileSystem

DAY_MS = 86_400_000


class KilledError(BaseException):
    """Nothing in the package catches it, so nothing runs after it but `finally`, which calls nothing that works."""


class StoppingFileSystem(FileSystem):
    """Lets so many changing calls through; then the next one fails, after half of its work when it is a write.

    `kills`: that and all later calls raise KilledError; otherwise it alone raises OSError.
    """

    def __init__(self, calls: int, *, kills: bool) -> None:
        self.left = calls
        self._kills = kills

    def _step(self) -> None:
        self.left -= 1
        if self._kills and self.left < 0:
            raise KilledError
        if self.left == -1:
            raise OSError(errno.EIO, "Input/output error")

    def open(self, path: Path, flags: int, mode: int = 0o666) -> int:
        self._step()
        return super().open(path, flags, mode)

    def pwrite_all(self, fd: int, data: Buffer, position: int) -> None:
        if self.left == 0:
            super().pwrite_all(fd, memoryview(data)[: len(data) // 2], position)
        self._step()
        super().pwrite_all(fd, data, position)

    def fsync(self, fd: int) -> None:
        self._step()
        super().fsync(fd)

    def fsync_dir(self, directory: Path) -> None:
        self._step()
        super().fsync_dir(directory)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._step()
        super().link(source, target)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)


def make_root(root: Path) -> tuple[Clock, str]:
    """A root whose next commit is followed by a snapshot and by the removal of old files."""
    clock = Clock()
    store = MetadataStore.create(root, clock=clock)
    topic_id = add_topic(store, "orders", 1)
    settings_of(store, {"metadata.log.max.record.bytes.between.snapshots": "1"})
    for end in range(1, 4):
        write_to(store, topic_id, end)
    clock.now_ms += 8 * DAY_MS
    return clock, topic_id


@pytest.mark.parametrize("kills", [True, False])
def test_commit_with_its_housekeeping_stopped_at_any_call_leaves_a_sound_root(tmp_path: Path, kills: bool) -> None:
    for calls in range(100):
        root = tmp_path / str(calls)
        clock, topic_id = make_root(root)
        forget_images()
        fs = StoppingFileSystem(calls, kills=kills)
        store = MetadataStore.open(root, clock=clock, fs=fs)
        committed = False
        try:
            write_to(store, topic_id, 4)
            committed = True
        except (KilledError, OSError, CommitStateUnknownError):
            pass
        if fs.left >= 0:
            assert calls > 25
            return
        check_root(root, clock, topic_id, committed)
    raise AssertionError("the commit never came through")


def check_root(root: Path, clock: Clock, topic_id: str, committed: bool) -> None:
    forget_images()
    store = MetadataStore.open(root, clock=clock)
    end = store.image.partition("orders", 0).high_watermark
    assert end == 4 if committed else end in (3, 4)
    for _ in range(4):
        end += 1
        write_to(store, topic_id, end)
    assert len(commit_files(root)) < 8
    history = list(store.log.replay())
    assert history[-1].next_offset == store.image.next_offset
    assert len(snapshot_files(root)) >= 1
    image = store.image
    forget_images()
    assert MetadataStore.open(root).image == image
