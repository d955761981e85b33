"""Open transactions as lines and JSON trees, and the commands that end them: for `adopt` and `transactions`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.tools.command import utc_time

if TYPE_CHECKING:
    from pyspark_kafkalog.root.open_transactions import OpenTransaction, OpenTransactions, TransactionState

#: The states in which the outcome is decided: such transactions are completed, not aborted.
_DECIDED: Final = ("PrepareCommit", "PrepareAbort")
_UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1000, "s"))


def describe_open(each: OpenTransaction, now_ms: int) -> str:
    """A description of the transaction in one line."""
    state = "left hanging" if each.state is None else each.state.status_name
    known_as = "" if each.transactional_id is None else f", transactional id {each.transactional_id} ({state})"
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
    where = each.topic_partition
    place = ["--topic", where.topic, "--partition", str(where.partition), "--start-offset", str(each.first_offset)]
    return _command(root, "abort", *place)


def _of_id(root: Path, state: TransactionState) -> str:
    verb = "complete" if state.status_name in _DECIDED else "abort"
    name = state.transactional_id
    given = [f"--transactional-id={name}"] if name.startswith("-") else ["--transactional-id", name]
    return _command(root, verb, *given)


def _command(root: Path, *arguments: str) -> str:
    return shlex.join(["kafkalog", "transactions", "--path", str(root), *arguments])
