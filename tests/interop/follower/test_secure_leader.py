"""A real broker that asks for TLS and SASL, as a leader to follow."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest
from builders.certificates import Authority, Certificate, common_name
from builders.leader_reads import log_bytes, read_topics
from kafka_processes.clients import allow, consume
from kafka_processes.java_processes import free_port
from kafka_processes.oracle import Broker

from pyspark_kafkalog.errors import AuthenticationError, LeaderUnavailableError
from pyspark_kafkalog.protocol.client_settings import ClientSettings
from pyspark_kafkalog.replication.cluster.end_point import ClusterLeader
from pyspark_kafkalog.storage.names import TopicPartition

#: Starts a broker: the full tier alone.
pytestmark = pytest.mark.full

TOPIC: Final = "orders"
PASSWORD: Final = "ann's"
PLAIN: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required"
SCRAM: Final = "org.apache.kafka.common.security.scram.ScramLoginModule required"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def follower(authority: Authority) -> Certificate:
    return authority.sign("follower", common_name("follower"))


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Broker]:
    home = tmp_path_factory.mktemp("broker")
    own = authority.sign("broker", common_name("broker"))
    key_store = home / "broker.pem"
    key_store.write_bytes(own.key.read_bytes() + own.certificate.read_bytes())
    settings = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,USERS:SASL_SSL,KEYS:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(key_store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "listener.name.keys.ssl.client.auth": "required",
        "listener.name.users.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.users.plain.sasl.jaas.config": f'{PLAIN} user_ann="{PASSWORD}";',
        "listener.name.users.scram-sha-256.sasl.jaas.config": f"{SCRAM};",
        "listener.name.users.scram-sha-512.sasl.jaas.config": f"{SCRAM};",
        "listener.name.users.plain.connections.max.reauth.ms": "1000",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    credentials = [
        argument
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        for argument in ("--add-scram", f"{mechanism}=[name=ann,password={PASSWORD}]")
    ]
    broker = Broker(
        home,
        settings,
        format_options=("--standalone", *credentials),
        more_listeners={"USERS": free_port(), "KEYS": free_port()},
    )
    with broker:
        broker.create_topic(TOPIC)
        broker.create_topic("hidden")
        produce(broker)
        allow(broker.bootstrap, "LITERAL", TOPIC, "User:ann", "READ", "DESCRIBE_CONFIGS")
        allow(broker.bootstrap, "LITERAL", TOPIC, "User:CN=follower", "READ")
        yield broker


def produce(broker: Broker) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(1000):
        producer.produce(TOPIC, f"{number}".encode() * 20)
    assert producer.flush(60) == 0
    assert len(consume(broker.bootstrap, TOPIC)) == 1000


def leader_of(broker: Broker, listener: str, properties: Mapping[str, str]) -> ClusterLeader:
    return ClusterLeader(f"127.0.0.1:{broker.more_listeners[listener]}", ClientSettings.from_properties(properties))


def user_properties(authority: Authority, mechanism: str, password: str = PASSWORD) -> dict[str, str]:
    module = PLAIN if mechanism == "PLAIN" else SCRAM
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} username="ann" password="{password}";',
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
    }


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_user_with_a_password_reads_what_he_may_read(broker: Broker, authority: Authority, mechanism: str) -> None:
    leader = leader_of(broker, "USERS", user_properties(authority, mechanism))
    partition = TopicPartition(TOPIC, 0)
    assert read_topics(leader, [TOPIC]) == {partition: log_bytes([broker.data], partition)}
    description = leader.describe(lambda _: True)
    assert list(description.topics) == [TOPIC]
    assert (description.acls, description.quotas, description.cluster_configs) == (None, None, {})
    leader.close()


def test_connection_outlives_the_session_that_the_broker_permits(broker: Broker, authority: Authority) -> None:
    leader = leader_of(broker, "USERS", user_properties(authority, "PLAIN"))
    for _ in range(3):
        assert len(read_topics(leader, [TOPIC])) == 1
        time.sleep(0.7)
    leader.close()


def test_user_without_the_password_is_refused(broker: Broker, authority: Authority) -> None:
    leader = leader_of(broker, "USERS", user_properties(authority, "SCRAM-SHA-512", "wrong"))
    with pytest.raises(AuthenticationError, match="user ann is not accepted with SCRAM-SHA-512"):
        leader.describe(lambda _: True)


def test_topic_whose_configurations_are_not_permitted_is_unreadable(
    broker: Broker, authority: Authority, follower: Certificate
) -> None:
    properties = {
        "security.protocol": "SSL",
        "ssl.truststore.location": str(authority.certificate),
        "ssl.keystore.certificate.chain": follower.certificate.read_text(),
        "ssl.keystore.key": follower.key.read_text(),
    }
    leader = leader_of(broker, "KEYS", properties)
    description = leader.describe(lambda _: True)
    assert not description.topics
    assert list(description.unreadable) == [TOPIC]
    assert "TOPIC_AUTHORIZATION_FAILED" in description.unreadable[TOPIC]
    allow(broker.bootstrap, "LITERAL", TOPIC, "User:CN=follower", "DESCRIBE_CONFIGS")
    assert read_topics(leader, [TOPIC]).keys() == {TopicPartition(TOPIC, 0)}
    leader.close()


def test_client_without_a_certificate_is_refused(broker: Broker, authority: Authority) -> None:
    properties = {"security.protocol": "SSL", "ssl.truststore.location": str(authority.certificate)}
    leader = leader_of(broker, "KEYS", properties)
    with pytest.raises(LeaderUnavailableError, match=f"127.0.0.1:{broker.more_listeners['KEYS']}"):
        leader.describe(lambda _: True)


def test_broker_of_an_unknown_authority_is_refused(broker: Broker, authority: Authority, tmp_path: Path) -> None:
    properties = user_properties(authority, "PLAIN") | {"ssl.truststore.location": str(Authority(tmp_path).certificate)}
    leader = leader_of(broker, "USERS", properties)
    with pytest.raises(AuthenticationError, match=r"certificate of 127\.0\.0\.1"):
        leader.describe(lambda _: True)
