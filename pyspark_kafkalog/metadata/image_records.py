"""Converts an image to the metadata records that rebuild it, in the order of a snapshot.

The records that Kafka's tools know (features, the node, topics with their partitions and configurations, producer ids,
access control entries) have the order of KRaft's own snapshots. Between them are this project's records: the format,
the state of each partition that was written to, the transactional ids.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyspark_kafkalog.metadata.acl_records import acl_record
from pyspark_kafkalog.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, BrokerImage, MetadataImage, TopicImage
from pyspark_kafkalog.metadata.messages.records import (
    MetadataRecord,
    partition_record,
    partition_state_record,
    record,
    transactional_id_record,
)
from pyspark_kafkalog.storage.log.log_state import LogState


def image_records(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Records that, applied to an empty image, give an image equal to `image` except for its offset and time."""
    for feature, level in image.features.items():
        yield record("FeatureLevelRecord", name=feature, featureLevel=level)
    if image.format_version is not None:
        yield record("FormatRecord", formatVersion=image.format_version)
    for broker in image.brokers.values():
        yield _broker_record(broker)
    for topic in image.topics.values():
        yield from _topic_records(topic, image.node)
    for name, configs in image.broker_configs.items():
        for config, value in configs.items():
            yield _config_record(BROKER_RESOURCE, name, config, value)
    if image.next_producer_id:
        yield record("ProducerIdsRecord", brokerId=-1, nextProducerId=image.next_producer_id)
    for acl_id, acl in image.acls.items():
        yield acl_record(acl_id, acl)
    for held in image.transactional_ids.values():
        yield transactional_id_record(
            held.transactional_id,
            version=held.version,
            producer_id=held.producer_id,
            producer_epoch=held.producer_epoch,
            last_commit_offset=held.last_commit_offset,
            last_timestamp_ms=held.last_timestamp_ms,
            incarnation=held.incarnation,
            fenced=held.fenced,
        )


def _broker_record(broker: BrokerImage) -> MetadataRecord:
    return record(
        "RegisterBrokerRecord",
        brokerId=broker.broker_id,
        incarnationId=broker.incarnation_id,
        brokerEpoch=broker.broker_epoch,
        rack=None,
        fenced=False,
        logDirs=broker.log_dirs,
    )


def _topic_records(topic: TopicImage, node: BrokerImage) -> Iterator[MetadataRecord]:
    yield record("TopicRecord", name=topic.name, topicId=topic.topic_id)
    for config, value in topic.configs.items():
        yield _config_record(TOPIC_RESOURCE, topic.name, config, value)
    for partition in topic.partitions:
        state = partition.state
        yield partition_record(topic.topic_id, partition.partition, leader_epoch=state.leader_epoch, node=node)
        if state != LogState(leader_epoch=state.leader_epoch):
            yield partition_state_record(topic.topic_id, partition.partition, state)


def _config_record(resource_type: int, resource: str, name: str, value: str) -> MetadataRecord:
    return record("ConfigRecord", resourceType=resource_type, resourceName=resource, name=name, value=value)
