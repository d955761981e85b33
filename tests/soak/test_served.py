"""Kafka's clients at several servers over one log directory, all of them killed and paused at random: no anomaly.

Three `kafkalog serve` serve one root, the first of them with two workers and a committer. A process of
librdkafka's clients (served_clients.py), one of Kafka's Java clients (ServedClients.java) and one that works on the
root itself (served_neighbours.py) note what they do and see. A seeded schedule kills, pauses (SIGSTOP), stops and
restarts servers, kills single workers and their committer, resets and silences the network before servers, moves their
clocks, and kills and pauses clients. Then everybody must make progress, groups reach the ends of their topics, and
simulations/anomalies.py looks at the whole history.

KAFKALOG_SOAK_SECONDS sets the duration of the faults, 40 by default; KAFKALOG_SEED repeats a schedule. A run of more
than a few minutes over a bucket needs MinIO, KAFKALOG_TEST_STORES=minio: S3Proxy lists ever more slowly. A run that
fails keeps its histories, and what the groups' members and coordinators decided, in the `logs` of the directory it
names.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import pytest
from fakes.tcp_relay import TcpRelay
from kafka_processes.clients import consume
from kafka_processes.java_processes import QUICK_START, free_port, java, start_server
from kafka_processes.oracle import kafka_lib
from kafka_processes.store_process import S3Server
from kafka_processes.store_servers import TEST_STORES, MinioServer
from simulations.anomalies import find_anomalies
from simulations.history import COMMITTED, UNCOMMITTED, FinalRead, History, Read, load
from simulations.history_mutations import MUTATIONS
from tiers import SEED

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.object_store.location import RootPath
from tests.soak.served_clients import PARTITIONS, SUBSCRIPTIONS

pytestmark = pytest.mark.interop

SECONDS = float(os.environ.get("KAFKALOG_SOAK_SECONDS", "40"))
HERE = Path(__file__).parent
JAVA_CLIENTS = HERE.parent / "data" / "ServedClients.java"
JAVA_LOG = HERE.parent / "data" / "served_clients_log4j2.xml"
SERVERS = 3
#: The first server has so many, at the ports after its own: clients reach them without a relay.
WORKERS = 2
START_SECONDS_MAX = 120
STOP_SECONDS_MAX = 120
#: Within this time after the last fault each client must have done something. A paused coordinator's work is taken over
#: in 3 s (12 s in an object store), sessions end after 6 s and open transactions after 10 s; clients try again later.
PROGRESS_SECONDS_MAX = 90
BETWEEN_FAULTS_SECONDS = (0.5, 4.0)
PAUSE_SECONDS = (1.0, 20.0)
#: A server whose clock is ahead ends others' transactions before their time; messages of the next hour are refused.
CLOCK_AHEAD_SECONDS = (-120.0, 120.0)
#: The run itself keeps about so many threads waiting for each core; beyond that everything takes longer.
LOAD_A_CORE = 5.0
DOWN_SECONDS = (0.1, 4.0)
BROKER_CONFIGS = {
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "group.initial.rebalance.delay.ms": "500",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.heartbeat.interval.ms": "1000",
    "metadata.log.max.record.bytes.between.snapshots": "200000",
}
TOPIC_CONFIGS = {"internal.segment.bytes": "50000", "index.interval.bytes": "1000"}
AGING_CONFIGS = {"retention.bytes": "100000", "file.delete.delay.ms": "1000"}
COMPACTED_CONFIGS = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "file.delete.delay.ms": "0"}


@dataclass
class Tended:
    """A process that is started again when it was killed, with another name and history each time if it has one."""

    kind: str
    command: Callable[[str], list[str]]
    log: Path
    has_workers: bool = False
    starts: int = 0
    due: float | None = None
    paused_until: float | None = None
    is_stopping: bool = False
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.starts}"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self.paused_until is None and not self.is_stopping

    def start(self) -> None:
        self.starts += 1
        self.due = None
        with self.log.open("ab") as output:
            self._process = start_server(self.command(self.name), output)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
        self._process, self.paused_until = None, None

    def kill_child(self, drawn: random.Random, *, is_committer: bool) -> bool:
        """Kill the committer of a server with workers, or one of them; whether there was one."""
        assert self._process is not None
        pid = self._process.pid
        found = []
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
                if (b"--commits-at" in words) == is_committer:
                    found.append(int(child))
        if found:
            os.kill(drawn.choice(found), signal.SIGKILL)
        return bool(found)

    def stop(self) -> None:
        """Send SIGTERM, as a service manager does. The process may have to wait for others until it can end."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        self.is_stopping = True

    def finish(self) -> None:
        """Wait until it has ended by itself."""
        assert self._process is not None
        self._ended(self._process.wait(STOP_SECONDS_MAX))

    def _ended(self, status: int) -> None:
        # A server that is only about to start ends by the signal itself.
        assert status in (0, -signal.SIGTERM), f"{self.name} ended with {status}:\n{self.said()}"
        self._process, self.is_stopping = None, False

    def pause(self, until: float) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        self.paused_until = until

    def tend(self, now: float) -> None:
        """Do what is due. A process that has ended by itself is a failure."""
        if self._process is None:
            if self.due is not None and now >= self.due:
                self.start()
            return
        status = self._process.poll()
        assert status is None or self.is_stopping, f"{self.name} ended by itself with {status}:\n{self.said()}"
        if status is not None:
            self._ended(status)
        elif self.paused_until is not None and now >= self.paused_until:
            self._process.send_signal(signal.SIGCONT)
            self.paused_until = None

    def said(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])


