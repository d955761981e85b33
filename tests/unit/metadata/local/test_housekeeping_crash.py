"""A commit killed or failing at any call of its housekeeping: the root opens, keeps its commits and accepts more."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.metadata_roots import add_topic, commit_files, forget_images, settings_of, snapshot_files, write_to
from fakes.clock import Clock
from fakes.stopping_filesystem import Killed, StoppingFileSystem, broken_disk

from pyspark_kafkalog.errors import CommitStateUnknownError
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.root.bootstrap import create_root

DAY_MS = 86_400_000


def make_root(root: Path) -> tuple[Clock, str]:
    """A root whose next commit is followed by a snapshot and by the removal of old files."""
    clock = Clock()
    store = create_root(root, clock=clock)
    topic_id = add_topic(store, "orders", 1)
    settings_of(store, {"metadata.log.max.record.bytes.between.snapshots": "1"})
    for end in range(1, 4):
        write_to(store, topic_id, end)
    clock.now_ms += 8 * DAY_MS
    return clock, topic_id


@pytest.mark.slow
@pytest.mark.parametrize("kills", [True, False])
def test_housekeeping_stopped_at_any_call_leaves_root_sound(tmp_path: Path, kills: bool) -> None:
    for calls in range(100):
        root = tmp_path / str(calls)
        clock, topic_id = make_root(root)
        forget_images()
        fs = StoppingFileSystem(calls, error=Killed if kills else broken_disk, once=not kills, torn=True)
        store = LocalMetadataStore.open(root, clock=clock, fs=fs)
        committed = False
        try:
            write_to(store, topic_id, 4)
            committed = True
        except (Killed, OSError, CommitStateUnknownError):
            pass
        if not fs.has_stopped:
            assert calls > 25
            return
        check_root(root, clock, topic_id, committed)
    raise AssertionError("the commit never came through")


def check_root(root: Path, clock: Clock, topic_id: str, committed: bool) -> None:
    forget_images()
    store = LocalMetadataStore.open(root, clock=clock)
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
    assert LocalMetadataStore.open(root).image == image
