"""`kafkalog transactions`: list transactions and producers, and end a transaction that was left open.

Commands, options and output are those of kafka-transactions, with --path in place of --bootstrap-server.

  list, describe       transactional ids: of writes and streaming queries to this log directory, which are always
                       complete, and those that a broker's __transaction_state holds
  describe-producers   producers that have written to a partition
  find-hanging         transactions that are open: without options all of the log directory, however young; with
                       --topic or --broker-id those that have been open for longer than --max-transaction-timeout
  abort                append the markers that end one: read_committed continues after it, without its records
  complete             append the markers that are missing of one in state PrepareCommit or PrepareAbort

An adopted log may contain an open transaction if the broker was stopped during it: its coordinator is gone.
abort ends it in all its partitions and records that in __transaction_state; if the transaction is unknown there, abort
ends it in the given partition. A transaction in state PrepareCommit was committed, but some of its partitions have no
marker yet: abort refuses it, complete commits it. Both write one commit to a native log directory; the other commands
read brokers' directories too.

examples:
  kafkalog transactions --path /data/log list
  kafkalog transactions --path /data/log describe --transactional-id nightly
  kafkalog transactions --path /data/log find-hanging
  kafkalog transactions --path /data/log abort --transactional-id payments-1
  kafkalog transactions --path /data/log complete --transactional-id payments-2
  kafkalog transactions --path /data/log abort --topic orders --partition 0 --start-offset 162
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.config.definitions import PRODUCER_ID_EXPIRATION_MS
from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.root.brokers.quorum import node_id_of
from pyspark_kafkalog.root.protocol import native_or_none
from pyspark_kafkalog.root.transactions.states import (
    TRANSACTION_STATE_TOPIC,
    OpenTransaction,
    OpenTransactions,
    TransactionState,
    find_open_transactions,
    producers_of,
    read_transaction_states,
)
from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.storage.log.producers import ProducerState
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.command import Failures, UsageError, add_path, add_read_to_log_end, utc_time
from pyspark_kafkalog.tools.output import Output, Tree, add_output, output_of, padded_table
from pyspark_kafkalog.tools.running import describe_topic, open_log_dir, warn_of_unread_offsets
from pyspark_kafkalog.units import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS, printable
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    from pyspark_kafkalog.root.transactions.end_transaction import EndedPartition, TransactionOutcome


#: Kafka's default of --max-transaction-timeout.
_TIMEOUT_MINUTES: Final = 15
_NONE: Final = "None"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Transaction:
    """The last known state of a transactional id; a start time below 0 means none."""

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
        if name not in ("abort", "complete"):
            add_read_to_log_end(command)
        return command

    listing = add("list", "list transactional ids")
    listing.add_argument("--duration-filter", type=int, metavar="MS", help="only transactions open for longer")
    listing.add_argument("--transactional-id-pattern", metavar="REGEX", help="only ids that match")
    describing = add("describe", "describe a transactional id")
    _add_transactional_id(describing, required=True)
    producers = add("describe-producers", "describe the producers of a partition")
    _add_partition(producers, required=True)
    producers.add_argument("--broker-id", type=int, help=argparse.SUPPRESS)
    hanging = add("find-hanging", "find transactions that were left open")
    _add_partition(hanging, required=False)
    hanging.add_argument("--broker-id", type=int, metavar="ID", help="search all topics, as of this node")
    hanging.add_argument(
        "--max-transaction-timeout",
        type=int,
        metavar="MIN",
        help=f"open for so many minutes (with --topic or --broker-id {_TIMEOUT_MINUTES}, else 0)",
    )
    abort = add("abort", "end an open transaction without committing its records")
    _add_transactional_id(abort, required=False)
    _add_partition(abort, required=False)
    abort.add_argument("--start-offset", type=int, metavar="N", help="the transaction's first offset in the partition")
    complete = add("complete", "finish an open transaction that its coordinator has decided")
    _add_transactional_id(complete, required=True)


def _add_transactional_id(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--transactional-id", required=required, metavar="ID")


def _add_partition(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument("--topic", required=required, metavar="TOPIC")
    parser.add_argument("--partition", type=int, required=required, metavar="N")


def run(options: argparse.Namespace) -> int:
    """Run the command; prints to sys.stdout."""
    log_dir = open_log_dir(options)
    failures = Failures("transactions")
    _RUNS[options.command](log_dir, options, output_of(options), failures)
    warn_of_unread_offsets("transactions", log_dir)
    return failures.exit_code


def _list(log_dir: LogDir, options: argparse.Namespace, output: Output, failures: Failures) -> None:
    found = list(_transactions(log_dir, failures).values())
    if options.transactional_id_pattern:
        matching = _matching([each.transactional_id for each in found], options.transactional_id_pattern)
        found = [each for each in found if each.transactional_id in matching]
    if options.duration_filter is not None and options.duration_filter >= 0:
        now_ms = time_ms()
        found = [each for each in found if 0 <= each.start_ms < now_ms - options.duration_filter]
    header = ("TransactionalId", "Coordinator", "ProducerId", "TransactionState")
    node = _node(log_dir)
    _show(header, [(each.transactional_id, node, each.producer_id, each.state) for each in found], output)


def _matching(names: Sequence[str], pattern: str) -> set[str]:
    """The names that match the pattern as a whole. Its syntax is RE2, as in a broker since Kafka 4.1 (RE2/J)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = pa.array(names, pa.string())
    try:
        pc.match_substring_regex(pa.array([""]), pattern=pattern)  # an error names the pattern alone
        return set(texts.filter(pc.match_substring_regex(texts, pattern=rf"\A(?:{pattern})\z")).to_pylist())
    except pa.ArrowInvalid as error:
        raise UsageError(
            f"--transactional-id-pattern {pattern}: expected a regular expression of RE2: {error}"
        ) from None


