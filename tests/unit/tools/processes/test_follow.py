"""`kafkalog follow` as a command and as a process: its report, its metrics, its exit codes, signals and kills."""

from __future__ import annotations

import json
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pytest
from builders.following_roots import check_equal, has_all
from builders.root_places import RootPlace
from patience import PATIENCE_S, wait_until
from tiers import SEED, TIER

from pyspark_kafkalog.errors import FollowingRootError, LogDirError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.metrics import collect_metrics
from pyspark_kafkalog.replication.follower_state import Totals
from pyspark_kafkalog.report.gather import GatherOptions, gather
from pyspark_kafkalog.report.page import render
from pyspark_kafkalog.tools.main import main
from pyspark_kafkalog.tools.processes.follow import ProgressLine


def rows(first: int, count: int) -> pa.Table:
    return pa.table({"value": [f"value {number}" for number in range(first, first + count)]})


@pytest.fixture
def leader_dir(tmp_path: Path) -> LogDir:
    made = LogDir.create(tmp_path / "leader")
    made.create_topic("orders", 2)
    made.append("orders", rows(0, 100), partition=0)
    return made


def follow_once(tmp_path: Path, *arguments: str) -> int:
    return main(["follow", "--from", str(tmp_path / "leader"), "--path", str(tmp_path / "copy"), "--once", *arguments])


