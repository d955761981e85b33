"""A root that follows a leader: what its commit log says, and which commits of others are refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pyspark_kafkalog.errors import FollowingEndedError, FollowingRootError, InvalidRecordError
from pyspark_kafkalog.metadata.delta import start_delta
from pyspark_kafkalog.metadata.image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    Following,
    MetadataImage,
    following_record,
    image_records,
    partition_state_record,
)
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.metadata.messages.metadata_records import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    ConfigRecord,
    EntityData,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RemoveTopicRecord,
    TopicRecord,
    TransactionalIdRecord,
    UserScramCredentialRecord,
)
from pyspark_kafkalog.metadata.store import MetadataStore, NewCommit
from pyspark_kafkalog.root.bootstrap import create_root
from pyspark_kafkalog.storage.log.log_state import LogState
from pyspark_kafkalog.storage.names import encode_uuid

TOPIC_ID = encode_uuid(bytes(15) + b"\x07")
OTHER_ID = encode_uuid(bytes(15) + b"\x08")
FOLLOWING = Following(
    following_id="a follower", leader="a:9092", cluster_id="the cluster", topics="orders.*", since_ms=1_700_000_000_000
)
OFFSETS = LogState(log_start_offset=0, log_end_offset=10, leader_epoch=3)


@pytest.fixture
def store(tmp_path: Path) -> LocalMetadataStore:
    """A root that follows, with a topic of one partition that ends at 10."""
    create_root(tmp_path)
    store = LocalMetadataStore.open(tmp_path)
    commit(
        store,
        TopicRecord(name="t", topic_id=TOPIC_ID),
        PartitionRecord(partition_id=0, topic_id=TOPIC_ID, leader_epoch=3),
        partition_state_record(TOPIC_ID, 0, OFFSETS),
        following_record(FOLLOWING),
    )
    return store


def commit(store: MetadataStore, *records: MetadataRecord, following_id: str | None = None) -> MetadataImage:
    return store.make(NewCommit(build=lambda image: records, operation="test", following_id=following_id)).image


def state(**changes: int) -> MetadataRecord:
    return partition_state_record(TOPIC_ID, 0, replace(OFFSETS, **changes))


CHANGES: list[tuple[str, MetadataRecord]] = [
    ("topic u", TopicRecord(name="u", topic_id=OTHER_ID)),
    ("topic t", RemoveTopicRecord(topic_id=TOPIC_ID)),
    ("topic t", PartitionRecord(partition_id=1, topic_id=TOPIC_ID)),
    ("the log end of t-0", state(log_end_offset=11)),
    ("the log end of t-0", PartitionChangeRecord(partition_id=0, topic_id=TOPIC_ID, leader=1)),
    (
        "the configuration of topic t",
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name="t", name="retention.ms", value="1"),
    ),
    (
        "broker-level settings",
        ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="", name="log.retention.ms", value="1"),
    ),
    (
        "access control entries",
        AccessControlEntryRecord(
            id=OTHER_ID,
            resource_type=2,
            resource_name="t",
            pattern_type=3,
            principal="User:a",
            host="*",
            operation=3,
            permission_type=3,
        ),
    ),
    (
        "client quotas",
        ClientQuotaRecord(
            entity=(EntityData(entity_type="user", entity_name="u"),), key="request_percentage", value=5.0
        ),
    ),
    ("transactional ids", TransactionalIdRecord(transactional_id="x", version=1)),
    ("producer ids", ProducerIdsRecord(broker_id=1, next_producer_id=1000)),
]


@pytest.mark.parametrize(("words", "record"), CHANGES, ids=[f"{w}: {type(r).__name__}" for w, r in CHANGES])
def test_a_change_of_what_is_copied_is_refused_of_all_but_the_follower(
    store: LocalMetadataStore, words: str, record: MetadataRecord
) -> None:
    records = (record, PartitionRecord(partition_id=0, topic_id=OTHER_ID)) if words == "topic u" else (record,)
    before = store.image
    with pytest.raises(FollowingRootError, match=f"^{words} cannot .* the log directory follows a:9092, .*promote"):
        commit(store, *records)
    assert store.refresh() is before
    assert commit(store, *records, following_id="a follower").next_offset > before.next_offset


def test_maintenance_may_raise_the_log_start_and_begin_an_empty_active_segment(store: LocalMetadataStore) -> None:
    after = commit(store, state(log_start_offset=10, active_base_offset=10))
    assert after.partition("t", 0).state.log_start_offset == 10


def test_users_of_a_served_copy_get_passwords_of_its_own(store: LocalMetadataStore) -> None:
    password = UserScramCredentialRecord(
        name="u", mechanism=1, salt=b"salt", stored_key=b"k" * 32, server_key=b"s" * 32, iterations=4096
    )
    assert commit(store, password).scram_credentials


def test_only_the_follower_may_cut_a_log_and_nobody_lets_its_leader_epoch_fall(store: LocalMetadataStore) -> None:
    with pytest.raises(FollowingRootError):
        commit(store, state(log_end_offset=4))
    after = commit(store, state(log_end_offset=4), following_id="a follower")
    assert after.partition("t", 0).high_watermark == 4
    with pytest.raises(InvalidRecordError, match="leader_epoch_never_falls"):
        commit(store, state(log_end_offset=4, leader_epoch=2), following_id="a follower")


def test_a_follower_that_was_replaced_or_whose_root_was_promoted_cannot_commit(store: LocalMetadataStore) -> None:
    commit(store, following_record(replace(FOLLOWING, following_id="another")))
    with pytest.raises(FollowingEndedError, match=r"another follower has taken over this root, .* follows a:9092"):
        commit(store, state(log_end_offset=11), following_id="a follower")
    commit(store, state(log_end_offset=11), following_id="another")
    commit(store, following_record(None), state(log_end_offset=11, leader_epoch=4))
    with pytest.raises(FollowingEndedError, match="it was promoted"):
        commit(store, state(log_end_offset=12, leader_epoch=4), following_id="another")
    assert commit(store, state(log_end_offset=12, leader_epoch=4)).following is None


def test_following_is_in_snapshots_and_read_again(store: LocalMetadataStore) -> None:
    image = store.image
    delta = start_delta(MetadataImage(), base_offset=0, timestamp_ms=1)
    delta.replay(image_records(image))
    assert delta.build(1).following == image.following == FOLLOWING
    assert LocalMetadataStore.open(store.root).image.following == FOLLOWING


def test_a_commit_that_was_planned_before_following_began_is_refused(store: LocalMetadataStore) -> None:
    commit(store, following_record(None))
    attempts = 0

    def build(image: MetadataImage) -> list[MetadataRecord]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:  # another process begins to follow
            other = LocalMetadataStore.open(store.root)
            other.commit(lambda newest: [following_record(FOLLOWING)], operation="follow")
        return [state(log_end_offset=11)]

    with pytest.raises(FollowingRootError):
        store.commit(build, operation="write")
    assert store.refresh().partition("t", 0).high_watermark == 10
