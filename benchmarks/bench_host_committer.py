"""What a batch costs the committer of a host (`kafkalog serve --workers N`): CPU, and the rate at which it saturates.

    python benchmarks/bench_host_committer.py [--workers N] [--in-flight N] [--batch-bytes N] [--seconds S] ...

This process plays the workers: it fills their memory with batches that it has made before, sends their rows, and takes
the results. The committer is a process of its own, whose CPU is counted; a committer that commits as many batches as it
can uses a whole core, so the rate at saturation is a second by the CPU of a batch, whatever else the machine does. When
it ends it tells the shares of its time in which it has held the root's lock, and has waited for it.

examples:
  python benchmarks/bench_host_committer.py
  python benchmarks/bench_host_committer.py --batch-bytes 262144 --scratch /dev/shm
"""

from __future__ import annotations

import argparse
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import numpy as np
from bench_runs import commits_in

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.root_lock import KeptRootLock
from pyspark_kafkalog.record.header import ATTRIBUTES_AT, BASE_SEQUENCE_AT, CRC_AT, crc32c
from pyspark_kafkalog.record.reference import Record, encode_batch
from pyspark_kafkalog.record.scan import as_bytes_array, scan_batches
from pyspark_kafkalog.server.host import channel
from pyspark_kafkalog.server.host.channel import CheckedFor, Kind
from pyspark_kafkalog.server.host.committer import Link
from pyspark_kafkalog.tools.main import main as kafkalog

_TOPIC: Final = "batches"
_FIRST_PRODUCER_ID: Final = 1000
_SEQUENCES: Final = 1 << 31
_WARM_UP_S: Final = 2.0
_CONNECT_MAX_S: Final = 60.0


