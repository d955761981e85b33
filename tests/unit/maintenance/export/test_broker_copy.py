"""A stopped broker's directory and what it tiered, exported for a new broker: the same log, and nothing is written."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from builders.adopted_roots import copy_of
from builders.metadata_roots import forget_images
from builders.tiered_fixtures import ALL, ISOLATIONS, TieredFixture
from fakes.stopping_filesystem import Killed, StoppingFileSystem

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import LogDirError, UnknownTopicError
from pyspark_kafkalog.maintenance.export.export import export_new_broker
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.root.adopt.adopt import adoption_lock
from pyspark_kafkalog.root.brokers.broker_root import BrokerRoot
from pyspark_kafkalog.storage.artefacts.checkpoint_file import read_offset_checkpoint
from pyspark_kafkalog.storage.filesystem import LOCAL
from pyspark_kafkalog.tools.main import main


def broker_root(disk: Path, tier: Path | None) -> BrokerRoot:
    root = LogDir.open(disk, remote_storage=tier).root
    assert isinstance(root, BrokerRoot)
    return root


def copied(fixture: TieredFixture, directory: Path) -> Path:
    """A copy of the fixture's log directory."""
    shutil.copytree(fixture.log_dir, directory)
    return directory


def rows(log_dir: LogDir) -> dict[tuple[str, str], list[dict[str, object]]]:
    return {
        (topic, isolation): log_dir.read(topic, isolation=isolation).to_pylist()  # type: ignore[arg-type]
        for topic in log_dir.topics()
        for isolation in ISOLATIONS
        if not topic.startswith("__")
    }


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize("fixture", ALL, ids=lambda fixture: fixture.name)
def test_copy_and_remote_storage_hold_the_same_logs(fixture: TieredFixture, tmp_path: Path) -> None:
    disk = copied(fixture, tmp_path / "disk")
    original, before = LogDir.open(disk, remote_storage=fixture.remote), files(disk)
    root = original.root
    assert isinstance(root, BrokerRoot)
    done = export_new_broker(root, tmp_path / "broker", metadata_partitions=5, tiered=True)
    copy = LogDir.open(tmp_path / "broker", remote_storage=fixture.remote)
    assert files(disk) == before
    found, expected = rows(copy), rows(LogDir.open(disk, remote_storage=fixture.remote, read_to_log_end=True))
    assert found.keys() == expected.keys()
    for key, each in expected.items():
        assert found[key] == each, key
    for topic, _ in expected:
        assert copy.topic(topic).topic_id == original.topic(topic).topic_id
        assert copy.topic(topic).configs == original.topic(topic).configs
        for partition in original.topic(topic).partitions:
            other = copy.partition(topic, partition.partition)
            assert other.log_start_offset == partition.log_start_offset
            assert other.local_log_start_offset == partition.local_log_start_offset
    tiered = {each.topic_partition for each in done.partitions if each.is_tiered}
    assert read_offset_checkpoint(copy.path / "log-start-offset-checkpoint").keys() >= tiered
    assert len(tiered) > 2


def test_offsets_in_remote_storage_have_to_stay_there(tmp_path: Path) -> None:
    fixture = ALL[0]
    disk = copied(fixture, tmp_path / "disk")
    for tier, tiered in ((fixture.remote, False), (None, False), (None, True)):
        with pytest.raises(LogDirError, match=r"are in remote storage: name it with --remote-storage, and leave them"):
            export_new_broker(broker_root(disk, tier), tmp_path / "broker", metadata_partitions=5, tiered=tiered)
    assert not (tmp_path / "broker").exists()
    export_new_broker(broker_root(disk, None), tmp_path / "broker", ["local-only"], metadata_partitions=5)
    copy = LogDir.open(tmp_path / "broker")
    assert copy.topics() == ("local-only",)
    assert len(copy.read("local-only")) == 345


def test_topics_without_metadata_log_are_tiered_if_they_have_remote_segments(tmp_path: Path) -> None:
    fixture = ALL[0]
    disk = copied(fixture, tmp_path / "disk")
    shutil.rmtree(disk / "__cluster_metadata-0")
    root = broker_root(disk, fixture.remote)
    export_new_broker(root, tmp_path / "broker", ["tiered", "local-only"], metadata_partitions=5, tiered=True)
    copy = LogDir.open(tmp_path / "broker", remote_storage=fixture.remote)
    assert copy.topic("tiered").configs == {"remote.storage.enable": "true"}
    assert copy.topic("local-only").configs == {}
    assert (
        rows(copy)["tiered", "read_committed"]
        == rows(LogDir.open(disk, remote_storage=fixture.remote))["tiered", "read_committed"]
    )