def _describe(log_dir: LogDir, options: argparse.Namespace, output: Output, failures: Failures) -> None:
    name = options.transactional_id
    found = _transactions(log_dir, failures).get(name)
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
    _show(header, [row], output)


def _describe_producers(log_dir: LogDir, options: argparse.Namespace, output: Output, failures: Failures) -> None:
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
        for each in producers_of(
            log_dir.partition(options.topic, options.partition), expiration_ms=_expiration_ms(log_dir), now_ms=time_ms()
        )
    ]
    _show(header, rows, output)


def _find_hanging(log_dir: LogDir, options: argparse.Namespace, output: Output, failures: Failures) -> None:
    if options.partition is not None and options.topic is None:
        raise UsageError("The --partition argument requires --topic to be provided")
    is_all = options.topic is None and options.broker_id is None
    minutes = options.max_transaction_timeout
    if minutes is None:
        minutes = 0 if is_all else _TIMEOUT_MINUTES
    now_ms = time_ms()
    open_now = [
        each
        for each in _open_transactions(log_dir, options, now_ms, failures)
        if (is_all and not minutes) or now_ms - each.producer.last_timestamp_ms > minutes * MINUTE_MS
    ]
    header: tuple[str, ...] = (
        "Topic",
        "Partition",
        "ProducerId",
        "ProducerEpoch",
        "CoordinatorEpoch",
        "StartOffset",
        "LastTimestamp",
        "Duration(min)",
    )
    rows: list[tuple[Any, ...]] = [
        (
            *(each.topic_partition.topic, each.topic_partition.partition),
            *(each.producer.producer_id, each.producer.producer_epoch, each.producer.coordinator_epoch),
            *(each.first_offset, each.producer.last_timestamp_ms),
            (now_ms - each.producer.last_timestamp_ms) // MINUTE_MS,
        )
        for each in open_now
        # Kafka's tool omits transactions that a coordinator may still end.
        if is_all or each.state is None or not log_dir.root.has_broker_coordinator
    ]
    if is_all:
        header = (*header, "TransactionalId", "TransactionState")
        states = ((each.transactional_id or _NONE, each.state) for each in open_now)
        ids = ((name, _NONE if state is None else state.status_name) for name, state in states)
        rows = [(*row, *of_id) for row, of_id in zip(rows, ids, strict=True)]
    _show(header, rows, output)


