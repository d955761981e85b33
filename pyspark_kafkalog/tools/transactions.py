"""`kafkalog transactions`: look at transactions and producers, and abort a transaction that was left open.

Commands, options and output are those of kafka-transactions, with --path in place of --bootstrap-server.

  list, describe       transactional ids: of writes and streaming queries to this log directory, which are always
                       complete, and those that a broker's __transaction_state holds
  describe-producers   producers that have written to a partition
  find-hanging         transactions that have been open for longer than --max-transaction-timeout
  abort                append the marker that ends one: read_committed goes on behind it, its records stay unread

An adopted log may hold an open transaction, since a broker was stopped in the middle of it and there is no coordinator
any more. abort is one commit, on a log directory of this package; the others look at broker's directories too.

examples:
  kafkalog transactions --path /data/log list
  kafkalog transactions --path /data/log describe --transactional-id nightly
  kafkalog transactions --path /data/log find-hanging --topic orders
  kafkalog transactions --path /data/log abort --topic orders --partition 0 --start-offset 162
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.errors import KafkalogError, UnknownTopicError
from pyspark_kafkalog.storage.clock import time_ms
from pyspark_kafkalog.storage.config_definitions import PRODUCER_ID_EXPIRATION_MS
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.command import (
    UsageError,
    add_output,
    add_path,
    node_id_of,
    open_log_dir,
    print_json,
    print_padded_table,
)

if TYPE_CHECKING:
    from pyspark_kafkalog.log_dir import LogDir
    from pyspark_kafkalog.storage.producer_append import ProducerState

_TRANSACTION_STATE: Final = "__transaction_state"
_MS_A_MINUTE: Final = 60_000
_NONE: Final = "None"
#: What a transactionStatus stands for (org.apache.kafka.coordinator.transaction.TransactionState).
_STATES: Final = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transaction:
    """The last that is known of a transactional id; a start time below 0 is none."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    state: str
    timeout_ms: int = 0
    start_ms: int = -1
    partitions: tuple[str, ...] = field(default=())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--path`, and the commands of kafka-transactions."""
    add_path(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(name: str, help_text: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=help_text, allow_abbrev=False)
        add_output(command, "one object a line")
        return command

    listing = add("list", "list transactional ids")
    listing.add_argument("--duration-filter", type=int, metavar="MS", help="only transactions open for longer")
    listing.add_argument("--transactional-id-pattern", metavar="REGEX", help="only ids that match")
    describing = add("describe", "tell the state of a transactional id")
    describing.add_argument("--transactional-id", required=True, metavar="ID")
    producers = add("describe-producers", "tell the states of a partition's producers")
    _add_partition(producers, required=True)
    producers.add_argument("--broker-id", type=int, help=argparse.SUPPRESS)
    hanging = add("find-hanging", "find transactions that were left open")
    _add_partition(hanging, required=False)
    hanging.add_argument("--broker-id", type=int, metavar="ID", help="search all topics of the node")
    hanging.add_argument(
        "--max-transaction-timeout", type=int, default=15, metavar="MIN", help="open for so many minutes (%(default)s)"
    )
    abort = add("abort", "end an open transaction: its records stay unread")
    _add_partition(abort, required=True)
    abort.add_argument("--start-offset", type=int, required=True, metavar="N", help="where the transaction begins")


def _add_partition(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--topic", required=required, metavar="TOPIC")
    parser.add_argument("--partition", type=int, required=required, metavar="N")


def run(options: argparse.Namespace) -> int:
    """Carry out the command; prints to sys.stdout."""
    _RUNS[options.command](open_log_dir(options), options)
    return 0


def _list(log_dir: LogDir, options: argparse.Namespace) -> None:
    found = list(_transactions(log_dir).values())
    if options.transactional_id_pattern:
        try:
            pattern = re.compile(options.transactional_id_pattern)
        except re.error as error:
            raise UsageError(f"{options.transactional_id_pattern} is an invalid regex: {error}") from error
        found = [each for each in found if pattern.fullmatch(each.transactional_id)]
    if options.duration_filter is not None and options.duration_filter >= 0:
        now_ms = time_ms()
        found = [each for each in found if 0 <= each.start_ms < now_ms - options.duration_filter]
    header = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")
    node = _node(log_dir)
    _print(header, [(each.transactional_id, node, each.producer_id, each.state) for each in found], options)


def _describe(log_dir: LogDir, options: argparse.Namespace) -> None:
    name = options.transactional_id
    found = _transactions(log_dir).get(name)
    if found is None:
        raise UnknownTopicError(f"Failed to describe transaction state of transactional-id `{name}`: it is not known")
    header = (
        "CoordinatorId",
        "TransactionalId",
        "ProducerId",
        "ProducerEpoch",
        "TransactionState",
        "TransactionTimeoutMs",
        "CurrentTransactionStartTimeMs",
        "TransactionDurationMs",
        "TopicPartitions",
    )
    times = (_NONE, _NONE) if found.start_ms < 0 else (found.start_ms, time_ms() - found.start_ms)
    row = (
        *(_node(log_dir), name, found.producer_id, found.producer_epoch, found.state, found.timeout_ms),
        *(*times, ",".join(found.partitions)),
    )
    _print(header, [row], options)


def _describe_producers(log_dir: LogDir, options: argparse.Namespace) -> None:
    header = (
        "ProducerId",
        "ProducerEpoch",
        "LatestCoordinatorEpoch",
        "LastSequence",
        "LastTimestamp",
        "CurrentTransactionStartOffset",
    )
    rows = [
        (
            *(each.producer_id, each.producer_epoch, each.coordinator_epoch, each.last_sequence),
            *(each.last_timestamp_ms, each.current_txn_first_offset if _is_open(each) else _NONE),
        )
        for each in _producers(log_dir, TopicPartition(options.topic, options.partition))
    ]
    _print(header, rows, options)


def _find_hanging(log_dir: LogDir, options: argparse.Namespace) -> None:
    if options.topic is None and options.broker_id is None:
        raise UsageError(
            "The `find-hanging` command requires either --topic or --broker-id to limit the scope of the search"
        )
    if options.partition is not None and options.topic is None:
        raise UsageError("The --partition argument requires --topic to be provided")
    partitions = [
        TopicPartition(name, each.partition)
        for name in ([options.topic] if options.topic is not None else log_dir.topics())
        for each in log_dir.topic(name).partitions
        if options.partition in (None, each.partition)
    ]
    going_on = {each.producer_id: each.partitions for each in _transactions(log_dir).values()}
    now_ms = time_ms()
    header = (
        "Topic",
        "Partition",
        "ProducerId",
        "ProducerEpoch",
        "CoordinatorEpoch",
        "StartOffset",
        "LastTimestamp",
        "Duration(min)",
    )
    rows = [
        (
            *(where.topic, where.partition, each.producer_id, each.producer_epoch, each.coordinator_epoch),
            *(each.current_txn_first_offset, each.last_timestamp_ms),
            (now_ms - each.last_timestamp_ms) // _MS_A_MINUTE,
        )
        for where in partitions
        for each in _producers(log_dir, where)
        if _is_open(each) and now_ms - each.last_timestamp_ms > options.max_transaction_timeout * _MS_A_MINUTE
        # In a broker's directory a coordinator may still end it.
        if not (log_dir.is_foreign and str(where) in going_on.get(each.producer_id, ()))
    ]
    _print(header, rows, options)


def _abort(log_dir: LogDir, options: argparse.Namespace) -> None:
    from pyspark_kafkalog.metadata.abort_transaction import abort_transaction

    where = TopicPartition(options.topic, options.partition)
    aborted = abort_transaction(log_dir.own_root(), where, options.start_offset)
    if options.output == "json":
        print_json(
            {
                "topic": where.topic,
                "partition": where.partition,
                "producerId": aborted.producer_id,
                "producerEpoch": aborted.producer_epoch,
                "startOffset": aborted.first_offset,
                "markerOffset": aborted.marker_offset,
                "lastStableOffset": aborted.last_stable_offset,
            }
        )
        return
    sys.stdout.write(
        f"Aborted the transaction of producer {aborted.producer_id} that began at offset {aborted.first_offset} of "
        f"{where}: marker at offset {aborted.marker_offset}, last stable offset {aborted.last_stable_offset}.\n"
    )


_RUNS: Final = {
    "list": _list,
    "describe": _describe,
    "describe-producers": _describe_producers,
    "find-hanging": _find_hanging,
    "abort": _abort,
}


def _print(header: Sequence[str], rows: Sequence[Sequence[Any]], options: argparse.Namespace) -> None:
    if options.output == "json":
        for row in rows:
            values = (None if value == _NONE else value for value in row)
            print_json(dict(zip((name[:1].lower() + name[1:] for name in header), values, strict=True)))
    else:
        print_padded_table(header, [[str(value) for value in row] for row in rows])


def _producers(log_dir: LogDir, where: TopicPartition) -> list[ProducerState]:
    """The producers of a partition, at its high watermark."""
    from pyspark_kafkalog.storage.producer_rebuild import producer_state_at

    found = log_dir.partition(where.topic, where.partition)
    if found.log_start_offset == found.high_watermark:
        return []
    producers = producer_state_at(
        found.directory,
        found.high_watermark,
        log_start_offset=found.log_start_offset,
        expiration_ms=_expiration_ms(log_dir),
        now_ms=time_ms(),
    )
    return [producers.producers[producer_id] for producer_id in sorted(producers.producers)]


def _expiration_ms(log_dir: LogDir) -> int:
    if log_dir.is_foreign:
        return PRODUCER_ID_EXPIRATION_MS
    return log_dir.own_root().broker_config().producer_id_expiration_ms


def _is_open(producer: ProducerState) -> bool:
    return producer.current_txn_first_offset >= 0


def _transactions(log_dir: LogDir) -> dict[str, _Transaction]:
    """The transactional ids there are, by name."""
    found = dict(_of_coordinator(log_dir))
    if not log_dir.is_foreign:
        for name, each in log_dir.own_root().store.image.transactional_ids.items():
            found[name] = _Transaction(
                transactional_id=name,
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                state="CompleteCommit" if each.version >= 0 else "Empty",
            )
    return {name: found[name] for name in sorted(found)}


def _of_coordinator(log_dir: LogDir) -> Iterator[tuple[str, _Transaction]]:
    """What a broker's transaction coordinator has written, as far as it is here."""
    if _TRANSACTION_STATE not in log_dir.topics():
        return
    from pyspark_kafkalog.tools.dump_decoders import CoordinatorDecoder

    decoder = CoordinatorDecoder("transaction_coordinator")
    latest: dict[bytes, bytes | None] = {}
    for partition in log_dir.topic(_TRANSACTION_STATE).partitions:
        table = log_dir.read(_TRANSACTION_STATE, partition=partition.partition, columns=["key", "value"])
        latest.update(zip(table["key"].to_pylist(), table["value"].to_pylist(), strict=True))
    for key, value in latest.items():
        try:
            record = decoder.decode(key, value)
        except KafkalogError:
            continue
        if record.value is not None:
            yield record.key["transactionalId"], _decoded(record.key["transactionalId"], record.value)


def _decoded(name: str, value: Mapping[str, Any]) -> _Transaction:
    status = value["transactionStatus"]
    state = _STATES[status] if 0 <= status < len(_STATES) else "Unknown"
    return _Transaction(
        transactional_id=name,
        producer_id=value["producerId"],
        producer_epoch=value["producerEpoch"],
        state=state,
        timeout_ms=value["transactionTimeoutMs"],
        start_ms=value["transactionStartTimestampMs"],
        partitions=tuple(
            f"{topic['topic']}-{partition}"
            for topic in value["transactionPartitions"] or ()
            for partition in topic["partitionIds"]
        ),
    )


def _node(log_dir: LogDir) -> int:
    node_id = node_id_of(log_dir.path)
    return -1 if node_id is None else node_id
