"""`kafkalog consumer-groups`: list, describe and delete consumer groups, and reset their offsets.

Options and output are those of kafka-consumer-groups, with --path in place of --bootstrap-server. Groups of a native
log directory have offsets and no members. Those in a broker's directory can be listed and described, as of the broker's
last write: its high watermarks on disk are up to some seconds old.

--reset-offsets needs a scope (--topic, --all-topics or --from-file) and one of the --to-... options, --shift-by,
--by-duration or --from-file; it changes offsets only with --execute. A time without a zone is in UTC.

examples:
  kafkalog consumer-groups --path /data/log --list --state
  kafkalog consumer-groups --path /data/log --describe --group nightly --lag-seconds
  kafkalog consumer-groups --path /data/log --reset-offsets --group nightly --topic orders:0,1 --to-earliest --dry-run
  kafkalog consumer-groups --path /data/log --reset-offsets --group nightly --all-topics --by-duration PT2H --execute
  kafkalog consumer-groups --path /data/log --reset-offsets --group nightly --all-topics --to-current --export > a.csv
  kafkalog consumer-groups --path /data/log --reset-offsets --group nightly --from-file a.csv --execute
  kafkalog consumer-groups --path /data/log --delete --group nightly --group other
  kafkalog consumer-groups --path /data/log --delete-offsets --group nightly --topic orders
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import KafkalogError, UnknownGroupError, UnknownTopicError
from pyspark_kafkalog.groups.group_state import GROUP_STATES, GroupDescription, GroupMember
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.object_store.location import RootPath
from pyspark_kafkalog.root.brokers.quorum import node_id_of
from pyspark_kafkalog.root.protocol import Root
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.command import (
    Failures,
    UsageError,
    add_path,
    add_read_to_log_end,
    add_remote_storage,
    topic_partitions,
)
from pyspark_kafkalog.tools.output import Column, Output, add_output, aligned, or_none, output_of, tree_of
from pyspark_kafkalog.tools.running import open_log_dir, warn_of_unread_offsets
from pyspark_kafkalog.tools.terminal import NO_VALUE, Grid, Heading
from pyspark_kafkalog.units import printable
from pyspark_kafkalog.values import dataclass

_ACTIONS: Final = ("list", "describe", "delete", "reset_offsets", "delete_offsets")
_NO_FILTER: Final = ""
_TYPES: Final = ("Classic", "Consumer")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of kafka-consumer-groups, `--path` and `--output`."""
    add_path(parser)
    add_remote_storage(parser)
    actions = parser.add_mutually_exclusive_group(required=True)
    actions.add_argument("--list", action="store_true", help="print the names of the groups")
    actions.add_argument("--describe", action="store_true", help="print offsets with lag, members or state")
    actions.add_argument("--delete", action="store_true", help="delete groups with all their offsets")
    actions.add_argument("--reset-offsets", action="store_true", help="reset the offsets of groups")
    actions.add_argument("--delete-offsets", action="store_true", help="delete offsets of topics from a group")
    parser.add_argument("--group", action="append", default=[], metavar="NAME", help="the group; may be repeated")
    parser.add_argument("--all-groups", action="store_true", help="all groups")
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC[:0,1]",
        help="a topic, a regular expression of topics, or partitions of a topic (--reset-offsets, --delete-offsets); "
        "may be repeated",
    )
    parser.add_argument(
        "--all-topics", action="store_true", help="all topics that the group has offsets for (--reset-offsets)"
    )
    _add_views(parser)
    _add_resets(parser)
    parser.add_argument("--timeout", type=int, metavar="MS", help="accepted, has no effect")
    add_read_to_log_end(parser)
    add_output(parser, "one object a line, by group and partition")


