"""Two servers' commits on S3Proxy: the requests they take, batches sent again to the other one, transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from http_relay import HttpRelay
from leader_writers import append, batch, mark, marker
from metadata_roots import forget_images
from s3_proxy import S3Proxy

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.merge import merge_segments
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.root.leader.open import leader_writer
from pyspark_kafkalog.root.leader.units import CommitUnit, LeaderAppend, LeaderWriter


@pytest.fixture
def relay(s3_proxy: S3Proxy) -> Iterator[HttpRelay]:
    with HttpRelay(s3_proxy.endpoint) as relay:
        yield relay


@pytest.fixture
def address(s3_proxy: S3Proxy, relay: HttpRelay) -> StoreAddress:
    url = s3_proxy.new_location().below("log").url
    return StoreAddress.parse(url, s3_proxy.options(relay.endpoint))


def send(writer: LeaderWriter, *appends: LeaderAppend) -> list[tuple[int, bool]]:
    """Commit the appends, each as a unit: the first offset of each, and whether it was in the log before."""
    results = writer.commit([CommitUnit.of(each) for each in appends])
    assert all(isinstance(each, tuple) for each in results), results
    return [(each[0].first_offset, each[0].is_duplicate) for each in results if isinstance(each, tuple)]


def test_servers_share_sequences_and_transactions_with_few_requests(address: StoreAddress, relay: HttpRelay) -> None:
    log_dir = LogDir.create(address)
    log_dir.create_topic("a", 2)
    one = leader_writer(log_dir.root.native(), flush="fsync")
    forget_images()
    other = leader_writer(LogDir.open(address).root.native(), flush="fsync")
    small = append(batch([b"small"], producer=(7, 0, 0)))
    large = append(batch([b"x" * 200_000], producer=(7, 0, 1)))
    opens = batch([b"aborted"], producer=(8, 0, 0), is_transactional=True)
    assert send(one, append(batch([b"first"]), partition=1)) == [(0, False)]
    relay.reset()
    assert send(one, small) == [(0, False)]
    assert relay.requests == {"PUT": 1}
    assert send(one, large) == [(1, False)]
    assert relay.requests == {"PUT": 3}
    assert send(other, large, append(opens), append(opens, partition=1)) == [(1, True), (2, False), (1, False)]
    merge_segments(log_dir.root)
    assert send(one, large, append(batch([b"after"], producer=(7, 0, 2)))) == [(1, True), (3, False)]
    ends = marker(8, 0, is_commit=False)
    assert send(other, mark(ends), mark(ends, partition=1)) == [(4, False), (2, False)]
    log_dir.refresh()
    committed = log_dir.read("a", isolation="read_committed")["value"].to_pylist()
    assert sorted(each[:5] for each in committed) == [b"after", b"first", b"small", b"xxxxx"]
    assert verify(log_dir.root, are_records_checked=True).is_sound
