"""Copying to remote storage while requests fail, land late or kill the process, and while the disk fails or the machine
stops: nothing that a commit names is ever missing, and the next run completes the work.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from builders.controlled import open_log_dir
from builders.root_places import forget, open_as
from builders.tiered_roots import TOPIC, append_rounds, file_root, log_bytes, no_lock, remote_bytes, tiered_root
from fakes.faulty_store import Call, Fault, FaultyStore, MemoryBucket
from fakes.stopping_filesystem import Killed, StoppingFileSystem, broken_disk
from tiers import Sample

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance import tier
from pyspark_kafkalog.maintenance.jobs.partition import PartitionReport
from pyspark_kafkalog.maintenance.tier import tier_segments
from pyspark_kafkalog.metadata.extents import planned_at_of
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.storage.segment.stored import closed_segments
from pyspark_kafkalog.tiered.own_segments import OwnLayout, parse_key

PARTITIONS = (TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1))
SEGMENTS = 3


class TieredPlace:
    """A root with some closed segments, which is copied for each case, and the bucket that it tiers to."""

    def __init__(self, path: Path, layout: str) -> None:
        self.url = f"s3://in-memory/faults-{layout}"
        self.layout = OwnLayout(layout)
        self._template = path / "template"
        self._path = path
        self._cases = 0
        log_dir = tiered_root(self._template, self.url, layout=layout, partitions=len(PARTITIONS))
        for of in PARTITIONS:
            append_rounds(log_dir, 8, partition=of.partition)

    def case(self) -> Path:
        """A fresh root with an empty bucket."""
        if self._cases:
            shutil.rmtree(self._path / str(self._cases))
        self._cases += 1
        root = self._path / str(self._cases)
        shutil.copytree(self._template, root)
        self.bucket = MemoryBucket()
        return root

    def tier(
        self, root: Path, store: FaultyStore | None = None, *, fs: FileSystem | None = None
    ) -> list[PartitionReport]:
        open_as(self.url, store if store is not None else FaultyStore(self.bucket))
        return tier_segments((LogDir.open(root) if fs is None else open_log_dir(root, fs=fs)).root)

    def check(self, root: Path, *, is_complete: bool) -> None:
        """All that is named is there with its bytes, and all that is there is named or of an abandoned copy."""
        open_as(self.url, FaultyStore(self.bucket))
        log_dir = LogDir.open(root)
        image = file_root(log_dir).store.refresh()
        named = set()
        for of in PARTITIONS:
            partition = image.partition(of.topic, of.partition)
            named |= {each.segment_id for each in partition.segments}
            end = partition.segments[-1].end_offset if partition.segments else 0
            assert remote_bytes(log_dir, of) == log_bytes(log_dir, of, end)
            closed = closed_segments(root / str(of), partition.state.active_base_offset)
            if is_complete:
                assert [(each.base_offset, each.end_offset) for each in partition.segments] == [
                    (each.base_offset, each.end_offset) for each in closed
                ]
        for key in self.bucket.objects:
            found = parse_key(key, self.layout)
            assert found is not None
            assert found.segment_id in named or planned_at_of(found.segment_id) <= image.next_offset
        assert log_dir.read(TOPIC).num_rows == 2 * 8 * 20


@pytest.fixture(scope="module", params=["aiven", "local"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredPlace]:
    place = TieredPlace(tmp_path_factory.mktemp("tiered"), str(request.param))
    yield place
    forget(place.url)


@pytest.mark.parametrize("fault", list(Fault))
@pytest.mark.slow
def test_any_request_may_fail_land_late_or_kill(place: TieredPlace, fault: Fault) -> None:
    root = place.case()
    counted = FaultyStore(place.bucket)
    place.tier(root, counted)
    place.check(root, is_complete=True)
    requests = len(counted.calls)
    assert requests >= 2 * SEGMENTS * 3

    for number in Sample.of_tier().calls(f"tier {place.layout} {fault}", requests):
        root = place.case()
        with suppress(Killed):
            reports = place.tier(root, FaultyStore(place.bucket, faults={number - 1: fault}))
            assert any(each.error is not None for each in reports)
        place.check(root, is_complete=False)
        assert all(each.error is None for each in place.tier(root))
        place.bucket.land()
        place.check(root, is_complete=True)


@pytest.mark.parametrize(("error", "once"), [(Killed, False), (broken_disk, True)], ids=["kill", "disk fails once"])
@pytest.mark.slow
def test_any_change_of_the_file_system_may_fail_or_be_the_last(
    place: TieredPlace, error: type[BaseException], once: bool
) -> None:
    counted = StoppingFileSystem(1 << 30)
    place.tier(place.case(), fs=counted)
    assert counted.changes > 5
    for number in range(counted.changes):
        root = place.case()
        with suppress(Killed, OSError):
            place.tier(root, fs=StoppingFileSystem(number, error=error, once=once, torn=True))
        place.check(root, is_complete=False)
        assert all(each.error is None for each in place.tier(root))
        place.check(root, is_complete=True)


def test_loser_whose_delete_fails_leaves_its_copies_to_the_clean_up(
    place: TieredPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = place.case()
    monkeypatch.setattr(tier, "partition_lock", no_lock)
    winners = FaultyStore(place.bucket)

    def other(call: Call) -> None:
        if call.number == 1:
            place.tier(root, winners)
            open_as(place.url, loser)

    loser = FaultyStore(
        place.bucket, before=other, faults=lambda call: Fault.UNAVAILABLE if call.kind == "delete" else None
    )
    reports = place.tier(root, loser)
    assert [each.error for each in reports] == [None, None]
    assert [each.segments_copied for each in reports] == [0, 0]
    puts = sum(each.kind == "put" for each in winners.calls)
    assert len(place.bucket.keys()) == puts + puts // 2  # after its first partition the loser sees the winner's commit
    place.check(root, is_complete=True)