@dataclass
class Passing:
    """A fault of a server's network or clock, which ends by itself."""

    until: float
    end: Callable[[], object]


@dataclass
class Histories:
    """What the clients' histories have shown so far. Each line is read once: a long run has a million of them.

    `progress` has the kinds and roles of clients that have done something since the set was cleared, `finished` the
    names of processes with the roles that ended in them.
    """

    folder: Path
    progress: set[tuple[str, str]] = field(default_factory=set)
    finished: set[tuple[str, str]] = field(default_factory=set)
    _read_bytes: Counter[Path] = field(default_factory=Counter)

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.glob("*.jsonl"))

    def read(self) -> None:
        """Read the lines that are new. One that tells of a broken client is a failure."""
        for file in self.files:
            with file.open("rb") as lines:
                lines.seek(self._read_bytes[file])
                *whole, _ = lines.read().split(b"\n")
            self._read_bytes[file] += sum(map(len, whole)) + len(whole)
            kind = file.stem.rsplit("-", 1)[0]
            for line in map(json.loads, whole):
                assert line["op"] != "broken", (file, line)
                if line["op"] == "finished":
                    self.finished.add((file.stem, line["role"]))
                elif (role := _role_of(line)) is not None:
                    self.progress.add((kind, role))


@dataclass
class Cluster:
    """Servers, the networks before them, and clients, the histories of the clients, and the faults so far.

    `ports` are those of the relays, which clients know.
    """

    home: Path
    servers: list[Tended]
    relays: list[TcpRelay]
    clients: list[Tended]
    ports: list[int]
    faults: Counter[str] = field(default_factory=Counter)
    passing: dict[tuple[str, int], Passing] = field(default_factory=dict)
    histories: Histories = field(init=False)

    def __post_init__(self) -> None:
        self.histories = Histories(self.home / "history")

    @property
    def control(self) -> Path:
        return self.home / "control"

    def clock(self, server: int) -> Path:
        return self.home / "control" / f"clock-{server}"

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def tend(self) -> None:
        """Do what is due, and look at what the clients have done."""
        now = time.monotonic()
        for each in (*self.servers, *self.clients):
            each.tend(now)
        for key, fault in list(self.passing.items()):
            if now >= fault.until:
                fault.end()
                del self.passing[key]
        self.histories.read()

    def wait_until(self, what: str, is_so: Callable[[], object], seconds_max: float) -> float:
        """Tend the processes until it is so; the seconds that it took. `is_so` is false, or what is still missing.

        On a machine with more to do than this run the time is as much longer.
        """
        began = time.monotonic()
        given_s = seconds_max
        while is_so() is not True:
            self.tend()
            took = time.monotonic() - began
            load = os.getloadavg()[0] / (os.cpu_count() or 1)
            given_s = max(given_s, seconds_max * load / LOAD_A_CORE)
            if took > given_s:
                raise AssertionError(
                    f"{what}: not within {given_s:.0f} s at a load of {load:.1f} a core, {is_so()}\n{self.home}"
                )
            time.sleep(0.2)
        return time.monotonic() - began

    def strike(self, drawn: random.Random, seconds_left: float) -> None:
        """One fault. A server at least goes on running, though perhaps not the one that a client needs."""
        now = time.monotonic()
        running = [
            each for at, each in enumerate(self.servers) if each.is_running and ("silence", at) not in self.passing
        ]
        kinds = ("kill", "pause", "stop", "reset", "silence", "clock", "kill client", "pause client")
        kinds += ("kill worker", "kill committer")
        kind = drawn.choices(kinds, (4, 3, 1.5, 1, 1, 1, 2, 1, 1.5, 2))[0]
        pause_until = now + min(drawn.uniform(*PAUSE_SECONDS), max(seconds_left, 1))
        if kind in ("kill client", "pause client"):
            client = drawn.choice([each for each in self.clients if each.is_running] or self.clients)
            if not client.is_running:
                return
            if kind == "kill client":
                client.kill()
                client.due = now + drawn.uniform(*DOWN_SECONDS)
            else:
                client.pause(pause_until)
            kind = kind.replace("client", client.kind)
        elif kind in ("kill worker", "kill committer"):
            supervisors = [each for each in self.servers if each.is_running and each.has_workers]
            if not any(each.kill_child(drawn, is_committer=kind == "kill committer") for each in supervisors):
                return
        elif len(running) < 2:
            return
        else:
            server = drawn.choice(running)
            if server.has_workers and kind in ("pause", "clock"):
                return  # it would reach the supervisor alone
            at = self.servers.index(server)
            if kind == "pause":
                server.pause(pause_until)
            elif kind == "reset":
                self.relays[at].reset()
            elif kind == "silence":
                self.relays[at].is_silent = True
                self.passing[kind, at] = Passing(pause_until, self.relays[at].heal)
            elif kind == "clock":
                clock = self.clock(at)
                clock.write_text(str(round(1000 * drawn.uniform(*CLOCK_AHEAD_SECONDS))))
                self.passing[kind, at] = Passing(pause_until, partial(clock.unlink, missing_ok=True))
            else:
                server.kill() if kind == "kill" else server.stop()
                server.due = now + drawn.uniform(*DOWN_SECONDS)
        self.faults[kind] += 1


