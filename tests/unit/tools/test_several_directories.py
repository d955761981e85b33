"""Commands over the disks of three brokers: `--path 1,2,3`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders.broker_disks import cluster, killed, log_dirs
from kafkalog_command import Command

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.maintenance.metrics import collect_metrics
from pyspark_kafkalog.report.gather import GatherOptions, gather
from pyspark_kafkalog.tools.main import main

__all__ = ["cluster", "killed", "log_dirs"]


@pytest.fixture
def joined(cluster: list[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The three disks, as paths relative to the working directory."""
    monkeypatch.chdir(cluster[0].parent)
    return Path("1,2,3")


def lines(output: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in output.splitlines()]


def test_topics_describe_shows_replicas_and_where_they_differ(joined: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described = Command("topics", joined, capsys)("--describe", "--topic", "elected|orders|again").splitlines()
    partitions = [line.split("\t", 3)[-1] for line in described if "Leader: " in line]
    assert partitions == [
        "Leader: 2\tReplicas: 3,2\tIsr: 2,3\tElr: \tLastKnownElr: ",
        "Leader: 2\tReplicas: 1,2\tIsr: 2\tElr: \tLastKnownElr: ",
        "Leader: 2\tReplicas: 1,2,3\tIsr: 2,3\tElr: \tLastKnownElr: ",
        "Leader: 2\tReplicas: 2,3,1\tIsr: 2,3\tElr: \tLastKnownElr: ",
    ]
    others = [(line.split("\t")[1], line.split("\t")[-1]) for line in described if "Replica: 1\tDirectory: 1\t" in line]
    assert others == [
        ("Topic: again", "of a deleted topic of that name, k39IViw1QUKf0e02KZF9FQ"),
        ("Topic: elected", "other records from offset 40 on, of leader epoch 0, not 1"),
        ("Topic: orders", "behind by 60 offsets"),
        ("Topic: orders", "behind by 60 offsets"),
    ]
    assert "ReplicationFactor: 2\tConfigs: min.insync.replicas=1,unclean" in described[3]


def test_topics_describe_lists_all_replicas_in_json(joined: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = Command("topics", joined, capsys)
    ((found,),) = [each["partitions"] for each in lines(tool("--describe", "--topic", "elected", "--output", "json"))]
    assert isinstance(found, dict)
    assert (found["leader"], found["directory"]) == (2, "2/elected-0")
    replicas = [(each["node"], each["directory"], each.get("differsFrom")) for each in found["replicas"]]
    assert replicas == [(2, "2/elected-0", None), (1, "1/elected-0", 40)]
    assert [each["behind"] for each in found["replicas"]] == [0, 20]


def test_verify_finds_the_unclean_election(joined: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exit_code, out, _ = Command("verify", joined, capsys).try_to("--local", "--output", "json")
    assert exit_code == 1
    found = [each for each in lines(out) if each["action"] == "finding" and each["severity"] == "error"]
    assert [(each["what"], each["topic"], each["offset"]) for each in found] == [("replica-differs", "elected", 40)]
    reports = [(each["topic"], each["partition"]) for each in lines(out) if each["action"] == "verify"]
    assert sorted(reports) == [
        ("__cluster_metadata", 0),
        ("__consumer_offsets", 0),
        ("again", 0),
        ("elected", 0),
        ("orders", 0),
        ("orders", 1),
    ]
    exit_code, out, _ = Command("verify", joined, capsys).try_to("--local", "--output", "json", "--topic", "orders")
    assert exit_code == 0


def test_reading_commands_read_the_best_replica(joined: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, err = Command("get-offsets", joined, capsys).try_to("--topic", "orders|elected|again")
    assert out.splitlines() == ["again:0:20", "elected:0:90", "orders:0:160", "orders:1:190"]
    assert "elected-0: offsets 40 to 69 are of leader epoch 1 in 2 and of 0 in 1" in err
    groups = lines(Command("consumer-groups", joined, capsys)("--describe", "--group", "billing", "--output", "json"))
    assert [(each["currentOffset"], each["logEndOffset"], each["lag"]) for each in groups] == [(120, 160, 40)]
    assert "LeaderEpoch:            3" in Command("metadata-quorum", joined, capsys)("describe", "--status")
    tool = Command("configs", joined, capsys)
    assert "unclean.leader.election.enable=true" in tool(
        "--describe", "--entity-type", "topics", "--entity-name", "elected"
    )
    arguments = ["console-consumer", "--path", "1,2,3", "--topic", "elected", "--from-beginning", "--timeout-ms", "0"]
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1].startswith("won-0049")
    assert "replicas of 1 partition differ below their high watermarks" in captured.err


def test_transactions_with_state_and_records_in_different_log_dirs_are_listed_as_in_one(
    killed: Path, log_dirs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    both = Path(",".join(map(str, log_dirs)))
    for arguments in (["list"], ["find-hanging"], ["describe-producers", "--topic", "paid", "--partition", "0"]):
        more = ["--output", "json"] if arguments == ["list"] else ["--output", "json", "--read-to-log-end"]
        alone = Command("transactions", killed, capsys).try_to(*arguments, *more)
        assert alone[0] == 0
        assert alone[1]
        assert Command("transactions", both, capsys).try_to(*arguments, *more)[:2] == alone[:2]


def test_log_dirs_lists_each_directory_with_its_own_replicas(joined: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tool = Command("log-dirs", joined, capsys)
    (found,) = lines(tool("--describe", "--topic-list", "elected", "--output", "json"))
    assert isinstance(found["brokers"], list)
    sizes = {
        (each["broker"], Path(log_dir["logDir"]).name, size["partition"]): size["size"]
        for each in found["brokers"]
        for log_dir in each["logDirs"]
        for size in log_dir["partitions"]
    }
    assert sizes == {(1, "1", "elected-0"): 2118, (2, "2", "elected-0"): 2708}
    (found,) = lines(tool("--describe", "--broker-list", "3", "--output", "json"))
    assert isinstance(found["brokers"], list)
    assert [each["broker"] for each in found["brokers"]] == [3]
    _, _, err = tool.try_to("--describe", "--broker-list", "4")
    assert "do not exist from --broker-list: 4. Current existent brokers: 1,2,3" in err


def test_du_adds_up_all_directories(joined: Path, capsys: pytest.CaptureFixture[str]) -> None:
    together = lines(Command("du", joined, capsys)("--output", "json"))[-1]
    alone = [lines(Command("du", Path(name), capsys)("--output", "json"))[-1] for name in ("1", "2", "3")]
    assert together["sizeBytes"] == sum(int(str(each["sizeBytes"])) for each in alone)


def test_metrics_and_report_tell_of_all_directories(joined: Path, cluster: list[Path]) -> None:
    root = LogDir.open(cluster).root
    metrics = {each.name: each for each in collect_metrics(root, now_ms=0)}
    for name in ("LogDirectoryOffline", "uncleanable-bytes"):
        assert {tags[0] for tags in metrics[name].values} == {str(each) for each in cluster}
    assert metrics["LogEndOffset"].values["elected", "0"] == 90
    facts = gather(root, GatherOptions(sample_bytes=0))
    assert {each.name for each in facts.topics} == {"__consumer_offsets", "again", "elected", "orders"}
    assert (facts.deleted_directories, facts.stray_directories) == (2, 0)
    (note,) = facts.notes
    assert note.startswith("Replicas of 1 partition differ below their high watermarks (elected-0: offsets 40 to 69")
    (elected,) = [each for each in facts.topics if each.name == "elected"]
    assert [each.high_watermark for each in elected.partitions] == [90]


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("topics", ["--create", "--topic", "new"]),
        ("topics", ["--delete", "--topic", "orders"]),
        ("retention", []),
        ("verify", ["--repair"]),
        ("export", ["--to", "copy"]),
        ("adopt", []),
    ],
)
def test_commands_that_write_are_refused(
    joined: Path, capsys: pytest.CaptureFixture[str], command: str, arguments: list[str]
) -> None:
    exit_code, _, err = Command(command, joined, capsys).try_to(*arguments)
    assert exit_code != 0
    assert "are Kafka brokers' log directories" in err or "names several directories" in err
    assert sorted(each.name for each in Path().iterdir()) == ["1", "2", "3", "expected.json"]
