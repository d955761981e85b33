"""The commands `history`, `metadata-quorum` and `features`: the commits, the metadata log, and its format version."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Final

from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.metadata.history import HistoryEntry
from pyspark_kafkalog.root.brokers.quorum import Quorum, QuorumReplica, quorum_of
from pyspark_kafkalog.tools.command import Command, UsageError, add_path, positive, topic_pattern, utc_time
from pyspark_kafkalog.tools.output import Output, add_output, or_none, output_of, padded_table, table
from pyspark_kafkalog.tools.running import open_log_dir
from pyspark_kafkalog.tools.terminal import NO_VALUE, Grid, Heading, number_text, time_text
from pyspark_kafkalog.units import size_text

_HISTORY_HELP: Final = """\
`kafkalog history`: list the commits of a log directory: time, operation, writer, partitions.

There is one line for each partition that a commit wrote to, with the offset of its first record there, and the numbers
of records and bytes. Commits without records have one line for each topic that they changed. COMMIT is the commit's
offset in the commit log, VERSION that of the transactional id (the batch id of a streaming query). The newest commit
comes first; commits older than metadata.max.retention.ms are removed once a metadata snapshot covers them. Errors are
printed in one line, with exit code 1.

examples:
  kafkalog history --path /data/log --limit 20
  kafkalog history --path /data/log --topic orders --oldest-first
  kafkalog history --path /data/log --output json | jq 'select(.transactionalId != null)'
"""


_QUORUM_HELP: Final = """\
`kafkalog metadata-quorum`: the state of the metadata log, as kafka-metadata-quorum describes it.

A native log directory has one voter, the node of its meta.properties, which is always the leader; the high watermark is
the offset after the last commit. For a Kafka broker's directory the command shows the state on disk, also while the
broker runs: the leader and the voters last known to that node, and the high watermark if the node is the only voter.
Values that only a running leader knows (the high watermark of several voters, the progress of the others, times) are
shown as -, and left out in JSON; an unknown leader is -1.

examples:
  kafkalog metadata-quorum --path /data/log describe --status
  kafkalog metadata-quorum --path /data/log describe --replication --human-readable
  kafkalog metadata-quorum --path /var/lib/kafka/data describe --status --output json
"""


_FEATURES_HELP: Final = """\
`kafkalog features`: show the format version of a log directory, or raise it, as kafka-features does with features.

New log directories have the newest version; existing ones keep theirs until `upgrade` raises it. From version 3 on a
file of the commit log takes several commits, which are cheaper then. The upgrade is final: earlier packages refuse the
log directory from then on. If `upgrade` is killed, run it again. In an object store the version never changes.

examples:
  kafkalog features --path /data/log describe
  kafkalog features --path /data/log upgrade
