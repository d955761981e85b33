"""The metadata log of real controllers, copied as an observer: bytes, snapshots, other leaders, tools on the copy."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from kafka_processes.cluster import Cluster
from kafka_processes.java_processes import free_port
from kafka_processes.oracle import CONFIG_COMMAND, Broker, dump_log, run_tool
from kafkalog_command import Command

from pyspark_kafkalog.errors import InvalidConfigError, LeaderUnavailableError, LogDirError
from pyspark_kafkalog.replication.metadata_observer import MetadataObserver, ObservedMetadata, observing

#: Starts brokers: the full tier alone.
pytestmark = pytest.mark.full

METADATA: Final = "__cluster_metadata-0"


def segments(directory: Path) -> bytes:
    return b"".join(each.read_bytes() for each in sorted((directory / METADATA).glob("*.log")))


def add_topics(broker: Broker, prefix: str, count: int, partitions: int = 2) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    new = [
        NewTopic(f"{prefix}-{each}", partitions, 1, config={"retention.ms": f"{each + 1}000"}) for each in range(count)
    ]
    for future in admin.create_topics(new).values():
        future.result(30)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A node with the authorizer, whose controller listener is known."""
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    with Broker(tmp_path_factory.mktemp("broker"), settings, controller_port=free_port()) as broker:
        add_topics(broker, "orders", 3)
        yield broker


def controllers_of(broker: Broker) -> str:
    return f"127.0.0.1:{broker.controller_port}"


def test_copy_equals_the_log_of_the_controller_and_goes_on_where_it_ended(broker: Broker, tmp_path: Path) -> None:
    for topics in ("first", "second"):
        add_topics(broker, topics, 5)
        observer = MetadataObserver(controllers_of(broker), tmp_path / "copy")
        observed = observer.catch_up()
        observer.close()
        assert observed.end_offset > 30
        copied = segments(tmp_path / "copy")
        assert segments(broker.data).startswith(copied)
        assert len(segments(broker.data)) - len(copied) < 2000  # no-ops of the controller, twice a second
    shown = dump_log(sorted((tmp_path / "copy" / METADATA).glob("*.log")), "--cluster-metadata-decoder")
    assert shown.returncode == 0
    assert "second-4" in shown.stdout
    assert "isvalid: false" not in shown.stdout


def test_listener_of_a_broker_is_refused(broker: Broker, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigError, match="is the listener of a broker"):
        MetadataObserver(broker.bootstrap, tmp_path / "copy")


def test_copy_has_one_writer_and_one_cluster(broker: Broker, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    observer = MetadataObserver(controllers_of(broker), copy)
    observer.close()
    properties = copy / "meta.properties"
    properties.write_text(properties.read_text().replace("kafkalog-tests-cluster", "another-tests--cluster"))
    with pytest.raises(LogDirError, match="of cluster another-tests--cluster"):
        MetadataObserver(controllers_of(broker), copy)
    with pytest.raises(LogDirError, match="is no copy of a metadata log"):
        MetadataObserver(controllers_of(broker), broker.data)


def test_copy_begins_with_a_snapshot_where_the_controller_has_no_records_any_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = {
        "metadata.log.max.record.bytes.between.snapshots": "3000",
        "metadata.max.retention.bytes": "5000",
        "internal.metadata.log.segment.bytes": "4000",
        "metadata.max.idle.interval.ms": "100",
    }
    with Broker(tmp_path / "broker", settings, controller_port=free_port()) as broker:
        directory = broker.data / METADATA
        add_topics(broker, "orders", 20, partitions=1)
        deadline = time.monotonic() + 150
        while (directory / f"{0:020d}.log").exists():  # the controller looks once a minute
            assert time.monotonic() < deadline, sorted(directory.iterdir())
            time.sleep(0.5)
        copy = tmp_path / "copy"
        observer = MetadataObserver(controllers_of(broker), copy, bytes_between_snapshots=4000)
        observer.catch_up()
        (first,) = (copy / METADATA).glob("*.checkpoint")
        assert segments(copy) in segments(broker.data)
        while first.exists():
            observer.step()
            assert time.monotonic() < deadline, sorted((copy / METADATA).iterdir())
        add_topics(broker, "late", 1)
        observer.catch_up()
        observer.close()
        (second,) = (copy / METADATA).glob("*.checkpoint")
        assert second > first
        assert second.read_bytes() == (directory / second.name).read_bytes()
        listed = run_tool("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", broker.bootstrap, "--list")
        broker.kill()
    assert sorted(Command("topics", copy, capsys)("--list").splitlines()) == sorted(listed.stdout.splitlines())


def test_tools_say_of_the_copy_what_those_of_kafka_say_of_the_cluster(
    broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = ("--bootstrap-server", broker.bootstrap)
    for arguments in (
        ("--alter", "--entity-type", "brokers", "--entity-default", "--add-config", "log.cleaner.threads=2"),
        ("--alter", "--entity-type", "brokers", "--entity-name", "1", "--add-config", "log.cleaner.backoff.ms=9"),
        ("--alter", "--entity-type", "users", "--entity-name", "ann", "--add-config", "consumer_byte_rate=100"),
    ):
        assert run_tool(CONFIG_COMMAND, *servers, *arguments).returncode == 0
    added = run_tool(
        "org.apache.kafka.tools.AclCommand",
        *(*servers, "--add", "--allow-principal", "User:ann", "--operation", "Read", "--topic", "orders-1"),
    )
    assert added.returncode == 0, added.stderr
    copy = tmp_path / "copy"
    observer = MetadataObserver(controllers_of(broker), copy)
    observed = observer.catch_up()
    observer.close()

    topics = Command("topics", copy, capsys)
    expected = run_tool("org.apache.kafka.tools.TopicCommand", *servers, "--describe").stdout
    assert sorted(topics("--describe").splitlines()) == sorted(expected.splitlines())
    (tree,) = topics.json("--describe", "--topic", "orders-1")
    assert [each["leader"] for each in tree["partitions"]] == [1, 1]
    configs = topics.other("configs")
    for arguments in (
        ("--entity-type", "topics", "--entity-name", "orders-1"),
        ("--entity-type", "brokers", "--entity-default"),
    ):
        described = run_tool(CONFIG_COMMAND, *servers, "--describe", *arguments).stdout
        assert setting_of(configs("--describe", *arguments)) == setting_of(described)
    assert "log.cleaner.backoff.ms=9" in configs("--describe", "--entity-type", "brokers", "--entity-name", "1")
    assert "consumer_byte_rate=100" in configs("--describe", "--entity-type", "users", "--entity-name", "ann")
    listed = topics.other("acls")("--list")
    assert "principal=User:ann, host=*, operation=READ" in listed
    status = json.loads(topics.other("metadata-quorum")("describe", "--status", "--output", "json"))
    assert (status["ClusterId"], status["LeaderId"]) == ("kafkalog-tests-cluster", 1)
    assert (status["LeaderEpoch"], status["HighWatermark"]) == (observed.leader_epoch, observed.end_offset)
    assert [each["id"] for each in status["CurrentVoters"]] == [1]


def setting_of(text: str) -> list[str]:
    """The first words of the lines about configurations: what follows are synonyms, of which a copy knows fewer."""
    return sorted(line.split()[0] for line in text.splitlines() if "=" in line)


def test_observer_follows_the_controllers_when_their_leader_dies(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    with Cluster(tmp_path / "cluster") as cluster:
        first = cluster.nodes[1]
        observer = MetadataObserver(f"127.0.0.1:{first.controller_port}", copy)
        cluster.create_topic("before", [[1, 2, 3]])
        leader = observer.catch_up().leader_id
        cluster.kill(leader)
        cluster.wait_for(lambda: "before" in cluster.topics())
        observed = observer.catch_up()
        assert observed.leader_id in {1, 2, 3} - {leader}
        others = sorted({1, 2, 3} - {leader})
        cluster.create_topic("after", [others])
        observer.catch_up()
        cluster.start(leader)
        cluster.create_topic("again", [[leader]])
        observer.catch_up()
        observer.close()
        copied = segments(copy)
        logs = [segments(cluster.disk(node)) for node in (1, 2, 3)]
    assert all(each.startswith(copied[: len(each)]) for each in logs)
    assert any(each.startswith(copied) for each in logs)
    assert all(name in copied for name in (b"before", b"after", b"again"))


def test_follow_copies_the_metadata_log_too(broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "metadata"
    follow = Command("follow", tmp_path / "root", capsys)
    printed = follow(
        *("--from", broker.bootstrap, "--topics", "orders.*", "--once"),
        *("--controllers", controllers_of(broker), "--metadata-path", str(copy)),
    )
    assert "Copied the metadata log up to offset " in printed
    assert "orders-2" in follow.other("topics")("--list")
    assert "orders-2" in Command("topics", copy, capsys)("--list")
    assert "belong together" in follow.try_to("--from", broker.bootstrap, "--metadata-path", str(copy))[2]


def test_copy_in_the_background_outlives_its_broker(tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    reports: list[ObservedMetadata | Exception] = []

    def wait_until(is_done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not is_done():
            assert time.monotonic() < deadline, reports[-3:]
            time.sleep(0.1)

    with Broker(tmp_path / "broker", controller_port=free_port()) as broker:
        with observing(controllers_of(broker), copy, report=reports.append):
            add_topics(broker, "before", 1)
            wait_until(lambda: b"before-0" in segments(copy))
            broker.kill()
            wait_until(lambda: isinstance(reports[-1], LeaderUnavailableError))
            broker.start()
            add_topics(broker, "after", 1)
            wait_until(lambda: b"after-0" in segments(copy))
        copied = segments(copy)
        assert segments(broker.data).startswith(copied)
