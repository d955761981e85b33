"""`kafkalog adopt`: convert a Kafka broker's log directory into a native log directory, in place.

Topics, their ids, configurations and partitions, offsets, leader epochs, producer state and open transactions are
kept; no record is copied or rewritten, and a broker can still mount the partitions. The broker must be stopped: a
directory in use by a broker is refused. If the broker was killed, its logs are recovered first, by the broker's rules.
Its metadata log is renamed to __cluster_metadata-0.kafka-stray. If this command is interrupted, run it again.

An open transaction no longer has a coordinator: read_committed stops at its first record. All open transactions are
listed, also with --dry-run, with the commands that end them. One in state PrepareCommit was committed: complete it.

Topics of which the directory has only some partitions are refused, because the others may be in another directory of
log.dirs or on another broker; --create-missing creates the others, empty. Topics' configurations are in the metadata
log, but defaults from server.properties (log.retention.hours, ...) are not in the directory: pass that file with
--server-properties. Topics whose earliest offsets a broker has moved to remote storage are refused, unless
--local-only: their logs would begin at the first local offset. Errors are printed in one line, with exit code 1.

examples:
  kafkalog adopt --path /var/lib/kafka/data --dry-run
  kafkalog adopt --path /var/lib/kafka/data --server-properties /etc/kafka/server.properties
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.storage.filesystem import time_ms
from pyspark_kafkalog.tools.command import add_local_only, add_output, add_path, print_json
from pyspark_kafkalog.tools.transaction_lines import describe_open, ending_command, ending_commands, open_tree

if TYPE_CHECKING:
    from pyspark_kafkalog.root.adopt.adopt import AdoptedPartition, Adoption


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--path`, options for what to adopt, `--dry-run`."""
    add_path(parser, "the broker's log directory")
    parser.add_argument(
        "--server-properties",
        metavar="FILE",
        type=Path,
        help="the broker's configuration file; its settings for topics become those of the directory",
    )
    parser.add_argument(
        "--create-missing", action="store_true", help="make partitions that the directory does not hold, empty"
    )
    add_local_only(parser, "go without the offsets that a tiering broker has moved to remote storage")
    parser.add_argument("--dry-run", action="store_true", help="check, say what would be done, change nothing")
    add_output(parser, "one object")


def run(options: argparse.Namespace) -> int:
    """Adopt the directory; prints the adopted topics to sys.stdout."""
    from pyspark_kafkalog.root.adopt.adopt import adopt

    outcome = adopt(
        options.path,
        server_properties=options.server_properties,
        create_missing=options.create_missing,
        local_only=options.local_only,
        dry_run=options.dry_run,
    )
    if options.output == "json":
        print_json(_tree(outcome))
    else:
        _print(outcome)
    return 0


def _print(outcome: Adoption) -> None:
    if outcome.was_ours:
        sys.stdout.write(f"{outcome.root} is a log directory of this package already: nothing to do.\n")
    elif outcome.dry_run:
        sys.stdout.write(f"{outcome.root} can be adopted: {len(outcome.topics)} topics. Nothing was changed.\n")
    else:
        partitions = len(outcome.partitions)
        sys.stdout.write(f"Adopted {outcome.root}: {len(outcome.topics)} topics with {partitions} partitions.\n")
    for note in outcome.notes:
        sys.stdout.write(f"  {' '.join(note.split())}\n")
    for each in outcome.partitions:
        if each.cut_bytes:
            sys.stdout.write(f"  {each.topic_partition}: {each.cut_bytes} bytes of a damaged tail were cut off\n")
    _print_transactions(outcome)
    if outcome.kept_metadata is not None and not outcome.was_ours:
        done = "would be kept" if outcome.dry_run else "is kept"
        sys.stdout.write(f"  the broker's metadata log {done} as {outcome.kept_metadata.name}\n")


def _print_transactions(outcome: Adoption) -> None:
    found = outcome.open_transactions
    now_ms = time_ms()
    for each in found.in_partitions:
        sys.stdout.write(f"  {each.topic_partition}: {describe_open(each, now_ms)}\n")
    for state in found.states:
        if not any(each.state is state for each in found.in_partitions):
            sys.stdout.write(
                f"  transactional id {state.transactional_id}: {state.status_name}, with no open records here\n"
            )
    commands = ending_commands(outcome.root, found)
    if commands:
        when = "after adopting, end" if outcome.dry_run else "end"
        sys.stdout.write(f"  read_committed ends where a transaction is open; {when} them with\n")
        for command in commands:
            sys.stdout.write(f"    {command}\n")
    if any(each.transactional_id is None for each in found.in_partitions):
        sys.stdout.write(
            "  a transaction without a transactional id may have been committed: if the broker has other directories, "
            "look for its producer id in their __transaction_state before you abort it\n"
        )


def _tree(outcome: Adoption) -> dict[str, Any]:
    return {
        "path": str(outcome.root),
        "dryRun": outcome.dry_run,
        "wasOurs": outcome.was_ours,
        "topics": [{"topic": name, "topicId": topic_id} for name, topic_id in outcome.topics.items()],
        "partitions": [_partition_tree(each) for each in outcome.partitions],
        "nextProducerId": outcome.next_producer_id,
        "keptMetadata": None if outcome.kept_metadata is None else str(outcome.kept_metadata),
        "notes": list(outcome.notes),
        "openTransactions": [
            {**open_tree(each), "command": ending_command(outcome.root, each)}
            for each in outcome.open_transactions.in_partitions
        ],
    }


def _partition_tree(each: AdoptedPartition) -> dict[str, Any]:
    return {
        "topic": each.topic_partition.topic,
        "partition": each.topic_partition.partition,
        "logStartOffset": each.log_start_offset,
        "highWatermark": each.high_watermark,
        "lastStableOffset": each.last_stable_offset,
        "leaderEpoch": each.leader_epoch,
        "cutBytes": each.cut_bytes,
    }
