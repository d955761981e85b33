"""The requests of the transaction coordinator, by API."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.server.context import Handler
from pyspark_kafkalog.server.transactions.coordinator import TransactionCoordinator
from pyspark_kafkalog.server.transactions.describing import DescribingHandlers
from pyspark_kafkalog.server.transactions.offsets import OffsetHandlers, TransactionalCommits
from pyspark_kafkalog.server.transactions.producing import ProducerHandlers


def handlers(coordinator: TransactionCoordinator, groups: TransactionalCommits) -> Mapping[ApiKey, Handler]:
    """The handlers; `groups` says who may commit offsets in a transaction."""
    producers, offsets = ProducerHandlers(coordinator), OffsetHandlers(coordinator, groups)
    describing = DescribingHandlers(coordinator)
    return {
        ApiKey.INIT_PRODUCER_ID: producers.init_producer_id,
        ApiKey.ADD_PARTITIONS_TO_TXN: producers.add_partitions,
        ApiKey.ADD_OFFSETS_TO_TXN: producers.add_offsets,
        ApiKey.END_TXN: producers.end,
        ApiKey.WRITE_TXN_MARKERS: describing.write_markers,
        ApiKey.TXN_OFFSET_COMMIT: offsets.commit,
        ApiKey.DESCRIBE_PRODUCERS: describing.describe_producers,
        ApiKey.DESCRIBE_TRANSACTIONS: describing.describe_transactions,
        ApiKey.LIST_TRANSACTIONS: describing.list_transactions,
    }
