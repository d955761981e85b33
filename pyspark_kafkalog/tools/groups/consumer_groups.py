"""`kafkalog consumer-groups`: list, describe and delete consumer groups, and reset their offsets.

Options and output are those of kafka-consumer-groups, with --path in place of --bootstrap-server. Groups of a native
log directory have offsets and no members. Those in a broker's directory can be listed and described, as of the broker's
last write: its high watermarks on disk are up to some seconds old.

--reset-offsets needs a scope (--topic, --all-topics or --from-file) and one of the --to-... options, --shift-by,
--by-duration or --from-file; it changes offsets only with --execute. A time without a zone is in UTC.

examples:
  kafkalog consumer-groups --path /data/log --list --state
  kafkalog consumer-groups --path /data/log --describe --group nightly
  kafkalog consumer-groups --path /data/log --reset-offsets --group nightly --topic orders:0,1 --to-earliest --dry-run
  kafkalog consumer-groups --path /data/log --reset-offsets --group nightly --all-topics --by-duration PT2H --execute
  kafkalog consumer-groups --path /data/log --reset-offsets --group nightly --all-topics --to-current --export > a.csv
  kafkalog consumer-groups --path /data/log --reset-offsets --group nightly --from-file a.csv --execute
  kafkalog consumer-groups --path /data/log --delete --group nightly --group other
  kafkalog consumer-groups --path /data/log --delete-offsets --group nightly --topic orders
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import KafkalogError, UnknownTopicError
from pyspark_kafkalog.groups.group_state import GROUP_STATES, GroupDescription
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.command import (
    Failures,
    UsageError,
    add_path,
    add_read_to_log_end,
    add_remote_storage,
    topic_partitions,
)
from pyspark_kafkalog.tools.groups.describe import describe
from pyspark_kafkalog.tools.output import NO_VALUE, add_output, output_of
from pyspark_kafkalog.tools.running import open_log_dir, warn_of_unread_offsets
from pyspark_kafkalog.units import printable

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
        help="a topic, or some of its partitions (--reset-offsets, --delete-offsets); may be repeated",
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
        from pyspark_kafkalog.tools.groups.resets import reset

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
        "state": ("describe", "list"),
        "type": ("list",),
        **dict.fromkeys(_RESET_OPTIONS, ("reset_offsets",)),
    }
    for name, actions in allowed.items():
        if getattr(options, name) not in (None, False, []) and action not in actions:
            raise UsageError(f"--{name.replace('_', '-')} can't be used with {flag}")
    if action == "describe":
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

    output_of(options).show_all(
        found, lambda each: {"group": each.group_id, "type": each.type, "state": each.state}, text
    )
    return failures.exit_code


def _list_lines(found: Sequence[GroupDescription], *, with_type: bool, with_state: bool) -> Iterator[str]:
    rows = [("GROUP", "TYPE", "STATE"), *((printable(each.group_id), each.type, each.state) for each in found)]
    width = max(15, *(len(group) for group, _, _ in rows)) + 10
    for group, group_type, state in rows:
        cells = [f"{group:<{width}}"]
        cells += [f"{group_type:<20}"] if with_type else []
        cells += [f"{state:<20}"] if with_state else []
        yield " ".join(cells) + "\n"


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
