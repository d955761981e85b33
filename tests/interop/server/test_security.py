"""Real clients and Kafka's tools at a server with SASL, TLS, access control entries and quotas."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from builders.certificates import Authority, common_name
from kafka_processes.clients import producing
from kafka_processes.oracle import CONFIG_COMMAND, KAFKA_VERSION, KafkaOracleError, run_tool
from kafka_processes.served import serve
from kafkalog_command import Command
from patience import wait_until

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.server.config import Address, SecuritySettings, ServerConfig
from pyspark_kafkalog.server.security.sasl import SaslSettings
from pyspark_kafkalog.server.security.tls import ClientAuth, TlsSettings
from pyspark_kafkalog.version import KafkaVersion

pytestmark = pytest.mark.interop

ACLS = "org.apache.kafka.tools.AclCommand"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
#: Since then the tools print a line on stdout that tells of the new name of an option (KIP-1147).
NEW_NAMES_SINCE = KafkaVersion.parse("4.2")


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def log_dir(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> LogDir:
    """With the topic orders, the users ann (SCRAM-SHA-256) and root (SCRAM-SHA-512), who is a super user."""
    found = LogDir.create(tmp_path / "log")
    found.append("orders", pa.table({"value": ["first"]}))
    configs = Command("configs", tmp_path / "log", capsys)
    configs("--user", "ann", "--alter", "--add-config", "SCRAM-SHA-256=[password=ann-secret]")
    configs("--user", "root", "--alter", "--add-config", "SCRAM-SHA-512=[iterations=8192,password=root-secret]")
    found.alter_broker_configs(add={"super.users": "User:root;User:CN=admin"})
    return found


def config(**security: Any) -> ServerConfig:
    return ServerConfig(listen=Address("127.0.0.1", 0), security=SecuritySettings(**security))


def tls(authority: Authority, client_auth: ClientAuth = ClientAuth.NONE) -> TlsSettings:
    server = authority.sign("server", common_name("server"))
    return TlsSettings(server.certificate, server.key, authority.certificate, client_auth)


def scram(user: str, password: str, mechanism: str = "SCRAM-SHA-256") -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def produce(bootstrap: str, **settings: Any) -> None:
    """Raises KafkaOracleError if the record is not accepted."""
    with producing(bootstrap, **{"message.timeout.ms": 60_000, **settings}) as producer:
        producer.produce("orders", b"record")


def is_accepted(bootstrap: str, **settings: object) -> bool:
    """Whether a record is accepted: what another process has changed holds a second later."""
    try:
        produce(bootstrap, **settings)
    except KafkaOracleError:
        return False
    return True


def values(log_dir: LogDir) -> list[bytes]:
    log_dir.root.refresh()
    return [each for each in log_dir.read("orders")["value"].to_pylist() if each is not None]


def test_librdkafka_authenticates_by_scram_and_needs_a_permission(log_dir: LogDir) -> None:
    with serve(log_dir.path, config(sasl=SaslSettings(("SCRAM-SHA-256", "SCRAM-SHA-512")))) as bootstrap:
        produce(bootstrap, **scram("root", "root-secret", "SCRAM-SHA-512"))
        with pytest.raises(KafkaOracleError, match="TOPIC_AUTHORIZATION_FAILED"):
            produce(bootstrap, **scram("ann", "ann-secret"))
        log_dir.access_control().add(_allowing_ann())
        wait_until(lambda: is_accepted(bootstrap, **scram("ann", "ann-secret")), "the permission")
        with pytest.raises(KafkaOracleError):
            produce(bootstrap, **scram("ann", "wrong"), **{"message.timeout.ms": 1_000})
    assert values(log_dir) == [b"first", b"record", b"record"]


def _allowing_ann() -> list[Any]:
    from pyspark_kafkalog.metadata.acl import Acl, AclOperation, PatternType, PermissionType, ResourceType

    allow, literal = PermissionType.ALLOW, PatternType.LITERAL
    return [
        Acl(ResourceType.TOPIC, "orders", literal, "User:ann", "127.0.0.1", operation, allow)
        for operation in (AclOperation.WRITE, AclOperation.DESCRIBE)
    ]


@pytest.mark.full
def test_client_certificates_name_principals_to_librdkafka(log_dir: LogDir, authority: Authority) -> None:
    with serve(log_dir.path, config(tls=tls(authority, ClientAuth.REQUIRED))) as bootstrap:
        for name, is_allowed in (("admin", True), ("other", False)):
            own = authority.sign(name, common_name(name))
            settings = {
                "security.protocol": "SSL",
                "ssl.ca.location": str(authority.certificate),
                "ssl.certificate.location": str(own.certificate),
                "ssl.key.location": str(own.key),
            }
            if is_allowed:
                produce(bootstrap, **settings)
            else:
                with pytest.raises(KafkaOracleError, match="TOPIC_AUTHORIZATION_FAILED"):
                    produce(bootstrap, **settings)
    assert values(log_dir) == [b"first", b"record"]


@pytest.mark.full
def test_librdkafka_sends_passwords_over_tls_and_authenticates_again(log_dir: LogDir, authority: Authority) -> None:
    sasl = SaslSettings(("PLAIN",), max_reauth_ms=1_500)
    with serve(log_dir.path, config(tls=tls(authority), sasl=sasl)) as bootstrap:
        settings = {
            **scram("root", "root-secret", "PLAIN"),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(authority.certificate),
        }
        with producing(bootstrap, **settings) as producer:
            for _ in range(8):
                producer.produce("orders", b"record")
                assert producer.flush(60) == 0
                time.sleep(0.5)
    assert values(log_dir) == [b"first", *[b"record"] * 8]


class Tools:
    """Kafka's tools as User:root over SASL_SSL."""

    def __init__(self, bootstrap: str, properties: Path) -> None:
        self._bootstrap = bootstrap
        self._properties = properties

    def run(self, tool: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        before = {PRODUCER: "--producer.config", CONSUMER: "--consumer.config"}
        option = "--command-config" if KAFKA_VERSION >= NEW_NAMES_SINCE else before.get(tool, "--command-config")
        return run_tool(tool, "--bootstrap-server", self._bootstrap, option, self._properties, *arguments, stdin=stdin)

    def __call__(self, tool: str, *arguments: str, stdin: str = "") -> str:
        done = self.run(tool, *arguments, stdin=stdin)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def tools(log_dir: LogDir, authority: Authority, tmp_path: Path) -> Iterator[Tools]:
    properties = tmp_path / "client.properties"
    login = "org.apache.kafka.common.security.scram.ScramLoginModule"
    properties.write_text(
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={login} required username="root" password="root-secret";\n'
        "ssl.truststore.type=PEM\n"
        f"ssl.truststore.location={authority.certificate}\n"
    )
    with serve(log_dir.path, config(tls=tls(authority), sasl=SaslSettings(("SCRAM-SHA-512",)))) as bootstrap:
        yield Tools(bootstrap, properties)


@pytest.mark.full
def test_kafka_acls_adds_lists_and_removes_entries(
    tools: Tools, log_dir: LogDir, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = Command("acls", log_dir.path, capsys)
    given = ("--allow-principal", "User:ann", "--allow-host", "10.0.0.1", "--operation", "Read", "--topic", "orders")
    tools(ACLS, "--add", *given)
    tools(ACLS, "--add", "--deny-principal", "User:eve", "--operation", "All", "--group", "g*", "--cluster")
    tools(ACLS, "--add", "--allow-principal", "User:etl", "--producer", "--topic", "r", *_PREFIXED)
    log_dir.root.refresh()
    listed = tools(ACLS, "--list")
    assert _lines(listed) == _lines(ours("--list"))
    assert "host=10.0.0.1, operation=READ" in listed
    tools(ACLS, "--remove", "--force", "--topic", "r", *_PREFIXED)
    assert "User:etl" not in tools(ACLS, "--list")


_PREFIXED = ("--resource-pattern-type", "prefixed")


def _lines(printed: str) -> set[str]:
    """The entries; those for one resource are printed in any order."""
    return {line.strip() for line in printed.splitlines() if line.strip()}


@pytest.mark.full
def test_kafka_configs_makes_users_and_quotas_and_describes_them_as_kafkalog_does(
    tools: Tools, log_dir: LogDir, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = Command("configs", log_dir.path, capsys)
    tools(CONFIG_COMMAND, "--alter", "--user", "bob", "--add-config", "SCRAM-SHA-256=[iterations=5000,password=bob]")
    quota = "producer_byte_rate=10000000,request_percentage=12.5"
    tools(CONFIG_COMMAND, "--alter", "--user", "bob", "--client", "app", "--add-config", quota)
    tools(CONFIG_COMMAND, "--alter", "--user-defaults", "--add-config", "consumer_byte_rate=1024")
    tools(CONFIG_COMMAND, "--alter", "--ip", "127.0.0.9", "--add-config", "connection_creation_rate=10")
    log_dir.root.refresh()
    for named in (
        ("--entity-type", "users"),
        ("--user", "bob"),
        ("--user", "bob", "--client", "app"),
        ("--entity-type", "ips"),
        ("--user-defaults",),
    ):
        assert _described(tools(CONFIG_COMMAND, "--describe", *named)) == _described(ours("--describe", *named))
    refused = tools.run(CONFIG_COMMAND, "--alter", "--user", "eve", "--delete-config", "SCRAM-SHA-256")
    assert refused.returncode != 0
    assert "does not exist" in refused.stdout + refused.stderr
    tools(CONFIG_COMMAND, "--alter", "--user", "bob", "--delete-config", "SCRAM-SHA-256")
    assert "'bob'" not in tools(CONFIG_COMMAND, "--describe", "--entity-type", "users")


def _described(printed: str) -> set[tuple[str, frozenset[str]]]:
    """Lines with their settings, both in any order."""
    found = set()
    for line in filter(None, printed.splitlines()):
        what, _, settings = line.partition(" are ")
        found.add((what, frozenset(settings.split(", "))))
    return found


@pytest.mark.full
def test_java_producer_and_consumer_work_over_tls_and_scram(tools: Tools, log_dir: LogDir) -> None:
    tools(PRODUCER, "--topic", "orders", stdin="one\ntwo\n")
    consumed = tools(CONSUMER, "--topic", "orders", "--from-beginning", "--max-messages", "3", "--timeout-ms", "60000")
    assert sorted(consumed.split()) == ["first", "one", "two"]
    assert values(log_dir) == [b"first", b"one", b"two"]


@pytest.mark.full
def test_producer_above_its_quota_is_slowed_down(log_dir: LogDir, capsys: pytest.CaptureFixture[str]) -> None:
    configs = Command("configs", log_dir.path, capsys)
    configs("--user", "root", "--alter", "--add-config", "producer_byte_rate=20000")
    throttled: list[int] = []
    with serve(log_dir.path, config(sasl=SaslSettings(("SCRAM-SHA-512",)))) as bootstrap:
        settings = {
            **scram("root", "root-secret", "SCRAM-SHA-512"),
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
            "linger.ms": 0,
        }
        with producing(bootstrap, **settings) as producer:
            for _ in range(24):  # 240 KB, of which 200 KB are free
                producer.produce("orders", b"x" * 10_000)
                producer.flush(20)
    assert throttled


@pytest.mark.full
def test_user_without_any_permission_sees_and_changes_nothing(log_dir: LogDir) -> None:
    from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
    from confluent_kafka.admin import (
        AclBindingFilter,
        AclOperation,
        AclPermissionType,
        AdminClient,
        AlterConfigOpType,
        ConfigEntry,
        ConfigResource,
        NewPartitions,
        NewTopic,
        OffsetSpec,
        ResourcePatternType,
        ResourceType,
    )

    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    with serve(log_dir.path, config(sasl=SaslSettings(("SCRAM-SHA-256", "SCRAM-SHA-512")))) as bootstrap:
        root = AdminClient({"bootstrap.servers": bootstrap, **scram("root", "root-secret", "SCRAM-SHA-512")})
        offsets = [TopicPartition("orders", 0, 1)]
        group = ConsumerGroupTopicPartitions("readers", offsets)
        root.alter_consumer_group_offsets([group])["readers"].result(20)
        before = log_dir.root.native().store.refresh()
        settings = {"bootstrap.servers": bootstrap, **scram("ann", "ann-secret")}
        admin = AdminClient(settings)
        assert admin.list_topics(timeout=20).topics == {}
        assert admin.list_consumer_groups().result(20).valid == []
        resource = ConfigResource(ConfigResource.Type.TOPIC, "orders")
        change = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
        altered = ConfigResource(ConfigResource.Type.TOPIC, "orders", incremental_configs=[change])
        at_start = {TopicPartition("orders", 0): OffsetSpec.earliest()}
        for refused in (
            admin.create_topics([NewTopic("mine", 1, 1)]),
            admin.create_partitions([NewPartitions("orders", 9)]),
            admin.describe_configs([resource]),
            admin.incremental_alter_configs([altered]),
            admin.describe_consumer_groups(["readers"]),
            admin.delete_consumer_groups(["readers"]),
            admin.alter_consumer_group_offsets([group]),
            admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("readers", [TopicPartition("orders", 0)])]),
            admin.delete_topics(["orders"]),
            admin.delete_records(offsets),
            admin.list_offsets(at_start),
            admin.delete_acls([everything]),
        ):
            for what, future in refused.items():
                with pytest.raises(KafkaException, match=r"AUTHORIZATION_FAILED|UNKNOWN_TOPIC|No leaders found"):
                    pytest.fail(f"{what}: {future.result(20)}")
        with pytest.raises(KafkaException, match="TRANSACTIONAL_ID_AUTHORIZATION_FAILED"):
            Producer({**settings, "transactional.id": "t"}).init_transactions(20)
        consumer = Consumer({**settings, "group.id": "readers", "auto.offset.reset": "earliest"})
        consumer.assign([TopicPartition("orders", 0, 0)])
        messages = [consumer.poll(0.5) for _ in range(4)]
        assert not any(each.value() for each in messages if each is not None and each.error() is None)
        consumer.close()
        after = log_dir.root.native().store.refresh()
    assert after.topics == before.topics
    assert after.acls == before.acls
    assert values(log_dir) == [b"first"]
