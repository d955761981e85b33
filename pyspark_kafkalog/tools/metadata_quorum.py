"""`kafkalog metadata-quorum`: the state of the metadata log, as kafka-metadata-quorum describes it.

A log directory of this package has one voter, the node of its meta.properties, which is always the leader; the high
watermark is the offset after the last commit. A broker's directory is refused: who its voters are, a running
controller tells.

examples:
  kafkalog metadata-quorum --path /data/log describe --status
  kafkalog metadata-quorum --path /data/log describe --replication --human-readable
  kafkalog metadata-quorum --path /data/log describe --status --output json
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

from pyspark_kafkalog.tools.command import (
    UsageError,
    add_output,
    add_path,
    open_log_dir,
    print_json,
    print_padded_table,
)

if TYPE_CHECKING:
    from pyspark_kafkalog.metadata.own_root import OwnRoot

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
    add_output(describe, "one object")


def run(options: argparse.Namespace) -> int:
    """Describe the metadata log on sys.stdout."""
    if options.status and options.replication:
        raise UsageError("Only one of --status or --replication should be specified with describe sub-command")
    if not options.status and not options.replication:
        raise UsageError("One of --status or --replication must be specified with describe sub-command")
    if options.status and options.human_readable:
        raise UsageError("The option --human-readable is only supported along with --replication")
    root = open_log_dir(options).own_root()
    if options.status:
        _status(root, as_json=options.output == "json")
    else:
        _replication(root, as_json=options.output == "json", human_readable=options.human_readable)
    return 0


def _status(root: OwnRoot, *, as_json: bool) -> None:
    from pyspark_kafkalog.metadata.commit_log import LEADER_EPOCH

    cluster_id, node_id, directory_id = _ids(root)
    voter: dict[str, Any] = {"id": node_id} | ({} if directory_id is None else {"directoryId": directory_id})
    status = {
        "ClusterId": cluster_id,
        "LeaderId": node_id,
        "LeaderEpoch": LEADER_EPOCH,
        "HighWatermark": root.version,
        "MaxFollowerLag": 0,
        "MaxFollowerLagTimeMs": 0,
        "CurrentVoters": [voter],
        "CurrentObservers": [],
    }
    if as_json:
        print_json(status)
        return
    shown = ", ".join(f'"{name}": {value}' if name == "id" else f'"{name}": "{value}"' for name, value in voter.items())
    texts = {**status, "CurrentVoters": f"[{{{shown}}}]"}
    sys.stdout.write("".join(f"{name + ':':<24}{value}\n" for name, value in texts.items()))


def _replication(root: OwnRoot, *, as_json: bool, human_readable: bool) -> None:
    _, node_id, directory_id = _ids(root)
    now = "0 ms ago" if human_readable else str(root.clock())
    row = (str(node_id), directory_id or "", str(root.version), "0", now, now, "Leader")
    if as_json:
        numbers = {"NodeId": node_id, "LogEndOffset": root.version, "Lag": 0}
        print_json({**dict(zip(_HEADER, row, strict=True)), **numbers})
    else:
        print_padded_table(_HEADER, [row])


def _ids(root: OwnRoot) -> tuple[str | None, int, str | None]:
    """Cluster, node and directory."""
    from pyspark_kafkalog.storage.meta_properties import read_meta_properties
    from pyspark_kafkalog.storage.names import META_PROPERTIES

    properties = read_meta_properties(root.path / META_PROPERTIES)
    return properties.cluster_id, root.store.image.node.broker_id, properties.directory_id