def _open_transactions(
    log_dir: LogDir, options: argparse.Namespace, now_ms: int, failures: Failures
) -> list[OpenTransaction]:
    states = _transaction_states(log_dir, failures)
    expiration_ms = _expiration_ms(log_dir)
    found: list[OpenTransaction] = []
    for name in [options.topic] if options.topic is not None else log_dir.topics():
        for number in log_dir.root.partition_numbers(name):
            if options.partition not in (None, number):
                continue
            with failures.kept(f"{name}-{number}"):
                each = log_dir.partition(name, number)
                if each.last_stable_offset < each.high_watermark:
                    of_partition = find_open_transactions([each], states, expiration_ms=expiration_ms, now_ms=now_ms)
                    found += of_partition.in_partitions
    return found


def _abort(log_dir: LogDir, options: argparse.Namespace, output: Output, failures: Failures) -> None:
    from pyspark_kafkalog.root.transactions.end_transaction import abort_transaction, abort_transactional_id

    place = (options.topic, options.partition, options.start_offset)
    if options.transactional_id is not None:
        if place != (None, None, None):
            raise UsageError("--transactional-id names the transaction: leave out --topic, --partition, --start-offset")
        ended = abort_transactional_id(log_dir.root.native(), options.transactional_id)
    elif None in place:
        raise UsageError(
            "The `abort` command requires --transactional-id, or --topic, --partition and --start-offset: "
            "find-hanging lists what is open"
        )
    else:
        topic_partition = TopicPartition(options.topic, options.partition)
        ended = abort_transaction(log_dir.root.native(), topic_partition, options.start_offset)
    _show_ended(ended, output)


def _complete(log_dir: LogDir, options: argparse.Namespace, output: Output, failures: Failures) -> None:
    from pyspark_kafkalog.root.transactions.end_transaction import complete_transactional_id

    _show_ended(complete_transactional_id(log_dir.root.native(), options.transactional_id), output)


def _show_ended(ended: TransactionOutcome, output: Output) -> None:
    output.show_all(ended.partitions, partial(_ended_tree, ended), partial(_ended_lines, ended))


def _ended_tree(ended: TransactionOutcome, each: EndedPartition) -> Tree:
    return {
        "topic": each.topic_partition.topic,
        "partition": each.topic_partition.partition,
        "producerId": each.producer_id,
        "producerEpoch": each.producer_epoch,
        "startOffset": each.first_offset,
        "markerOffset": each.marker_offset,
        "lastStableOffset": each.last_stable_offset,
        "transactionalId": ended.transactional_id,
        "result": "commit" if ended.is_commit else "abort",
    }


def _ended_lines(ended: TransactionOutcome, partitions: Iterable[EndedPartition]) -> Iterator[str]:
    done = "Committed" if ended.is_commit else "Aborted"
    for each in partitions:
        yield (
            f"{done} the transaction of producer {each.producer_id} that began at offset {each.first_offset} of "
            f"{each.topic_partition}: marker at offset {each.marker_offset}, last stable offset "
            f"{each.last_stable_offset}.\n"
        )
    if ended.elsewhere:
        listed = ", ".join(map(str, ended.elsewhere))
        yield f"Partitions of it that are not in this log directory were left as they are: {listed}.\n"
    if ended.transactional_id is not None:
        state = "CompleteCommit" if ended.is_commit else "CompleteAbort"
        yield f"Transactional id {printable(ended.transactional_id)} is in state {state}.\n"


_RUNS: Final = {
    "list": _list,
    "describe": _describe,
    "describe-producers": _describe_producers,
    "find-hanging": _find_hanging,
    "abort": _abort,
    "complete": _complete,
}


def _show(header: Sequence[str], rows: Sequence[Sequence[Any]], output: Output) -> None:
    """Print a table, or in JSON one object a row with the names of the columns."""
    names = [name[:1].lower() + name[1:] for name in header]
    output.show_all(
        rows,
        lambda row: dict(zip(names, (None if value == _NONE else value for value in row), strict=True)),
        lambda _: padded_table(header, [[str(value) for value in row] for row in rows]),
    )


def _expiration_ms(log_dir: LogDir) -> int:
    native = native_or_none(log_dir.root)
    return PRODUCER_ID_EXPIRATION_MS if native is None else native.broker_config().producer_id_expiration_ms


def _is_open(producer: ProducerState) -> bool:
    return producer.current_txn_first_offset >= 0


