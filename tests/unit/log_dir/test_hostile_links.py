"""Each command over roots with a link or a pipe in place of a file or directory: none leads outside, none waits."""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from builders.metadata_roots import forget_images
from builders.tiered_roots import append_rounds, tiered_root
from fakes.hostile_clients import NAMED, answer_or_end, batch_of, connected, fetch_of, frame_of, produce_of, sized
from fakes.watched_paths import Untouched, WatchedPaths
from kafka_processes.served import serve
from repository import FIXTURES
from tiers import SEED

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.tier import tier_segments
from pyspark_kafkalog.protocol.api import APIS
from pyspark_kafkalog.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic
from pyspark_kafkalog.protocol.messages.offsets import OffsetFetchRequest
from pyspark_kafkalog.protocol.messages.replicas import DescribeLogDirsRequest
from pyspark_kafkalog.protocol.messages.topics import CreatableTopic, CreateTopicsRequest
from pyspark_kafkalog.replication import follower
from pyspark_kafkalog.storage.names import offset_file_name
from pyspark_kafkalog.tools.main import main

_SECONDS_MAX: Final = 60
SEGMENT: Final = offset_file_name(0, "")


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Fail if the block waits for what never comes."""

    def give_up(number: int, frame: object) -> None:
        raise TimeoutError(f"still waiting after {seconds} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `log`, which has something of everything, and `remote`, to which it tiers."""
    home = tmp_path_factory.mktemp("whole")
    (home / "remote").mkdir()
    log_dir = tiered_root(home / "log", home / "remote", layout="local", partitions=2, local_retention_bytes="1")
    log_dir.alter_broker_configs(add={"offsets.topic.num.partitions": "1"})
    append_rounds(log_dir, 12)
    append_rounds(log_dir, 1, partition=1)
    tier_segments(log_dir.root, now_ms=None)
    log_dir.create_topic(
        "compacted", partitions=1, configs={"cleanup.policy": "compact", "internal.segment.bytes": "500"}
    )
    for number in range(12):
        log_dir.append("compacted", pa.table({"key": ["a", "b"], "value": [str(number)] * 2}))
    log_dir.group("readers").commit({("compacted", 0): 3})
    log_dir.create_topic("gone", partitions=1, configs={"file.delete.delay.ms": "0"})
    log_dir.append("gone", pa.table({"value": ["x"]}))
    log_dir.delete_topic("gone")
    assert main(["log-cleaner", "--path", str(home / "log")]) == 0
    (home / "records.json").write_text('{"partitions":[{"topic":"orders","partition":0,"offset":50}],"version":1}')
    return home


@pytest.fixture
def home(whole: Path) -> Iterator[Path]:
    """`whole`, whose content is as before after the test: remote storage is found at this path."""
    kept = whole.with_name("kept")
    if not kept.exists():
        shutil.copytree(whole, kept)
    yield whole
    shutil.rmtree(whole)
    shutil.copytree(kept, whole)


def remote_segment(home: Path) -> str:
    return next(str(each.relative_to(home)) for each in sorted((home / "remote").rglob("*.log")))


#: Commands that every root has.
ANY_ROOT: Final = (
    ["verify"],
    ["du"],
    ["log-dirs", "--describe"],
    ["topics", "--list"],
    ["topics", "--describe"],
    ["get-offsets"],
    ["consumer-groups", "--list"],
    ["configs", "--describe", "--entity-type", "topics"],
)
PLACES: Final = (
    "log/orders-0",
    "log/compacted-0",
    "log/__cluster_metadata-0",
    "log/__consumer_offsets-0",
    "log/gone-0.0123456789abcdef0123456789abcdef-delete",
    "log/new-0",
    "log/compacted-0/{last}.log",
    "log/compacted-0/{first}.log",
    "log/compacted-0/{first}.index",
    "log/compacted-0/{first}.timeindex",
    "log/compacted-0/{first}.txnindex",
    "log/compacted-0/{snapshot}",
    "log/compacted-0/partition.metadata",
    "log/compacted-0/partition.metadata.tmp",
    "log/compacted-0/leader-epoch-checkpoint",
    "log/compacted-0/leader-epoch-checkpoint.tmp",
    "log/compacted-0/.maintenance-lock",
    f"log/compacted-0/{SEGMENT}.log.cleaned",
    f"log/compacted-0/{SEGMENT}.index.swap",
    "log/__cluster_metadata-0/{first}.log",
    "log/__cluster_metadata-0/kafkalog-format",
    "log/__cluster_metadata-0/kafkalog-head",
    "log/__cluster_metadata-0/kafkalog-start",
    "log/__cluster_metadata-0/kafkalog-reserve-3",
    "log/__cluster_metadata-0/partition.metadata",
    "log/meta.properties",
    "log/.lock",
    "log/.unflushed",
    "log/cleaner-offset-checkpoint",
    "log/cleaner-offset-checkpoint.tmp",
    "log/log-start-offset-checkpoint",
    "log/.server-7",
    "{remote}",
    "{remote folder}",
    "copy/__cluster_metadata-0",
    "copy/orders-0",
)


