"""HTML of notebooks: hostile text is escaped, its size is bounded, and it is rendered quickly."""

from __future__ import annotations

import shutil
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from counted_steps import counted_steps
from repository import FIXTURES

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.notebook.html import escaped, heading, label, merged, rect, table, view
from pyspark_kafkalog.notebook.tables import SegmentInfo
from pyspark_kafkalog.root.brokers.broker_root import BrokerRoot

HOSTILE = "<script>alert('x')</script>\"&\x00\x1b[31m\u202e"
VIEW_BYTES_MAX = 60_000
PARTITIONS = 10_000


def _parsed(html: str) -> Any:
    """The view as XML, which it is well-formed as: every tag closed, every text escaped."""
    return ElementTree.fromstring(html)


def _views(log_dir: LogDir) -> list[str]:
    views = [log_dir._repr_html_()]
    for name in log_dir:
        views.append(log_dir[name]._repr_html_())
        for log in log_dir[name].logs:
            views += [log._repr_html_(), log[1:3]._repr_html_()]
    return views


@pytest.mark.parametrize("root", sorted(FIXTURES.iterdir()), ids=lambda path: path.name)
def test_view_of_broker_directory_is_valid_and_bounded(root: Path) -> None:
    for html in _views(LogDir.open(root)):
        _parsed(html)
        assert len(html) < VIEW_BYTES_MAX


def test_hostile_text_is_escaped() -> None:
    for html in (
        heading(HOSTILE, HOSTILE),
        table([HOSTILE], [[HOSTILE]]),
        label(0, 0, HOSTILE),
        rect(0, 0, 1, 1, "clean", HOSTILE),
    ):
        _parsed(html)
        assert "<script" not in html
        assert "\x00" not in html
        assert "\u202e" not in html
    assert escaped("a<b>&\"'") == "a&lt;b&gt;&amp;&quot;&#x27;"


def test_hostile_keys_and_directory_names_are_escaped(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "<img src=x onerror=alert(1)>")
    log_dir.append(
        "t", pa.table({"key": [HOSTILE], "value": ["</svg></div><script>alert(1)</script>" * 50]}), partition=0
    )
    log_dir.refresh()
    log = log_dir["t", 0]
    for html in [*_views(log_dir), log.at(0)._repr_html_(), log.seek("2020-01-01")._repr_html_()]:
        _parsed(html)
        assert "<script" not in html
        assert "<img" not in html
        assert len(html) < VIEW_BYTES_MAX


def test_directory_with_hostile_name_is_no_topic(tmp_path: Path) -> None:
    root = tmp_path / "broker"
    shutil.copytree(FIXTURES / "cars", root)
    (root / "<b>x<b>-0").mkdir()
    assert list(LogDir.open(root)) == ["cars"]


@pytest.mark.slow
def test_ten_thousand_partitions_render_in_bounded_steps_and_size(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("wide", partitions=PARTITIONS)
    for number in range(60):
        log_dir.create_topic(f"t{number}", partitions=1)
    for look in (
        log_dir._repr_html_,
        log_dir["wide"]._repr_html_,
        lambda: LogDir.open(tmp_path / "root")["wide", 9999]._repr_html_(),
    ):
        with counted_steps() as steps:
            html = look()
        assert steps.count < 100 * PARTITIONS
        assert len(html) < VIEW_BYTES_MAX
        _parsed(html)
    assert "and 21 topics more" in log_dir._repr_html_()
    assert "and 9,976 partitions more" in log_dir["wide"]._repr_html_()


def test_ten_thousand_broker_partitions_render_in_bounded_steps_and_size(tmp_path: Path) -> None:
    root = tmp_path / "broker"
    root.mkdir()
    for number in range(PARTITIONS):
        (root / f"wide-{number}").mkdir()
    (root / "wide-0" / f"{0:020}.log").touch()
    log_dir = LogDir.open(root)
    for look in (log_dir._repr_html_, log_dir["wide"]._repr_html_):
        with counted_steps() as steps:
            assert len(look()) < VIEW_BYTES_MAX
        assert steps.count < 400 * PARTITIONS


def test_empty_partitions_are_counted_and_not_drawn(tmp_path: Path) -> None:
    log_dir = LogDir.create(tmp_path / "root")
    log_dir.create_topic("orders", partitions=5)
    assert "not drawn: 5 empty partitions" in log_dir["orders"]._repr_html_()
    assert "<svg" not in log_dir["orders"]._repr_html_()

    log_dir.append("orders", pa.table({"value": ["a"]}), partition=3, flush="os")
    html = log_dir["orders"]._repr_html_()

    assert "not drawn: 4 empty partitions" in html
    assert [each.text for each in _parsed(html).iter("text") if each.get("class") == "strong"] == ["3"]


def test_many_segments_are_merged_and_few_are_kept() -> None:
    segments = [
        SegmentInfo(base_offset=n, end_offset=n + 1, size_bytes=10, state="clean" if n < 5000 else "dirty")
        for n in range(10_000)
    ]
    drawn = merged(segments)
    assert len(drawn) < 200
    assert sum(each.size_bytes for each in drawn) == 100_000
    assert (drawn[0].base_offset, drawn[-1].end_offset) == (0, 10_000)
    assert {each.state for each in drawn} == {"clean", "dirty"}
    assert merged(segments[:100]) == segments[:100]


def test_view_has_dark_style() -> None:
    html = view("")
    assert "prefers-color-scheme:dark" in html
    assert "data-jp-theme-light=false" in html


def test_view_of_wide_broker_topic_loads_few_partitions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "broker"
    for number in range(1000):
        directory = root / f"wide-{number}"
        directory.mkdir(parents=True)
        for base in (0, 10):
            (directory / f"{base:020d}.log").touch()
    loaded = []
    load = BrokerRoot._read_snapshot
    monkeypatch.setattr(
        BrokerRoot, "_read_snapshot", lambda self, partition: loaded.append(partition) or load(self, partition)
    )
    log_dir = LogDir.open(root)
    assert "not read, because there are many partitions" in log_dir._repr_html_()
    _parsed(log_dir["wide"]._repr_html_())
    assert len(loaded) <= 24