def _transactions(log_dir: LogDir, failures: Failures) -> dict[str, _Transaction]:
    """All transactional ids, by name."""
    found = {name: _of_coordinator(state) for name, state in _transaction_states(log_dir, failures).items()}
    native = native_or_none(log_dir.root)
    if native is not None:
        for name, each in native.store.image.transactional_ids.items():
            found[name] = _Transaction(
                transactional_id=name,
                producer_id=each.producer_id,
                producer_epoch=each.producer_epoch,
                state="CompleteCommit" if each.version >= 0 else "Empty",
            )
    return {name: found[name] for name in sorted(found)}


def _transaction_states(log_dir: LogDir, failures: Failures) -> Mapping[str, TransactionState]:
    """The states that a broker's transaction coordinator has written, as far as this directory contains them."""
    if TRANSACTION_STATE_TOPIC not in log_dir.topics():
        return {}
    states: dict[str, TransactionState] = {}
    for each in describe_topic(failures, log_dir, TRANSACTION_STATE_TOPIC).partitions:
        with failures.kept(str(each.topic_partition)):
            states |= read_transaction_states([each])
    return states


def _of_coordinator(state: TransactionState) -> _Transaction:
    return _Transaction(
        transactional_id=state.transactional_id,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        state=state.status_name,
        timeout_ms=state.timeout_ms,
        start_ms=state.start_ms,
        partitions=tuple(map(str, state.partitions)),
    )


def _node(log_dir: LogDir) -> int:
    node_id = node_id_of(log_dir.root)
    return -1 if node_id is None else node_id


#: The states in which the outcome is decided: such transactions are completed, not aborted.
_DECIDED: Final = ("PrepareCommit", "PrepareAbort")
_UNITS: Final = ((DAY_MS, "d"), (HOUR_MS, "h"), (MINUTE_MS, "min"), (SECOND_MS, "s"))


def describe_open(each: OpenTransaction, now_ms: int) -> str:
    """A description of the transaction in one line."""
    state = "left hanging" if each.state is None else each.state.status_name
    known_as = (
        "" if each.transactional_id is None else f", transactional id {printable(each.transactional_id)} ({state})"
    )
    began = "" if each.start_ms < 0 else f", began {utc_time(each.start_ms)} ({_age(now_ms - each.start_ms)} ago)"
    return (
        f"a transaction is open since offset {each.first_offset}: producer {each.producer.producer_id} with epoch "
        f"{each.producer.producer_epoch}{known_as}{began}"
    )


def _age(age_ms: int) -> str:
    """The age in its largest unit."""
    for unit_ms, unit in _UNITS:
        if age_ms >= unit_ms:
            return f"{age_ms // unit_ms} {unit}"
    return f"{max(age_ms, 0)} ms"


def open_tree(each: OpenTransaction) -> dict[str, Any]:
    """The transaction as JSON; unknown values are null."""
    return {
        "topic": each.topic_partition.topic,
        "partition": each.topic_partition.partition,
        "producerId": each.producer.producer_id,
        "producerEpoch": each.producer.producer_epoch,
        "startOffset": each.first_offset,
        "startTimestamp": None if each.start_ms < 0 else each.start_ms,
        "transactionalId": each.transactional_id,
        "transactionState": None if each.state is None else each.state.status_name,
    }


def ending_commands(root: Path, found: OpenTransactions) -> list[str]:
    """The commands that end all of `found`: one for each transaction that has an id, else one for each partition."""
    commands = {_of_id(root, state): None for state in found.states}
    commands.update((ending_command(root, each), None) for each in found.in_partitions)
    return list(commands)


def ending_command(root: Path, each: OpenTransaction) -> str:
    """The command that ends the transaction, ready for a shell."""
    if each.state is not None:
        return _of_id(root, each.state)
    partition = ["--topic", each.topic_partition.topic, "--partition", str(each.topic_partition.partition)]
    place = [*partition, "--start-offset", str(each.first_offset)]
    return _command(root, "abort", *place)


def _of_id(root: Path, state: TransactionState) -> str:
    verb = "complete" if state.status_name in _DECIDED else "abort"
    name = state.transactional_id
    given = [f"--transactional-id={name}"] if name.startswith("-") else ["--transactional-id", name]
    return _command(root, verb, *given)


def _command(root: Path, *arguments: str) -> str:
    return shlex.join(["kafkalog", "transactions", "--path", str(root), *arguments])