def cases(places: Sequence[str], kept: int = 2) -> list[Any]:
    """Each place with a link and with a pipe, and each fourth with a socket and a device; a sample but in full runs."""
    found = [(place, kind) for place in places for kind in ("link", "pipe")]
    found += [(place, kind) for place in places[::4] for kind in ("socket", "device")]
    chosen = set(random.Random(f"{SEED} {places[0]}").sample(range(len(found)), kept))
    return [pytest.param(*each, marks=[] if at in chosen else pytest.mark.full) for at, each in enumerate(found)]


def place_of(name: str, home: Path) -> Path:
    """The file or directory that `name` means."""
    folder = home / name.partition("/{")[0]
    logs = sorted(folder.glob("*.log")) if "/{" in name else [Path()]
    snapshots = sorted(folder.glob("*.snapshot")) if "/{" in name else []
    remote = remote_segment(home)
    return home / name.format_map(
        {
            "first": logs[0].stem,
            "last": logs[-1].stem,
            "snapshot": snapshots[-1].name if snapshots else "",
            "remote": remote,
            "remote folder": str(Path(remote).parent),
        }
    )


def commands(home: Path) -> list[list[str]]:
    """The command lines that a case runs, those that only read first."""
    log = str(home / "log")
    files = [home / "log/orders-1" / f"{SEGMENT}{suffix}" for suffix in (".log", ".index", ".timeindex")]
    reading = [
        ["verify"],
        ["du"],
        ["log-dirs", "--describe"],
        ["topics", "--list"],
        ["topics", "--describe"],
        ["get-offsets"],
        ["configs", "--describe", "--entity-type", "topics", "--entity-name", "compacted"],
        ["consumer-groups", "--list"],
        ["consumer-groups", "--describe", "--group", "readers"],
        ["console-consumer", "--topic", "compacted", "--from-beginning", "--max-messages", "2", "--timeout-ms", "0"],
        ["console-consumer", "--topic", "orders", "--from-beginning", "--max-messages", "2", "--timeout-ms", "0"],
        ["history"],
        ["report", "--file", str(home / "report.html")],
        ["export", "--to", str(home / "copy")],
    ]
    changing = [
        ["topics", "--create", "--topic", "new", "--partitions", "2"],
        ["tier"],
        ["retention"],
        ["log-cleaner"],
        ["merge-segments"],
        ["reindex"],
        ["verify", "--repair"],
        ["delete-records", "--offset-json-file", str(home / "records.json")],
        ["topics", "--delete", "--topic", "orders"],
        ["retention"],
    ]
    dump = ["dump-log", "--files", ",".join(map(str, files))]
    return [dump, *([name, "--path", log, *rest] for name, *rest in (*reading, *changing))]


