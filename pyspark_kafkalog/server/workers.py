"""Several server processes on one machine, since one uses one core: `kafkalog serve --workers N`.

    bootstrap port     all workers listen on it (SO_REUSEPORT); the kernel gives each new connection to one of them
    own ports          each worker also listens on a port of its own, which Metadata names
    committer          a process that commits the batches of all workers (host), if the log directory is written

The process that was started only supervises: it starts the others, starts one again that has died, with growing pauses
if that repeats, and passes SIGTERM on, to the committer when the workers have ended. If the supervisor is killed, the
others end themselves.

A worker is a server like any other (cluster): it has its own broker id, and may die at any time. So may the committer.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final, TypeAlias

from pyspark_kafkalog.maintenance.jobs.tasks import ending_signals
from pyspark_kafkalog.server.config import Address

_LOG: Final = logging.getLogger(__name__)
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
#: A worker that has run for so long has not failed at its start.
_SETTLED_S: Final = 60.0
_POLL_S: Final = 0.1
_STOP_MAX_S: Final = 30.0
#: The path of a socket has 104 bytes on some systems.
_SOCKET_DIRECTORY_MAX: Final = 64
_LISTEN_ADVICE: Final = {
    errno.EADDRINUSE: "; choose another port, or end the process that listens there",
    errno.EADDRNOTAVAIL: "; name an address of this machine",
}


#: Makes the command line of a process.
Command: TypeAlias = Callable[[], Sequence[str]]


@dataclass(slots=True)
class _Process:
    name: str
    command: Command
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    pause_s: float = _FIRST_PAUSE_S
    start_at_s: float = 0.0


class Supervisor:
    """Runs processes, whose commands stand beside their names, and starts them again. Groups end from last to first."""

    def __init__(
        self,
        *groups: Sequence[tuple[str, Command]],
        monotonic: Callable[[], float] = time.monotonic,
        popen: Callable[[Sequence[str]], subprocess.Popen[bytes]] = subprocess.Popen,
    ) -> None:
        self._groups = [[_Process(name, command) for name, command in group] for group in groups]  # bounded: a setting
        self._monotonic = monotonic
        self._popen = popen

    def look_after(self) -> None:
        """Start those that do not run and whose pause is over. To be called again and again."""
        now = self._monotonic()
        for each in chain(*self._groups):
            process = each.process
            if process is not None and process.poll() is None:
                if now - each.started_s >= _SETTLED_S:
                    each.pause_s = _FIRST_PAUSE_S
                continue
            if process is not None:
                _LOG.warning("%s ended with exit code %s", each.name, process.returncode)
                each.process = None
                each.start_at_s = now + each.pause_s
                each.pause_s = min(each.pause_s * 2, _LONGEST_PAUSE_S)
            if now >= each.start_at_s:
                each.process = self._popen(each.command())
                each.started_s = now

    def stop(self) -> None:
        """End the processes as SIGTERM does; those that take too long are killed."""
        deadline = self._monotonic() + _STOP_MAX_S
        for group in reversed(self._groups):
            running = [each.process for each in group if each.process is not None]
            for process in running:
                process.terminate()
            for process in running:
                try:
                    process.wait(max(deadline - self._monotonic(), 0.0))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()


@dataclass(frozen=True, slots=True)
class HostCommands:
    """The command lines of the processes of a host.

    `worker` gets a worker's number, the shared address with its port, and the committer's socket; `committer` that
    socket. Without a committer there is no socket.
    """

    worker: Callable[[int, Address, Path | None], Sequence[str]]
    committer: Callable[[Path], Sequence[str]] | None


def supervise(count: int, bootstrap: Address, commands: HostCommands) -> None:
    """Run `count` workers, and their committer, until a signal."""
    stopped = threading.Event()
    for number in ending_signals():
        signal.signal(number, lambda *_: stopped.set())
    with contextlib.ExitStack() as closing:
        # Bound, but never listened on: it keeps the port for the workers, and gets no connections.
        reserved = closing.enter_context(bound_socket(bootstrap, is_shared=True))
        address = Address(bootstrap.host, reserved.getsockname()[1])
        committer: list[tuple[str, Command]] = []
        place = None
        if commands.committer is not None:
            place = Path(closing.enter_context(_private_directory())) / "committer"
            committer = [("the committer", partial(commands.committer, place))]
        workers: list[tuple[str, Command]] = [  # bounded: a setting
            (f"worker {number}", partial(commands.worker, number, address, place)) for number in range(count)
        ]
        supervisor = Supervisor(committer, workers)
        try:
            is_announced = False
            while not stopped.wait(_POLL_S):
                supervisor.look_after()
                if not is_announced and _accepts(address):
                    sys.stdout.write(f"{address}\n")
                    sys.stdout.flush()
                    is_announced = True
        finally:
            supervisor.stop()


def _private_directory() -> tempfile.TemporaryDirectory[str]:
    """A directory of this user's alone for sockets, whose paths must be short."""
    usual = tempfile.gettempdir()
    return tempfile.TemporaryDirectory(prefix="kafkalog-", dir=usual if len(usual) <= _SOCKET_DIRECTORY_MAX else "/tmp")


def _accepts(address: Address) -> bool:
    """Whether a worker listens on the shared address."""
    try:
        socket.create_connection((address.host, address.port), timeout=_POLL_S).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def naming(address: Address) -> Iterator[None]:
    """Let an OSError of the block name the address at which listening failed."""
    try:
        yield
    except OSError as error:
        advice = _LISTEN_ADVICE.get(error.errno or 0, "")
        raise OSError(error.errno, f"cannot listen: {error.strerror}{advice}", str(address)) from None


def bound_socket(address: Address, *, is_shared: bool = False) -> socket.socket:
    """A socket bound to an address; if it `is_shared`, several processes of one user may have it.

    Raises OSError, which names the address, if that is in use.
    """
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if is_shared:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        with naming(address):
            bound.bind((address.host, address.port))
    except BaseException:
        bound.close()
        raise
    return bound
