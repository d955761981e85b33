"""`kafkalog reindex`: rebuild missing or wrong indexes and producer snapshots from the .log files.

Index files that agree with the .log are kept, even if the current settings would produce different ones; --force
replaces those too. Damage in a .log is reported and sets exit status 1; the index files of that segment are kept.
--output json prints one line for each partition, with the number of files written (filesWritten). A broker's directory
is refused. It is safe to run this command beside readers and writers, to run it twice at once (a partition that another
run is working on is left to that run), and to kill it at any time.

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
    """The choice of partitions, and whether correct files are replaced too."""
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
    maintenance.log_to_stderr()  # before the kernels are loaded, as they may be compiled then
    from pyspark_kafkalog.maintenance.repair.reindex_job import ReindexJob

    job = ReindexJob(numbers=tuple(options.partition or ()), force=options.force)
    return maintenance.run_job(options, job, interval_s=lambda _: _INTERVAL_S)
