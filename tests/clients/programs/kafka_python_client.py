"""kafka-python: produces, commits and aborts transactions with a group's offsets, reads in a group. Asserts it all."""

import sys

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition

TOPIC, RECORDS = "kafka-python", 300


def main(address: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics({TOPIC: {"num_partitions": 3, "replication_factor": 1}})
    producer = KafkaProducer(bootstrap_servers=address, enable_idempotence=True)
    headers = [("name", b"value")]
    sent = [producer.send(TOPIC, key=b"%d" % i, value=b"v%d" % i, headers=headers) for i in range(RECORDS)]
    assert all(each.get(20).offset >= 0 for each in sent)
    producer.close()
    run_transactions(address)
    expected = {b"v%d" % i for i in range(RECORDS)} | {b"committed"}
    consumer = KafkaConsumer(
        TOPIC,
        bootstrap_servers=address,
        group_id="readers",
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        consumer_timeout_ms=20000,
    )
    read = []
    while len(read) < len(expected):
        read.append(next(consumer).value)
    assert sorted(read) == sorted(expected)
    consumer.commit()
    consumer.close()
    committed = admin.list_group_offsets("copied")["copied"]
    assert committed[TopicPartition(TOPIC, 0)].offset == 7
    committed = admin.list_group_offsets("readers")["readers"]
    assert sum(each.offset for each in committed.values()) >= len(expected)
    print(len(read), "values")


def run_transactions(address: str) -> None:
    producer = KafkaProducer(bootstrap_servers=address, transactional_id="kafka-python", enable_idempotence=True)
    producer.init_transactions()
    for offset, value in ((5, b"aborted"), (7, b"committed")):
        producer.begin_transaction()
        producer.send(TOPIC, value=value)
        producer.flush()
        offsets = {TopicPartition(TOPIC, 0): OffsetAndMetadata(offset, "", -1)}
        producer.send_offsets_to_transaction(offsets, "copied")
        if value == b"aborted":
            producer.abort_transaction()
        else:
            producer.commit_transaction()
    producer.close()


main(sys.argv[1])
