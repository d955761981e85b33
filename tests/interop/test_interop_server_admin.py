"""The admin requests of Kafka's tools and clients: a server of this package answers them as a real broker does."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest
from admin_cases import CASES, CASES_OF_VERSIONS, REPEATABLE, AdminCase, comparable
from kafka_oracle import Broker

from pyspark_kafkalog.protocol.api import APIS, ApiKey
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.server.config import ServerConfig
from pyspark_kafkalog.server.run import serve

NODE_ID = 1  # that of the broker
_SETTLE_SECONDS_MAX = 3
VERSIONED = [
    *((case, version) for case in CASES for version in APIS[case.key].versions),
    *((case, version) for case, versions in CASES_OF_VERSIONS for version in versions),
]


@pytest.fixture(scope="module")
def servers(start_broker: Callable[..., Broker], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses of a broker, and of a server over a new log directory."""
    path = tmp_path_factory.mktemp("served") / "log"
    with serve(path, ServerConfig(node_id=NODE_ID, flush="os")) as bootstrap:
        yield start_broker().bootstrap, bootstrap


@pytest.fixture
def clients(servers: tuple[str, str]) -> Iterator[tuple[WireClient, WireClient]]:
    with ExitStack() as open_ones:
        found = []
        for bootstrap in servers:
            host, port = bootstrap.split(":")
            client = WireClient.connect(host, int(port), client_id="tests", timeout_s=30)
            open_ones.enter_context(client).negotiate()
            found.append(client)
        yield found[0], found[1]


def differences(clients: Sequence[WireClient], case: AdminCase, version: int) -> Iterator[str]:
    """Where the answers differ, if they do."""
    for number, request in enumerate(case.requests(f"{case.name.replace('_', '-')}-{version}", NODE_ID)):
        api = next(each for each in APIS.values() if isinstance(request, each.request))
        asked = version if api.key == case.key else None
        broker, own = (comparable(each.call(request, api.response, version=asked)) for each in clients)
        deadline = time.monotonic() + _SETTLE_SECONDS_MAX
        while broker != own and api.key in REPEATABLE and time.monotonic() < deadline:
            time.sleep(0.05)
            broker = comparable(clients[0].call(request, api.response, version=asked))
        if broker != own:
            yield f"{case.name} v{version} request {number}: {request}\n   broker {broker}\n   server {own}"


def test_newest_versions_are_answered_as_by_a_broker(clients: tuple[WireClient, WireClient]) -> None:
    newest = [(case, version) for case, version in VERSIONED if version == APIS[case.key].versions[-1]]
    assert {case.key for case, _ in newest} >= {ApiKey.CREATE_TOPICS, ApiKey.DELETE_TOPICS}
    found = [each for case, version in newest for each in differences(clients, case, version)]
    assert not found, "\n".join(found)


@pytest.mark.full
@pytest.mark.parametrize(("case", "version"), VERSIONED, ids=[f"{case.name}-{version}" for case, version in VERSIONED])
def test_every_version_is_answered_as_by_a_broker(
    clients: tuple[WireClient, WireClient], case: AdminCase, version: int
) -> None:
    if version == APIS[case.key].versions[-1]:
        return  # the other test has asked the same
    found = list(differences(clients, case, version))
    assert not found, "\n".join(found)
