"""`kafkalog adopt`: make a Kafka broker's log directory ours, in place.

Topics, their ids, configurations and partitions, offsets, leader epochs, producer state and open transactions are taken
over; no record is copied or rewritten, and a broker can still mount the partitions. The broker must be stopped: a
directory that one is using is refused. After a kill its logs are recovered first, as the broker would do it. Its own
metadata log is kept beside ours, as __cluster_metadata-0.kafka-stray. When this is interrupted, run it again.

Topics of which the directory holds only some partitions are refused, unless --create-missing makes the others, empty:
they may lie in another directory of log.dirs, or on another broker. Topics' configurations are in the metadata log;
what server.properties set for all topics (log.retention.hours, ...) is not in the directory at all: name that file
with --server-properties. What goes wrong is said in one line; exit code 1.

examples:
  kafkalog adopt --path /var/lib/kafka/data --dry-run
  kafkalog adopt --path /var/lib/kafka/data --server-properties /etc/kafka/server.properties
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_kafkalog.tools.command import add_output, add_path, print_json

if TYPE_CHECKING:
    from pyspark_kafkalog.metadata.adopt import AdoptedPartition, Adoption


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--path`, what to take along, `--dry-run`."""
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
    parser.add_argument("--dry-run", action="store_true", help="check, say what would be done, change nothing")
    add_output(parser, "one object")


def run(options: argparse.Namespace) -> int:
    """Adopt; tells on sys.stdout what was taken over."""
    from pyspark_kafkalog.metadata.adopt import adopt

    outcome = adopt(
        options.path,
        server_properties=options.server_properties,
        create_missing=options.create_missing,
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
        return
    if outcome.dry_run:
        sys.stdout.write(f"{outcome.root} can be adopted: {len(outcome.topics)} topics. Nothing was changed.\n")
    else:
        partitions = len(outcome.partitions)
        sys.stdout.write(f"Adopted {outcome.root}: {len(outcome.topics)} topics with {partitions} partitions.\n")
    for note in outcome.notes:
        sys.stdout.write(f"  {' '.join(note.split())}\n")
    for each in outcome.partitions:
        if each.cut_bytes:
            sys.stdout.write(f"  {each.topic_partition}: {each.cut_bytes} bytes of a damaged tail were cut off\n")
        if each.last_stable_offset < each.high_watermark:
            sys.stdout.write(
                f"  {each.topic_partition}: a transaction is open since offset {each.last_stable_offset}; "
                "read_committed ends there\n"
            )
    if outcome.kept_metadata is not None:
        done = "would be kept" if outcome.dry_run else "is kept"
        sys.stdout.write(f"  the broker's metadata log {done} as {outcome.kept_metadata.name}\n")


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