class Worker:
    """A worker with one partition and so many batches in flight."""

    def __init__(self, link: Link, topic: CheckedFor, number: int, options: argparse.Namespace) -> None:
        self._link = link
        self._number = link.topic_number(topic)
        self._partition = number
        size = options.record_bytes
        self._count = max(1, options.batch_bytes // (size + 10))
        records = [Record(offset=at, timestamp_ms=0, key=None, value=b"%0*d" % (size, at)) for at in range(self._count)]
        batch = encode_batch(records, producer_id=_FIRST_PRODUCER_ID + number, producer_epoch=0, base_sequence=0)
        self._batch = bytearray(batch)
        self._row = scan_batches(as_bytes_array(batch), file="<benchmark>").batches
        self._in_flight = options.in_flight
        self._sent = self.answered = 0

    def fileno(self) -> int:
        return self._link.socket.fileno()

    def send(self) -> None:
        """Send as many units as may be in flight."""
        rows = []
        while self._sent - self.answered < self._in_flight:
            rows.append(self._next())
            self._sent += 1
        if rows:
            self._link.unsent.append(memoryview(channel.message(Kind.UNITS, *rows)))
        if not self._link.send():
            raise SystemExit("the committer does not read")

    def _next(self) -> bytes:
        batch, row = self._batch, self._row
        sequence = self._sent * self._count % _SEQUENCES
        batch[BASE_SEQUENCE_AT : BASE_SEQUENCE_AT + 4] = sequence.to_bytes(4, "big")
        crc = crc32c(memoryview(batch)[ATTRIBUTES_AT:])
        batch[CRC_AT : CRC_AT + 4] = crc.to_bytes(4, "big")
        row["base_sequence"], row["crc"] = sequence, crc
        at = self._link.copy(np.frombuffer(batch, dtype=np.uint8))
        assert at is not None
        return channel.UNIT_HEAD.pack(self._number, self._partition, at, 0) + row.tobytes()

    def receive(self) -> None:
        """Take the results that have come."""
        data = self._link.socket.recv(channel.RECEIVE_BYTES)
        if not data:
            raise SystemExit("the committer has ended")
        for _, content in self._link.messages.read(data):
            for result in channel.read_results(content):
                if isinstance(result, BaseException):
                    raise result
                self._link.ring.give_back()
                self.answered += 1


def load(workers: Sequence[Worker], seconds: float) -> int:
    """Keep all workers busy for so long; the number of batches that were committed."""
    before, end = sum(each.answered for each in workers), time.monotonic() + seconds
    with selectors.DefaultSelector() as selector:
        for each in workers:
            selector.register(each, selectors.EVENT_READ)
            each.send()
        while time.monotonic() < end:
            for key, _ in selector.select(1):
                assert isinstance(key.fileobj, Worker)
                key.fileobj.receive()
                key.fileobj.send()
    return sum(each.answered for each in workers) - before


def cpu_s(pid: int) -> float:
    """proc(5): the first number of schedstat is the time on a CPU in ns, here of all threads."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int(each.joinpath("schedstat").read_text().split()[0]) for each in tasks) / 1e9


def connected(address: Path) -> Link:
    """A link to the committer, once that listens."""
    deadline = time.monotonic() + _CONNECT_MAX_S
    while True:
        try:
            return Link(address)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def run(options: argparse.Namespace, home: Path) -> None:
    root = home / "root"
    log_dir = LogDir.create(root)
    log_dir.create_topic(_TOPIC, options.workers)
    native = log_dir.root.native()
    topic = native.store.image.topic(_TOPIC)
    checked_for = CheckedFor(_TOPIC, topic.topic_id, native.configs.of(native.store.image, topic))
    address = home / "committer"
    profile = ("-m", "cProfile", "-o", options.profile) if options.profile else ()
    command = [sys.executable, *profile, __file__, "serve", "--path", str(root)]
    command += ["--flush", options.flush, "--commits-at", str(address), "--supervisor", str(os.getpid())]
    with subprocess.Popen(command) as process:
        try:
            workers = [Worker(connected(address), checked_for, each, options) for each in range(options.workers)]
            load(workers, _WARM_UP_S)
            before, commits = cpu_s(process.pid), commits_in(root)
            count = load(workers, options.seconds)
            spent_s, commits = cpu_s(process.pid) - before, commits_in(root) - commits
        finally:
            process.send_signal(signal.SIGTERM)
            for each in locals().get("workers", ()):
                each._link.socket.close()
    megabytes = count * options.batch_bytes / 1e6
    print(
        f"{spent_s / count * 1e6:.1f} us CPU a batch, {count / commits:.1f} batches a commit; saturated at "
        f"{count / spent_s:,.0f} batches/s, {megabytes / spent_s:,.0f} MB/s"
    )


def serve() -> None:
    """Be the committer, as the arguments of the command say, and tell how its time with the root's lock was."""
    waited_s = held_s = entered_s = 0.0
    first_s = None
    enter, leave = KeptRootLock.__enter__, KeptRootLock.__exit__

    def timed_enter(lock: KeptRootLock) -> None:
        nonlocal waited_s, entered_s, first_s
        began_s = time.monotonic()
        first_s = began_s if first_s is None else first_s
        enter(lock)
        entered_s = time.monotonic()
        waited_s += entered_s - began_s

    def timed_leave(lock: KeptRootLock, *error: Any) -> None:
        nonlocal held_s
        held_s += time.monotonic() - entered_s
        leave(lock, *error)

    KeptRootLock.__enter__, KeptRootLock.__exit__ = timed_enter, timed_leave  # type: ignore[method-assign]
    code = kafkalog()
    if first_s is not None:
        passed_s = time.monotonic() - first_s
        print(f"the lock was held {held_s / passed_s:.0%} of the time, and waited for {waited_s / passed_s:.1%}")
    raise SystemExit(code)


def main() -> None:
    if sys.argv[1:2] == ["serve"]:
        serve()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--in-flight", type=int, default=5, help="batches of a worker at once (default: 5)")
    parser.add_argument("--batch-bytes", type=int, default=16 << 10)
    parser.add_argument("--record-bytes", type=int, default=100)
    parser.add_argument("--flush", choices=("os", "fsync"), default="os")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--scratch", type=Path, help="a directory on the disk to be measured")
    parser.add_argument("--profile", help="a file for the committer's profile (pstats)")
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="kafkalog-bench-", dir=options.scratch))
    try:
        run(options, home)
    finally:
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
