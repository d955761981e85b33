"""confluent-kafka: produces, commits a group's offsets in transactions, reads in a group of the protocol asked for."""

import sys

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, OffsetSpec

RECORDS = 300


def main(address: str, protocol: str) -> None:
    topic = f"confluent-{protocol}"
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, 3, 1, config={"retention.ms": "-1"})])[topic].result(20)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    assert admin.describe_configs([resource])[resource].result(20)["retention.ms"].value == "-1"
    reports: list[object] = []
    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, "compression.type": "zstd"})
    for i in range(RECORDS):
        producer.produce(topic, f"v{i}", key=str(i), on_delivery=lambda error, _: reports.append(error))
    assert producer.flush(20) == 0
    assert reports == [None] * RECORDS
    values = read_and_commit(address, protocol, topic)
    assert sorted(values) == sorted([*(f"v{i}" for i in range(RECORDS)), "committed"])
    ends = {TopicPartition(topic, i): OffsetSpec.latest() for i in range(3)}
    assert all(each.result(20).offset > 0 for each in admin.list_offsets(ends).values())
    described = admin.describe_consumer_groups([topic])[topic].result(20)
    assert not described.members
    admin.delete_consumer_groups([topic])[topic].result(20)
    admin.delete_topics([topic])[topic].result(20)
    print(len(values), "values")


def read_and_commit(address: str, protocol: str, topic: str) -> list[str]:
    """The values of the topic, read in a group whose offsets are committed by a transaction; another one is aborted."""
    settings = {"bootstrap.servers": address, "group.id": topic, "group.protocol": protocol}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe([topic])
    producer = Producer({"bootstrap.servers": address, "transactional.id": topic})
    producer.init_transactions(20)
    values: list[str] = []
    while len(values) < RECORDS:
        values += [text(each) for each in consumer.consume(100, 1)]
    for value in ("aborted", "committed"):
        producer.begin_transaction()
        producer.produce(topic, value, key="key")
        producer.flush(20)
        positions = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), 20)
        if value == "aborted":
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)
    while len(values) < RECORDS + 1:
        values += [text(each) for each in consumer.consume(100, 1)]
    committed = consumer.committed(consumer.assignment(), 20)
    assert sum(each.offset for each in committed) == RECORDS
    consumer.close()
    return values


def text(message: object) -> str:
    assert message.error() is None, message.error()  # type: ignore[attr-defined]
    return message.value().decode()  # type: ignore[attr-defined, no-any-return]


main(sys.argv[1], sys.argv[2])
