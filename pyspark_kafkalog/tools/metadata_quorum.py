"""`kafkalog metadata-quorum`: the state of the metadata log, as kafka-metadata-quorum describes it.

A native log directory has one voter, the node of its meta.properties, which is always the leader; the high watermark is
the offset after the last commit. For a Kafka broker's directory the command shows the state on disk, also while the
broker runs: the leader and the voters last known to that node, and the high watermark if the node is the only voter.
Values that only a running leader knows (the high watermark of several voters, the progress of the others, times) are
shown as -, in JSON as null; an unknown leader is -1.

examples:
  kafkalog metadata-quorum --path /data/log describe --status
  kafkalog metadata-quorum --path /data/log describe --replication --human-readable
  kafkalog metadata-quorum --path /var/lib/kafka/data describe --status --output json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.tools.command import (
    NO_VALUE,
    UsageError,
    add_output,
    add_path,
    open_log_dir,
    print_json,
    print_padded_table,
)

if TYPE_CHECKING:
    from pyspark_kafkalog.log_dir import LogDir
    from pyspark_kafkalog.root.broker_metadata.quorum import Quorum, QuorumReplica

_HEADER: Final = (
    "NodeId",
    "DirectoryId",
    "LogEndOffset",
    "Lag",
    "LastFetchTimestamp",
    "LastCaughtUpTimestamp",
    "Status",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--path`, and `describe` with the options of kafka-metadata-quorum."""
    add_path(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    describe = commands.add_parser("describe", help="describe the metadata quorum", allow_abbrev=False)
    describe.add_argument("--status", action="store_true", help="a short summary")
    describe.add_argument("--replication", action="store_true", help="each voter's log end and lag")
    describe.add_argument("--human-readable", action="store_true", help="times as ms that have passed (--replication)")
    add_output(describe, "one object; with --replication one a line, by replica")


def run(options: argparse.Namespace) -> int:
    """Describe the metadata log on sys.stdout."""
    if options.status and options.replication:
        raise UsageError("Only one of --status or --replication should be specified with describe sub-command")
    if not options.status and not options.replication:
        raise UsageError("One of --status or --replication must be specified with describe sub-command")
    if options.status and options.human_readable:
        raise UsageError("The option --human-readable is only supported along with --replication")
    quorum = _quorum(open_log_dir(options))
    if options.status:
        _status(quorum, as_json=options.output == "json")
    else:
        _replication(quorum, as_json=options.output == "json", human_readable=options.human_readable)
    return 0


def _quorum(log_dir: LogDir) -> Quorum:
    from pyspark_kafkalog.root.broker_metadata.broker_quorum import read_broker_quorum
    from pyspark_kafkalog.root.broker_metadata.quorum import own_quorum

    return read_broker_quorum(log_dir.path) if log_dir.is_foreign else own_quorum(log_dir.own_root())


def _status(quorum: Quorum, *, as_json: bool) -> None:
    lag = quorum.max_follower_lag()
    status = {
        "ClusterId": quorum.cluster_id,
        "LeaderId": quorum.leader_id,
        "LeaderEpoch": quorum.leader_epoch,
        "HighWatermark": quorum.high_watermark,
        "MaxFollowerLag": lag,
        "MaxFollowerLagTimeMs": lag,  # known only without followers, and 0 then
        "CurrentVoters": None if quorum.voters is None else [_tree(each) for each in quorum.voters],
        "CurrentObservers": [_tree(each) for each in quorum.observers],
    }
    if as_json:
        print_json(status)
        return
    for name, value in status.items():
        text = json.dumps(value, ensure_ascii=False) if isinstance(value, list) else _text(value)
        sys.stdout.write(f"{name + ':':<24}{text}\n")


def _tree(replica: QuorumReplica) -> dict[str, Any]:
    tree: dict[str, Any] = {"id": replica.node_id}
    if replica.directory_id is not None:
        tree["directoryId"] = replica.directory_id
    if replica.endpoints:
        tree["endpoints"] = list(replica.endpoints)
    return tree


def _replication(quorum: Quorum, *, as_json: bool, human_readable: bool) -> None:
    rows = list(_rows(quorum, human_readable=human_readable))
    if not as_json:
        print_padded_table(_HEADER, [[_text(value) for value in row] for row in rows])
        return
    for row in rows:
        print_json(dict(zip(_HEADER, row, strict=True)))


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


def _text(value: str | int | None) -> str:
    return NO_VALUE if value is None else str(value)
