"""Classes of messages: what they have in common with frozen dataclasses."""

from __future__ import annotations

import copy
import pickle

import pytest

from pyspark_kafkalog.metadata.messages.codec import Frozen
from pyspark_kafkalog.metadata.messages.internal_records import GroupMetadataKey
from pyspark_kafkalog.metadata.messages.metadata_records import (
    FeatureLevelRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)

TOPIC = TopicRecord(name="orders")


class Empty(Frozen):
    unknown_tags: tuple[tuple[int, bytes], ...] = ()


def test_constructor_takes_defaults_for_fields_left_out() -> None:
    assert (TOPIC.name, TOPIC.topic_id, TOPIC.unknown_tags) == ("orders", "AAAAAAAAAAAAAAAAAAAAAA", ())
    assert PartitionRecord().eligible_leader_replicas is None


def test_constructor_raises_type_error_for_unknown_and_positional_arguments() -> None:
    with pytest.raises(TypeError, match="'nam'"):
        TopicRecord(nam="orders")
    with pytest.raises(TypeError, match="positional"):
        TopicRecord("orders")


def test_assigning_or_deleting_attribute_raises_attribute_error() -> None:
    with pytest.raises(AttributeError, match="name"):
        TOPIC.name = "t"
    with pytest.raises(AttributeError, match="other"):
        TOPIC.other = "t"
    with pytest.raises(AttributeError, match="name"):
        del TOPIC.name
    assert not hasattr(TOPIC, "__dict__")


def test_instances_are_equal_with_the_same_class_and_values() -> None:
    assert TopicRecord(name="orders") == TOPIC
    assert hash(TOPIC) == hash(TopicRecord(name="orders"))
    assert TopicRecord(name="t") != TOPIC
    assert TopicRecord() != RemoveTopicRecord()
    assert TOPIC != ("orders", "AAAAAAAAAAAAAAAAAAAAAA", ())
    assert Empty() == Empty() != Empty(unknown_tags=((1, b""),))


def test_repr_names_class_and_fields() -> None:
    assert repr(FeatureLevelRecord(name="f")) == "FeatureLevelRecord(name='f', feature_level=0, unknown_tags=())"
    assert repr(Empty()) == "Empty(unknown_tags=())"


@pytest.mark.parametrize("instance", [TOPIC, PartitionRecord(replicas=(1, 2)), GroupMetadataKey(group="g"), Empty()])
def test_pickled_and_copied_instances_are_equal(instance: Frozen) -> None:
    for found in (pickle.loads(pickle.dumps(instance)), copy.copy(instance), copy.deepcopy(instance)):
        assert found == instance
        assert type(found) is type(instance)


def test_replace_changes_named_fields_only() -> None:
    assert TOPIC.replace(topic_id="x") == TopicRecord(name="orders", topic_id="x")
    assert TOPIC.topic_id == "AAAAAAAAAAAAAAAAAAAAAA"
    with pytest.raises(TypeError, match="'nam'"):
        TOPIC.replace(nam="x")