@contextmanager
def follow_process(tmp_path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "pyspark_kafkalog", "follow", "--from", str(tmp_path / "leader")]
    process = subprocess.Popen(
        [*command, "--path", str(tmp_path / "copy"), "--flush", "os", *arguments], stderr=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def test_once_copies_and_writes_a_report(
    tmp_path: Path, leader_dir: LogDir, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report.json"
    assert follow_once(tmp_path, "--topic", "ord.*", "--report", str(report)) == 0
    assert "Copied 100 records" in capsys.readouterr().out
    check_equal(tmp_path / "leader", tmp_path / "copy")
    found = json.loads(report.read_text())
    assert found["leader"] == str(tmp_path / "leader")
    assert found["state"] == "following"
    assert leader_dir.identity is not None
    assert found["cluster_id"] == leader_dir.identity.cluster_id
    assert found["totals"]["copied_records"] == 100
    assert [each["event"] for each in found["events"]] == ["topic-added"]
    assert [(each["topic"], each["partition"], each["log_end_offset"]) for each in found["partitions"]] == [
        ("orders", 0, 100),
        ("orders", 1, 0),
    ]


def test_copy_says_which_leader_it_follows_since_when(
    tmp_path: Path, leader_dir: LogDir, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = str(tmp_path / "copy")
    assert follow_once(tmp_path) == 0
    following = LogDir.open(copy).root.native().store.image.following
    assert following is not None
    leader_dir.append("orders", rows(0, 10))
    assert follow_once(tmp_path) == 0  # another run, but since the first one
    capsys.readouterr()
    assert main(["topics", "--path", copy, "--describe"]) == 0
    shown = capsys.readouterr()
    assert f"{copy} follows {tmp_path / 'leader'} since 20" in shown.err
    assert "follows" not in shown.out
    assert main(["verify", "--path", copy, "--local"]) == 0
    shown = capsys.readouterr()
    assert f"{copy} follows {tmp_path / 'leader'} since 20" in shown.err
    assert "follows" not in shown.out
    facts = gather(LogDir.open(copy).root, GatherOptions())
    assert facts.following is not None
    assert facts.following.startswith(f"follows {tmp_path / 'leader'} since 20")
    assert facts.following in render(facts)
    metrics = {each.prometheus_name: each for each in collect_metrics(LogDir.open(copy).root, now_ms=0)}
    since = metrics["kafkalog_following_sincetimestampseconds"].values
    last = metrics["kafkalog_following_lastcommittimestampseconds"].values
    assert since == {(str(tmp_path / "leader"),): following.since_ms / 1000}
    assert min(last.values()) >= following.since_ms / 1000
    assert main(["promote", "--path", copy]) == 0
    assert gather(LogDir.open(copy).root, GatherOptions()).following is None
    capsys.readouterr()
    for command in (["topics", "--describe"], ["verify", "--local"]):
        assert main([*command, "--path", copy]) == 0
        assert "since" not in capsys.readouterr().err


def test_leader_that_never_answers_leaves_no_log_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pyspark_kafkalog.tools.processes.follow._FIRST_ANSWER_S", 0.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    assert main(["follow", "--from", address, "--path", str(tmp_path / "copy"), "--once"]) == 1
    assert address in capsys.readouterr().err
    assert not (tmp_path / "copy").exists()


def test_wrong_address_of_a_new_copy_ends_the_command_with_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pyspark_kafkalog.tools.processes.follow._FIRST_ANSWER_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    report = tmp_path / "report.json"
    arguments = ["follow", "--from", address, "--path", str(tmp_path / "copy"), "--report", str(report)]
    assert main(arguments) == 1
    assert capsys.readouterr().err == (
        f"kafkalog follow: no answer from {address} within 0.1 seconds: check --from; no log directory was created "
        f"({address}: Connection refused)\n"
    )
    found = json.loads(report.read_text())
    assert (found["state"], found["leader"], found["partitions"]) == ("waiting for leader", address, [])
    assert not (tmp_path / "copy").exists()


def test_progress_shows_the_rate_of_the_last_seconds_and_in_sync_at_the_end() -> None:
    line = ProgressLine()
    assert line.text(Totals(), 0.0) == "follow: 0 B copied, 0 records behind"
    for second in range(1, 11):
        behind = line.text(Totals(partitions=2, lag=5000, copied_bytes=second * 3 << 20), float(second))
    assert behind == "follow: 30.0 MiB copied, 3.0 MiB/s, 5,000 records behind"
    for second in range(11, 17):
        idle = line.text(Totals(partitions=2, stopped=1, copied_bytes=30 << 20), float(second))
    assert idle == "follow: 30.0 MiB copied, in sync, 1 partition stopped"


def test_report_may_be_in_the_log_directory_that_is_created(tmp_path: Path, leader_dir: LogDir) -> None:
    assert follow_once(tmp_path, "--report", str(tmp_path / "copy" / "follow.json")) == 0
    assert json.loads((tmp_path / "copy" / "follow.json").read_text())["totals"]["copied_records"] == 100


def test_only_selected_topics_are_followed(tmp_path: Path, leader_dir: LogDir) -> None:
    leader_dir.append("payments", rows(0, 10))
    assert follow_once(tmp_path, "--topics", "pay.*") == 0
    assert LogDir.open(tmp_path / "copy").topics() == ("payments",)


def test_topics_that_the_leader_does_not_have_are_named_in_a_warning(
    tmp_path: Path, leader_dir: LogDir, caplog: pytest.LogCaptureFixture
) -> None:
    for topic, count in (("orders", 0), ("orderz", 1)):
        assert follow_once(tmp_path, "--topic", topic) == 0
        assert caplog.text.count(f"has no topic that --topic {topic} selects") == count


def test_topic_that_cannot_be_followed_is_exit_code_1(
    tmp_path: Path, leader_dir: LogDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert follow_once(tmp_path) == 0
    leader_dir.delete_topic("orders")
    leader_dir.create_topic("orders", 1)
    capsys.readouterr()
    assert follow_once(tmp_path) == 1
    assert "orders: the leader has another topic of that name" in capsys.readouterr().err


def test_promoted_root_follows_again_only_with_demote(
    tmp_path: Path, leader_dir: LogDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert follow_once(tmp_path) == 0
    assert main(["promote", "--path", str(tmp_path / "copy")]) == 0
    capsys.readouterr()
    assert follow_once(tmp_path) == 2
    assert "takes writes" in capsys.readouterr().err
    LogDir.open(tmp_path / "copy").create_topic("written-here")
    assert follow_once(tmp_path, "--demote") == 0
    with pytest.raises(FollowingRootError):
        LogDir.open(tmp_path / "copy").create_topic("refused")


def test_refused_following_writes_no_report(tmp_path: Path, leader_dir: LogDir) -> None:
    LogDir.create(tmp_path / "copy").create_topic("orders")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    assert follow_once(tmp_path, "--report", str(tmp_path / "report.json")) == 2
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def _refuses(*_: object, **__: object) -> NoReturn:
    raise LogDirError("refused to start")


@pytest.mark.parametrize(
    ("part", "arguments"),
    [
        ("tools.processes.follow.job_session", ["--spark"]),
        ("tools.processes.follow.MetadataObserver", ["--controllers", "c:1", "--metadata-path", "{tmp}/meta"]),
    ],
)
def test_part_that_does_not_start_leaves_no_log_directory(
    tmp_path: Path,
    leader_dir: LogDir,
    part: str,
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(f"pyspark_kafkalog.{part}", _refuses)
    assert follow_once(tmp_path, *(each.format(tmp=tmp_path) for each in arguments)) == 1
    assert "refused to start" in capsys.readouterr().err
    assert not (tmp_path / "copy").exists()


def test_former_leader_is_cut_back_and_the_file_of_its_records_is_dumped(
    tmp_path: Path, leader_dir: LogDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert follow_once(tmp_path) == 0
    assert main(["promote", "--path", str(tmp_path / "copy")]) == 0
    leader_dir.append("orders", pa.table({"value": ["written late"]}), partition=0)
    LogDir.open(tmp_path / "copy").append("orders", rows(200, 3), partition=0)
    swapped = ["follow", "--from", str(tmp_path / "copy"), "--path", str(tmp_path / "leader"), "--once", "--demote"]
    assert main(swapped) == 1
    assert "--on-divergence truncate" in capsys.readouterr().err
    assert main([*swapped, "--on-divergence", "truncate"]) == 0
    check_equal(tmp_path / "copy", tmp_path / "leader")
    (kept,) = (tmp_path / "leader").glob("diverged-orders-0-100-101-*.log")
    assert main(["dump-log", "--print-data-log", "--files", str(kept)]) == 0
    printed = capsys.readouterr().out
    assert "Log starting offset: 100" in printed
    assert "payload: written late" in printed


def test_log_directory_does_not_follow_itself(root_place: RootPlace, capsys: pytest.CaptureFixture[str]) -> None:
    log_dir = LogDir.create(root_place)
    arguments = ["follow", "--from", str(root_place), "--path", str(root_place), "--once", "--demote"]
    assert main(arguments) == 2
    assert "cannot follow itself" in capsys.readouterr().err
    log_dir.create_topic("t", partitions=1)


def test_another_name_of_the_same_directory_is_known(
    tmp_path: Path, leader_dir: LogDir, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "copy").symlink_to(tmp_path / "leader")
    assert follow_once(tmp_path, "--demote") == 2
    assert "cannot follow itself" in capsys.readouterr().err
    leader_dir.append("orders", rows(100, 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--topic", "("], "regular expression"),
        (["--command-config", "client.properties"], "is for brokers"),
        (["--metrics-listen", "nowhere"], "HOST:PORT"),
    ],
)
def test_wrong_option_is_refused_in_plain_words(
    tmp_path: Path, leader_dir: LogDir, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert follow_once(tmp_path, *arguments) == 2
    assert message in capsys.readouterr().err


def test_address_of_metrics_that_is_in_use_is_named(
    tmp_path: Path, leader_dir: LogDir, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert follow_once(tmp_path, "--metrics-listen", address) == 1
    assert f"{address}: cannot listen: Address already in use; choose another port" in capsys.readouterr().err


@pytest.mark.parametrize("leader", ["127.0.0.1", "broker..example:9092", "http://broker1:9092"])
def test_leader_that_is_no_address_is_a_wrong_option(capsys: pytest.CaptureFixture[str], leader: str) -> None:
    assert main(["follow", "--from", leader, "--path", "/nowhere"]) == 2
    assert re.search(f"--from '{leader}': .* as host:port, (such as|without a scheme)", capsys.readouterr().err)


def test_leader_that_does_not_exist_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "leader").mkdir()
    assert follow_once(tmp_path) == 1
    assert str(tmp_path / "leader") in capsys.readouterr().err
    assert not (tmp_path / "copy").exists()


@pytest.mark.slow
def test_signal_ends_the_process_with_everything_committed(tmp_path: Path, leader_dir: LogDir) -> None:
    with follow_process(tmp_path, "--metrics-listen", "127.0.0.1:0") as process:
        assert process.stderr is not None
        line = next(each for each in process.stderr if "metrics are at" in each)
        wait_until(lambda: has_all(leader_dir, tmp_path / "copy"))
        leader_dir.append("orders", rows(100, 50), partition=1)
        wait_until(lambda: has_all(leader_dir, tmp_path / "copy"))
        text = urllib.request.urlopen(line.split("metrics are at ")[1].strip()).read().decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert 'kafka_server_fetcherlagmetrics_consumerlag{partition="1",topic="orders"} 0.0' in text
    assert "kafkalog_follower_waiting_for_leader 0.0" in text
    assert "kafkalog_follower_records_total 150.0" in text
    check_equal(tmp_path / "leader", tmp_path / "copy")


@pytest.mark.slow
def test_killed_follower_goes_on_where_it_was(tmp_path: Path, leader_dir: LogDir) -> None:
    rng, written = random.Random(SEED), 100
    for _ in range(8 if TIER == "full" else 2):
        with follow_process(tmp_path) as process:
            wait_until(lambda: has_all(leader_dir, tmp_path / "copy"))
            for _ in range(rng.randrange(10, 40)):
                leader_dir.append("orders", rows(written, 20), partition=written // 20 % 2)
                written += 20
            process.kill()
    assert follow_once(tmp_path) == 0
    check_equal(tmp_path / "leader", tmp_path / "copy")


@pytest.mark.full
def test_promotion_ends_the_follower_of_an_idle_leader(tmp_path: Path, leader_dir: LogDir) -> None:
    with follow_process(tmp_path) as process:
        wait_until(lambda: has_all(leader_dir, tmp_path / "copy"))
        assert main(["promote", "--path", str(tmp_path / "copy")]) == 0
        assert process.wait(PATIENCE_S) == 1
        assert process.stderr is not None
        assert "it was promoted" in process.stderr.read()


@pytest.mark.slow
def test_second_follower_of_a_root_ends_the_first(tmp_path: Path, leader_dir: LogDir) -> None:
    with follow_process(tmp_path) as first:
        wait_until(lambda: has_all(leader_dir, tmp_path / "copy"))
        with follow_process(tmp_path) as second:
            deadline = time.monotonic() + PATIENCE_S
            while first.poll() is None and time.monotonic() < deadline:
                leader_dir.append("orders", rows(0, 5), partition=0)
                time.sleep(0.2)
            assert first.stderr is not None
            said = first.stderr.read()
            assert first.wait() == 1
            assert "kafkalog follow: " in said
            wait_until(lambda: has_all(leader_dir, tmp_path / "copy"))
            second.send_signal(signal.SIGINT)
            assert second.wait(PATIENCE_S) == 0
    check_equal(tmp_path / "leader", tmp_path / "copy")
