"""Requests of all kinds but the admin's, in every version: a server answers them as a real broker does."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pytest
from kafka_processes.group_scripts import SCRIPTS as GROUP_SCRIPTS
from kafka_processes.known_answers import KNOWN, NOT_ADVERTISED, OTHER_FEATURES
from kafka_processes.oracle import SCHEMAS_VERSION, Broker
from kafka_processes.record_scripts import SCRIPTS as RECORD_SCRIPTS
from kafka_processes.scripted_calls import Difference, Script, run, wait_for_coordinators
from kafka_processes.served import serve
from kafka_processes.transaction_scripts import SCRIPTS as TRANSACTION_SCRIPTS

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.server.config import Address, ServerConfig

NODE_ID: Final = 1  # that of the broker
SCRIPTS: Final = (*RECORD_SCRIPTS, *GROUP_SCRIPTS, *TRANSACTION_SCRIPTS)
SAMPLE: Final = frozenset({"produce settings", "idempotent", "static members", "transactions refused"})
SETTINGS: Final = {
    "auto.create.topics.enable": "true",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
}
#: A broker of Kafka 4.3 and later waits a second before it assigns partitions again, and does so in another thread.
AT_ONCE: Final = {
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.min.assignment.interval.ms": "0",
    "group.consumer.assignor.offload.enable": "false",
}


@pytest.fixture(scope="module")
def servers(start_broker: Callable[..., Broker], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses of a broker, and of a server over a new log directory."""
    path = tmp_path_factory.mktemp("served") / "log"
    LogDir.create(path).alter_broker_configs(add=SETTINGS)
    with serve(path, ServerConfig(listen=Address("127.0.0.1", 0), node_id=NODE_ID, flush="os")) as bootstrap:
        both = start_broker(SETTINGS | AT_ONCE, SCHEMAS_VERSION).bootstrap, bootstrap
        for each in both:
            wait_for_coordinators(each)
        yield both


def check(found: Iterable[Difference]) -> None:
    """Fails, with the whole text, if there is a difference that is not known."""
    unexpected = [str(each) for each in found if not any(known.covers(each) for known in KNOWN)]
    if unexpected:
        pytest.fail("\n".join(unexpected), pytrace=False)


def test_newest_versions_are_answered_as_by_a_broker(servers: tuple[str, str]) -> None:
    sample = [each for each in SCRIPTS if each.name in SAMPLE]
    assert len(sample) == len(SAMPLE)
    check(each for script in sample for each in run(script, 0, servers))


@pytest.mark.full
@pytest.mark.parametrize("script", SCRIPTS, ids=[each.name for each in SCRIPTS])
def test_every_version_is_answered_as_by_a_broker(servers: tuple[str, str], script: Script) -> None:
    # The sample has asked the newest versions already, of new topics and groups.
    rounds = script.rounds[1:] if script.name in SAMPLE else script.rounds
    found = [each for number in rounds for each in run(script, number, servers)]
    check(found)
    gone = [each.name for each in KNOWN if each.script == script.name and not any(map(each.covers, found))]
    assert not gone, "these differ no longer: take them out of kafka_processes/known_answers.py"


@pytest.mark.full
def test_each_api_and_feature_said_to_be_missing_is_offered_by_a_broker_alone(servers: tuple[str, str]) -> None:
    script = next(each for each in SCRIPTS if each.name == "handshake")
    asked = next(each for each in run(script, 0, servers) if each.call == "APIs and features")
    differing = {path for path, _, _ in asked.fields}
    assert {path.removeprefix("api_keys.") for path in differing if path.startswith("api_keys.")} == set(NOT_ADVERTISED)
    features = {path.split(".", 1)[1] for path in differing if not path.startswith("api_keys.")}
    assert features == set(OTHER_FEATURES)
    assert all(own is None for path, _, own in asked.fields if path.startswith("api_keys."))


@pytest.mark.full
def test_unknown_versions_are_refused_as_by_a_broker(servers: tuple[str, str]) -> None:
    for request in ("00120006", "0012 7fff", "0003 7fff", "0001 0003", "0000 0002", "03e7 0000", "0012 ffff"):
        broker, own = (first_bytes(each, bytes.fromhex(request)) for each in servers)
        assert own == broker, request


def first_bytes(bootstrap: str, api_and_version: bytes) -> bytes:
    """Correlation id and error code of the answer to a request without a body; empty if the connection is closed."""
    host, port = bootstrap.split(":")
    header = api_and_version + bytes.fromhex("00000007 ffff 00")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(len(header).to_bytes(4, "big") + header)
        return connection.recv(10)[4:]
