"""What a server waits for before it answers, by its flush mode and its commit interval."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from fakes.hostile_clients import batch_of
from kafka_processes.served import serve
from patience import PATIENCE_S

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from pyspark_kafkalog.protocol.messages.topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from pyspark_kafkalog.server import run as run_module
from pyspark_kafkalog.server.committer import GroupCommitter
from pyspark_kafkalog.server.config import Address, ServerConfig
from pyspark_kafkalog.storage.filesystem import UNFLUSHED_MARKER, FlushMode


@pytest.fixture
def syncs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls of this process that waited for the disk."""
    called: list[str] = []
    for name in ("sync", "fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda *_args, name=name: called.append(name))
    return called


def create_and_write(root: Path, flush: FlushMode, commit_interval_ms: int = 0) -> None:
    """Two topics and a record of each, so that changes follow writes, from a client of a server."""
    config = ServerConfig(listen=Address("127.0.0.1", 0), flush=flush, commit_interval_ms=commit_interval_ms)
    with serve(root, config) as bootstrap:
        host, _, port = bootstrap.rpartition(":")
        wire = WireClient.connect(host, int(port), client_id="c", timeout_s=PATIENCE_S)
        wire.negotiate()
        for name in ("orders", "payments"):
            topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
            created = wire.call(CreateTopicsRequest(topics=(topic,), timeout_ms=10_000), CreateTopicsResponse)
            assert [each.error_code for each in created.topics] == [ErrorCode.NONE]
            data = TopicProduceData(name=name, partition_data=(PartitionProduceData(index=0, records=batch_of(b"x")),))
            body = ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=(data,))
            (written,) = wire.call(body, ProduceResponse, version=12).responses
            assert written.partition_responses[0].error_code == ErrorCode.NONE
        wire.close()


def test_committer_has_the_commit_interval_of_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    intervals_ms: list[int] = []

    class Recording(GroupCommitter):
        def __init__(self, *args: Any, interval_ms: int, **named: Any) -> None:
            intervals_ms.append(interval_ms)
            super().__init__(*args, interval_ms=interval_ms, **named)

    monkeypatch.setattr(run_module, "GroupCommitter", Recording)
    create_and_write(tmp_path / "root", "os", commit_interval_ms=20)
    assert intervals_ms == [20]


def test_neither_writes_nor_changes_wait_for_the_disk_with_os(tmp_path: Path, syncs: list[str]) -> None:
    create_and_write(tmp_path / "root", "os")
    assert syncs == []
    assert (tmp_path / "root" / UNFLUSHED_MARKER).exists()


def test_writes_and_changes_wait_for_their_files_only_with_fsync(tmp_path: Path, syncs: list[str]) -> None:
    create_and_write(tmp_path / "root", "fsync")
    assert set(syncs) == {"fsync", "fdatasync"}
    assert not (tmp_path / "root" / UNFLUSHED_MARKER).exists()


def test_all_that_did_not_wait_is_on_disk_before_the_first_commit_that_waits(tmp_path: Path, syncs: list[str]) -> None:
    create_and_write(tmp_path / "root", "os")
    LogDir.open(tmp_path / "root").create_topic("refunds", 1)
    assert syncs.count("sync") == 1
    assert not (tmp_path / "root" / UNFLUSHED_MARKER).exists()
