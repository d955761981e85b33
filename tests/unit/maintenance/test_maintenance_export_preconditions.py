"""An export looks for damage of its logs before it replaces anything in a broker's directory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from adopted_roots import clock, copy_of

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.export.export import export_to
from pyspark_kafkalog.root.adopt.adopt import adopt
from pyspark_kafkalog.root.file_root import on_file_system


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
