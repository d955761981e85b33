"""ApiVersions at the handler: the answer to clients that mean another cluster or node (KIP-1242)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fakes.transaction_servers import SESSION, Coordinated

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.protocol.api import APIS, ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from pyspark_kafkalog.server.context import Request
from pyspark_kafkalog.server.metadata import api_versions_handler

OWN = "own"


@pytest.mark.parametrize(
    ("cluster_id", "node_id", "version", "expected"),
    [
        (None, -1, 5, ErrorCode.NONE),
        (OWN, 0, 5, ErrorCode.NONE),
        (OWN, 1, 5, ErrorCode.REBOOTSTRAP_REQUIRED),
        ("another", 0, 5, ErrorCode.REBOOTSTRAP_REQUIRED),
        (OWN, -1, 5, ErrorCode.INVALID_REQUEST),
        (None, 0, 5, ErrorCode.INVALID_REQUEST),
        ("another", 7, 4, ErrorCode.NONE),
    ],
)
def test_client_that_means_another_cluster_or_node_is_told_to_start_again(
    tmp_path: Path, cluster_id: str | None, node_id: int, version: int, expected: ErrorCode
) -> None:
    LogDir.create(tmp_path / "root")
    server = Coordinated(tmp_path / "root")
    cluster = server.context.cluster
    meant = cluster.cluster_id if cluster_id == OWN else cluster_id
    body = ApiVersionsRequest(
        client_software_name="test",
        client_software_version="1",
        cluster_id=meant,
        node_id=node_id if node_id < 0 else cluster.node_id + node_id,
    )
    handler = api_versions_handler({ApiKey.PRODUCE})
    answer = asyncio.run(handler(server.context, Request(ApiKey.API_VERSIONS, version, "c", body, SESSION)))
    assert isinstance(answer, ApiVersionsResponse)
    assert answer.error_code == expected
    expected_keys = {ApiKey.PRODUCE, ApiKey.API_VERSIONS} if expected is ErrorCode.NONE else set()
    assert {each.api_key for each in answer.api_keys} == expected_keys
    offered = {each.api_key: each.max_version for each in answer.api_keys}
    assert offered.get(ApiKey.PRODUCE) in (None, APIS[ApiKey.PRODUCE].versions[-1])
    server.close()
