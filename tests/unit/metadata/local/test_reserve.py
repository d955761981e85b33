"""Reserve of commits on a full disk: used by commits that free space only, and never overwriting a commit."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from builders.metadata_roots import add_topic, commit_files, forget_images, metadata_dir, settings_of
from fakes.full_disks import CountingDisk

from pyspark_kafkalog.errors import CommitConflictError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.metadata.local.log import RESERVE_BYTES, RESERVE_FILES, CommitReserve
from pyspark_kafkalog.metadata.messages.metadata_records import ConfigRecord, FormatRecord, MetadataRecord
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.root.bootstrap import create_root
from pyspark_kafkalog.storage.filesystem import LOCAL

pytestmark = pytest.mark.usefixtures("one_commit_a_file")


@pytest.fixture
def disk() -> CountingDisk:
    return CountingDisk()


@pytest.fixture
def store(tmp_path: Path, disk: CountingDisk) -> MetadataStore:
    store = create_root(tmp_path / "root", fs=disk)
    add_topic(store, "orders", 1)
    return store


def reserve_path(store: MetadataStore, number: int) -> Path:
    return metadata_dir(store.root) / f"kafkalog-reserve-{number}"


def lengths(store: MetadataStore) -> list[int]:
    paths = [reserve_path(store, number) for number in range(RESERVE_FILES)]
    return [path.stat().st_size if path.exists() else -1 for path in paths]


WHOLE = [RESERVE_BYTES] * RESERVE_FILES


def commit(store: MetadataStore, value: str, *, frees_space: bool = True) -> None:
    def build(image: MetadataImage) -> Sequence[MetadataRecord]:
        return [ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value=value)]

    store.commit(build, operation="test", frees_space=frees_space)


def setting(store: MetadataStore) -> str | None:
    forget_images()
    return LocalMetadataStore.open(store.root).image.topic("orders").configs.get("retention.ms")


@pytest.mark.parametrize("lacks", ["blocks", "inodes"])
def test_only_commit_that_frees_space_uses_reserve(store: MetadataStore, disk: CountingDisk, lacks: str) -> None:
    setattr(disk, lacks, 0)
    with pytest.raises(OSError, match="No space left"):
        commit(store, "1", frees_space=False)
    assert lengths(store) == WHOLE
    commit(store, "1")
    assert setting(store) == "1"
    assert lengths(store) != WHOLE


def test_reserve_serves_several_commits_before_no_space_error(store: MetadataStore, disk: CountingDisk) -> None:
    for number in range(RESERVE_FILES):
        disk.inodes = 0
        commit(store, str(number))
    assert lengths(store) == [-1] * RESERVE_FILES
    disk.inodes = 0
    with pytest.raises(OSError, match="No space left") as caught:
        commit(store, "too much")
    assert caught.value.errno == errno.ENOSPC
    assert setting(store) == str(RESERVE_FILES - 1)
    disk.inodes = None
    commit(store, "again", frees_space=False)
    assert lengths(store) == WHOLE


def test_root_without_reserve_gets_one_at_next_commit(store: MetadataStore) -> None:
    for number in range(RESERVE_FILES):
        reserve_path(store, number).unlink()
    assert LocalMetadataStore.open(store.root).image == store.image
    assert lengths(store) == [-1] * RESERVE_FILES
    commit(store, "1", frees_space=False)
    assert lengths(store) == WHOLE


def test_reserve_is_restored_as_far_as_space_allows(store: MetadataStore, disk: CountingDisk) -> None:
    disk.blocks = 0
    commit(store, "1")  # takes one block of a file's eight
    assert lengths(store) == [*WHOLE[:-1], RESERVE_BYTES - 4096]
    assert disk.blocks == 0
    commit(store, "2")
    assert lengths(store) == [*WHOLE[:-1], RESERVE_BYTES - 2 * 4096]


def test_commit_still_linked_as_reserve_is_not_overwritten(store: MetadataStore, disk: CountingDisk) -> None:
    """The state after a kill between the link and the removal of the other name."""
    commit(store, "1")
    last = max(commit_files(store.root), key=lambda path: path.name)
    content = last.read_bytes()
    for number in (RESERVE_FILES - 1, RESERVE_FILES - 2):
        reserve_path(store, number).unlink()
        os.link(last, reserve_path(store, number))
    disk.inodes = 0
    commit(store, "2")
    assert last.read_bytes() == content
    assert setting(store) == "2"
    disk.inodes = None
    commit(store, "3")
    assert last.read_bytes() == content
    assert lengths(store) == WHOLE
    assert last.stat().st_nlink == 1


def test_reserve_file_locked_by_another_process_is_not_used(store: MetadataStore, disk: CountingDisk) -> None:
    path = reserve_path(store, RESERVE_FILES - 1)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        disk.inodes = 0
        commit(store, "1")
        assert path.read_bytes() == bytes(RESERVE_BYTES)
        assert lengths(store) == [*WHOLE[:2], -1, RESERVE_BYTES]
    assert setting(store) == "1"


def test_reserve_file_linked_as_commit_is_not_used(tmp_path: Path) -> None:
    directory = tmp_path
    reserve = CommitReserve(directory, LOCAL)
    reserve.restore()
    last = directory / f"kafkalog-reserve-{RESERVE_FILES - 1}"
    with reserve.filled(b"first") as mine:
        assert mine == last
        with reserve.filled(b"second") as others:
            assert others == directory / f"kafkalog-reserve-{RESERVE_FILES - 2}"
        os.link(mine, directory / "commit")
        os.unlink(mine)
    assert (directory / "commit").read_bytes() == b"first"
    reserve.restore()
    assert (directory / "commit").read_bytes() == b"first"
    assert last.stat().st_size == RESERVE_BYTES


def test_lost_race_on_full_disk_keeps_reserve(store: MetadataStore, disk: CountingDisk) -> None:
    there = max(int(path.stem) for path in commit_files(store.root))
    disk.inodes = 0
    with pytest.raises(CommitConflictError):
        store.log.publish(there, [FormatRecord(format_version=1)], timestamp_ms=1, frees_space=True)
    assert all(length > 0 for length in lengths(store))
    commit(store, "1")
    assert setting(store) == "1"


def test_link_without_space_raises_no_space_and_leaves_no_temporary_file(
    store: MetadataStore, disk: CountingDisk
) -> None:
    class NoName(CountingDisk):
        links = 0

        def link(self, source: Path, target: Path) -> None:
            self.links += 1
            if self.links == 1:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(source), None, str(target))
            super().link(source, target)

    full = LocalMetadataStore.open(store.root, fs=NoName())
    with pytest.raises(OSError, match="No space left"):
        commit(full, "1", frees_space=False)
    assert not list(metadata_dir(store.root).glob("*.tmp"))
    commit(LocalMetadataStore.open(store.root, fs=NoName()), "2")
    assert setting(store) == "2"


def test_link_that_takes_an_inode_frees_another_reserve_file(store: MetadataStore) -> None:
    """A link takes an inode on tmpfs."""

    class InodeAName(CountingDisk):
        def link(self, source: Path, target: Path) -> None:
            self._take(0, 1)
            super().link(source, target)

        def _on_unlink(self, path: Path) -> None:
            if path.exists() and path.stat().st_nlink > 1:
                self._take(0, -1)
            super()._on_unlink(path)

    disk = InodeAName(inodes=0)
    commit(LocalMetadataStore.open(store.root, fs=disk), "1")
    assert setting(store) == "1"
    assert lengths(store) == [*WHOLE[:2], RESERVE_BYTES, -1]


def test_old_commits_are_deleted_without_space_for_snapshot(store: MetadataStore, disk: CountingDisk) -> None:
    settings_of(store, {"metadata.log.max.record.bytes.between.snapshots": "1", "metadata.max.retention.ms": "60000"})
    clock_ms = [0]
    later = LocalMetadataStore.open(store.root, fs=disk, clock=lambda: 2_000_000_000_000 + clock_ms[0])
    commit(later, "1")
    commit(later, "2")
    before = len(commit_files(store.root))
    clock_ms[0] = 120_000
    disk.inodes = 0
    commit(later, "3")
    assert len(commit_files(store.root)) < before + 1
    assert setting(store) == "3"
