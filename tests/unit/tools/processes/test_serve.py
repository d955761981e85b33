"""`kafkalog serve` refuses security options that do not fit, and says what it serves."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.metadata_roots import forget_images
from builders.object_roots import StoredRoot
from kafkalog_command import Command

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.server.config import Address, ServerConfig
from pyspark_kafkalog.tools.processes import serve as serve_module

OPEN = ("--listen", "0.0.0.0:0")
MINE = ("--listen", "127.0.0.1:0")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (OPEN, "--insecure"),
        ((*OPEN, "--workers", "2"), "--insecure"),
        ((*OPEN, "--tls-cert", "c", "--tls-key", "k"), "with TLS alone"),
        ((*OPEN, "--tls-cert", "c", "--tls-key", "k", "--workers", "2"), "with TLS alone"),
        (
            (*OPEN, "--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "a", "--tls-client-auth", "requested"),
            "alone",
        ),
        ((*MINE, "--sasl", "PLAIN"), "PLAIN sends passwords"),
        ((*MINE, "--sasl", "GSSAPI"), "no SASL mechanism GSSAPI"),
        ((*MINE, "--tls-cert", "server.pem"), "belong together"),
        ((*MINE, "--tls-client-ca", "ca.pem"), "need --tls-cert"),
        ((*MINE, "--tls-cert", "gone.pem", "--tls-key", "gone.key"), "gone.pem"),
        ((*MINE, "--tls-cert", "c", "--tls-key", "k", "--tls-client-auth", "required"), "--tls-client-ca"),
        ((*MINE, "--commit-interval", "-1"), "0 to 10000 ms, not -1"),
        ((*MINE, "--commit-interval", "20000"), "0 to 10000 ms, not 20000"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], reason: str
) -> None:
    serve = Command("serve", tmp_path / "log", capsys)
    assert reason in serve.fails(*arguments)


def announcing_only(monkeypatch: pytest.MonkeyPatch) -> list[ServerConfig]:
    """Let the command do no more than announce its server; returns the list that gets the server's configurations."""
    served: list[ServerConfig] = []

    async def record(
        root: Root, config: ServerConfig, _: int | None, announce: Callable[[Address, None], None]
    ) -> None:
        served.append(config)
        announce(config.listen, None)

    monkeypatch.setattr(serve_module, "_serve", record)
    return served


def test_banner_of_an_object_root_says_that_writes_are_in_the_store(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    announcing_only(monkeypatch)
    monkeypatch.setattr(serve_module, "open_served_root", lambda *_: StoredRoot().opened())
    err = Command("serve", tmp_path, capsys).try_to(*MINE)[2]
    assert "a log directory in an object store" in err
    assert "acknowledged when they are in the store" in err


def test_commit_interval_is_that_of_the_server_and_in_its_banner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served = announcing_only(monkeypatch)
    command = Command("serve", tmp_path / "log", capsys)
    errs = [command.try_to(*arguments)[2] for arguments in (MINE, (*MINE, "--commit-interval", "250"))]
    assert ["in commits at least 250 ms apart" in err for err in errs] == [False, True]
    assert [each.commit_interval_ms for each in served] == [0, 250]


def test_banner_of_a_log_directory_that_follows_says_that_writes_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def announce_only(_: Root, config: ServerConfig, __: None, announce: Callable[[Address, None], None]) -> None:
        announce(config.listen, None)

    monkeypatch.setattr(serve_module, "_serve", announce_only)
    LogDir.create(tmp_path / "leader").create_topic("orders", partitions=1)
    Command("follow", tmp_path / "copy", capsys)("--from", str(tmp_path / "leader"), "--once")
    err = Command("serve", tmp_path / "copy", capsys).try_to(*MINE)[2]
    assert f"writes    refused until kafkalog promote: the log directory follows {tmp_path / 'leader'}\n" in err


@pytest.mark.parametrize("workers", ["1", "2"])
def test_log_directory_that_cannot_be_opened_ends_the_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], workers: str
) -> None:
    """With several workers too, which would be started for it again and again."""
    LogDir.create(tmp_path).create_topic("orders", partitions=1)
    commit = max((tmp_path / METADATA_DIR).glob("0*.log"))
    commit.write_bytes(b"\xff" * 100)
    forget_images()
    assert commit.name in Command("serve", tmp_path, capsys).fails(*MINE, "--workers", workers)


def test_banner_on_standard_error_says_what_is_served_and_standard_output_has_the_address(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pyspark_kafkalog", "serve", "--path", str(tmp_path / "log"), *MINE]
    command += ["--flush", "os", "--status", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert process.stderr is not None
        banner = [process.stderr.readline().rstrip() for _ in range(7)][-6:]
        metrics = banner[4].removeprefix("metrics   ")
        with urllib.request.urlopen(metrics) as answer:
            assert b"kafka_server" in answer.read()
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate()
    assert (process.returncode, out) == (0, "")
    assert banner == [
        f"serving   {tmp_path / 'log'}, a log directory on a file system",
        f"clients   connect to {address}",
        "writes    acknowledged when they are with the operating system, as in Kafka (os)",
        "security  none, for clients on this machine",
        f"metrics   {metrics}",
        "stop      Ctrl-C or SIGTERM; the last commit is finished first",
    ]
