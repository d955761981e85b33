"""Names below a root are used in open directories: a swap for a link leads nowhere, and a root may be a link."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from open_files import descriptors, descriptors_before

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.root.directories import remove_deleted
from pyspark_kafkalog.storage import below_root
from pyspark_kafkalog.storage.below_root import KeptDirectories, keep_directories
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.tiered.objects import DirectoryObjects
from pyspark_kafkalog.tools.main import main

DELETED = f"orders-0.{'0' * 32}-delete"


@pytest.mark.parametrize("name", ["log", "disk-1"])
def test_root_that_is_link_is_followed_whatever_its_name(tmp_path: Path, name: str) -> None:
    for each in (name, f"{name}-2"):
        (tmp_path / f"real-{each}").mkdir()
        (tmp_path / each).symlink_to(tmp_path / f"real-{each}")
    root = tmp_path / name
    log_dir = LogDir.create(root)
    log_dir.create_topic("orders", partitions=1)
    log_dir.append("orders", pa.table({"value": ["x"]}))
    assert LogDir.open(root).read("orders").num_rows == 1
    for command in ("verify", "retention", "reindex"):
        assert main([command, "--path", str(root)]) == 0
    assert main(["export", "--path", str(root), "--to", str(tmp_path / f"{name}-2")]) == 0
    assert LogDir.open(tmp_path / f"{name}-2").read("orders").num_rows == 1


def test_directory_that_becomes_link_after_listing_leads_no_removal_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    for directory in (tmp_path / DELETED, outside):
        directory.mkdir()
        (directory / "file").write_text("x")

    class Swapping(FileSystem):
        def unlink(self, path: Path) -> None:
            if path.name == "file" and not path.parent.is_symlink():
                path.parent.rename(tmp_path / "moved")
                path.parent.symlink_to(outside)
            super().unlink(path)

    with pytest.raises(LogDirError, match="symbolic link"):
        remove_deleted(tmp_path, now_ms=1 << 60, delay_ms=0, fs=Swapping())
    assert (outside / "file").exists()


def test_links_in_folders_of_remote_storage_are_not_followed(tmp_path: Path) -> None:
    store, outside = tmp_path / "store", tmp_path / "outside"
    (store / "topic").mkdir(parents=True)
    (outside / "deeper").mkdir(parents=True)
    (outside / "deeper" / "file").write_text("of others")
    (store / "topic" / "0").symlink_to(outside)
    objects = DirectoryObjects(store)
    for key in ("topic/0/deeper/file", "topic/0/file"):
        with pytest.raises(LogDirError, match="topic/0 is a symbolic link"):
            objects.get(key, max_bytes=100)
        with pytest.raises(OSError, match="topic/0 is a symbolic link"):
            objects.put(key, b"x")
        with pytest.raises(OSError, match="topic/0 is a symbolic link"):
            objects.delete([key])
    assert list(objects.list_objects("")) == []
    assert (outside / "deeper" / "file").read_text() == "of others"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The directories that are opened for the use of names in them."""
    found: list[str] = []
    real = below_root._open_directory

    def counted(directory: str | Path, flags: int) -> int:
        if flags == below_root._NAMES_ONLY:
            found.append(str(directory))
        return real(directory, flags)

    monkeypatch.setattr(below_root, "_open_directory", counted)
    return found


def test_operation_opens_each_directory_once_and_closes_it(tmp_path: Path, opened: list[str]) -> None:
    directories = [tmp_path / f"orders-{number}" for number in range(20)]
    for each in directories:
        each.mkdir()
        (each / "file").write_text("x")
    before = len(os.listdir("/proc/self/fd"))
    with keep_directories():
        for _ in range(3):
            with keep_directories():
                for each in directories[:3]:
                    os.close(below_root.open_file(each / "file"))
        assert opened == [str(each) for each in directories[:3]]
        for each in directories:
            os.close(below_root.open_file(each / "file"))
        assert len(os.listdir("/proc/self/fd")) - before <= below_root._KEPT_MAX
    assert len(os.listdir("/proc/self/fd")) == before
    opened.clear()
    for _ in range(2):
        os.close(below_root.open_file(directories[0] / "file"))
    assert opened == [str(directories[0])] * 2


def test_directories_that_are_kept_are_opened_once_while_they_stay_in_place(tmp_path: Path, opened: list[str]) -> None:
    directories = [tmp_path / f"orders-{number}" for number in range(3)]
    for each in directories:
        each.mkdir()
        (each / "file").write_text(each.name)
    before = descriptors_before()
    kept = KeptDirectories(2)

    def read(directory: Path) -> str:
        with kept:
            with open(below_root.open_file(directory / "file")) as file:
                text = file.read()
            os.close(below_root.open_file(directory / "file"))
        return text

    for _ in range(3):
        assert [read(each) for each in directories[:2]] == ["orders-0", "orders-1"]
    assert opened == [str(each) for each in directories[:2]]
    opened.clear()
    directories[0].rename(tmp_path / "was")
    with pytest.raises(FileNotFoundError):
        read(directories[0])
    directories[0].mkdir()
    (directories[0] / "file").write_text("another")
    assert read(directories[0]) == "another"
    assert opened == [str(directories[0])] * 2
    directories[1].rename(tmp_path / "elsewhere")
    directories[1].symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LogDirError, match="symbolic link"):
        read(directories[1])
    assert read(directories[2]) == "orders-2"
    with kept:
        for each in (directories[0], directories[2]):
            os.close(below_root.open_file(each / "file"))
        assert descriptors() == before + 2
    kept.close()
    assert descriptors() == before


def test_name_of_a_renamed_directory_leads_to_the_new_one(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    for number in range(2):
        directory.mkdir()
        (directory / "file").write_text(f"{number}")
        with keep_directories():
            os.close(below_root.open_file(directory / "file"))
            FileSystem().rename(directory, tmp_path / f"renamed-{number}")
            with pytest.raises(FileNotFoundError):
                below_root.open_file(directory / "file")
            directory.mkdir()
            (directory / "file").write_text("new")
            fd = below_root.open_file(directory / "file")
            assert os.read(fd, 9) == b"new"
            os.close(fd)
        shutil.rmtree(directory)


def test_directory_that_is_a_link_is_refused_and_a_missing_one_asked_for_again(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("x")
    (tmp_path / "orders-0").symlink_to(tmp_path / "outside")
    with keep_directories():
        for _ in range(2):
            with pytest.raises(LogDirError, match="symbolic link"):
                below_root.open_file(tmp_path / "orders-0" / "file")
        with pytest.raises(FileNotFoundError):
            below_root.open_file(tmp_path / "orders-1" / "file")
        (tmp_path / "orders-1").mkdir()
        (tmp_path / "orders-1" / "file").write_text("x")
        os.close(below_root.open_file(tmp_path / "orders-1" / "file"))


def test_open_and_append_open_few_directories(tmp_path: Path, opened: list[str]) -> None:
    log_dir = LogDir.create(tmp_path)
    log_dir.create_topic("orders", partitions=1)
    table = pa.table({"value": ["x"]})
    for _ in range(2):
        log_dir.append("orders", table, partition=0)
    opened.clear()
    log_dir.append("orders", table, partition=0)
    counts = Counter(Path(each).name for each in opened)
    assert counts["__cluster_metadata-0"] <= 4
    assert counts["orders-0"] <= 5
    opened.clear()
    LogDir.open(tmp_path)
    assert Counter(Path(each).name for each in opened)["__cluster_metadata-0"] <= 3
