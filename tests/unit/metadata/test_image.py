"""The metadata image: equal to what Kafka's tools print of a broker's metadata log, and built by topic changes."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_kafkalog.errors import (
    InvalidConfigError,
    InvalidRecordError,
    InvalidTopicError,
    TopicExistsError,
    UnknownTopicError,
)
from pyspark_kafkalog.metadata.delta import ImageDelta, start_delta
from pyspark_kafkalog.metadata.image import (
    OFFSETS_ENDS_TAG,
    UNKNOWN_ENDS,
    MetadataImage,
    image_records,
    partition_state_record,
)
from pyspark_kafkalog.metadata.messages.metadata_records import (
    AbortTransactionRecord,
    ConfigRecord,
    FollowingRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from pyspark_kafkalog.metadata.messages.records import decode_record
from pyspark_kafkalog.record.reference import RecordBatch, decode_batch
from pyspark_kafkalog.root.admin import (
    MAX_PARTITIONS_PER_COMMIT,
    add_partitions,
    alter_configs,
    create_topic,
    delete_topic,
)
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import OFFSETS_TOPIC


def batches(path: Path) -> Iterator[RecordBatch]:
    data = path.read_bytes()
    at = 0
    while at < len(data):
        batch = decode_batch(data, at, file=str(path), file_position=at)
        if not batch.header.is_control:
            yield batch
        at += batch.header.size_bytes


def replay(image: MetadataImage, path: Path) -> MetadataImage:
    for batch in batches(path):
        delta = ImageDelta(image, commit_offset=batch.header.base_offset, timestamp_ms=batch.header.max_timestamp_ms)
        delta.replay(decode_record(raw.value or b"") for raw in batch.records)
        image = delta.build(batch.header.next_offset)
    return image


@pytest.fixture(scope="module")
def broker_image(kafka_fixtures: Path) -> MetadataImage:
    directory = kafka_fixtures / "cluster-metadata" / "__cluster_metadata-0"
    image = MetadataImage()
    for name in ("00000000000000000000.log", "00000000000000000240.log"):
        image = replay(image, directory / name)
    return image


def test_topics_equal_those_kafka_describes(kafka_fixtures: Path, broker_image: MetadataImage) -> None:
    text = (kafka_fixtures / "cluster-metadata/expected/tools/kafka-topics-describe.txt").read_text("utf-8")
    described = re.findall(r"^Topic: (\S+)\tTopicId: (\S+)\tPartitionCount: (\d+)\t.*?Configs: (.*)$", text, re.M)
    assert len(described) == len(broker_image.topics)
    static = {"retention.ms": "-1"}  # in that broker's server.properties
    for name, topic_id, count, configs in described:
        topic = broker_image.topic(name)
        assert topic.topic_id == topic_id
        assert [partition.partition for partition in topic.partitions] == list(range(int(count)))
        assert {**static, **broker_image.broker_configs[""], **topic.configs} == dict(
            item.split("=", 1) for item in configs.split(",")
        )
        assert broker_image.topic_names[topic_id] == name


def test_features_and_brokers_equal_those_of_broker(broker_image: MetadataImage) -> None:
    assert broker_image.features == {
        "eligible.leader.replicas.version": 1,
        "group.version": 1,
        "metadata.version": 27,
        "transaction.version": 2,
    }
    assert set(broker_image.brokers) == {1}
    assert broker_image.brokers[1].log_dirs == ("_QARJNWmQP-0INo7jTDE6w",)


def test_snapshot_equals_image_of_log_before_it(kafka_fixtures: Path) -> None:
    directory = kafka_fixtures / "cluster-metadata" / "__cluster_metadata-0"
    end = 194
    image = MetadataImage()
    for batch in batches(directory / "00000000000000000000.log"):
        if batch.header.base_offset < end:
            delta = ImageDelta(image, commit_offset=0, timestamp_ms=0)
            delta.replay(decode_record(raw.value or b"") for raw in batch.records)
            image = delta.build(0)
    snapshot = replay(MetadataImage(), directory / "00000000000000000194-0000000002.checkpoint")
    assert snapshot.topics == image.topics
    assert snapshot.features == image.features
    assert snapshot.broker_configs == image.broker_configs
    assert snapshot.brokers.keys() == image.brokers.keys()


def test_image_round_trips_through_pickle(broker_image: MetadataImage) -> None:
    assert pickle.loads(pickle.dumps(broker_image)) == broker_image


def apply(image: MetadataImage, records: list[MetadataRecord]) -> MetadataImage:
    delta = start_delta(image, base_offset=image.next_offset, timestamp_ms=1)
    delta.replay(records)
    return delta.build(image.next_offset + len(records))


@pytest.fixture
def image() -> MetadataImage:
    broker = RegisterBrokerRecord(broker_id=1, log_dirs=("WgvVndiuRt-sTrtFRCNrWA",))
    return apply(MetadataImage(), [broker])


def test_topic_is_created_grown_altered_deleted_and_re_created(image: MetadataImage) -> None:
    image = apply(image, create_topic(image, "orders", partitions=2, configs={"retention.ms": "5"}))
    first_id = image.topic("orders").topic_id
    image = apply(image, add_partitions(image, "orders", total=5))
    assert len(image.topic("orders").partitions) == 5
    changes = alter_configs(
        image, "orders", add={"segment.bytes": "2097152", "retention.ms": "5"}, delete=["cleanup.policy"]
    )
    assert len(changes) == 1
    image = apply(image, changes)
    image = apply(image, alter_configs(image, "orders", delete=["retention.ms"]))
    assert image.topic("orders").configs == {"segment.bytes": "2097152"}
    image = apply(image, delete_topic(image, "orders"))
    assert image.topics == {}
    assert image.topic_names == {}
    image = apply(image, create_topic(image, "orders", partitions=1))
    assert image.topic("orders").topic_id != first_id
    assert image.topic("orders").configs == {}


def test_topic_re_created_in_commit_that_deletes_it_has_no_old_configs(image: MetadataImage) -> None:
    image = apply(image, create_topic(image, "a", partitions=3, configs={"retention.ms": "5"}))
    renewed = apply(
        image,
        [
            *alter_configs(image, "a", add={"retention.ms": "6"}),
            *delete_topic(image, "a"),
            *create_topic(MetadataImage(brokers=image.brokers), "a", partitions=1),
        ],
    )
    assert len(renewed.topic("a").partitions) == 1
    assert renewed.topic("a").configs == {}
    assert list(renewed.topic_names) == [renewed.topic("a").topic_id]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", "x" * 250, "é", "__cluster_metadata"])
def test_bad_topic_name_is_refused(image: MetadataImage, name: str) -> None:
    with pytest.raises(InvalidTopicError):
        create_topic(image, name, partitions=1)


def test_existing_or_colliding_topic_is_refused(image: MetadataImage) -> None:
    image = apply(image, create_topic(image, "a.b", partitions=1))
    with pytest.raises(TopicExistsError, match=r"a\.b"):
        create_topic(image, "a.b", partitions=1)
    with pytest.raises(InvalidTopicError, match=r"collides with topic 'a\.b'"):
        create_topic(image, "a_b", partitions=1)


@pytest.mark.parametrize("partitions", [0, -1, MAX_PARTITIONS_PER_COMMIT + 1])
def test_invalid_partition_count_is_refused(image: MetadataImage, partitions: int) -> None:
    with pytest.raises(InvalidTopicError, match=r"partition"):
        create_topic(image, "a", partitions=partitions)


def test_partition_count_not_above_current_is_refused(image: MetadataImage) -> None:
    image = apply(image, create_topic(image, "a", partitions=3))
    for total in (3, 2, 0):
        with pytest.raises(InvalidTopicError, match="has 3 partitions"):
            add_partitions(image, "a", total=total)


def test_bad_configs_are_refused(image: MetadataImage) -> None:
    with pytest.raises(InvalidConfigError, match=r"retention\.mss"):
        create_topic(image, "a", partitions=1, configs={"retention.mss": "1"})
    image = apply(image, create_topic(image, "a", partitions=1))
    with pytest.raises(InvalidConfigError, match=r"segment\.bytes"):
        alter_configs(image, "a", add={"segment.bytes": "zero"})
    with pytest.raises(InvalidConfigError, match="set and deleted"):
        alter_configs(image, "a", add={"retention.ms": "1"}, delete=["retention.ms"])


def test_unknown_topic_and_partition_are_reported_by_name(image: MetadataImage) -> None:
    image = apply(image, create_topic(image, "a", partitions=1))
    for refused in (delete_topic, lambda image, name: add_partitions(image, name, total=2), alter_configs):
        with pytest.raises(UnknownTopicError, match="no topic 'b'; existing topics: a"):
            refused(image, "b")
    for partition in (-1, 1):
        with pytest.raises(UnknownTopicError, match="partitions 0 to 0"):
            image.partition("a", partition)


@pytest.mark.parametrize(
    "bad",
    [
        RemoveTopicRecord(topic_id="EGc7GxAfRGaDNJO-5OFO6A"),
        PartitionRecord(topic_id="EGc7GxAfRGaDNJO-5OFO6A", partition_id=0),
        AbortTransactionRecord(),
    ],
    ids=lambda bad: type(bad).__name__,
)
def test_records_that_contradict_the_image_are_refused(image: MetadataImage, bad: MetadataRecord) -> None:
    with pytest.raises(InvalidRecordError):
        apply(image, [bad])


def test_partitions_out_of_order_and_duplicate_topics_are_refused(image: MetadataImage) -> None:
    image = apply(image, create_topic(image, "a", partitions=1))
    topic_id = image.topic("a").topic_id
    for partition in (2, -1):
        with pytest.raises(InvalidRecordError, match="which has 1 partitions"):
            apply(image, [PartitionRecord(topic_id=topic_id, partition_id=partition)])
    for name, id_ in (("a", "EGc7GxAfRGaDNJO-5OFO6A"), ("b", topic_id)):
        with pytest.raises(InvalidRecordError, match="one of the two is already used"):
            apply(image, [TopicRecord(name=name, topic_id=id_)])


def offsets_topic(image: MetadataImage, *ends: int) -> MetadataImage:
    """The image with the ends of the partitions of `__consumer_offsets`, which is created if need be."""
    if OFFSETS_TOPIC not in image.topics:
        image = apply(image, create_topic(image, OFFSETS_TOPIC, partitions=len(ends)))
    topic_id = image.topic(OFFSETS_TOPIC).topic_id
    states = [partition_state_record(topic_id, number, LogState(log_end_offset=end)) for number, end in enumerate(ends)]
    return apply(image, states)


def created(image: MetadataImage, name: str) -> MetadataImage:
    return apply(image, create_topic(image, name, partitions=1))


def test_offsets_committed_before_a_topic_was_created_are_not_its_own(image: MetadataImage) -> None:
    image = created(offsets_topic(created(image, "first"), 0, 3, 300), "second")
    assert image.topic("first").offsets_ends == ()
    assert image.topic("second").offsets_ends == (0, 3, 300)
    snapshot = apply(MetadataImage(), list(image_records(image)))
    assert snapshot.topics == image.topics
    topic_id = image.topic("second").topic_id
    cases = [
        (None, (1, 2), False),
        (None, (1, 3), True),
        (None, (0, 0), True),
        (None, None, True),
        (topic_id, (1, 2), True),
        (image.topic("first").topic_id, (1, 9), False),
    ]
    for committed_id, written_at, expected in cases:
        assert snapshot.has_committed("second", committed_id, written_at) is expected
        assert not snapshot.has_committed("third", committed_id, written_at)
    assert snapshot.has_committed("first", None, (1, 0))


def test_snapshot_of_an_earlier_version_does_not_know_the_ends_of_offsets(image: MetadataImage) -> None:
    delta = ImageDelta(MetadataImage(), commit_offset=5, timestamp_ms=1, is_snapshot=True)
    delta.replay(
        TopicRecord(name=each.name, topic_id=each.topic_id) if isinstance(each, TopicRecord) else each
        for each in image_records(created(image, "orders"))
    )
    image = delta.build(5)
    assert image.topic("orders").offsets_ends == UNKNOWN_ENDS
    assert image.has_committed("orders", None, (0, 0))
    later = created(offsets_topic(image, 3), "orders-of-now")
    assert later.topic("orders-of-now").offsets_ends == (3,)
    assert later.topic("orders").offsets_ends == ()
    kept = ImageDelta(MetadataImage(), commit_offset=5, timestamp_ms=1, is_snapshot=True)
    kept.replay(image_records(image))
    assert kept.build(5).topic("orders").offsets_ends == UNKNOWN_ENDS


def test_ends_of_offsets_follow_a_topic_of_offsets_that_is_cut_or_deleted(image: MetadataImage) -> None:
    image = created(offsets_topic(image, 5, 9), "orders")
    cut = offsets_topic(image, 5, 4)
    assert cut.topic("orders").offsets_ends == (5, 4)
    assert offsets_topic(cut, 5, 9).topic("orders").offsets_ends == (5, 4)
    gone = apply(image, delete_topic(image, OFFSETS_TOPIC))
    assert gone.topic("orders").offsets_ends == ()
    assert created(gone, "clicks").topic("clicks").offsets_ends == ()
    orders = image.topic("orders")  # in the copy of this topic alone
    copy = replace(image, topics={"orders": orders}, topic_names={orders.topic_id: "orders"})
    assert offsets_topic(copy, 1).has_committed("orders", None, (0, 0))


def test_topic_of_a_follower_has_the_ends_of_offsets_of_its_leader(image: MetadataImage) -> None:
    following = FollowingRecord(following_id="EGc7GxAfRGaDNJO-5OFO6A", leader="/leader", cluster_id="c", topics=".*")
    image = apply(offsets_topic(image, 5, 9), [following])
    assert created(image, "of-a-broker").topic("of-a-broker").offsets_ends == ()
    image = apply(image, create_topic(image, "orders", partitions=1, offsets_ends=(2, 20)))
    assert image.topic("orders").offsets_ends == (2, 20)
    assert offsets_topic(image, 5, 4).topic("orders").offsets_ends == (2, 20)


def test_damaged_ends_of_offsets_are_refused() -> None:
    record = TopicRecord(name="a", topic_id="EGc7GxAfRGaDNJO-5OFO6A", unknown_tags=((OFFSETS_ENDS_TAG, b"\x02\xff"),))
    with pytest.raises(InvalidRecordError, match="topic 'a' with a damaged tagged field 20000"):
        apply(MetadataImage(), [record])


def test_change_of_leader_raises_leader_epoch(image: MetadataImage) -> None:
    image = apply(image, create_topic(image, "a", partitions=1))
    topic_id = image.topic("a").topic_id
    same = apply(image, [PartitionChangeRecord(topic_id=topic_id, partition_id=0, isr=(1,))])
    assert same.partition("a", 0).state.leader_epoch == 0
    led = apply(image, [PartitionChangeRecord(topic_id=topic_id, partition_id=0, leader=-1)])
    assert led.partition("a", 0).state.leader_epoch == 1


def test_configs_of_deleted_topics_are_ignored(image: MetadataImage) -> None:
    left = ConfigRecord(resource_type=2, resource_name="gone", name="retention.ms", value="1")
    image = apply(image, [left])
    image = apply(image, create_topic(image, "gone", partitions=1))
    assert image.topic("gone").configs == {}