def test_all_commands_succeed_without_hostile_names(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for line in commands(home):
        forget_images()
        assert main(line) == 0, (line, capfd.readouterr())


def plant(place: Path, kind: str, outside: Path) -> None:
    """Put a link to what was there and is `outside` now, or another kind of file, in its place."""
    place.parent.mkdir(exist_ok=True, parents=True)
    outside.mkdir()
    (outside / "file").write_text("of others")
    target = outside / place.name
    if place.exists():
        shutil.move(place, target)
    elif place.suffix or place.name.startswith("."):
        target.write_text("of others")
    else:
        target.mkdir()
    (target / "file" if target.is_dir() else target).touch()
    if kind == "link":
        place.symlink_to(target)
    elif kind == "pipe":
        os.mkfifo(place)
    elif kind == "socket":
        os.mknod(place, stat.S_IFSOCK | 0o600)
    else:
        try:
            os.mknod(place, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero, which has no end
        except PermissionError:
            pytest.skip("only root may make devices")


def check_nothing_outside_or_waiting(home: Path, outside: Path, works: Iterable[Callable[[], object]]) -> None:
    """Do the work, of which none may use a file in `outside`, change one, or wait."""
    before = contents(outside)
    folders = [outside, *(each for each in outside.rglob("*") if each.is_dir())]
    forget_images()
    with Untouched(folders) as untouched, WatchedPaths(home) as watched:
        for work in works:
            with within(_SECONDS_MAX):
                work()
            assert not untouched.uses(), work
            assert not watched.below(outside), work
    assert contents(outside) == before


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """follow --once gives up after a second, and not after a minute, if nothing can be copied."""
    monkeypatch.setattr(follower, "FollowSettings", functools.partial(follower.FollowSettings, gives_up_after_s=1.0))


def run_each(lines: Iterable[list[str]]) -> Iterator[Callable[[], object]]:
    return (functools.partial(main, line) for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kind"), cases(PLACES, kept=4))
def test_no_command_goes_outside_or_waits(
    home: Path, tmp_path: Path, name: str, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    plant(place_of(name, home), kind, tmp_path / "outside")
    works = [*run_each(commands(home)), functools.partial(append, home / "log")]
    check_nothing_outside_or_waiting(home, tmp_path / "outside", works)


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two disks of brokers: `first` has all kinds of files, the metadata log among them."""
    home = tmp_path_factory.mktemp("disks")
    shutil.copytree(FIXTURES.parent / "fixtures-tiered" / "tiered" / "log-dir", home / "first")
    shutil.copytree(FIXTURES.parent / "fixtures-tiered" / "tiered" / "remote", home / "remote")
    shutil.copytree(FIXTURES / "cars", home / "second", ignore=shutil.ignore_patterns("expected"))
    return home


DISK_PLACES: Final = (
    "second/cars-0",
    "second/cars-0/{first}.log",
    "second/cars-0/{last}.log",
    "second/cars-0/{first}.index",
    "second/cars-0/{first}.timeindex",
    "second/cars-0/{snapshot}",
    "second/cars-0/partition.metadata",
    "second/cars-0/leader-epoch-checkpoint",
    "second/new-0",
    "second/meta.properties",
    "second/.lock",
    "second/.kafka_cleanshutdown",
    "second/replication-offset-checkpoint",
    "second/recovery-point-offset-checkpoint",
    "second/log-start-offset-checkpoint",
    "second/__cluster_metadata-0",
    "second/__cluster_metadata-0.adopting-stray",
    "second/__cluster_metadata-0.kafka-stray",
    "second/cars-0/partition.metadata.tmp",
    "second/cars-0/leader-epoch-checkpoint.tmp",
    "second/meta.properties.tmp",
    "second/.server-7",
    "first/__cluster_metadata-0",
    "first/__cluster_metadata-0/{first}.log",
    "first/__cluster_metadata-0/quorum-state",
    "first/__remote_log_metadata-0",
    "first/__remote_log_metadata-0/{first}.log",
    "first/tiered-0/{first}.log",
    "first/tiered-0/leader-epoch-checkpoint",
    "first/bootstrap.checkpoint",
    "remote/kafka-tiered-storage",
    "copy/cars-0",
    "copy/.lock",
    "copy/meta.properties",
)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("name", "kind"), cases(DISK_PLACES))
def test_no_command_over_disks_of_brokers_goes_outside_or_waits(
    disks: Path, tmp_path: Path, name: str, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "home"
    shutil.copytree(disks, home)
    plant(place_of(name, home), kind, tmp_path / "outside")
    both, second = f"{home}/first,{home}/second", str(home / "second")
    tiered = ["--path", str(home / "first"), "--remote-storage", str(home / "remote")]
    lines = [
        *([*command, "--path", both] for command in ANY_ROOT),
        ["console-consumer", "--path", both, "--topic", "cars", "--from-beginning", "--max-messages", "2"],
        ["console-consumer", *tiered, "--topic", "tiered", "--from-beginning", "--max-messages", "2"],
        ["get-offsets", *tiered],
        ["verify", *tiered],
        ["export", *tiered, "--to", str(home / "export")],
        ["export", "--path", second, "--to", str(home / "copy")],
        ["follow", "--from", second, "--path", str(home / "follower"), "--once"],
        ["adopt", "--path", second, "--dry-run"],
        ["adopt", "--path", second],
        *([*command, "--path", second] for command in ANY_ROOT),
        ["retention", "--path", second],
        ["log-cleaner", "--path", second],
    ]
    lines = [[*line, "--timeout-ms", "0"] if line[0] == "console-consumer" else line for line in lines]
    check_nothing_outside_or_waiting(home, tmp_path / "outside", [*run_each(lines), lambda: ask(home / "second")])


FOLLOWER_PLACES: Final = (
    "follower/orders-0",
    "follower/orders-0/{last}.log",
    "follower/orders-0/{first}.index",
    "follower/orders-0/partition.metadata",
    "follower/orders-0/leader-epoch-checkpoint",
    "follower/orders-0/leader-epoch-checkpoint.tmp",
    "follower/orders-1",
    "follower/compacted-0",
    "follower/__cluster_metadata-0",
    "follower/__cluster_metadata-0/{first}.log",
    "follower/__consumer_offsets-0",
    "follower/meta.properties",
    "follower/.lock",
    "follower/.follow-job",
    "follower/.server-7",
    "log/orders-0",
    "log/orders-0/{last}.log",
    "log/__cluster_metadata-0",
    "log/__cluster_metadata-0/{last}.log",
    "{remote}",
    "report.json",
    "report.json.part",
)


@pytest.mark.slow
@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(("name", "kind"), cases(FOLLOWER_PLACES))
def test_no_following_goes_outside_or_waits(
    home: Path, tmp_path: Path, name: str, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    follow = ["follow", "--from", str(home / "log"), "--path", str(home / "follower"), "--once"]
    assert main(follow) == 0
    LogDir.open(home / "log").append("compacted", pa.table({"key": ["a"], "value": ["x"]}))
    plant(place_of(name, home), kind, tmp_path / "outside")
    reported = [*follow, "--report", str(home / "report.json"), "--on-divergence", "truncate"]
    path = ["--path", str(home / "follower")]
    lines = [follow, reported, *([*command, *path] for command in ANY_ROOT), ["promote", *path], ["retention", *path]]
    if name.startswith("report"):  # the user named this path
        lines = [line for line in lines if line is not reported] if kind != "link" else []
    check_nothing_outside_or_waiting(home, tmp_path / "outside", [*run_each(lines), lambda: ask(home / "follower")])


@pytest.mark.slow
@pytest.mark.parametrize("is_planted_before", [True, False], ids=["start", "live"])
@pytest.mark.parametrize(("name", "kind"), cases([each for each in PLACES if not each.startswith("copy")]))
def test_no_request_of_a_client_goes_outside_or_waits(
    home: Path, tmp_path: Path, name: str, kind: str, is_planted_before: bool
) -> None:
    if is_planted_before:
        plant(place_of(name, home), kind, tmp_path / "outside")
        check_nothing_outside_or_waiting(home, tmp_path / "outside", [lambda: ask(home / "log")])
        return
    with serve(home / "log") as bootstrap:
        ask_at(bootstrap)
        plant(place_of(name, home), kind, tmp_path / "outside")
        check_nothing_outside_or_waiting(home, tmp_path / "outside", [lambda: ask_at(bootstrap)])


def ask(root: Path) -> None:
    """Serve the root, if it can be served, and ask for everything."""
    with suppress(KafkalogError, OSError), serve(root) as bootstrap:
        ask_at(bootstrap)


def ask_at(bootstrap: str) -> None:
    """Requests that read and change topics, groups and the commit log; each is answered, or ends its connection."""
    port = int(bootstrap.rpartition(":")[2])
    for topic in ("orders", "compacted", "cars", "new"):
        for body in (
            MetadataRequest(topics=(MetadataRequestTopic(name=topic),)),
            fetch_of(topic, 0, max_wait_ms=0),
            produce_of(topic, batch_of(b"x")),
            OffsetFetchRequest(group_id="readers"),
            DescribeLogDirsRequest(topics=None),
            CreateTopicsRequest(topics=(CreatableTopic(name=topic, num_partitions=1, replication_factor=1),)),
        ):
            api = next(each for each in APIS.values() if type(body) is each.request)
            with connected(port) as sock:
                sock.sendall(sized(frame_of(api, 1 if api.versions[0] <= 1 else min(NAMED, api.versions[-1]), body)))
                assert answer_or_end(sock, _SECONDS_MAX) is not None


def append(root: Path) -> None:
    with within(_SECONDS_MAX), suppress(KafkalogError, OSError):
        LogDir.open(root).append("compacted", pa.table({"key": ["a"], "value": ["x"]}))


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mode)
        for path in sorted(directory.rglob("*"))
    }
