"""The drivers of Kafka Streams' system tests find no record lost or twice when an instance is killed."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka_processes.client_programs import STREAMS_VERSION, run_client, streams_jars
from kafka_processes.java_processes import start_server
from kafka_processes.oracle import java_command
from kafka_processes.server_processes import serving

DRIVERS = "org.apache.kafka.streams.tests."
SMOKE_TOPICS = (
    *("data", "echo", "min", "min-suppressed", "min-raw", "max", "sum", "sws-raw", "sws-suppressed"),
    *("dif", "cnt", "avg", "wcnt", "tagg", "fk"),
)
EXACTLY_ONCE_TOPICS = ("data", "echo", "min", "max", "sum", "cnt", "repartition")
#: A killed instance is missed after this time.
SESSION_TIMEOUT_MS = 6000


def create_topics(bootstrap: str, names: tuple[str, ...]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for each in admin.create_topics([NewTopic(name, 5, 3) for name in names]).values():
        each.result(30)


def command(driver: str, bootstrap: str, home: Path, instance: str, what: str) -> list[str]:
    settings = {
        "bootstrap.servers": bootstrap,
        "state.dir": home / instance,
        "processing.guarantee": "exactly_once_v2",
        "commit.interval.ms": 500,
        "session.timeout.ms": SESSION_TIMEOUT_MS,
        "heartbeat.interval.ms": 1000,
    }
    file = home / f"{instance}.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return java_command(DRIVERS + driver, str(file), what, more_jars=streams_jars(), version=STREAMS_VERSION)


@contextlib.contextmanager
def running(started: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("ab") as output:
        process = start_server(started, output)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def wait_for_text(log: Path, text: str) -> None:
    deadline = time.monotonic() + 90
    while text not in log.read_text():
        assert time.monotonic() < deadline, f"no {text!r} in:\n{log.read_text()[-2000:]}"
        time.sleep(0.2)


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    process.wait(60)


@pytest.fixture
def bootstrap_of_own(tmp_path: Path) -> Iterator[str]:
    with serving(tmp_path / "log") as server:
        yield server.bootstrap


def test_smoke_test_succeeds_with_an_instance_killed(bootstrap_of_own: str, tmp_path: Path) -> None:
    create_topics(bootstrap_of_own, SMOKE_TOPICS)

    def smoke(instance: str, what: str) -> list[str]:
        return command("StreamsSmokeTest", bootstrap_of_own, tmp_path, instance, what)

    with contextlib.ExitStack() as instances:
        killed = instances.enter_context(running(smoke("a", "process"), tmp_path / "a.log"))
        instances.enter_context(running(smoke("b", "process"), tmp_path / "b.log"))
        driver = instances.enter_context(running(smoke("driver", "run"), tmp_path / "driver.log"))
        time.sleep(30)  # of the 90 that records are produced for
        killed.kill()
        instances.enter_context(running(smoke("a", "process"), tmp_path / "a.log"))
        assert driver.wait(400) == 0
    assert (tmp_path / "driver.log").read_text().splitlines()[-1] == "SUCCESS"


@pytest.mark.parametrize("kind", ["", "-complex"])
def test_exactly_once_test_delivers_all_records_with_an_instance_killed(
    bootstrap_of_own: str, tmp_path: Path, kind: str
) -> None:
    create_topics(bootstrap_of_own, EXACTLY_ONCE_TOPICS)

    def exactly_once(instance: str, what: str) -> list[str]:
        return command("StreamsEosTest", bootstrap_of_own, tmp_path, instance, what)

    with contextlib.ExitStack() as instances:
        killed = instances.enter_context(running(exactly_once("a", "process" + kind), tmp_path / "a.log"))
        other = instances.enter_context(running(exactly_once("b", "process" + kind), tmp_path / "b.log"))
        generator = instances.enter_context(running(exactly_once("driver", "run"), tmp_path / "driver.log"))
        wait_for_text(tmp_path / "a.log", "StateChange: REBALANCING -> RUNNING")
        time.sleep(10)
        killed.kill()
        again = instances.enter_context(running(exactly_once("a", "process" + kind), tmp_path / "again.log"))
        wait_for_text(tmp_path / "again.log", "StateChange: REBALANCING -> RUNNING")
        time.sleep(10)
        end(generator)
        time.sleep(20)  # for the rest of the records
        end(again)
        end(other)
    assert "ALL-RECORDS-DELIVERED" in run_client(exactly_once("driver", "verify" + kind))
