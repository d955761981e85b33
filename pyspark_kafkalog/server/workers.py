"""Several server processes on one machine, since one uses one core: `kafkalog serve --workers N`.

    bootstrap port     all workers listen on it (SO_REUSEPORT); the kernel gives each new connection to one of them
    own ports          each worker also listens on a port of its own, which Metadata names

The process that was started only supervises: it starts the workers, starts one again that has died, with growing pauses
if that repeats, and passes SIGTERM on. If the supervisor is killed, the workers end themselves.

A worker is a server like any other (cluster): it has its own broker id, and may die at any time.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.maintenance.jobs.tasks import ending_signals
from pyspark_kafkalog.server.config import Address

_LOG: Final = logging.getLogger(__name__)
_FIRST_PAUSE_S: Final = 0.5
_LONGEST_PAUSE_S: Final = 30.0
#: A worker that has run for so long has not failed at its start.
_SETTLED_S: Final = 60.0
_POLL_S: Final = 0.1
_STOP_MAX_S: Final = 30.0
_LISTEN_ADVICE: Final = {
    errno.EADDRINUSE: "; choose another port, or end the process that listens there",
    errno.EADDRNOTAVAIL: "; name an address of this machine",
}


@dataclass(slots=True)
class _Worker:
    number: int
    process: subprocess.Popen[bytes] | None = None
    started_s: float = 0.0
    pause_s: float = _FIRST_PAUSE_S
    start_at_s: float = 0.0


class Supervisor:
    """Runs the workers of one bootstrap address. `command` gives the command line of a worker by its number, from 0."""

    def __init__(
        self,
        count: int,
        command: Callable[[int], Sequence[str]],
        *,
        monotonic: Callable[[], float] = time.monotonic,
        popen: Callable[[Sequence[str]], subprocess.Popen[bytes]] = subprocess.Popen,
    ) -> None:
        self._workers = [_Worker(each) for each in range(count)]  # bounded: a setting
        self._command = command
        self._monotonic = monotonic
        self._popen = popen

    def look_after(self) -> None:
        """Start the workers that do not run and whose pause is over. To be called again and again."""
        now = self._monotonic()
        for worker in self._workers:
            process = worker.process
            if process is not None and process.poll() is None:
                if now - worker.started_s >= _SETTLED_S:
                    worker.pause_s = _FIRST_PAUSE_S
                continue
            if process is not None:
                _LOG.warning("worker %d ended with exit code %s", worker.number, process.returncode)
                worker.process = None
                worker.start_at_s = now + worker.pause_s
                worker.pause_s = min(worker.pause_s * 2, _LONGEST_PAUSE_S)
            if now >= worker.start_at_s:
                worker.process = self._popen(self._command(worker.number))
                worker.started_s = now

    def stop(self) -> None:
        """End the workers as SIGTERM does; those that take too long are killed."""
        running = [each.process for each in self._workers if each.process is not None]
        for process in running:
            process.terminate()
        deadline = self._monotonic() + _STOP_MAX_S
        for process in running:
            try:
                process.wait(max(deadline - self._monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def supervise(count: int, bootstrap: Address, command: Callable[[int, Address], Sequence[str]]) -> None:
    """Run workers until a signal. `command` gets a worker's number and the shared address with its port."""
    stopped = threading.Event()
    for number in ending_signals():
        signal.signal(number, lambda *_: stopped.set())
    # Bound, but never listened on: it keeps the port for the workers, and gets no connections.
    with bound_socket(bootstrap, is_shared=True) as reserved:
        address = Address(bootstrap.host, reserved.getsockname()[1])
        supervisor = Supervisor(count, lambda number: command(number, address))
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
