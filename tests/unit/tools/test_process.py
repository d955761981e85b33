"""What commands do with the process that they get: closed standard streams, few descriptors, signals of a terminal."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pyarrow as pa
import pytest
from open_files import open_files_left
from patience import PATIENCE_S

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.maintenance.jobs.partition import locks_at_once
from pyspark_kafkalog.maintenance.jobs.tasks import stop_signal
from pyspark_kafkalog.root.commit.open_logs import OPEN_LOGS
from pyspark_kafkalog.server.config import ConnectionSettings
from pyspark_kafkalog.server.security.connection_policy import ConnectionLimits
from pyspark_kafkalog.storage import filesystem
from pyspark_kafkalog.storage.filesystem import raise_descriptor_limit, share_of_descriptors
from pyspark_kafkalog.tools.main import main
from pyspark_kafkalog.tools.processes import serve


@pytest.mark.slow
def test_command_with_closed_standard_streams_succeeds_and_writes_no_output_into_files(tmp_path: Path) -> None:
    LogDir.create(tmp_path / "log").create_topic("orders", partitions=1)

    def close_all() -> None:
        for fd in range(3):
            os.close(fd)

    for arguments in (["topics", "--describe"], ["configs", "--alter", "--entity-type", "topics", "--entity-name"]):
        line = [*arguments, "orders", "--add-config", "retention.ms=1"] if "--alter" in arguments else arguments
        command = [sys.executable, "-m", "pyspark_kafkalog", line[0], "--path", tmp_path / "log", *line[1:]]
        done = subprocess.run(command, preexec_fn=close_all, close_fds=True, check=False)
        assert done.returncode == 0
    log_dir = LogDir.open(tmp_path / "log")
    log_dir.append("orders", pa.table({"value": ["x"]}))
    assert main(["verify", "--path", str(tmp_path / "log")]) == 0


def test_limit_of_descriptors_is_raised_to_what_the_process_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {"now": (256, 4096)}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits["now"])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, new: limits.update(now=new))
    raise_descriptor_limit()
    assert limits["now"] == (4096, 4096)
    limits["now"] = (1024, resource.RLIM_INFINITY)
    raise_descriptor_limit()
    assert limits["now"] == (filesystem._DESCRIPTORS_MAX, resource.RLIM_INFINITY)


def test_256_descriptors_are_enough_for_locks_of_jobs_and_for_logs_beside_connections(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 256))
    # As in a server that starts: what other tests of this process left open does not count.
    monkeypatch.setattr(os, "listdir", lambda path: [str(each) for each in range(16)])
    assert 2 * locks_at_once(128) <= 64
    connections = ConnectionLimits(ConnectionSettings(), monotonic_ms=lambda: 0)._connections_max
    logs, segments = share_of_descriptors(16, OPEN_LOGS), share_of_descriptors(16, 1024)
    assert connections + 5 * logs + segments <= 256 - 16
    assert min(connections, logs, segments) >= 16


def test_logs_stay_open_as_far_as_others_have_left_descriptors() -> None:
    others = [os.dup(0) for _ in range(900)]
    try:
        with open_files_left(150):
            assert share_of_descriptors(16, OPEN_LOGS) in (24, 25)
    finally:
        for each in others:
            os.close(each)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_service_ends_by_signal(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # the tests may run under nohup
    try:
        with stop_signal() as stop:
            os.kill(os.getpid(), number)
            assert stop.wait(PATIENCE_S)
    finally:
        signal.signal(number, before)


def test_service_under_nohup_stays_when_the_terminal_is_closed() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signal() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop.is_set()
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_server_on_place_that_cannot_be_written_names_the_option_for_it() -> None:
    options = Namespace(read_only=False, path=Path("/data/log"))
    denied = OSError(errno.EROFS, "Read-only file system", "/data/log/.lock")
    with pytest.raises(LogDirError, match="--read-only"), serve._naming_read_only(options):
        raise LogDirError(f"cannot open the lock file: {denied}") from denied
    busy = OSError(errno.EACCES, "cannot listen: Permission denied", "127.0.0.1:80")
    with pytest.raises(OSError, match="cannot listen"), serve._naming_read_only(options):
        raise busy


def test_time_between_authentications_without_sasl_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--path", "/nowhere", "--max-reauth-ms", "1000"]) == 2
    assert "--max-reauth-ms needs --sasl" in capsys.readouterr().err
