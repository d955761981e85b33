"""Kafka Connect with its connectors for files: lines of a file become records, and lines of another file again."""

from __future__ import annotations

import contextlib
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from confluent_kafka.admin import AdminClient
from kafka_processes.client_programs import file_connectors
from kafka_processes.java_processes import free_port, start_server
from kafka_processes.oracle import java_command

CLI = "org.apache.kafka.connect.cli."
LINES = "".join(f"line {i}\n" for i in range(1000))
_WAIT_SECONDS_MAX = 90


def properties(file: Path, settings: dict[str, object]) -> str:
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(file)


def worker_settings(bootstrap: str, port: int) -> dict[str, object]:
    converter = "org.apache.kafka.connect.storage.StringConverter"
    return {
        "bootstrap.servers": bootstrap,
        "key.converter": converter,
        "value.converter": converter,
        "offset.flush.interval.ms": 500,
        "listeners": f"http://127.0.0.1:{port}",
        "plugin.path": file_connectors(),
    }


def connectors(tmp_path: Path, topic: str) -> tuple[dict[str, object], dict[str, object]]:
    (tmp_path / "in.txt").write_text(LINES)
    source = {"connector.class": "FileStreamSource", "tasks.max": 1, "file": tmp_path / "in.txt", "topic": topic}
    sink = {"connector.class": "FileStreamSink", "tasks.max": 1, "file": tmp_path / "out.txt", "topics": topic}
    return source, sink


@contextlib.contextmanager
def running(log: Path, main_class: str, *arguments: str) -> Iterator[None]:
    with log.open("wb") as output:
        process = start_server(java_command(CLI + main_class, *arguments), output)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def wait_for_lines(file: Path, log: Path) -> None:
    deadline = time.monotonic() + _WAIT_SECONDS_MAX
    while not file.exists() or len(file.read_text()) < len(LINES):
        assert time.monotonic() < deadline, log.read_text()[-3000:]
        time.sleep(0.2)
    assert file.read_text() == LINES


def put(url: str, config: dict[str, object]) -> None:
    """Make a connector, once the worker takes requests."""
    request = urllib.request.Request(url, json.dumps(config, default=str).encode(), method="PUT")
    request.add_header("Content-Type", "application/json")
    deadline = time.monotonic() + _WAIT_SECONDS_MAX
    answered = ""
    while answered != "201":
        assert time.monotonic() < deadline, answered
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                answered = str(answer.status)
        except urllib.error.HTTPError as error:
            answered = error.read().decode()
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            answered = str(error)
        time.sleep(0.2)


def test_standalone_worker_copies_a_file_through_a_topic(bootstrap: str, tmp_path: Path) -> None:
    source, sink = connectors(tmp_path, "standalone")
    worker = properties(
        tmp_path / "worker",
        worker_settings(bootstrap, free_port()) | {"offset.storage.file.filename": tmp_path / "offsets"},
    )
    files = [
        properties(tmp_path / name, config | {"name": name}) for name, config in (("source", source), ("sink", sink))
    ]
    with running(tmp_path / "log", "ConnectStandalone", worker, *files):
        wait_for_lines(tmp_path / "out.txt", tmp_path / "log")


def test_distributed_worker_copies_a_file_exactly_once_with_three_replicas(bootstrap: str, tmp_path: Path) -> None:
    source, sink = connectors(tmp_path, "distributed")
    port = free_port()
    internal: dict[str, object] = {"group.id": "connect", "exactly.once.source.support": "enabled"}
    for each in ("config", "offset", "status"):
        internal[f"{each}.storage.topic"] = f"connect-{each}"
        internal[f"{each}.storage.replication.factor"] = 3
    worker = properties(tmp_path / "worker", worker_settings(bootstrap, port) | internal)
    with running(tmp_path / "log", "ConnectDistributed", worker):
        url = f"http://127.0.0.1:{port}/connectors"
        put(f"{url}/source/config", source | {"exactly.once.support": "required", "transaction.boundary": "poll"})
        put(f"{url}/sink/config", sink | {"consumer.override.isolation.level": "read_committed"})
        wait_for_lines(tmp_path / "out.txt", tmp_path / "log")
    topics = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).topics
    assert {len(topics[f"connect-{each}"].partitions) for each in ("config", "offset", "status")} == {1, 25, 5}
