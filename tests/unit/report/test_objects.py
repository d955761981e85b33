"""The report on a log directory in an object store: facts from the image, with the runs that are not merged."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from builders.report_roots import HOUR_MS, NOW_MS, lively_root
from builders.root_places import forget, memory_root, store_of

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.cleaner.clean import clean_partition
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.retention.delete import apply_retention
from pyspark_kafkalog.report import findings
from pyspark_kafkalog.report.facts import RootFacts, TopicFacts
from pyspark_kafkalog.report.gather import GatherOptions, gather
from pyspark_kafkalog.report.page import render


@pytest.fixture
def log_dir() -> Iterator[LogDir]:
    url = memory_root()
    yield lively_root(url)
    forget(url)


def facts(log_dir: LogDir) -> RootFacts:
    log_dir.refresh()
    return gather(log_dir.root, GatherOptions(), clock=lambda: NOW_MS)


def topic(root: RootFacts, name: str) -> TopicFacts:
    return next(each for each in root.topics if each.name == name)


def test_facts_are_those_of_the_image_and_of_its_groups(log_dir: LogDir) -> None:
    root = facts(log_dir)
    assert (root.path, root.is_foreign) == (str(log_dir.path), False)
    assert root.cluster_id is not None
    assert root.node_id == 1
    assert [each.name for each in root.topics] == ["__consumer_offsets", "customers", "idle", "orders"]
    orders = topic(root, "orders").partitions
    ends = [each.high_watermark for each in log_dir.topic("orders").partitions]
    assert [each.high_watermark for each in orders] == ends
    assert [each.error for each in orders] == [None] * 4
    assert {each.segments for each in orders} == {12, 24}  # partition 1 has the writes of a transactional id too
    assert min(each.first_ms for each in orders) >= NOW_MS - 48 * HOUR_MS
    assert max(each.last_ms for each in orders) == NOW_MS
    assert all(each.due_bytes > 0 for each in orders)
    assert {each.group for each in root.groups} == {"billing"}
    assert root.history is not None
    assert {each.topic for each in root.keys} == {"orders", "customers"}


def test_gathering_without_sampling_asks_the_store_for_no_data(log_dir: LogDir) -> None:
    store = store_of(str(log_dir.path))
    before = len(store.calls)
    log_dir.refresh()
    gather(log_dir.root, GatherOptions(sample_bytes=0), clock=lambda: NOW_MS)
    keys = {key for each in store.calls[before:] for key in each.keys}
    assert not [key for key in keys if key.startswith(("data/", "orders-", "customers-"))]


def test_unmerged_runs_are_noted_until_they_are_merged(log_dir: LogDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(findings, "_UNMERGED_RUNS_MIN", 20)
    root = facts(log_dir)
    assert any("are not merged yet" in each for each in root.notes)
    assert [(each.title, each.topic) for each in root.findings if each.title == "Not merged"] == [
        ("Not merged", "orders")
    ]
    merge_segments(log_dir.root)
    root = facts(log_dir)
    assert not any("are not merged yet" in each for each in root.notes)
    assert not [each for each in root.findings if each.title == "Not merged"]
    assert sum(each.size_bytes for each in topic(root, "orders").partitions) > 100_000


def test_due_work_is_shown_until_it_is_done(log_dir: LogDir) -> None:
    assert {each.title for each in facts(log_dir).findings} >= {"Retention is due", "Cleaning is due"}
    apply_retention(log_dir.root, now_ms=NOW_MS)
    for number in (0, 1):
        clean_partition(log_dir.root, "customers", number, now_ms=NOW_MS)
    assert not {each.title for each in facts(log_dir).findings} & {"Retention is due", "Cleaning is due"}


def test_page_names_the_url(log_dir: LogDir) -> None:
    page = render(facts(log_dir))
    assert str(log_dir.path) in page
    assert "customers" in page
