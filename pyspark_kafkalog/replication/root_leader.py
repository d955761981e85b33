"""`RootLeader`: another root as a leader to follow: a native one on a file system or in an object store, or a broker's
directory.

It is only read, without a lock, beside its writers and its maintenance. A fetch that finds nothing waits by looking
for new commits: a few milliseconds apart on a file system, where a look costs microseconds, further apart in an object
store, where it is a request, and for a broker's directory, which is read again.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from pyspark_kafkalog.errors import KafkalogError, LeaderUnavailableError, OffsetOutOfRangeError, UnknownTopicError
from pyspark_kafkalog.metadata.image import broker_configs
from pyspark_kafkalog.replication.leader import (
    EpochEnd,
    FetchOutcome,
    FetchPosition,
    LeaderAnswer,
    LeaderDescription,
    LeaderTopic,
    SelectsTopic,
)
from pyspark_kafkalog.replication.root_batches import RootBatches
from pyspark_kafkalog.replication.topics_plan import TOPIC_DEFAULTS
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.root.reads import UNDEFINED_EPOCH, end_of_epoch, epochs_of, root_partitions
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.security.access_control import AccessControl
from pyspark_kafkalog.storage.artefacts.leader_epochs import EpochEntry
from pyspark_kafkalog.storage.names import TopicPartition

_LOCAL_INTERVAL_S: Final = 0.005
_SLOW_INTERVAL_S: Final = 0.25
#: Requests of an object store take a while, so several are under way.
_OBJECT_READERS: Final = 4


class RootLeader:
    """A `LeaderEndPoint`: reads `root`. The caller does not use `root` otherwise while this is in use."""

    def __init__(
        self,
        root: Root,
        *,
        monotonic_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._root = root
        self._monotonic_s = monotonic_s
        self._sleep = sleep
        self._snapshots = root_partitions(root)
        self._is_local = self._snapshots.image is not None and bool(root.directories)
        readers = 1 if root.directories else _OBJECT_READERS
        self._batches = {f"reader-{number}": RootBatches() for number in range(readers)}
        self._epochs: dict[TopicPartition, tuple[PartitionSnapshot, list[EpochEntry]]] = {}

    @property
    def name(self) -> str:
        return str(self._root.path)

    def describe(self, selects: SelectsTopic) -> LeaderDescription:
        self._refresh()
        identity = self._root.identity
        if identity is None or identity.cluster_id is None:
            raise LeaderUnavailableError(f"{self.name} has no cluster.id in meta.properties: it cannot be recognized")
        topics: dict[str, LeaderTopic] = {}
        unreadable: dict[str, str] = {}
        for name in filter(selects, self._root.topics()):
            try:
                found = self._describe_topic(name)
            except UnknownTopicError:  # deleted this moment
                continue
            except (KafkalogError, OSError) as error:
                found = str(error)
            if isinstance(found, str):
                unreadable[name] = found
            else:
                topics[name] = found
        image = self._snapshots.image
        configs = {} if image is None else broker_configs(image)
        return LeaderDescription(
            cluster_id=identity.cluster_id,
            topics=topics,
            unreadable=unreadable,
            cluster_configs={name: value for name, value in configs.items() if name in TOPIC_DEFAULTS},
            group_configs=None if image is None else image.group_configs,
            acls=None if image is None else tuple(image.acls.values()),
            has_authorizer=AccessControl(self._root).has_authorizer(),
            quotas=None if image is None else image.client_quotas,
        )

    def _describe_topic(self, name: str) -> LeaderTopic | str:
        image = self._snapshots.image
        if image is not None:
            topic = image.topic(name)
            epochs = tuple(each.state.leader_epoch for each in topic.partitions)
            return LeaderTopic(name, topic.topic_id, epochs, topic.configs, topic.offsets_ends)
        described = self._snapshots.topic(name)
        if described.topic_id is None:
            return "it has no topic id: it was last written by a broker older than Kafka 2.8"
        numbers = [each.partition for each in described.partitions]
        if numbers != list(range(len(numbers))):
            return f"only its partitions {', '.join(map(str, numbers))} are there: name the directories of all brokers"
        return LeaderTopic(
            name, described.topic_id, tuple(each.leader_epoch for each in described.partitions), described.configs
        )

    def sources(self, partitions: Collection[TopicPartition]) -> Mapping[str, Sequence[TopicPartition]]:
        names = list(self._batches)
        found: dict[str, list[TopicPartition]] = {name: [] for name in names}
        for each in partitions:
            # The same partition always has the same reader, which keeps its extents open.
            found[names[(zlib.crc32(each.topic.encode()) + each.partition) % len(names)]].append(each)
        return {name: each for name, each in found.items() if each}

    def fetch(
        self, source: str, positions: Sequence[FetchPosition], *, wait_ms: int, max_bytes: int, partition_bytes: int
    ) -> list[LeaderAnswer]:
        deadline_s = self._monotonic_s() + wait_ms / 1000
        self._refresh()
        while True:
            seen = self._root.version
            answers = self._look(self._batches[source], positions, max_bytes, partition_bytes)
            if any(each.outcome is not FetchOutcome.RECORDS or len(each.data) for each in answers):
                return answers
            if not self._wait_for_commit(seen, deadline_s):
                return answers

    def range_of(self, position: FetchPosition) -> tuple[int, int]:
        self._refresh()
        found = self._found(position)
        if found is None:
            raise LeaderUnavailableError(f"{self.name} has no partition {position.topic_partition} of that topic")
        return found.readable_start_offset, found.high_watermark

    def epoch_end(self, position: FetchPosition, epoch: int) -> EpochEnd | None:
        self._refresh()
        found = self._found(position)
        if found is None:
            raise LeaderUnavailableError(f"{self.name} has no partition {position.topic_partition} of that topic")
        try:
            return self._epoch_end(found, epoch)
        except (KafkalogError, OSError) as error:
            raise LeaderUnavailableError(str(error)) from error

    def close(self) -> None:
        for each in self._batches.values():
            each.close()

    def _refresh(self) -> None:
        try:
            self._snapshots.refresh()
        except (KafkalogError, OSError) as error:
            raise LeaderUnavailableError(f"{self.name} cannot be read: {error}") from error

    def _wait_for_commit(self, seen: int | None, deadline_s: float) -> bool:
        """Whether there are new commits, or for a broker's directory there may be, before the deadline."""
        interval_s = _LOCAL_INTERVAL_S if self._is_local else _SLOW_INTERVAL_S
        while True:
            left_s = deadline_s - self._monotonic_s()
            if left_s <= 0:
                return False
            self._sleep(min(interval_s, left_s))
            self._refresh()
            if seen is None or self._root.version != seen:
                return True

    def _look(
        self, batches: RootBatches, positions: Sequence[FetchPosition], max_bytes: int, partition_bytes: int
    ) -> list[LeaderAnswer]:
        answers: list[LeaderAnswer] = []
        left_bytes = max_bytes
        for position in positions:
            answer = self._answer(
                batches,
                position,
                max_bytes=min(left_bytes, partition_bytes),
                may_exceed=left_bytes == max_bytes,
            )
            left_bytes = max(left_bytes - len(answer.data), 0)
            answers.append(answer)
        return answers

    def _answer(
        self, batches: RootBatches, position: FetchPosition, *, max_bytes: int, may_exceed: bool
    ) -> LeaderAnswer:
        name = position.topic_partition
        try:
            found = self._found(position)
            if found is None:
                return LeaderAnswer(topic_partition=name, outcome=FetchOutcome.TOPIC_CHANGED)
            diverging = self._diverging(found, position)
            if diverging is not None:
                return LeaderAnswer(topic_partition=name, outcome=FetchOutcome.DIVERGING, diverging=diverging)
            if not found.readable_start_offset <= position.offset <= found.log_end_offset:
                return LeaderAnswer(topic_partition=name, outcome=FetchOutcome.OUT_OF_RANGE)
            data = batches.read(found, position.offset, max_bytes=max_bytes, may_exceed=may_exceed)
        except OffsetOutOfRangeError:  # retention has deleted it since
            return LeaderAnswer(topic_partition=name, outcome=FetchOutcome.OUT_OF_RANGE)
        except (KafkalogError, OSError) as error:
            return LeaderAnswer(topic_partition=name, outcome=FetchOutcome.FAILED, error=str(error))
        return LeaderAnswer(
            topic_partition=name,
            outcome=FetchOutcome.RECORDS,
            data=data,
            high_watermark=found.high_watermark,
            log_start_offset=found.readable_start_offset,
        )

    def _found(self, position: FetchPosition) -> PartitionSnapshot | None:
        """The partition; None if its topic is gone, or another one of that name."""
        name = position.topic_partition
        found = self._snapshots.find(name.topic, name.partition)
        return found if found is not None and found.topic_id == position.topic_id else None

    def _diverging(self, found: PartitionSnapshot, position: FetchPosition) -> EpochEnd | None:
        """The end of the follower's last epoch, if it is not here; see Partition.readRecords of a broker.

        Raises OffsetOutOfRangeError if nothing is known of its epoch.
        """
        last = position.last_epoch
        if last < 0 or (last == found.leader_epoch and position.offset <= found.log_end_offset):
            return None
        end = self._epoch_end(found, last)
        if end is None:
            raise OffsetOutOfRangeError(f"{found.topic_partition} has no leader epoch {last}")
        return end if end.epoch < last or end.end_offset < position.offset else None

    def _epoch_end(self, found: PartitionSnapshot, epoch: int) -> EpochEnd | None:
        known = self._epochs.get(found.topic_partition)
        if known is None or known[0] is not found:
            known = self._epochs[found.topic_partition] = (found, epochs_of(self._root, found))
        end = end_of_epoch(known[1], epoch, found.log_end_offset)
        return None if end.epoch == UNDEFINED_EPOCH else EpochEnd(end.epoch, end.start_offset)
