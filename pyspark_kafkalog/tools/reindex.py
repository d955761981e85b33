"""`kafkalog reindex`: make indexes and producer snapshots anew from the .log files, where they are missing or wrong.

Index files that the .log shows to be right stay, also where today's settings would make others; --force replaces those
too. Damage in a .log is told of and makes exit status 1; that segment's index files stay as they are. --output json
prints one line a partition, with the number of files written (filesWritten). Not for a broker's directory. Safe to run
beside readers and writers, twice at once (a partition that another run has is left to it), and to kill at any time.

Exit status: 0 all fine, also where another run has a partition; 1 a .log is damaged, or something could not be done; 2
wrong options. --interval is an hour by default.

examples:
  kafkalog reindex --path /data/log --dry-run | jq 'select(.filesWritten > 0)'
  kafkalog reindex --path /data/log --topic orders --partition 3
"""

from __future__ import annotations

import argparse

from pyspark_kafkalog.tools import maintenance
from pyspark_kafkalog.tools.command import UsageError

USAGE_EXIT_CODE = maintenance.USAGE_EXIT_CODE

_INTERVAL_S = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which partitions, and whether right files are replaced too."""
    maintenance.add_job_arguments(parser)
    parser.add_argument(
        "--partition",
        action="append",
        type=maintenance.not_negative,
        metavar="N",
        help="only this partition of the topic; may be repeated (default: all partitions)",
    )
    parser.add_argument("--force", action="store_true", help="replace index files that are right but differ, too")


def run(options: argparse.Namespace) -> int:
    """Run the job; returns its exit status."""
    if options.partition and not options.topic:
        raise UsageError("--partition is of a topic: name it with --topic")
    maintenance.log_to_stderr()  # before kernels are loaded, which may have to be compiled
    from pyspark_kafkalog.maintenance.reindex_job import ReindexJob

    job = ReindexJob(numbers=tuple(options.partition or ()), force=options.force)
    return maintenance.run_job(options, job, interval_s=lambda _: _INTERVAL_S)
