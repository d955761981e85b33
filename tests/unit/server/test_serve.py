"""`pyspark_kafkalog.serve`: a server in this process, as programs, notebooks and tests start it."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from pyspark_kafkalog import LogDir, serve
from pyspark_kafkalog.errors import InvalidOptionError, LogDirError


def answers(bootstrap: str) -> bool:
    host, _, port = bootstrap.rpartition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except ConnectionRefusedError:
        return False
    return True


def test_server_listens_on_a_free_port_until_it_is_stopped(tmp_path: Path) -> None:
    server = serve(tmp_path / "log")
    assert answers(server.bootstrap)
    assert repr(server) == f"RunningServer({tmp_path / 'log'}, {server.bootstrap})"
    server.stop()
    server.stop()
    assert not answers(server.bootstrap)
    assert repr(server).endswith("stopped)")
    assert LogDir.open(tmp_path / "log").topics() == ()


def test_server_is_stopped_at_the_end_of_a_block_and_its_thread_ends(tmp_path: Path) -> None:
    with serve(tmp_path / "log") as server:
        assert answers(server.bootstrap)
        with pytest.raises(OSError, match="in use"):
            serve(tmp_path / "log", listen=server.bootstrap)
    assert not answers(server.bootstrap)
    assert not [each for each in threading.enumerate() if each.name == "kafkalog-server"]


def test_server_that_only_reads_creates_nothing_and_wrong_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(LogDirError):
        serve(tmp_path / "log", read_only=True)
    with pytest.raises(InvalidOptionError, match="expected HOST:PORT"):
        serve(tmp_path / "log", listen="9092")
    with pytest.raises(InvalidOptionError, match="fsync"):
        serve(tmp_path / "log", flush="fsnyc")  # type: ignore[arg-type]
    assert not (tmp_path / "log").exists()
