"""Each command over roots with a link or a pipe in place of a file or directory: none leads outside, none waits."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest
from metadata_roots import forget_images
from tiered_roots import append_rounds, tiered_root
from watched_paths import Untouched, WatchedPaths

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.maintenance.tier.copy import tier_segments
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
        ["report", "--output", str(home / "report.html")],
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["link", "pipe"])
@pytest.mark.parametrize("name", PLACES)
def test_no_command_goes_outside_or_waits(
    home: Path, tmp_path: Path, name: str, kind: str, capfd: pytest.CaptureFixture[str]
) -> None:
    outside = tmp_path / "outside"
    place = place_of(name, home)
    place.parent.mkdir(exist_ok=True)
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
    else:
        os.mkfifo(place)
    before = contents(outside)
    folders = [outside, *(each for each in outside.rglob("*") if each.is_dir())]
    forget_images()
    with Untouched(folders) as untouched, WatchedPaths(home) as watched:
        for line in commands(home):
            with within(_SECONDS_MAX):
                main(line)
            assert not untouched.uses(), line
            assert not watched.below(outside), line
        append(home / "log")
        assert not untouched.uses()
        assert not watched.below(outside)
    assert contents(outside) == before


def append(root: Path) -> None:
    with within(_SECONDS_MAX), suppress(KafkalogError, OSError):
        LogDir.open(root).append("compacted", pa.table({"key": ["a"], "value": ["x"]}))


def contents(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mode)
        for path in sorted(directory.rglob("*"))
    }