@pytest.fixture
def processes() -> Iterator[list[Tended]]:
    started: list[Tended] = []
    yield started
    for each in started:
        each.kill()


def free_ports(count: int) -> int:
    """The first of so many free ports."""
    while True:
        first = free_port()
        with contextlib.suppress(OSError), contextlib.ExitStack() as closing:
            for port in range(first, first + count):
                closing.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first


def java_classes(home: Path) -> str:
    """The class path of the Java clients, compiled."""
    classes = home / "classes"
    jars = ":".join(map(str, kafka_lib().glob("*.jar")))  # the compiler, started so, does not expand a *
    command = [java(), *QUICK_START, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-d", str(classes), "-cp", jars]
    subprocess.run([*command, str(JAVA_CLIENTS)], check=True, timeout=120)
    return f"{classes}:{kafka_lib()}/*"


def serves(port: int) -> bool:
    """Whether there is a server behind the relay: it answers ApiVersions."""
    request = struct.pack(">hhih", 18, 0, 1, -1)
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(struct.pack(">i", len(request)) + request)
        return bool(connection.recv(1))
    return False


def make_root(address: RootPath | StoreAddress) -> LogDir:
    log_dir = LogDir.create(address)
    log_dir.alter_broker_configs(add=BROKER_CONFIGS)
    for topic, partitions in PARTITIONS.items():
        own_configs = {"compacted": COMPACTED_CONFIGS, "aging": AGING_CONFIGS}.get(topic, {})
        log_dir.create_topic(topic, partitions, {**TOPIC_CONFIGS, **own_configs})
    return log_dir


def make_cluster(
    home: Path, root: str, processes: list[Tended], relays: contextlib.ExitStack, drawn: random.Random
) -> Cluster:
    for folder in ("control", "history", "logs"):
        (home / folder).mkdir()
    flush = drawn.choice(("os", "fsync"))
    class_path = java_classes(home)

    def server(at: int, port: int, relay: TcpRelay) -> Tended:
        has_workers = not at
        clock, trace = home / "control" / f"clock-{at}", home / "logs" / f"server-{at}.trace"
        command = [sys.executable, str(HERE / "served_server.py"), str(clock), str(trace), "serve", "--path", root]
        command += ["--flush", flush, "--listen", f"127.0.0.1:{port}"]
        command += ["--workers", str(WORKERS)] if has_workers else ["--advertise", f"127.0.0.1:{relay.port}"]
        return Tended("server", lambda _: command, home / "logs" / f"server-{at}.log", has_workers=has_workers)

    own_ports = [free_ports(WORKERS + 1), *(free_port() for _ in range(SERVERS - 1))]
    networks = [relays.enter_context(TcpRelay(port)) for port in own_ports]
    servers = [server(at, *each) for at, each in enumerate(zip(own_ports, networks, strict=True))]
    ports = [each.port for each in networks]
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)

    def client(kind: str, *command: str, place: str = bootstrap) -> Tended:
        def words(name: str) -> list[str]:
            history = str(home / "history" / f"{name}.jsonl")
            named = [each.replace("NAME", name) for each in command]
            return [*named, place, name, history, str(home / "control"), f"{SEED} {name}"]

        return Tended(kind, words, home / "logs" / f"{kind}.log")

    log4j = (f"-Dlog4j2.configurationFile={JAVA_LOG}", f"-Dkafkalog.trace={home / 'logs' / 'NAME.trace'}")
    clients = [
        client("librdkafka", sys.executable, str(HERE / "served_clients.py")),
        client("java", java(), "-Xmx256m", *QUICK_START, *log4j, "-cp", class_path, "ServedClients"),
        client("neighbours", sys.executable, str(HERE / "served_neighbours.py"), place=root),
    ]
    processes += [*servers, *clients]
    return Cluster(home, servers, networks, clients, ports)


