"""Which root in an object store a worker process goes on with, and when it looks at the store again."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from builders.root_places import client_address, forget, memory_root, store_of
from fakes.faulty_store import FaultyStore

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.spark.options.parse import parse_write_options
from pyspark_kafkalog.spark.write import plan as plan_module
from pyspark_kafkalog.spark.write.plan import WritePlan, plan_stream

ROW = pa.table({"value": ["x"]})


@pytest.fixture
def url() -> Iterator[str]:
    url = memory_root()
    LogDir.create(url).create_topic("t", partitions=1)
    plan_module._kept_roots.cache_clear()
    yield url
    plan_module._kept_roots.cache_clear()
    forget(url)


def plan(url: str, **options: str) -> WritePlan:
    return plan_stream(parse_write_options({"path": url, "topic": "t", **options}))[0]


def requests_of(url: str, **options: str) -> int:
    store = store_of(url)
    before = store.requests.total()
    plan(url, **options)
    return store.requests.total() - before


def test_next_plan_and_commit_of_a_process_ask_nothing(url: str) -> None:
    first = plan(url)
    assert requests_of(url) == 0
    before = store_of(url).requests.total()
    root = first.open_root()
    assert root.identity == first.identity
    assert store_of(url).requests.total() == before


def test_root_not_seen_for_half_a_minute_is_opened_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plan(url)
    monkeypatch.setattr("pyspark_kafkalog.metadata.objects.log.WRITER_TRUST_S", -1.0)
    assert requests_of(url) == 2


def test_root_opened_for_a_principal_is_not_kept(url: str) -> None:
    for _ in range(2):
        with pytest.raises(PermissionError):
            plan(url, principal="User:ann")
        plan(url)  # keeps it for whoever names no principal


def test_plan_of_a_newer_version_refreshes_the_kept_root(url: str) -> None:
    old = plan(url)
    address = old.path
    assert isinstance(address, StoreAddress)
    other = LogDir.open(client_address(url, FaultyStore(store_of(url).bucket)))
    other.append("t", ROW)
    assert old.open_root().topic("t").partitions[0].high_watermark == 0
    kept = plan_module._kept_root(address, None, old.identity, version=other.version or 0)
    assert kept is not None
    assert kept.topic("t").partitions[0].high_watermark == 1


def test_kept_root_is_not_taken_for_another_one_at_its_url(url: str) -> None:
    old = plan(url)
    store_of(url).bucket.objects.clear()
    new = LogDir.create(client_address(url, FaultyStore(store_of(url).bucket)))
    assert WritePlan(old.options, old.path, new.identity, None, "w").open_root().identity == new.identity
    with pytest.raises(LogDirError, match="expected the log directory with"):
        old.open_root()
