"""The open transactions of a directory before or after its adoption, which the user has to end.

Before adoption, logs are read up to their last valid batch, where recovery would end them. Damage that prevents reading
transactions is noted for the user; it fails neither the adoption nor the dry run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark_kafkalog.errors import DiskFormatError
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.root.adopt.plan import AdoptionPlan
from pyspark_kafkalog.root.descriptions import PartitionDescription
from pyspark_kafkalog.root.own import OwnRoot
from pyspark_kafkalog.root.transactions.open_transactions import (
    OpenTransaction,
    OpenTransactions,
    find_open_transactions,
    open_transactions_of,
)
from pyspark_kafkalog.root.transactions.state import (
    TRANSACTION_STATE_TOPIC,
    TransactionState,
    read_transaction_states,
)
from pyspark_kafkalog.storage.filesystem import FileSystem
from pyspark_kafkalog.storage.log.read_only_state import load_read_only
from pyspark_kafkalog.storage.names import TopicPartition


def transactions_of_plan(plan: AdoptionPlan, clock: Callable[[], int]) -> tuple[OpenTransactions, tuple[str, ...]]:
    """The transactions that would be open after carrying out `plan`, and notes for the user."""
    notes = []
    found = []
    for topic in plan.topics:
        missing = set(topic.missing)
        for number in range(topic.partitions_count):
            if number not in missing:
                found.append(_describe(plan, TopicPartition(topic.name, number)))
    states: Mapping[str, TransactionState] = {}
    in_partitions: list[OpenTransaction] = []
    try:
        states = read_transaction_states(each for each in found if each.topic == TRANSACTION_STATE_TOPIC)
    except DiskFormatError as error:
        notes.append(f"transactional ids cannot be told: {error}")
    for each in found:
        try:
            of_partition = find_open_transactions(
                [each],
                states,
                expiration_ms=plan.broker_config.producer_id_expiration_ms,
                now_ms=clock(),
            )
        except DiskFormatError as error:
            notes.append(f"open transactions of {each.topic}-{each.partition} cannot be told: {error}")
        else:
            in_partitions += of_partition.in_partitions
    return OpenTransactions(tuple(in_partitions), tuple(each for each in states.values() if each.is_open)), tuple(notes)


def _describe(plan: AdoptionPlan, where: TopicPartition) -> PartitionDescription:
    directory = plan.root / str(where)
    state = load_read_only(directory, log_start_offset=plan.log_starts.get(where, 0))
    return PartitionDescription(
        topic=where.topic,
        partition=where.partition,
        directory=directory,
        leader_epoch=-1,
        log_start_offset=state.local_log_start_offset,
        local_log_start_offset=state.local_log_start_offset,
        high_watermark=state.log_end_offset,
        log_end_offset=state.log_end_offset,
    )


def transactions_of_root(
    root: Path, clock: Callable[[], int], fs: FileSystem
) -> tuple[OpenTransactions, tuple[str, ...]]:
    """The open transactions of `root`, a native log directory, and notes for the user."""
    try:
        return open_transactions_of(OwnRoot(MetadataStore.open(root, clock=clock, fs=fs), clock=clock, fs=fs)), ()
    except DiskFormatError as error:
        return OpenTransactions(), (f"open transactions cannot be told: {error}",)
