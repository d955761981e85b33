"""`kafkalog export`: prepare partitions for a Kafka broker to mount, or copy a log directory.

Without --to, only Kafka's checkpoint files are written into the log directory itself: recovery points, high watermarks
and log start offsets as of the newest commit, as after a clean shutdown of a broker. An adopted directory needs these
before it is returned to its broker (docs/MIGRATING.md, "Back to Kafka"). The broker knows its topics as they were when
the directory was adopted. Later changes are listed, and refused without --set-aside DIR. With it, the topics and
partitions that the broker does not know are placed in DIR, a native log directory, and a script with the commands to
run on the broker is printed. With --to the partitions are copied as well:

  into a new or empty directory        a backup: a whole log directory, with everything that the original holds
  into a stopped broker's directory    the broker serves the records when it is started next

Writers and maintenance may continue: the copy is as of one commit. A backup has the original's cluster id and directory
id, and queries continue with it in the original's place; never write to both. An incomplete backup cannot be opened;
if the command is killed, run it again.

To mount topics in a broker's directory, create them on the broker first, with the same number of partitions and the
same configurations (kafkalog configs --describe), stop the broker, export, start it. The broker's topic ids are kept.
Partitions that have records there are refused unless --overwrite is given. Consumer groups are exported with the topic
__consumer_offsets, if the broker has it with the same number of partitions.

Closed segments are hard-linked if both directories are on one file system and --copy is not given; the active segment
is always copied.

examples:
  kafkalog export --path /var/lib/kafka/data --set-aside /var/lib/kafka/set-aside > back-to-kafka.sh
  kafkalog export --path /data/log --to /backup/log
  kafkalog export --path /data/log --to /var/lib/kafka/data --topic 'orders|returns'
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import UnknownTopicError
from pyspark_kafkalog.tools.command import UsageError, add_output, add_path, open_log_dir, print_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark_kafkalog.maintenance.export.log_copy import ExportedPartition
    from pyspark_kafkalog.root.own import OwnRoot


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--path`, the destination, and the topics."""
    add_path(parser)
    parser.add_argument("--to", metavar="DIR", type=Path, help="copy the partitions there; default: checkpoints only")
    parser.add_argument("--topic", metavar="TOPIC", help="only a topic, or a regular expression of topics (--to)")
    parser.add_argument("--copy", action="store_true", help="copy closed segments too, make no hard links (--to)")
    parser.add_argument("--overwrite", action="store_true", help="replace what the broker's partitions hold (--to)")
    parser.add_argument(
        "--set-aside", metavar="DIR", type=Path, help="put what the broker does not know there, and print its commands"
    )
    parser.add_argument(
        "--server-properties",
        metavar="FILE",
        type=Path,
        help="the broker's configuration file, if adopting named it: what it sets is no change (without --to)",
    )
    add_output(parser, "one object a line, by partition")


def run(options: argparse.Namespace) -> int:
    """Export; prints the exported partitions to sys.stdout."""
    if options.to is None and (options.topic is not None or options.copy or options.overwrite):
        raise UsageError("--topic, --copy and --overwrite go with --to")
    if options.to is not None and (options.set_aside is not None or options.server_properties is not None):
        raise UsageError("--set-aside and --server-properties do not go with --to")
    if options.set_aside is not None and options.output == "json":
        raise UsageError("--set-aside prints a script, which --output json cannot")
    root = open_log_dir(options).own_root()
    from pyspark_kafkalog.maintenance.export.export import export_to
    from pyspark_kafkalog.tools.topic_filter import topic_pattern

    exported: Sequence[ExportedPartition]
    if options.to is None:
        exported = _return_to_broker(root, options)
        if options.set_aside is not None:
            return 0
    else:
        topics = None
        if options.topic is not None:
            pattern = topic_pattern(options.topic)
            topics = [name for name in root.topics() if pattern.matches(name)]
            if not topics:
                raise UnknownTopicError(f"there is no topic {options.topic} in {options.path}")
        exported = export_to(root, options.to, topics, link=not options.copy, overwrite=options.overwrite)
    if options.output == "json":
        for each in exported:
            print_json(_tree(each))
    else:
        _print(exported, options.to)
    return 0


def _return_to_broker(root: OwnRoot, options: argparse.Namespace) -> Sequence[ExportedPartition]:
    """Export in place; with --set-aside, print the script for the broker."""
    from pyspark_kafkalog.maintenance.export.return_to_broker import return_to_broker
    from pyspark_kafkalog.tools.broker_commands import broker_script

    done = return_to_broker(root, set_aside=options.set_aside, server_properties=options.server_properties)
    if done.differences is None:
        sys.stderr.write(
            "No metadata log of a broker is kept here, so it is unknown which topics and configurations it has.\n"
        )
    elif options.set_aside is not None:
        sys.stdout.write(broker_script(options.path.resolve(), done.differences, done.aside))
    return done.exported


def _print(exported: Sequence[ExportedPartition], target: Path | None) -> None:
    if target is None:
        sys.stdout.write(f"Wrote the checkpoints of {len(exported)} partitions.\n")
        return
    linked, copied = sum(each.linked_bytes for each in exported), sum(each.copied_bytes for each in exported)
    sys.stdout.write(
        f"Exported {len(exported)} partitions to {target}: {linked} bytes linked, {copied} bytes copied.\n"
    )


def _tree(each: ExportedPartition) -> dict[str, object]:
    return {
        "topic": each.topic_partition.topic,
        "partition": each.topic_partition.partition,
        "logStartOffset": each.log_start_offset,
        "highWatermark": each.high_watermark,
        "linkedBytes": each.linked_bytes,
        "copiedBytes": each.copied_bytes,
    }
