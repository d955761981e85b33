"""Forged commits in a store that is reached over HTTP, by commands and by a server with clients.

tests/unit/log_dir/test_hostile_objects.py has all commands over a store in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders.forged_commits import BIG, FOREIGN, FORGED, fill, forged_body, lines
from builders.metadata_roots import forget_images
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from fakes.http_relay import HttpRelay, Request
from kafka_processes.s3_proxy import S3Proxy
from kafka_processes.server_processes import serving
from patience import PATIENCE_S

from pyspark_kafkalog.metadata.objects.log import commit_key
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.storage.names import offset_file_name
from pyspark_kafkalog.tools.main import main

#: Commands that would read, delete or replace what the forged commit names.
_COMMANDS = ("verify", "topics", "console-consumer", "export", "retention", "merge-segments", "log-cleaner", "reindex")


@pytest.fixture
def relay(s3_proxy: S3Proxy, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpRelay]:
    """The way of all processes to the store."""
    with HttpRelay(s3_proxy.endpoint) as relay:
        for name, value in {
            "AWS_ACCESS_KEY_ID": s3_proxy.access_key,
            "AWS_SECRET_ACCESS_KEY": s3_proxy.secret_key,
            "AWS_ENDPOINT_URL": relay.endpoint,
            "AWS_REGION": s3_proxy.options()["storeRegion"],
        }.items():
            monkeypatch.setenv(name, value)
        yield relay


class Stored:
    """A filled root, and what the store holds of it and beside it."""

    def __init__(self, s3_proxy: S3Proxy, relay: HttpRelay) -> None:
        self.address = StoreAddress.parse(s3_proxy.new_location().below("log").url, s3_proxy.options(relay.endpoint))
        self.store = self.address.open()
        self.log_dir = fill(self.address, self.store.put)
        self.url = self.address.location.url

    def forge(self, name: str) -> str:
        """Put the next commit; its file's name in errors."""
        offset = self.log_dir.root.native().store.refresh().next_offset
        self.store.put(commit_key(offset), forged_body(name, offset))
        return offset_file_name(offset, ".log")

    def objects(self) -> dict[str, int]:
        return {each.key: each.size_bytes for each in self.store.list_objects("")}

    def bodies(self) -> dict[str, bytes]:
        return {key: self.store.get(key, max_bytes=1_000) for key in FOREIGN}


@pytest.fixture
def stored(s3_proxy: S3Proxy, relay: HttpRelay) -> Stored:
    return Stored(s3_proxy, relay)


def _foreign(requests: list[str]) -> Callable[[Request], None]:
    """Notes the requests for what belongs to others, or lies above the root."""

    def note(request: Request) -> None:
        deleted = request.body if request.method == "POST" else b""
        if any(key in request.path or key.encode() in deleted for key in FOREIGN) or ".." in request.path:
            requests.append(request.path)

    return note


@pytest.mark.full
@pytest.mark.parametrize("name", [*FORGED, BIG])
def test_no_command_uses_what_a_forged_commit_names_over_http(
    stored: Stored, relay: HttpRelay, name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    commit = stored.forge(name)
    before = stored.objects()
    seen: list[str] = []
    relay.answer = _foreign(seen)
    for line in lines(stored.url, tmp_path):
        if line[0] not in _COMMANDS:
            continue
        forget_images()
        assert main(line) == 1, line
        said = capfd.readouterr().err
        assert "Traceback" not in said
        assert line[0] == "verify" or commit in said, line
    relay.answer = None
    assert seen == []
    assert stored.objects() == before
    assert stored.bodies() == FOREIGN


@pytest.mark.full
def test_server_answers_errors_from_a_forged_commit_on_and_does_not_start_over_it(
    stored: Stored, relay: HttpRelay
) -> None:
    seen: list[str] = []
    relay.answer = _foreign(seen)
    answers: list[KafkaError | None] = []

    def done(error: KafkaError | None, message: Message) -> None:
        answers.append(error)

    with serving(stored.url) as server:
        clients = {"bootstrap.servers": server.bootstrap, "log_level": 0}  # they outlive the server
        producer = Producer({**clients, "message.timeout.ms": 5_000, "linger.ms": 0})
        producer.produce("orders", b"before", on_delivery=done)
        assert producer.flush(PATIENCE_S) == 0
        assert len(answers) == 1
        assert answers[0] is None
        commit = stored.forge("dropped key of others")
        before = stored.objects()
        producer.produce("orders", b"after", on_delivery=done)
        assert producer.flush(PATIENCE_S) == 0
        assert len(answers) == 2
        assert answers[1] is not None
        created = AdminClient(clients).create_topics([NewTopic("new", 1, 1)])
        with pytest.raises(KafkaException):
            created["new"].result(PATIENCE_S)
        assert server.process.poll() is None
        server.stop()
        said = server.log.read_text()
        assert commit in said
        assert "Traceback" not in said
    with pytest.raises(AssertionError, match=commit), serving(stored.url):
        pass
    relay.answer = None
    assert seen == []
    assert {key: size for key, size in stored.objects().items() if not key.startswith("servers/")} == {
        key: size for key, size in before.items() if not key.startswith("servers/")
    }
    assert stored.bodies() == FOREIGN
