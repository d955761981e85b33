"""An export looks for damage of its logs before it replaces anything in a broker's directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.adopted_roots import clock, copy_of
from repository import FIXTURES

from pyspark_kafkalog.errors import CorruptIndexError, KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.export.export import export_in_place, export_new_broker, export_to
from pyspark_kafkalog.maintenance.reindex import reindex
from pyspark_kafkalog.root.adopt.adopt import adopt
from pyspark_kafkalog.root.adopt.plan import KEPT_METADATA_DIR
from pyspark_kafkalog.root.file_root import on_file_system
from pyspark_kafkalog.storage.artefacts.transaction_index import TXN_INDEX_ENTRY_BYTES


def _nul_leader_epochs(root: Path) -> None:
    (root / "cars-0" / "leader-epoch-checkpoint").write_bytes(bytes(8))


def _emptied_segment(root: Path) -> None:
    max((root / "cars-0").glob("*.log")).write_bytes(b"")


def _huge_index(root: Path) -> None:
    with max((root / "cars-0").glob("*.index")).open("r+b") as stream:
        stream.truncate(30 << 30)


@pytest.mark.parametrize("damage", [_nul_leader_epochs, _emptied_segment, _huge_index])
def test_damaged_log_replaces_nothing_of_the_broker(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    broker = copy_of("cars", tmp_path / "broker")
    root = copy_of("cars", tmp_path / "root")
    adopt(root, clock=clock)
    damage(root)
    before = {path.name: path.read_bytes() for path in (broker / "cars-0").iterdir()}
    with pytest.raises(KafkalogError):
        export_to(on_file_system(LogDir.open(root).root), broker, overwrite=True)
    assert {path.name: path.read_bytes() for path in (broker / "cars-0").iterdir()} == before
    with pytest.raises(KafkalogError):
        export_to(on_file_system(LogDir.open(root).root), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_wrong_transaction_index_is_exported_to_no_broker(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "transactions", tmp_path / "root", ignore=shutil.ignore_patterns("expected"))
    adopt(tmp_path / "root")
    root = on_file_system(LogDir.open(tmp_path / "root").root)
    for path in root.path.glob("*/*.txnindex"):
        path.write_bytes(path.read_bytes()[TXN_INDEX_ENTRY_BYTES:])
    with pytest.raises(CorruptIndexError, match="abort marker"):
        export_in_place(root)
    with pytest.raises(CorruptIndexError, match="abort marker"):
        export_new_broker(root, tmp_path / "new", metadata_partitions=1)
    assert not (tmp_path / "new").exists()
    reindex(root)
    export_in_place(root)
    export_new_broker(root, tmp_path / "new", metadata_partitions=1)


@pytest.mark.parametrize("kind", ["pipe", "huge"])
def test_kept_metadata_is_copied_from_regular_files_of_a_possible_size(tmp_path: Path, kind: str) -> None:
    root = copy_of("cars", tmp_path / "root")
    adopt(root, clock=clock)
    kept = root / KEPT_METADATA_DIR
    kept.mkdir()
    if kind == "pipe":
        os.mkfifo(kept / "quorum-state")
    else:
        with (kept / "00000000000000000000.log").open("wb") as stream:
            stream.truncate(30 << 30)
    with pytest.raises(KafkalogError, match="a named pipe" if kind == "pipe" else "at most 2147483647 bytes"):
        export_to(on_file_system(LogDir.open(root).root), tmp_path / "copy")