def test_directory_in_use_and_other_targets_are_refused(tmp_path: Path) -> None:
    fixture = ALL[0]
    disk = copied(fixture, tmp_path / "disk")
    LogDir.create(tmp_path / "native")
    root = broker_root(disk, fixture.remote)
    with adoption_lock(disk, fs=LOCAL), pytest.raises(LogDirError, match="is held by another process"):
        export_new_broker(root, tmp_path / "broker", metadata_partitions=5, tiered=True)
    with pytest.raises(LogDirError, match="name another"):
        export_new_broker(root, tmp_path / "native", metadata_partitions=5, tiered=True)
    with pytest.raises(LogDirError, match="name another"):
        export_new_broker(root, disk, metadata_partitions=5, tiered=True)
    with pytest.raises(UnknownTopicError, match="no topic 'missing'"):
        export_new_broker(root, tmp_path / "broker", ["tiered", "missing"], metadata_partitions=5, tiered=True)


def test_killed_export_is_completed_by_the_next_one(tmp_path: Path) -> None:
    fixture = ALL[2]
    disk = copied(fixture, tmp_path / "disk")
    before = files(disk)
    counting = StoppingFileSystem(10**9)
    root = broker_root(disk, fixture.remote)
    export_new_broker(root, tmp_path / "whole", metadata_partitions=1, tiered=True, fs=counting)
    for stops_at in range(10, counting.changes - 20, counting.changes // 9):
        with pytest.raises(Killed):
            export_new_broker(
                root, tmp_path / "broker", metadata_partitions=1, tiered=True, fs=StoppingFileSystem(stops_at)
            )
        assert not (tmp_path / "broker" / "meta.properties").exists()
    forget_images()
    export_new_broker(root, tmp_path / "broker", metadata_partitions=1, tiered=True)
    assert rows(LogDir.open(tmp_path / "broker", remote_storage=fixture.remote)) == rows(
        LogDir.open(tmp_path / "whole", remote_storage=fixture.remote)
    )
    assert files(disk) == before


def test_command_takes_the_remote_storage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fixture = ALL[0]
    disk = copied(fixture, tmp_path / "disk")
    export = ["export", "--path", str(disk), "--to", str(tmp_path / "broker"), "--new-broker", "--tiered"]
    assert main(export) == 1
    assert "name it with --remote-storage" in capsys.readouterr().err
    assert main([*export, "--topic", "tiered.*", "--remote-storage", str(fixture.remote)]) == 0
    printed = capsys.readouterr()
    assert "rlmm.config.remote.log.metadata.topic.num.partitions=50\n" in printed.out
    assert "use the exported directory or the original from now on, never both" in printed.err
    assert len(list((tmp_path / "broker").glob("__remote_log_metadata-*"))) == 50


@pytest.mark.parametrize("lost", [("txnindex",), ("txnindex", "index", "timeindex", "snapshot"), ()])
def test_new_broker_gets_whole_transaction_indexes_and_the_original_stays(
    tmp_path: Path, lost: tuple[str, ...]
) -> None:
    """Without a file of `lost`; with none, the transaction indexes are torn."""
    disk = copy_of("transactions", tmp_path)
    for path in disk.glob("*/*.*"):
        if path.suffix[1:] in lost:
            path.unlink()
        elif not lost and path.suffix == ".txnindex":
            path.write_bytes(path.read_bytes()[:-10])
    before = files(disk)
    export_new_broker(broker_root(disk, None), tmp_path / "new", metadata_partitions=1)
    assert files(disk) == before
    assert verify(LogDir.open(tmp_path / "new").root).is_sound


def test_partition_that_only_the_checkpoint_names_is_told_by_the_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    disk = copy_of("cars", tmp_path)
    (disk / "cars-0").rename(disk / "x-0")
    assert main(["export", "--path", str(disk), "--to", str(tmp_path / "new"), "--new-broker"]) == 0
    assert "cars-0 has no directory here; the broker's checkpoint has it up to offset 400" in capsys.readouterr().err
    assert main(["export", "--path", str(disk), "--to", str(tmp_path / "other")]) == 1
    assert "--to DIR --new-broker copies it for another broker" in capsys.readouterr().err
