"""An export looks for damage of its logs before it replaces anything in a broker's directory."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from adopted_roots import FIXTURES, clock, copy_of

from pyspark_kafkalog.errors import CorruptIndexError, KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.export.export import export_in_place, export_to
from pyspark_kafkalog.maintenance.export.new_broker import export_new_broker
from pyspark_kafkalog.maintenance.repair.reindex import reindex
from pyspark_kafkalog.root.adopt.adopt import adopt
from pyspark_kafkalog.root.file_root import on_file_system
from pyspark_kafkalog.storage.artefacts.transaction_index import TXN_INDEX_ENTRY_BYTES


def _nul_leader_epochs(root: Path) -> None:
    (root / "cars-0" / "leader-epoch-checkpoint").write_bytes(bytes(8))


def _emptied_segment(root: Path) -> None:
    max((root / "cars-0").glob("*.log")).write_bytes(b"")


@pytest.mark.parametrize("damage", [_nul_leader_epochs, _emptied_segment])
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