"""


_HISTORY_HEADER: Final = (
    "COMMIT",
    "TIME",
    "OPERATION",
    "TRANSACTIONAL-ID",
    "VERSION",
    "TOPIC",
    "PARTITION",
    "FIRST-OFFSET",
    "RECORDS",
    "BYTES",
)


def _add_history(parser: argparse.ArgumentParser) -> None:
    """`--path`, the choice of commits, and the form of the output."""
    add_path(parser)
    parser.add_argument(
        "--topic", metavar="TOPIC", help="only commits that changed this topic, or topics that match; also deleted ones"
    )
    parser.add_argument("--limit", type=positive, metavar="N", help="only the newest N commits")
    parser.add_argument("--oldest-first", action="store_true", help="print the oldest commit first")
    add_output(parser, "one object a line, by commit")


def _run_history(options: argparse.Namespace) -> int:
    """List the commits on sys.stdout."""
    log_dir = open_log_dir(options)
    found = output_of(options).show_all(
        _entries(log_dir, options),
        _commit_tree,
        lambda commits: table(_HISTORY_HEADER, _commit_lines(commits)),
        _history_grid,
    )
    if not found and options.topic is not None and options.topic not in log_dir.topics():
        raise UnknownTopicError(f"there is no topic {options.topic!r}, and no commit to a deleted topic of that name")
    return 0


def _entries(log_dir: LogDir, options: argparse.Namespace) -> Iterable[HistoryEntry]:
    """The chosen commits. A topic that exists is chosen by its name, as by all commands; deleted ones may match too."""
    newest_first = not options.oldest_first
    if options.topic is None or options.topic in log_dir.topics():
        return log_dir.history(topic=options.topic, limit=options.limit, newest_first=newest_first)
    pattern = topic_pattern(options.topic)
    is_limited = options.limit is not None
    all_entries = log_dir.history(newest_first=newest_first or is_limited)
    chosen = (each for each in all_entries if any(map(pattern.matches, each.topics)))
    limited = islice(chosen, options.limit)
    return limited if newest_first or not is_limited else reversed(list(limited))


def _commit_tree(entry: HistoryEntry) -> dict[str, Any]:
    return {
        "offset": entry.offset,
        "timestamp": entry.timestamp_ms,
        "time": utc_time(entry.timestamp_ms),
        "operation": entry.operation,
        "transactionalId": entry.transactional_id,
        "version": entry.version,
        "incarnation": entry.incarnation,
        "writeId": entry.write_id,
        "topics": list(entry.topics),
        "records": entry.records,
        "bytes": entry.bytes,
        "partitions": [
            {
                "topic": each.topic,
                "topicId": each.topic_id,
                "partition": each.partition,
                "firstOffset": each.first_offset,
                "records": each.records,
                "bytes": each.bytes,
            }
            for each in entry.partitions
        ],
    }


def _commit_lines(entries: Iterable[HistoryEntry]) -> Iterator[tuple[str, ...]]:
    for entry in entries:
        commit = (
            str(entry.offset),
            utc_time(entry.timestamp_ms),
            entry.operation or NO_VALUE,
            entry.transactional_id or NO_VALUE,
            NO_VALUE if entry.version is None else str(entry.version),
        )
        for each in entry.partitions:
            yield *commit, each.topic, *map(str, (each.partition, each.first_offset, each.records, each.bytes))
        if not entry.partitions:
            for topic in entry.topics or (NO_VALUE,):
                yield *commit, topic, NO_VALUE, NO_VALUE, NO_VALUE, NO_VALUE


_HISTORY_HEADINGS: Final = (
    Heading("COMMIT", is_number=True),
    Heading("TIME (UTC)", is_whole=True),
    Heading("OPERATION", is_whole=True),
    Heading("TRANSACTIONAL-ID", is_optional=True),
    Heading("VERSION", is_number=True, is_optional=True),
    Heading("TOPIC"),
    Heading("PARTITION", is_number=True, is_optional=True),
    Heading("OFFSET", is_number=True, is_optional=True),
    Heading("RECORDS", is_number=True, is_optional=True),
    Heading("SIZE", is_number=True, is_optional=True),
)


def _history_grid(entries: Iterable[HistoryEntry]) -> Grid:
    """The same lines for people."""
    return Grid(_HISTORY_HEADINGS, (row for entry in entries for row in _commit_rows(entry)))


def _commit_rows(entry: HistoryEntry) -> Iterator[list[str]]:
    commit = [
        number_text(entry.offset),
        time_text(entry.timestamp_ms),
        entry.operation or NO_VALUE,
        entry.transactional_id or NO_VALUE,
        number_text(entry.version),
    ]
    for number, each in enumerate(entry.partitions):
        numbers = map(number_text, (each.first_offset, each.records))
        first = [""] * len(commit) if number else commit
        yield [*first, each.topic, str(each.partition), *numbers, size_text(each.bytes)]
    if not entry.partitions:
        yield from ([*commit, topic, *[NO_VALUE] * 4] for topic in entry.topics or (NO_VALUE,))


_REPLICA_HEADER: Final = (
    "NodeId",
    "DirectoryId",
    "LogEndOffset",
    "Lag",
    "LastFetchTimestamp",
    "LastCaughtUpTimestamp",
    "Status",
)


def _add_quorum(parser: argparse.ArgumentParser) -> None:
    """`--path`, and `describe` with the options of kafka-metadata-quorum."""
    add_path(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    describe = commands.add_parser("describe", help="describe the metadata quorum", allow_abbrev=False)
    describe.add_argument("--status", action="store_true", help="a short summary")
    describe.add_argument("--replication", action="store_true", help="each voter's log end and lag")
    describe.add_argument("--human-readable", action="store_true", help="times as ms that have passed (--replication)")
    add_output(describe, "one object; with --replication one a line, by replica")


def _run_quorum(options: argparse.Namespace) -> int:
    """Describe the metadata log on sys.stdout."""
    if options.status and options.replication:
        raise UsageError("Only one of --status or --replication should be specified with describe sub-command")
    if not options.status and not options.replication:
        raise UsageError("One of --status or --replication must be specified with describe sub-command")
    if options.status and options.human_readable:
        raise UsageError("The option --human-readable is only supported along with --replication")
    quorum = quorum_of(open_log_dir(options).root)
    output = output_of(options)
    if options.status:
        _show_status(quorum, output)
    else:
        rows = list(_rows(quorum, human_readable=options.human_readable))
        output.show_all(
            rows,
            lambda row: dict(zip(_REPLICA_HEADER, row, strict=True)),
            lambda _: padded_table(_REPLICA_HEADER, [[or_none(value) for value in row] for row in rows]),
        )
    return 0


def _show_status(quorum: Quorum, output: Output) -> None:
    lag = quorum.max_follower_lag()
    status = {
        "ClusterId": quorum.cluster_id,
        "LeaderId": quorum.leader_id,
        "LeaderEpoch": quorum.leader_epoch,
        "HighWatermark": quorum.high_watermark,
        "MaxFollowerLag": lag,
        "MaxFollowerLagTimeMs": lag,  # known only without followers, and 0 then
        "CurrentVoters": None if quorum.voters is None else [_replica_tree(each) for each in quorum.voters],
        "CurrentObservers": [_replica_tree(each) for each in quorum.observers],
    }
    output.data(status)
    for name, value in status.items():
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, list) else or_none(value)
        output.text(f"{name + ':':<24}{text}\n")


def _replica_tree(replica: QuorumReplica) -> dict[str, Any]:
    tree: dict[str, Any] = {"id": replica.node_id}
    if replica.directory_id is not None:
        tree["directoryId"] = replica.directory_id
    if replica.endpoints:
        tree["endpoints"] = list(replica.endpoints)
    return tree


def _rows(quorum: Quorum, *, human_readable: bool) -> Iterator[tuple[str | int | None, ...]]:
    """The leader, the other voters, the observers."""
    moment = None if quorum.as_of_ms is None else "0 ms ago" if human_readable else str(quorum.as_of_ms)

    def row(replica: QuorumReplica, status: str | None) -> tuple[str | int | None, ...]:
        directory_id = replica.directory_id
        return replica.node_id, directory_id, replica.log_end_offset, quorum.lag(replica), moment, moment, status

    voters = quorum.voters or ()
    follower = "Follower" if quorum.leader_id >= 0 else None
    yield from (row(each, "Leader") for each in voters if each.node_id == quorum.leader_id)
    yield from (row(each, follower) for each in voters if each.node_id != quorum.leader_id)
    yield from (row(each, "Observer") for each in quorum.observers)


_FEATURE: Final = ("Feature", "SupportedMinVersion", "SupportedMaxVersion", "FinalizedVersionLevel")


def _add_features(parser: argparse.ArgumentParser) -> None:
    """`--path`, and the two commands."""
    add_path(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, help_text in (("describe", "show the format version"), ("upgrade", "raise it to that of new roots")):
        add_output(commands.add_parser(name, help=help_text, allow_abbrev=False), "one object")


def _run_features(options: argparse.Namespace) -> int:
    """Show the format version on sys.stdout, or raise it."""
    native, output = open_log_dir(options).root.native(), output_of(options)
    before = native.store.image.format
    if options.command == "upgrade":
        native.raise_format()
    after = native.store.image.format
    values = ("format.version", *after.supported, after.version)
    output.data({name[0].lower() + name[1:]: value for name, value in zip(_FEATURE, values, strict=True)})
    if options.command == "describe":
        output.text("\t".join(f"{name}: {value}" for name, value in zip(_FEATURE, values, strict=True)) + "\n")
    elif after != before:
        output.text(f"format.version was upgraded to {after.version}.\n")
    else:
        output.text(f"format.version is {after.version} already: there is nothing to upgrade.\n")
    return 0


COMMANDS: Final = {
    "features": Command(_FEATURES_HELP, _add_features, _run_features),
    "history": Command(_HISTORY_HELP, _add_history, _run_history),
    "metadata-quorum": Command(_QUORUM_HELP, _add_quorum, _run_quorum),
}
