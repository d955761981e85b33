"""Which topics, partitions, configurations, ACLs, quotas a follower has to change to be as its leader says. Pure.

    a topic that the leader has       created with the leader's id, number of partitions and configurations
    more partitions at the leader     added
    other configurations              set and deleted, as far as this root can have them
    created again at the leader       not followed further; or deleted, and created by the next plan
    deleted at the leader             kept as it is, and not followed further

Some configurations are not taken: those of remote storage, as each cluster has its own, and the lists of throttled
replicas, which name brokers. The leader's defaults of topics become those of this root; the rest of its own settings
stays. ACLs, quotas and the configurations of groups become the leader's if it lets them be read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.config.broker import AUTHORIZER_CONFIG, STANDARD_AUTHORIZER
from pyspark_kafkalog.config.group import GROUP_CONFIGS
from pyspark_kafkalog.config.topic import TOPIC_CONFIGS, validate_topic_configs
from pyspark_kafkalog.errors import InvalidAclError, InvalidConfigError, KafkalogError
from pyspark_kafkalog.metadata.acl import add_acls, remove_acls
from pyspark_kafkalog.metadata.image import MetadataImage, TopicImage, broker_configs, partition_record
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, RemoveTopicRecord
from pyspark_kafkalog.metadata.users import alter_quotas
from pyspark_kafkalog.replication.events import Event, EventKind
from pyspark_kafkalog.replication.leader import LeaderDescription, LeaderTopic, SelectsTopic
from pyspark_kafkalog.root import admin
from pyspark_kafkalog.units import plural

#: The leader epoch of a partition that was created here and has nothing of the leader's yet, not even its epoch. So it
#: is known also after a kill that what the leader had deleted before is no loss.
UNANSWERED_EPOCH: Final = -1
_PARTITIONS_A_COMMIT: Final = 5_000
_NOT_TAKEN: Final = frozenset(
    {
        "remote.storage.enable",
        "remote.log.copy.disable",
        "remote.log.delete.on.disable",
        "local.retention.ms",
        "local.retention.bytes",
        "leader.replication.throttled.replicas",
        "follower.replication.throttled.replicas",
    }
)
#: Broker settings that topics fall back to.
TOPIC_DEFAULTS: Final = frozenset(
    synonym.definition.name
    for name, config in TOPIC_CONFIGS.items()
    if name not in _NOT_TAKEN
    for synonym in config.synonyms
)


@dataclass(frozen=True, slots=True)
class TopicsPlan:
    """The records to commit, what they mean, and the topics that are followed once they are committed.

    `is_complete` is False if another plan has to follow, as too many partitions are new, or a topic is replaced.
    """

    records: tuple[MetadataRecord, ...]
    events: tuple[Event, ...]
    followed: Mapping[str, LeaderTopic]
    is_complete: bool = True


def plan_topics(
    image: MetadataImage, leader: LeaderDescription, selects: SelectsTopic, *, may_replace: bool, rng: random.Random
) -> TopicsPlan:
    """The changes that make the topics of `image` those that `leader` has and `selects` picks.

    `may_replace`: a topic that was created again at the leader is deleted, so that the new one can be followed. `rng`
    makes the ids of new access control entries.
    """
    plan = _Plan(image, leader)
    plan.change_defaults()
    for name in sorted(leader.topics):
        plan.follow(leader.topics[name], may_replace=may_replace)
    plan.note_missing(selects)
    plan.change_groups()
    plan.change_access(rng)
    return TopicsPlan(tuple(plan.records), tuple(plan.events), plan.followed, plan.is_complete)


class _Plan:
    """A plan in the making."""

    def __init__(self, image: MetadataImage, leader: LeaderDescription) -> None:
        self._image = image
        self._leader = leader
        self._defaults = dict(broker_configs(image))
        self._partitions_left = _PARTITIONS_A_COMMIT
        self.records: list[MetadataRecord] = []
        self.events: list[Event] = []
        self.followed: dict[str, LeaderTopic] = {}
        self.is_complete = True

    def change_defaults(self) -> None:
        """Make the topics' defaults those of the leader, one by one: one that is refused leaves the others."""
        wanted = {name: value for name, value in self._leader.cluster_configs.items() if name in TOPIC_DEFAULTS}
        names = sorted(name for name in TOPIC_DEFAULTS if wanted.get(name) != self._defaults.get(name))
        for name in names:
            value = wanted.get(name)
            try:
                found = admin.alter_broker_configs(
                    self._image, add={} if value is None else {name: value}, delete=() if value is not None else (name,)
                )
            except InvalidConfigError as error:
                self._note(EventKind.CONFIGS_REFUSED, f"the default {name}={value} is not taken: {error}")
                continue
            self.records += found
            if value is None:
                del self._defaults[name]
            else:
                self._defaults[name] = value
            self._note(EventKind.CONFIGS_CHANGED, f"the default of {name} is {value or 'not set any more'}")

    def follow(self, topic: LeaderTopic, *, may_replace: bool) -> None:
        """Create or change the topic."""
        known = self._image.topics.get(topic.name)
        if known is None:
            self._create(topic)
        elif known.topic_id == topic.topic_id:
            self._change(known, topic)
        elif may_replace:
            self.records.append(RemoveTopicRecord(topic_id=known.topic_id))
            self.is_complete = False
            self._note(
                EventKind.TOPIC_REPLACED, f"deleted here, as the leader has another one: {topic.topic_id}", topic.name
            )
        else:
            detail = f"the leader has another topic of that name ({topic.topic_id}, not {known.topic_id}): not followed"
            self._note(EventKind.TOPIC_RECREATED, detail, topic.name)

    def _create(self, topic: LeaderTopic) -> None:
        count = len(topic.leader_epochs)
        if count > self._partitions_left and self._partitions_left < _PARTITIONS_A_COMMIT:
            self.is_complete = False
            return
        try:
            created = admin.create_topic(
                self._image,
                topic.name,
                partitions=count,
                configs=self._usable(topic),
                broker_configs=self._defaults,
                topic_id=topic.topic_id,
                leader_epoch=UNANSWERED_EPOCH,
                offsets_ends=topic.offsets_ends,
            )
        except KafkalogError as error:
            self._note(EventKind.TOPIC_REFUSED, f"it cannot be created here: {error}", topic.name)
            return
        self._partitions_left -= count
        self.records += created
        self.followed[topic.name] = topic
        self._note(EventKind.TOPIC_ADDED, f"{plural(count, 'partition')}, id {topic.topic_id}", topic.name)

    def _change(self, known: TopicImage, topic: LeaderTopic) -> None:
        self.followed[topic.name] = topic
        before, after = len(known.partitions), len(topic.leader_epochs)
        if after > before:
            self._partitions_left -= after - before
            self.records += (
                partition_record(topic.topic_id, partition, leader_epoch=UNANSWERED_EPOCH, node=self._image.node)
                for partition in range(before, after)
            )
            self._note(EventKind.PARTITIONS_ADDED, f"{before} to {after - 1}", topic.name)
        wanted = self._usable(topic)
        add = {name: value for name, value in wanted.items() if known.configs.get(name) != value}
        delete = [name for name in known.configs if name not in wanted and name not in _NOT_TAKEN]
        if not add and not delete:
            return
        try:
            self.records += admin.alter_configs(
                self._image, topic.name, add=add, delete=delete, broker_configs=self._defaults
            )
        except InvalidConfigError as error:
            self._note(EventKind.CONFIGS_REFUSED, str(error), topic.name)
            return
        self._note(EventKind.CONFIGS_CHANGED, _changes_text(add, delete), topic.name)

    def _usable(self, topic: LeaderTopic) -> dict[str, str]:
        """The topic's configurations that this root can have."""
        usable: dict[str, str] = {}
        for name, value in topic.configs.items():
            if name in _NOT_TAKEN:
                continue
            try:
                validate_topic_configs({**usable, name: value}, self._defaults)
            except InvalidConfigError as error:
                self._note(EventKind.CONFIGS_REFUSED, f"{name}={value} is not taken: {error}", topic.name)
                continue
            usable[name] = value
        return usable

    def note_missing(self, selects: SelectsTopic) -> None:
        """Say which topics are not followed, and why."""
        for name, reason in self._leader.unreadable.items():
            self._note(EventKind.TOPIC_UNREADABLE, reason, name)
        for name in filter(selects, self._image.topics):
            if name not in self._leader.topics and name not in self._leader.unreadable:
                self._note(EventKind.TOPIC_DELETED, "the leader has no such topic any more; it is kept here", name)

    def change_groups(self) -> None:
        """Make the configurations of each group those of the leader, if they are known."""
        if self._leader.group_configs is None:
            return
        known = self._image.group_configs
        for group_id in sorted({*known, *self._leader.group_configs}):
            self._change_group(group_id, known.get(group_id, {}), self._leader.group_configs.get(group_id, {}))

    def _change_group(self, group_id: str, known: Mapping[str, str], wanted: Mapping[str, str]) -> None:
        add = {name: value for name, value in wanted.items() if name in GROUP_CONFIGS and known.get(name) != value}
        delete = [name for name in known if name not in wanted]
        refused = sorted(wanted.keys() - GROUP_CONFIGS.keys())
        if refused:
            self._note(EventKind.CONFIGS_REFUSED, f"{', '.join(refused)} of the group {group_id} are not taken")
        try:
            records = admin.alter_group_configs(self._image, group_id, add=add, delete=delete, is_copy=True)
        except InvalidConfigError as error:
            self._note(EventKind.CONFIGS_REFUSED, f"configurations of the group {group_id} are not taken: {error}")
            return
        if records:
            self.records += records
            self._note(EventKind.CONFIGS_CHANGED, f"of the group {group_id}: {_changes_text(add, delete)}")

    def change_access(self, rng: random.Random) -> None:
        """Make the access control entries and the quotas those of the leader, if they are known."""
        records = [*self._authorizer_records(), *self._acl_records(rng), *self._quota_records()]
        if records:
            self.records += records
            self._note(EventKind.ACCESS_CHANGED, f"{len(records)} access control entries and quotas")

    def _authorizer_records(self) -> Iterator[MetadataRecord]:
        """Check entries here too, from now on: a copy is not open because its leader has no entry, or shows none."""
        if self._leader.has_authorizer and AUTHORIZER_CONFIG not in self._defaults:
            yield admin.broker_config_record(AUTHORIZER_CONFIG, STANDARD_AUTHORIZER)

    def _acl_records(self, rng: random.Random) -> Sequence[MetadataRecord]:
        if self._leader.acls is None:
            return ()
        wanted, known = set(self._leader.acls), self._image.acls
        gone = [acl_id for acl_id, acl in known.items() if acl not in wanted]
        try:
            added = add_acls(known.values(), self._leader.acls, rng, is_checked=True)
        except InvalidAclError as error:
            self._note(EventKind.CONFIGS_REFUSED, f"access control entries are not taken: {error}")
            return ()
        return [*remove_acls(gone), *added]

    def _quota_records(self) -> Iterator[MetadataRecord]:
        if self._leader.quotas is None:
            return
        known = self._image.client_quotas
        for entity in sorted({*known, *self._leader.quotas}, key=str):
            wanted = self._leader.quotas.get(entity, {})
            changes: dict[str, float | None] = dict.fromkeys(known.get(entity, {}))
            changes.update(wanted)
            try:
                yield from alter_quotas(known, entity, changes)
            except InvalidConfigError as error:
                self._note(EventKind.CONFIGS_REFUSED, f"the quotas of {dict(entity)} are not taken: {error}")

    def _note(self, kind: EventKind, detail: str, topic: str = "") -> None:
        self.events.append(Event(kind=kind, detail=detail, topic=topic))


def _changes_text(add: Mapping[str, str], delete: Sequence[str]) -> str:
    added = [f"{name}={value}" for name, value in sorted(add.items())]
    return ", ".join([*added, *(f"{name} not set" for name in delete)])
