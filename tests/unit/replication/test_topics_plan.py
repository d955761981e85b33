"""The plan of topics: what a follower's root is to become, applied to its image, which it then is."""

from __future__ import annotations

import random
from dataclasses import replace

from pyspark_kafkalog.config.broker import AUTHORIZER_CONFIG, STANDARD_AUTHORIZER
from pyspark_kafkalog.config.group import HEARTBEAT_INTERVAL as INTERVAL
from pyspark_kafkalog.config.group import SESSION_TIMEOUT as SESSION
from pyspark_kafkalog.metadata.acl import Acl, AclOperation, PatternType, PermissionType, ResourceType
from pyspark_kafkalog.metadata.delta import ImageDelta
from pyspark_kafkalog.metadata.image import BrokerImage, MetadataImage, broker_configs
from pyspark_kafkalog.metadata.messages.metadata_records import RemoveTopicRecord
from pyspark_kafkalog.metadata.users import quota_entity
from pyspark_kafkalog.replication.events import EventKind
from pyspark_kafkalog.replication.leader import LeaderDescription, LeaderTopic
from pyspark_kafkalog.replication.topics_plan import TopicsPlan, plan_topics
from pyspark_kafkalog.storage.names import encode_uuid

NODE = BrokerImage(1, encode_uuid(bytes(15) + b"\x01"), 0, (encode_uuid(bytes(15) + b"\x02"),))
EMPTY = MetadataImage(brokers={1: NODE})
ORDERS = LeaderTopic("orders", encode_uuid(b"orders".ljust(16)), (3, 4), {"retention.ms": "1000"})
OTHER_ORDERS = replace(ORDERS, topic_id=encode_uuid(b"other orders".ljust(16)))
ACL = Acl(ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:ann", "*", AclOperation.READ, PermissionType.ALLOW)
ANN = quota_entity([("user", "ann")])


def leader(*topics: LeaderTopic, **fields: object) -> LeaderDescription:
    described = LeaderDescription(cluster_id="leader", topics={each.name: each for each in topics})
    return replace(described, **fields)  # type: ignore[arg-type]


def plan(image: MetadataImage, described: LeaderDescription, *, may_replace: bool = False) -> TopicsPlan:
    return plan_topics(
        image, described, lambda name: not name.startswith("own"), may_replace=may_replace, rng=random.Random(1)
    )


def applied(image: MetadataImage, planned: TopicsPlan) -> MetadataImage:
    delta = ImageDelta(image, commit_offset=image.next_offset, timestamp_ms=0)
    delta.replay(planned.records)
    return delta.build(image.next_offset + len(planned.records))


def followed(described: LeaderDescription) -> MetadataImage:
    return applied(EMPTY, plan(EMPTY, described))


def kinds(planned: TopicsPlan) -> list[EventKind]:
    return [each.kind for each in planned.events]


def test_new_topic_gets_the_leaders_id_partitions_and_configurations() -> None:
    image = followed(leader(ORDERS))
    topic = image.topics["orders"]
    assert (topic.topic_id, len(topic.partitions)) == (ORDERS.topic_id, 2)
    assert dict(topic.configs) == {"retention.ms": "1000"}
    assert topic.offsets_ends == ()
    assert followed(leader(replace(ORDERS, offsets_ends=(0, 7)))).topics["orders"].offsets_ends == (0, 7)


def test_nothing_changes_for_what_is_as_the_leader_says() -> None:
    described = leader(
        ORDERS,
        cluster_configs={"log.retention.ms": "5"},
        group_configs={"g": {SESSION: "50000"}},
        acls=(ACL,),
        quotas={ANN: {"producer_byte_rate": 7.0}},
    )
    again = plan(followed(described), described)
    assert (again.records, again.events) == ((), ())
    assert again.followed == {"orders": ORDERS}


def test_partitions_are_added_and_configurations_set_and_deleted() -> None:
    image = followed(leader(ORDERS))
    changed = replace(ORDERS, leader_epochs=(3, 4, 0), configs={"segment.bytes": "2000000"})
    planned = plan(image, leader(changed))
    assert kinds(planned) == [EventKind.PARTITIONS_ADDED, EventKind.CONFIGS_CHANGED]
    topic = applied(image, planned).topics["orders"]
    assert len(topic.partitions) == 3
    assert dict(topic.configs) == {"segment.bytes": "2000000"}


def test_configurations_that_this_root_cannot_have_are_left_out_and_reported() -> None:
    odd = {"retention.ms": "soon", "no.such.config": "1", "remote.storage.enable": "true", "max.message.bytes": "5000"}
    planned = plan(EMPTY, leader(replace(ORDERS, configs=odd)))
    assert dict(applied(EMPTY, planned).topics["orders"].configs) == {"max.message.bytes": "5000"}
    refused = [each.detail for each in planned.events if each.kind is EventKind.CONFIGS_REFUSED]
    assert [each.split("=")[0] for each in refused] == ["retention.ms", "no.such.config"]


def test_topic_whose_name_leads_elsewhere_is_refused_and_others_follow() -> None:
    names = ("../x", "/abs/x", "", ".", "..", "a/b", "a\0b", "a\nb", "a" * 250)
    hostile = (replace(ORDERS, name=name, topic_id=encode_uuid(bytes([65 + at]) * 16)) for at, name in enumerate(names))
    planned = plan(EMPTY, leader(ORDERS, *hostile))
    assert kinds(planned).count(EventKind.TOPIC_REFUSED) == len(names)
    assert list(applied(EMPTY, planned).topics) == list(planned.followed) == ["orders"]


def test_defaults_of_topics_follow_and_other_settings_stay() -> None:
    image = replace(EMPTY, broker_configs={"": {"num.partitions": "3", "log.segment.bytes": "1048577"}})
    planned = plan(image, leader(cluster_configs={"log.retention.ms": "5", "num.partitions": "9"}))
    assert dict(broker_configs(applied(image, planned))) == {"num.partitions": "3", "log.retention.ms": "5"}


def test_copy_of_a_leader_that_checks_entries_checks_them_for_good_whether_it_shows_some_or_not() -> None:
    image = followed(leader(has_authorizer=True))
    assert dict(broker_configs(image)) == {AUTHORIZER_CONFIG: STANDARD_AUTHORIZER}
    assert plan(image, leader(has_authorizer=True)).records == ()
    assert plan(image, leader(has_authorizer=False)).records == ()
    assert plan(image, leader(cluster_configs={AUTHORIZER_CONFIG: "", "super.users": "User:eve"})).records == ()


def test_topic_created_again_is_not_followed() -> None:
    planned = plan(followed(leader(ORDERS)), leader(OTHER_ORDERS))
    assert (planned.records, kinds(planned)) == ((), [EventKind.TOPIC_RECREATED])
    assert planned.followed == {}


def test_topic_created_again_is_deleted_and_then_created_if_that_is_allowed() -> None:
    image = followed(leader(ORDERS))
    first = plan(image, leader(OTHER_ORDERS), may_replace=True)
    assert first.records == (RemoveTopicRecord(topic_id=ORDERS.topic_id),)
    assert (first.is_complete, first.followed) == (False, {})
    image = applied(image, first)
    second = plan(image, leader(OTHER_ORDERS), may_replace=True)
    assert second.is_complete
    assert applied(image, second).topics["orders"].topic_id == OTHER_ORDERS.topic_id


def test_topic_deleted_at_the_leader_stays_and_is_reported() -> None:
    image = followed(leader(ORDERS))
    planned = plan(image, leader())
    assert (planned.records, kinds(planned), planned.followed) == ((), [EventKind.TOPIC_DELETED], {})


def test_topic_that_cannot_be_read_is_reported_and_not_taken_for_deleted() -> None:
    image = followed(leader(ORDERS))
    planned = plan(image, leader(unreadable={"orders": "not permitted"}))
    assert [(each.kind, each.detail) for each in planned.events] == [(EventKind.TOPIC_UNREADABLE, "not permitted")]


def test_topic_that_is_not_selected_is_left_alone() -> None:
    image = followed(leader(replace(ORDERS, name="own.topic")))
    assert plan(image, leader()).events == ()


def test_access_becomes_the_leaders_and_stays_where_it_is_not_known() -> None:
    image = followed(leader(acls=(ACL,), quotas={ANN: {"producer_byte_rate": 7.0, "consumer_byte_rate": 8.0}}))
    assert set(image.acls.values()) == {ACL}
    assert plan(image, leader()).records == ()
    other = replace(ACL, principal="User:bob")
    planned = plan(image, leader(acls=(other,), quotas={ANN: {"producer_byte_rate": 9.0}}))
    image = applied(image, planned)
    assert set(image.acls.values()) == {other}
    assert {entity: dict(values) for entity, values in image.client_quotas.items()} == {
        ANN: {"producer_byte_rate": 9.0}
    }


def test_configurations_of_groups_become_the_leaders_and_stay_where_they_are_not_known() -> None:
    image = followed(leader(group_configs={"g": {SESSION: "50000", INTERVAL: "6000"}, "gone": {SESSION: "50001"}}))
    assert plan(image, leader()).records == ()
    planned = plan(image, leader(group_configs={"g": {SESSION: "50002"}}))
    assert [each.detail for each in planned.events] == [
        f"of the group g: {SESSION}=50002, {INTERVAL} not set",
        f"of the group gone: {SESSION} not set",
    ]
    assert applied(image, planned).group_configs == {"g": {SESSION: "50002"}}


def test_configurations_of_groups_that_this_root_cannot_have_are_left_out_and_reported() -> None:
    odd = {
        "long": {SESSION: "99999999", INTERVAL: "6000"},
        "newer": {"newer.timeout.ms": "50000", INTERVAL: "6000"},
        "shared": {"share.record.lock.duration.ms": "5000"},
    }
    planned = plan(EMPTY, leader(group_configs=odd))
    assert kinds(planned) == [EventKind.CONFIGS_REFUSED] * 2 + [EventKind.CONFIGS_CHANGED] * 2
    assert applied(EMPTY, planned).group_configs == {"newer": {INTERVAL: "6000"}, "shared": odd["shared"]}


def test_many_partitions_are_created_in_several_commits() -> None:
    topics = [LeaderTopic(f"t{number}", encode_uuid(b"%016d" % number), (0,) * 2000, {}) for number in range(4)]
    image, described, commits = EMPTY, leader(*topics), 0
    while True:
        planned = plan(image, described)
        image = applied(image, planned)
        commits += 1
        if planned.is_complete:
            break
    assert commits == 2
    assert sorted(image.topics) == ["t0", "t1", "t2", "t3"]
