"""Views of a log whose older segments are in remote storage: its own, a broker's, or remote storage alone."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from builders.tiered_fixtures import ALL
from builders.tiered_logs import T0, bases, copy_closed, delete_local, fill, image_of, rows, tiering_root

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.notebook.tables import iso_text


def own(tmp_path: Path) -> LogDir:
    log_dir = tiering_root(tmp_path / "root", tmp_path / "tier")
    fill(log_dir, random.Random(6), 50)
    copy_closed(log_dir)
    delete_local(log_dir, bases(log_dir)[10])
    log_dir.refresh()
    return log_dir


def test_seek_finds_each_record_on_both_sides_of_the_seam(tmp_path: Path) -> None:
    log_dir = own(tmp_path)
    log = log_dir["orders"][0]
    for row in rows(log_dir):
        seek = log.at(row["offset"])
        assert seek.record is not None
        assert (seek.record.offset, seek.record.value) == (row["offset"], row["value"])
        assert seek.segment.base_offset <= row["offset"] < seek.segment.end_offset


def test_seek_by_time_finds_the_same_record_as_before(tmp_path: Path) -> None:
    log_dir = tiering_root(tmp_path / "root", tmp_path / "tier")
    fill(log_dir, random.Random(6), 50)
    times = [iso_text(T0 + 7000 * at) for at in range(25)]

    def found() -> list[int | None]:
        log_dir.refresh()
        seeks = [log_dir["orders"][0].seek(each) for each in times]
        return [None if each.record is None else each.record.offset for each in seeks]

    before = found()
    assert before[0] is not None
    copy_closed(log_dir)
    delete_local(log_dir, bases(log_dir)[-2])
    assert found() == before


def test_segments_that_are_only_remote_come_first_and_are_drawn(tmp_path: Path) -> None:
    log_dir = own(tmp_path)
    table = log_dir["orders"][0].segments().to_pydict()
    local = bases(log_dir)
    assert table["state"] == ["remote"] * 10 + ["closed"] * (len(local) - 1) + ["active"]
    assert table["base_offset"][10:] == local
    assert table["end_offset"][9] == local[0]
    assert table["size_bytes"][:10] == [each.size_bytes for each in image_of(log_dir).segments[:10]]
    assert None not in table["max_timestamp"]
    html = log_dir["orders"][0]._repr_html_()
    assert "remote: only in remote storage" in html
    assert f"local log start {local[0]:,}" in html
    assert "log start 0" in html


@pytest.mark.parametrize("is_alone", [False, True])
def test_log_of_a_tiering_broker_is_explained_across_the_seam(is_alone: bool) -> None:
    fixture = ALL[0]
    log_dir = LogDir.open(None if is_alone else fixture.log_dir, remote_storage=fixture.remote)
    log = log_dir["tiered"][0]
    for offset in (0, 113, 300, 551):
        seek = log.at(offset)
        assert seek.record is not None
        assert seek.record.offset == offset
    states = set(log.segments()["state"].to_pylist())
    assert "remote" in states
    assert "remote: only in remote storage" in log._repr_html_()