ROLES = {
    "librdkafka": ("producer", "transactional", "classic", "cooperative", "next", "copier"),
    "java": ("producer", "transactional", "classic", "cooperative", "next", "copier"),
    "neighbours": ("writer", "query", "rerun", "snapshots", "maintenance"),
}
#: Those that do nothing before the end.
LAST_ROLES = {"java": ("reader",)}


def missing_progress(cluster: Cluster) -> list[str] | bool:
    """The clients that have done nothing since `progress` of the histories was cleared; True if there is none."""
    wanted = {(kind, role) for kind, roles in ROLES.items() for role in roles}
    return sorted(f"{kind}.{role}" for kind, role in wanted - cluster.histories.progress) or True


def _role_of(line: dict[str, object]) -> str | None:
    """Whose progress the line is."""
    op = line["op"]
    if op == "sent":
        who = str(line["value"])
        return who.split(".")[1].split("#")[0].rstrip("0123456789") if "transactional" not in who else None
    if op == "ended":
        return str(line["txn"]).split(".")[1].split("/")[0].rstrip("0123456789") if line["committed"] else None
    if op in ("poll", "snapshot", "maintained"):
        role = str(line["client"]).split(".")[1].rstrip("0123456789")
        return role if role != "copier" else None
    return None


def have_finished(cluster: Cluster, roles: tuple[str, ...]) -> list[str] | bool:
    missing = []
    for client in cluster.clients:
        known = (*ROLES[client.kind], *LAST_ROLES.get(client.kind, ()))
        wanted = (role for role in known if role in roles and (client.name, role) not in cluster.histories.finished)
        missing += [f"{client.kind}.{role}" for role in wanted]
    return missing or True


def groups_behind(log_dir: LogDir) -> list[str] | bool:
    """Groups and partitions that are not at the last record; True if all are."""
    log_dir.refresh()
    behind = []
    for group, topics in {**SUBSCRIPTIONS, "copiers": ("tx",)}.items():
        known = log_dir.group(group)
        offsets = {(each.topic, each.partition): found.offset for each, found in known.fetch().items()}
        for topic in topics:
            table = log_dir.read(topic, isolation="read_committed", columns=["partition", "offset"]).to_pydict()
            last = dict(zip(table["partition"], table["offset"], strict=True))
            for partition, offset in last.items():
                if offsets.get((topic, partition), 0) <= offset:
                    behind.append(f"{group} {topic}-{partition}: {offsets.get((topic, partition))} of {offset}")
    return behind or True


def final_reads(cluster: Cluster, log_dir: LogDir) -> Iterator[FinalRead]:
    """All of each partition, with and without isolation, by a client from the servers and from the files."""
    log_dir.refresh()
    for topic, partitions in PARTITIONS.items():
        for isolation in (COMMITTED, UNCOMMITTED):
            served = consume(cluster.bootstrap, topic, isolation=isolation)
            table = log_dir.read(topic, isolation=isolation, columns=["partition", "offset", "value"]).to_pydict()
            rows = list(zip(table["partition"], table["offset"], table["value"], strict=True))
            for at in range(partitions):
                place = (topic, at)
                of_client = [(each.offset, each.value or b"") for each in served if each.partition == at]
                of_files = [(offset, value) for partition, offset, value in rows if partition == at]
                for name, found in (("a client", of_client), ("LogDir", of_files)):
                    reads = tuple(Read(place, offset, value.decode()) for offset, value in sorted(found))
                    yield FinalRead(name, place, isolation, reads)


