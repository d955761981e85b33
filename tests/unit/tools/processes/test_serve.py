"""`kafkalog serve` refuses security options that leave a log directory open or do not belong together."""

from __future__ import annotations

from pathlib import Path

import pytest
from builders.metadata_roots import forget_images
from kafkalog_command import Command

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.metadata.root_format import METADATA_DIR

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
