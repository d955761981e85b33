"""The output of `kafkalog consumer-groups --describe`: offsets with lag, members, or state of groups.

Source of the columns: org.apache.kafka.tools.consumer.group.ConsumerGroupCommand. Partitions are in order; Kafka's tool
prints them in the order of its hash table.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any, Final

from pyspark_kafkalog.errors import KafkalogError, UnknownGroupError, UnknownTopicError
from pyspark_kafkalog.groups.group_state import GroupDescription, GroupMember
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.object_store.location import RootPath
from pyspark_kafkalog.root.brokers.quorum import node_id_of
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.command import Failures
from pyspark_kafkalog.tools.output import NO_VALUE, Output, or_none, output_of
from pyspark_kafkalog.units import printable

_OFFSETS_HEADER: Final = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "LEADER-EPOCH",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
)
_OFFSETS_MIN_WIDTHS: Final = (15, 15, 10, 15, 15, 15, 15, 15, 15, 0)
_LEADER_EPOCH_COLUMN: Final = 3
_NODE_UNKNOWN: Final = "none"
_REBALANCING: Final = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")


def describe(log_dir: LogDir, names: Sequence[str], options: argparse.Namespace, failures: Failures) -> int:
    """Print the groups in the order of their names. A group that cannot be read, and its error, stop no other group.

    Raises UnknownGroupError.
    """
    output = output_of(options)
    described = []
    for name in sorted(names):
        try:
            described.append(log_dir.group(name).describe())
        except UnknownGroupError:
            raise
        except (KafkalogError, OSError) as error:
            failures.add(error, f"group {name}")
    node_id = node_id_of(log_dir.root) if options.state is not None else None
    for group in described:
        if not group.is_of_consumers:
            raise UnknownGroupError(f"{group.group_id} is not a consumer group: it is of type {group.type}")
        if options.state is not None:
            _show_state(log_dir.root, node_id, group, output, is_verbose=options.verbose)
        elif options.members:
            output.show_all(
                group.members,
                partial(_member_tree, group),
                partial(_member_lines, group, is_verbose=options.verbose),
            )
        else:
            with failures.kept(f"group {group.group_id}"):
                output.show_all(
                    _rows(log_dir, group, failures),
                    partial(_offsets_tree, group),
                    partial(_offsets_lines, group, is_verbose=options.verbose),
                )
    return failures.exit_code


@dataclass(frozen=True, slots=True)
class _Row:
    """One partition of a group, and the member that it is assigned to."""

    topic_partition: TopicPartition
    offset: int | None
    leader_epoch: int | None
    metadata: str
    log_end_offset: int | None
    member: GroupMember | None

    @property
    def lag(self) -> int | None:
        return None if self.offset is None or self.log_end_offset is None else self.log_end_offset - self.offset


def _rows(log_dir: LogDir, group: GroupDescription, failures: Failures) -> list[_Row]:
    """Partitions of members, those of the member with the most first, then partitions without a member."""

    committed = {each.topic_partition: each for each in log_dir.group(group.group_id).lag()}
    members = sorted(group.members, key=lambda member: -len(member.assignment))
    owned = [(partition, member) for member in members for partition in member.assignment]
    without_owner = sorted(committed.keys() - {partition for partition, _ in owned})
    rows = []
    for partition, member in [*owned, *((each, None) for each in without_owner)]:
        lag = committed.get(partition)
        if lag is not None and lag.error is not None:
            failures.add(lag.error, str(partition))
        rows.append(
            _Row(
                partition,
                None if lag is None else lag.committed.offset,
                None if lag is None or lag.committed.leader_epoch < 0 else lag.committed.leader_epoch,
                "" if lag is None else lag.committed.metadata,
                _log_end_offset(log_dir, partition, failures) if lag is None else lag.log_end_offset,
                member,
            )
        )
    return rows


def _log_end_offset(log_dir: LogDir, partition: TopicPartition, failures: Failures) -> int | None:
    with failures.kept(str(partition)), contextlib.suppress(UnknownTopicError):
        return log_dir.partition(partition.topic, partition.partition).high_watermark
    return None


def _offsets_lines(group: GroupDescription, rows: Iterable[_Row], *, is_verbose: bool) -> Iterator[str]:
    _warn_of_state(group)
    lines = [_OFFSETS_HEADER, *(tuple(map(printable, _offsets_line(group, row))) for row in rows)]
    if len(lines) == 1:
        return
    widths = [
        max(least, *(len(line[column]) for line in lines)) if column in (0, 1, 7, 8) else least
        for column, least in enumerate(_OFFSETS_MIN_WIDTHS)
    ]
    shown = [column for column in range(len(widths)) if is_verbose or column != _LEADER_EPOCH_COLUMN]
    for line in lines:
        yield "\n" + " ".join(line[column].ljust(widths[column]) for column in shown)
    yield "\n"


def _offsets_line(group: GroupDescription, row: _Row) -> tuple[str, ...]:
    numbers = (row.leader_epoch, row.offset, row.log_end_offset, row.lag)
    member = row.member
    return (
        group.group_id,
        row.topic_partition.topic,
        str(row.topic_partition.partition),
        *(or_none(number) for number in numbers),
        *((NO_VALUE,) * 3 if member is None else (member.member_id, member.host, member.client_id)),
    )


def _offsets_tree(group: GroupDescription, row: _Row) -> dict[str, Any]:
    member = row.member
    return {
        "group": group.group_id,
        "state": group.state,
        "topic": row.topic_partition.topic,
        "partition": row.topic_partition.partition,
        "leaderEpoch": row.leader_epoch,
        "currentOffset": row.offset,
        "logEndOffset": row.log_end_offset,
        "lag": row.lag,
        "metadata": row.metadata,
        "consumerId": None if member is None else member.member_id,
        "host": None if member is None else member.host,
        "clientId": None if member is None else member.client_id,
    }


def _member_lines(group: GroupDescription, members: Iterable[GroupMember], *, is_verbose: bool) -> Iterator[str]:
    _warn_of_state(group)
    upgrades = {member.is_upgraded for member in group.members} - {None}
    lines = [list(map(printable, _member_line(group, member))) for member in members]
    header = ["GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    header += ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT", "UPGRADED"]
    least = [15, 15, 17, 15, 15, 15, 15, 20, 15, 20, 0]
    widths = [
        max([width, *(len(line[column]) for line in lines)]) if column in (0, 1, 2, 3, 4, 7, 9) else width
        for column, width in enumerate(least)
    ]
    shown = [0, 1, 2, 3, 4, 5] if any(member.instance_id for member in group.members) else [0, 1, 3, 4, 5]
    more = ([6, 7, 8, 9, 10] if len(upgrades) > 1 else [6, 7, 8, 9]) if is_verbose else []
    for number, line in enumerate([header, *lines]):
        text = "".join(line[column].ljust(widths[column]) + " " for column in shown)
        text += " ".join(line[column].ljust(widths[column]) for column in more)
        yield ("\n" if number == 0 else "") + text + "\n"


def _member_line(group: GroupDescription, member: GroupMember) -> list[str]:
    return [
        group.group_id,
        member.member_id,
        member.instance_id or "",
        member.host,
        member.client_id,
        str(len(member.assignment)),
        or_none(member.epoch),
        _assignment(member.assignment),
        or_none(group.target_assignment_epoch),
        _assignment(member.target_assignment),
        NO_VALUE if member.is_upgraded is None else str(member.is_upgraded).lower(),
    ]


def _member_tree(group: GroupDescription, member: GroupMember) -> dict[str, Any]:
    return {
        "group": group.group_id,
        "consumerId": member.member_id,
        "groupInstanceId": member.instance_id,
        "host": member.host,
        "clientId": member.client_id,
        "currentEpoch": member.epoch,
        "currentAssignment": _by_topic(member.assignment),
        "targetEpoch": group.target_assignment_epoch,
        "targetAssignment": _by_topic(member.target_assignment),
        "upgraded": member.is_upgraded,
    }


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped = groupby(sorted(partitions), key=lambda each: each.topic)
    return {topic: [each.partition for each in of_topic] for topic, of_topic in grouped}


def _assignment(partitions: Iterable[TopicPartition]) -> str:
    """The partitions as text: `orders:0,1;returns:0`."""
    by_topic = _by_topic(partitions)
    return ";".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in by_topic.items()) or NO_VALUE


def _show_state(root: Root, node_id: int | None, group: GroupDescription, output: Output, *, is_verbose: bool) -> None:
    output.show(
        group,
        lambda _: {
            "group": group.group_id,
            "type": group.type,
            "coordinator": node_id,
            "assignmentStrategy": group.assignor or None,
            "state": group.state,
            "groupEpoch": group.epoch,
            "targetAssignmentEpoch": group.target_assignment_epoch,
            "members": len(group.members),
        },
        lambda _: _state_text(root.path, node_id, group, is_verbose=is_verbose),
    )


def _state_text(root: RootPath, node_id: int | None, group: GroupDescription, *, is_verbose: bool) -> str:
    _warn_of_state(group)
    coordinator = f"{root}  ({_NODE_UNKNOWN if node_id is None else node_id})"
    header = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE"]
    line = [printable(group.group_id), coordinator, group.assignor or NO_VALUE, group.state]
    widths = [max(15, len(line[0])), max(25, len(coordinator)), 20, 20]
    if is_verbose:
        header += ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"]
        line += [or_none(group.epoch), or_none(group.target_assignment_epoch)]
        widths += [15, 25]
    lines = ([*header, "#MEMBERS"], [*line, str(len(group.members))])
    padded = (" ".join(text.ljust(width) for text, width in zip(cells, [*widths, 0], strict=True)) for cells in lines)
    return "".join(f"\n{each}" for each in padded) + "\n"


def _warn_of_state(group: GroupDescription) -> None:
    """Print a notice about an unusual state to sys.stderr."""
    sys.stdout.flush()
    if group.state == "Empty":
        sys.stderr.write(f"\nConsumer group '{printable(group.group_id)}' has no active members.\n")
    elif group.state in _REBALANCING:
        sys.stderr.write(f"\nWarning: Consumer group '{printable(group.group_id)}' is rebalancing.\n")