def _add_views(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--offsets", action="store_true", help="offsets and lag, which is the default (--describe)")
    parser.add_argument("--members", action="store_true", help="members with their partitions (--describe)")
    parser.add_argument(
        "--state",
        nargs="?",
        const=_NO_FILTER,
        metavar="STATES",
        help="the state (--describe, --list); --list: only groups in these states, with commas between them",
    )
    parser.add_argument(
        "--type", nargs="?", const=_NO_FILTER, metavar="TYPES", help="the type, or only groups of these types (--list)"
    )
    parser.add_argument("--verbose", action="store_true", help="more columns (--describe)")
    parser.add_argument(
        "--lag-seconds",
        action="store_true",
        help="also the time from the record at the committed offset to the newest record, by their timestamps "
        "(--describe)",
    )


def _add_resets(parser: argparse.ArgumentParser) -> None:
    """Add the options of --reset-offsets."""
    targets = parser.add_mutually_exclusive_group()
    targets.add_argument("--to-earliest", action="store_true", help="to the log start")
    targets.add_argument("--to-latest", action="store_true", help="to the high watermark")
    targets.add_argument("--to-current", action="store_true", help="to the committed offsets")
    targets.add_argument("--to-offset", type=int, metavar="N", help="to this offset")
    targets.add_argument("--shift-by", type=int, metavar="N", help="by this many offsets, backwards if negative")
    targets.add_argument(
        "--to-datetime", metavar="YYYY-MM-DDThh:mm:ss.sss[Z]", help="to the first record since that time"
    )
    targets.add_argument("--by-duration", metavar="PnDTnHnMnS", help="to the first record since this long ago")
    targets.add_argument("--from-file", type=Path, metavar="FILE", help="to the offsets in a file from --export")
    parser.add_argument("--dry-run", action="store_true", help="only show the new offsets, which is the default")
    parser.add_argument("--execute", action="store_true", help="commit the new offsets")
    parser.add_argument("--export", action="store_true", help="print the new offsets as CSV")


def run(options: argparse.Namespace) -> int:
    """Run the command; prints to sys.stdout."""
    action = next(name for name in _ACTIONS if getattr(options, name))
    _check_options(action, options)
    log_dir = open_log_dir(options)
    try:
        return _run(action, log_dir, options)
    finally:
        warn_of_unread_offsets("consumer-groups", log_dir)


def _run(action: str, log_dir: LogDir, options: argparse.Namespace) -> int:
    if action == "list":
        return _list(log_dir, options)
    if action == "delete_offsets":
        return _delete_offsets(log_dir, options)
    failures = Failures("consumer-groups")
    names = _named_groups(log_dir, options, failures)
    if action == "describe":
        return describe(log_dir, names, options, failures)
    if action == "reset_offsets":
        from pyspark_kafkalog.tools.offset_resets import reset

        return reset(log_dir, names, options, failures)
    return _delete(log_dir, names, options) or failures.exit_code


def _check_options(action: str, options: argparse.Namespace) -> None:
    """Refuse options that do not apply to the action, as kafka-consumer-groups does."""
    flag = "--" + action.replace("_", "-")
    if options.group and options.all_groups:
        raise UsageError("--group can't be used with --all-groups")
    if action != "list" and not options.group and not options.all_groups:
        raise UsageError(
            f"{flag} needs --group or --all-groups" if action != "delete_offsets" else f"{flag} needs --group"
        )
    if action == "delete_offsets" and (not options.topic or len(options.group) != 1):
        raise UsageError(f"{flag} needs one --group and --topic")
    allowed = {
        "group": ("describe", "delete", "reset_offsets", "delete_offsets"),
        "all_groups": ("describe", "delete", "reset_offsets"),
        "topic": ("reset_offsets", "delete_offsets"),
        "all_topics": ("reset_offsets",),
        "offsets": ("describe",),
        "members": ("describe",),
        "verbose": ("describe",),
        "lag_seconds": ("describe",),
        "state": ("describe", "list"),
        "type": ("list",),
        **dict.fromkeys(_RESET_OPTIONS, ("reset_offsets",)),
    }
    for name, actions in allowed.items():
        if getattr(options, name) not in (None, False, []) and action not in actions:
            raise UsageError(f"--{name.replace('_', '-')} can't be used with {flag}")
    if action == "describe":
        if options.lag_seconds and (options.members or options.state is not None):
            raise UsageError("--lag-seconds is for offsets, and can't be used with --members or --state")
        if [options.offsets, options.members, options.state is not None].count(True) > 1:
            raise UsageError("--describe takes at most one of --offsets, --members and --state")
        if options.state:
            raise UsageError("--describe does not take a value for --state")


_RESET_OPTIONS: Final = (
    "to_earliest",
    "to_latest",
    "to_current",
    "to_offset",
    "shift_by",
    "to_datetime",
    "by_duration",
    "from_file",
    "dry_run",
    "execute",
    "export",
)


def consumer_groups(log_dir: LogDir, failures: Failures) -> list[GroupDescription]:
    """All groups that have consumers, by name, but for those whose records cannot be read."""
    from pyspark_kafkalog.groups.guarded_group import list_groups

    found = []
    for name in list_groups(log_dir.root, left_out=lambda what, error: failures.add(error, what)):
        with failures.kept(f"group {name}"):
            found.append(log_dir.group(name).describe())
    return [each for each in found if each.is_of_consumers]


def _named_groups(log_dir: LogDir, options: argparse.Namespace, failures: Failures) -> list[str]:
    if options.all_groups:
        return [each.group_id for each in consumer_groups(log_dir, failures)]
    return list(dict.fromkeys(options.group))


def _list(log_dir: LogDir, options: argparse.Namespace) -> int:
    states = _choices("states", options.state, GROUP_STATES)
    types = _choices("types", options.type, _TYPES)
    failures = Failures("consumer-groups")
    found = [
        each
        for each in consumer_groups(log_dir, failures)
        if (not states or each.state in states) and (not types or each.type in types)
    ]

    def text(groups: Iterable[GroupDescription]) -> Iterator[str]:
        if options.state is None and options.type is None:
            return (f"{printable(each.group_id)}\n" for each in groups)
        return _list_lines(list(groups), with_type=options.type is not None, with_state=options.state is not None)

    output_of(options).show_all(found, tree_of(_LIST_COLUMNS), text)
    return failures.exit_code


_LIST_COLUMNS: Final[tuple[Column[GroupDescription], ...]] = (
    Column("GROUP", "group", lambda each: each.group_id, 15),
    Column("TYPE", "type", lambda each: each.type, 20, grows=False),
    Column("STATE", "state", lambda each: each.state, 20, grows=False),
)


def _list_lines(found: Sequence[GroupDescription], *, with_type: bool, with_state: bool) -> Iterator[str]:
    shown = {"group": True, "type": with_type, "state": with_state}
    for group, *others in aligned([each for each in _LIST_COLUMNS if shown[str(each.field)]], found):
        yield " ".join((f"{group}{' ' * 10}", *others)) + "\n"


def _choices(what: str, text: str | None, valid: Sequence[str]) -> set[str]:
    """The values that a filter names, in upper or lower case; "" and None mean no filter."""
    by_name = {name.lower(): name for name in valid}
    asked = [part.strip().replace("_", "").lower() for part in (text or "").split(",") if part.strip()]
    if not all(each in by_name for each in asked):
        raise UsageError(f"Invalid {what} list '{text}'. Valid {what} are: {', '.join(valid)}")
    return {by_name[each] for each in asked}


def _delete(log_dir: LogDir, names: Sequence[str], options: argparse.Namespace) -> int:

    deleted: list[str] = []
    failed: dict[str, Exception] = {}
    for name in names:
        try:
            log_dir.group(name).delete()
            deleted.append(name)
        except (KafkalogError, OSError) as error:
            failed[name] = error
    output_of(options).show_all(
        names,
        lambda name: {
            "group": name,
            "deleted": name in deleted,
            "error": str(failed[name]) if name in failed else None,
        },
        lambda _: _deleted_lines(deleted, failed),
    )
    return 1 if failed else 0


def _deleted_lines(deleted: Sequence[str], failed: dict[str, Exception]) -> Iterator[str]:
    quoted = ", ".join(f"'{printable(name)}'" for name in deleted)
    if not failed:
        yield f"Deletion of requested consumer groups ({quoted}) was successful.\n"
        return
    yield "\nError: Deletion of some consumer groups failed:\n"
    for name, error in failed.items():
        yield f"* Group '{printable(name)}' could not be deleted due to: {error}\n"
    if deleted:
        yield f"\nThese consumer groups were deleted successfully: {quoted}\n"


def _delete_offsets(log_dir: LogDir, options: argparse.Namespace) -> int:

    name = options.group[0]
    named, unknown = topic_partitions(log_dir, options.topic)
    partitions = [each for each in named if _exists(log_dir, each)]
    log_dir.group(name).delete_offsets(partitions)
    rows = [
        (each.topic, str(each.partition), "Successful" if each in partitions else "Error: there is no such partition")
        for each in named
    ]
    rows += [(topic, NO_VALUE, "Error: there is no such topic") for topic in unknown]
    rows.sort(key=lambda row: row[0] + row[1])
    is_complete = len(partitions) == len(rows)
    output = output_of(options)
    output.text(f"Request succeeded for deleting offsets from group {printable(name)}.\n")
    width = max([15, *(len(row[0]) for row in rows)])
    for topic, partition, status in [("TOPIC", "PARTITION", "STATUS"), *rows]:
        output.text(f"\n{topic:<{width}} {partition:<10} {status:<15}")
    output.text("\n")
    for topic, partition, status in rows:
        number = None if partition == NO_VALUE else int(partition)
        output.data({"group": name, "topic": topic, "partition": number, "status": status})
    return 0 if is_complete else 1


def _exists(log_dir: LogDir, partition: TopicPartition) -> bool:
    try:
        log_dir.partition(partition.topic, partition.partition)
    except UnknownTopicError:
        return False
    return True


# --describe: offsets with lag, members, or state. Source of the columns:
# org.apache.kafka.tools.consumer.group.ConsumerGroupCommand. Partitions are in order; Kafka's tool prints them in the
# order of its hash table.


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
                tree_of(_member_columns(group)),
                partial(_member_lines, group, is_verbose=options.verbose),
            )
        else:
            with failures.kept(f"group {group.group_id}"):
                left_out = set() if options.verbose else {"leaderEpoch"}
                left_out |= set() if options.lag_seconds else {"lagSeconds"}
                output.show_all(
                    _rows(log_dir, group, failures, with_time=options.lag_seconds),
                    tree_of(_offset_columns(group)),
                    partial(_offsets_lines, group, left_out),
                    partial(_offsets_grid, group, left_out),
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
    lag_seconds: float | None = None

    @property
    def lag(self) -> int | None:
        return None if self.offset is None or self.log_end_offset is None else self.log_end_offset - self.offset


def _rows(log_dir: LogDir, group: GroupDescription, failures: Failures, *, with_time: bool) -> list[_Row]:
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
        behind_ms: int | None = None
        if with_time and lag is not None:
            with failures.kept(str(partition)):
                behind_ms = lag.lag_ms(log_dir.root)
        rows.append(
            _Row(
                partition,
                None if lag is None else lag.committed.offset,
                None if lag is None or lag.committed.leader_epoch < 0 else lag.committed.leader_epoch,
                "" if lag is None else lag.committed.metadata,
                _log_end_offset(log_dir, partition, failures) if lag is None else lag.log_end_offset,
                member,
                None if behind_ms is None else behind_ms / 1000,
            )
        )
    return rows


def _log_end_offset(log_dir: LogDir, partition: TopicPartition, failures: Failures) -> int | None:
    with failures.kept(str(partition)), contextlib.suppress(UnknownTopicError):
        return log_dir.partition(partition.topic, partition.partition).high_watermark
    return None


def _offsets_lines(group: GroupDescription, left_out: Collection[str], rows: Iterable[_Row]) -> Iterator[str]:
    _warn_of_state(group)
    shown = [each for each in _offset_columns(group) if each.field not in left_out]
    titles, *lines = aligned(shown, rows)
    if not lines:
        return
    for line in (titles, *lines):
        yield "\n" + " ".join(line)
    yield "\n"


def _offsets_grid(group: GroupDescription, left_out: Collection[str], rows: Iterable[_Row]) -> Grid:
    """The same for people, under the group's name and state."""
    titled = [each for each in _offset_columns(group)[1:] if each.title is not None]
    shown = [each for each in titled if each.field not in left_out]
    names = ("topic", "consumerId", "host", "clientId")
    headings = [
        Heading(
            each.title or "",
            is_number=each.field not in names,
            is_optional=each.field in names[1:],
            style=_lag_style if each.field == "lag" else None,
        )
        for each in shown
    ]
    lines = ([_grid_cell(each.value(row)) for each in shown] for row in rows)
    return Grid(headings, lines, title=f"{group.group_id}: {group.state}")


def _grid_cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else or_none(value)


def _lag_style(text: str) -> str:
    return "green" if text == "0" else "yellow"


def _offset_columns(group: GroupDescription) -> tuple[Column[_Row], ...]:
    return (
        Column("GROUP", "group", lambda _: group.group_id, 15),
        Column(None, "state", lambda _: group.state),
        Column("TOPIC", "topic", lambda row: row.topic_partition.topic, 15),
        Column("PARTITION", "partition", lambda row: row.topic_partition.partition, 10, grows=False),
        Column("LEADER-EPOCH", "leaderEpoch", lambda row: row.leader_epoch, 15, grows=False),
        Column("CURRENT-OFFSET", "currentOffset", lambda row: row.offset, 15, grows=False),
        Column("LOG-END-OFFSET", "logEndOffset", lambda row: row.log_end_offset, 15, grows=False),
        Column("LAG", "lag", lambda row: row.lag, 15, grows=False),
        Column("LAG-SECONDS", "lagSeconds", lambda row: row.lag_seconds, 15, grows=False),
        Column(None, "metadata", lambda row: row.metadata),
        Column("CONSUMER-ID", "consumerId", lambda row: None if row.member is None else row.member.member_id, 15),
        Column("HOST", "host", lambda row: None if row.member is None else row.member.host, 15),
        Column("CLIENT-ID", "clientId", lambda row: None if row.member is None else row.member.client_id, grows=False),
    )


def _member_lines(group: GroupDescription, members: Iterable[GroupMember], *, is_verbose: bool) -> Iterator[str]:
    _warn_of_state(group)
    left_out = set() if any(member.instance_id for member in group.members) else {"GROUP-INSTANCE-ID"}
    if len({member.is_upgraded for member in group.members} - {None}) < 2:
        left_out.add("UPGRADED")
    columns = _member_columns(group)
    more_from = next(at for at, each in enumerate(columns) if each.title == "CURRENT-EPOCH")
    shown = [each for each in columns[:more_from] if each.title not in left_out]
    more = [each for each in columns[more_from:] if is_verbose and each.title not in left_out]
    for number, line in enumerate(aligned([*shown, *more], members)):
        text = "".join(cell + " " for cell in line[: len(shown)]) + " ".join(line[len(shown) :])
        yield ("\n" if number == 0 else "") + text + "\n"


def _member_columns(group: GroupDescription) -> tuple[Column[GroupMember], ...]:
    """The columns; those from CURRENT-EPOCH on are shown with --verbose."""
    return (
        Column("GROUP", "group", lambda _: group.group_id, 15),
        Column("CONSUMER-ID", "consumerId", lambda each: each.member_id, 15),
        Column(
            "GROUP-INSTANCE-ID",
            "groupInstanceId",
            lambda each: each.instance_id,
            17,
            text=lambda each: each.instance_id or "",
        ),
        Column("HOST", "host", lambda each: each.host, 15),
        Column("CLIENT-ID", "clientId", lambda each: each.client_id, 15),
        Column("#PARTITIONS", None, lambda each: len(each.assignment), 15, grows=False),
        Column("CURRENT-EPOCH", "currentEpoch", lambda each: each.epoch, 15, grows=False),
        Column(
            *("CURRENT-ASSIGNMENT", "currentAssignment", lambda each: _by_topic(each.assignment), 20),
            text=lambda each: _assignment(each.assignment),
        ),
        Column("TARGET-EPOCH", "targetEpoch", lambda _: group.target_assignment_epoch, 15, grows=False),
        Column(
            *("TARGET-ASSIGNMENT", "targetAssignment", lambda each: _by_topic(each.target_assignment), 20),
            text=lambda each: _assignment(each.target_assignment),
        ),
        Column(
            *("UPGRADED", "upgraded", lambda each: each.is_upgraded),
            grows=False,
            text=lambda each: NO_VALUE if each.is_upgraded is None else str(each.is_upgraded).lower(),
        ),
    )


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    grouped = groupby(sorted(partitions), key=lambda each: each.topic)
    return {topic: [each.partition for each in of_topic] for topic, of_topic in grouped}


def _assignment(partitions: Iterable[TopicPartition]) -> str:
    """The partitions as text: `orders:0,1;returns:0`."""
    by_topic = _by_topic(partitions)
    return ";".join(f"{topic}:{','.join(map(str, numbers))}" for topic, numbers in by_topic.items()) or NO_VALUE


def _show_state(root: Root, node_id: int | None, group: GroupDescription, output: Output, *, is_verbose: bool) -> None:
    columns = _state_columns(root.path, node_id)
    output.show(group, tree_of(columns), lambda _: _state_text(columns, group, is_verbose=is_verbose))


def _state_text(columns: Sequence[Column[GroupDescription]], group: GroupDescription, *, is_verbose: bool) -> str:
    _warn_of_state(group)
    shown = [each for each in columns if is_verbose or each.field not in ("groupEpoch", "targetAssignmentEpoch")]
    return "".join(f"\n{' '.join(line)}" for line in aligned(shown, [group])) + "\n"


def _state_columns(root: RootPath, node_id: int | None) -> tuple[Column[GroupDescription], ...]:
    coordinator = f"{root}  ({_NODE_UNKNOWN if node_id is None else node_id})"
    return (
        Column("GROUP", "group", lambda group: group.group_id, 15),
        Column(None, "type", lambda group: group.type),
        Column("COORDINATOR (ID)", "coordinator", lambda _: node_id, 25, text=lambda _: coordinator),
        Column("ASSIGNMENT-STRATEGY", "assignmentStrategy", lambda group: group.assignor or None, 20, grows=False),
        Column("STATE", "state", lambda group: group.state, 20, grows=False),
        Column("GROUP-EPOCH", "groupEpoch", lambda group: group.epoch, 15, grows=False),
        Column(
            *("TARGET-ASSIGNMENT-EPOCH", "targetAssignmentEpoch", lambda group: group.target_assignment_epoch, 25),
            grows=False,
        ),
        Column("#MEMBERS", "members", lambda group: len(group.members), grows=False),
    )


def _warn_of_state(group: GroupDescription) -> None:
    """Print a notice about an unusual state to sys.stderr."""
    sys.stdout.flush()
    if group.state == "Empty":
        sys.stderr.write(f"\nConsumer group '{printable(group.group_id)}' has no active members.\n")
    elif group.state in _REBALANCING:
        sys.stderr.write(f"\nWarning: Consumer group '{printable(group.group_id)}' is rebalancing.\n")
