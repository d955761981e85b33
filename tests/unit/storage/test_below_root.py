"""Names below a root are used in open directories: a swap for a link leads nowhere, and a root may be a link."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.root.directories import remove_deleted
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
