"""`ClusterLeader`: a live Kafka cluster as a leader to follow. Its sources are the brokers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pyspark_kafkalog.protocol.client_settings import ClientSettings
from pyspark_kafkalog.replication.leader import (
    EpochEnd,
    FetchedPartition,
    FetchPosition,
    LeaderDescription,
    SelectsTopic,
)
from pyspark_kafkalog.storage.names import TopicPartition


class ClusterLeader:
    """The cluster behind `bootstrap`: host:port,host:port. Nothing is connected before the first call."""

    def __init__(self, bootstrap: str, settings: ClientSettings | None = None) -> None:
        """Raises InvalidConfigError for an address that is none."""
        self.name = bootstrap
        self._settings = settings or ClientSettings()

    def describe(self, selects: SelectsTopic) -> LeaderDescription:
        raise NotImplementedError

    def sources(self, partitions: Collection[TopicPartition]) -> Mapping[str, Sequence[TopicPartition]]:
        raise NotImplementedError

    def fetch(
        self, source: str, positions: Sequence[FetchPosition], *, wait_ms: int, max_bytes: int, partition_bytes: int
    ) -> list[FetchedPartition]:
        raise NotImplementedError

    def range_of(self, position: FetchPosition) -> tuple[int, int]:
        raise NotImplementedError

    def epoch_end(self, position: FetchPosition, epoch: int) -> EpochEnd | None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError
