"""`kafkalog promote`: let a log directory that follows a leader take writes.

The log directory no longer follows. Every partition gets a leader epoch above those of the leader, so that records
which the former leader still takes are recognized as diverging. Stop `kafkalog follow` first, when it has caught up:
records that it has not copied yet are not here. Transactions that were open stay open; `kafkalog transactions` lists
them.

examples:
  kafkalog promote --path /data/copy
"""

from __future__ import annotations

import argparse

from pyspark_kafkalog.root.following import promote
from pyspark_kafkalog.tools.command import add_path
from pyspark_kafkalog.tools.running import open_log_dir
from pyspark_kafkalog.units import plural


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_path(parser)


def run(options: argparse.Namespace) -> int:
    log_dir = open_log_dir(options)
    promoted = promote(log_dir.root.native())
    print(
        f"{log_dir.path} no longer follows {promoted.following.leader} and takes writes: "
        f"{plural(promoted.partitions_count, 'partition')} with a new leader epoch"
    )
    return 0