def run_soak(cluster: Cluster, log_dir: LogDir, drawn: random.Random) -> History:
    """Everything until the history is complete."""
    for each in cluster.servers:
        each.start()
    cluster.wait_until("servers start", lambda: all(map(serves, cluster.ports)), START_SECONDS_MAX)
    for each in cluster.clients:
        each.start()
    cluster.wait_until("clients start", lambda: missing_progress(cluster), START_SECONDS_MAX)
    began = time.monotonic()
    next_fault = began
    while (now := time.monotonic()) < began + SECONDS:
        cluster.tend()
        if now >= next_fault:
            cluster.strike(drawn, began + SECONDS - now)
            next_fault = time.monotonic() + drawn.uniform(*BETWEEN_FAULTS_SECONDS)
        time.sleep(0.1)

    def all_up() -> bool:
        is_running = all(each.is_running for each in (*cluster.servers, *cluster.clients))
        return is_running and not cluster.passing and all(map(serves, cluster.ports))

    cluster.wait_until("all run again", all_up, START_SECONDS_MAX)
    cluster.histories.read()
    cluster.histories.progress.clear()
    took = cluster.wait_until("progress", lambda: missing_progress(cluster), PROGRESS_SECONDS_MAX)
    print(f"everybody made progress {took:.1f} s after the last fault")
    (cluster.control / "stop-writing").touch()
    writers = ("producer", "transactional", "writer", "query", "rerun")
    cluster.wait_until("writers end", lambda: have_finished(cluster, writers), PROGRESS_SECONDS_MAX)
    took = cluster.wait_until("groups at the end", lambda: groups_behind(log_dir), PROGRESS_SECONDS_MAX)
    print(f"all groups were at the end {took:.1f} s after the last write")
    (cluster.control / "stop-maintaining").touch()  # what reads at the end are compared with must stay
    cluster.wait_until("maintenance ends", lambda: have_finished(cluster, ("maintenance",)), PROGRESS_SECONDS_MAX)
    (cluster.control / "read").touch()
    cluster.wait_until("all is read", lambda: have_finished(cluster, LAST_ROLES["java"]), PROGRESS_SECONDS_MAX)
    (cluster.control / "stop").touch()
    for each in cluster.clients:
        each.finish()
    history = load(cluster.histories.files)
    log_dir.refresh()
    return replace(
        history,
        finals=(*history.finals, *final_reads(cluster, log_dir)),
        log_starts={("aging", 0): log_dir.partition("aging", 0).log_start_offset},
        compacted=frozenset({"compacted"}),
        copies={"tx": "copied"},
        subscriptions={group: frozenset(topics) for group, topics in SUBSCRIPTIONS.items()},
    )


def check(home: Path, root: str, address: RootPath | StoreAddress, processes: list[Tended]) -> None:
    drawn = random.Random(SEED)
    log_dir = make_root(address)
    with contextlib.ExitStack() as relays:
        cluster = make_cluster(home, root, processes, relays, drawn)
        history = run_soak(cluster, log_dir, drawn)
    found = find_anomalies(history)
    print(f"soak: seed {SEED}, {SECONDS:g} s, faults {dict(cluster.faults)}, {history.counts()}, {home}")
    for each in found:
        print(each)
    assert [str(each) for each in found if not each.is_allowed] == []
    for server in cluster.servers:
        server.stop()
        server.finish()
    log_dir.refresh()
    assert verify(log_dir.root, are_records_checked=True).is_sound
    for kind, mutate in MUTATIONS:
        changed = mutate(history, drawn)
        assert kind in {each.kind for each in find_anomalies(changed)}, f"the checker did not see a {kind}"
    assert sum(cluster.faults.values()) >= SECONDS / 10
    for file in (home / "logs").glob("*.trace*"):
        file.unlink()


def test_clients_see_no_anomaly_when_servers_over_files_are_killed(tmp_path: Path, processes: list[Tended]) -> None:
    check(tmp_path, str(tmp_path / "log"), tmp_path / "log", processes)


@pytest.fixture
def s3_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[S3Server]:
    if "minio" not in TEST_STORES:
        yield request.getfixturevalue("s3_proxy")
        return
    with MinioServer(tmp_path / "minio") as server:
        yield server


def test_clients_see_no_anomaly_when_servers_over_a_bucket_are_killed(
    tmp_path: Path, processes: list[Tended], s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3_server.set_variables(monkeypatch)
    location = s3_server.new_location().below("log")
    check(tmp_path, location.url, StoreAddress.parse(location.url, s3_server.options()), processes)
