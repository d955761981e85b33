"""`kafkalog merge-segments`: combine small closed segments into full ones, without changing batches or offsets.

Adjacent segments below half of segment.bytes are merged if that is worth the copying. --output json prints one line
for each partition when it is done. It is safe to run this command beside readers and writers, to run it twice at once
(a partition that another run is working on is left to that run), and to kill it at any time.

Exit status: 0 all fine, also where another run has a partition; 1 a partition failed, or nothing could be done; 2 wrong
options. With --loop: 0 when ended by SIGTERM or SIGINT, 1 when the Spark session is gone. --interval is an hour by
default.

examples:
  kafkalog merge-segments --path /data/log
  kafkalog merge-segments --path /data/log --topic orders --dry-run
  spark-submit jobs/merge_segments.py --path /data/log
"""

from __future__ import annotations

import argparse

from pyspark_kafkalog.tools import maintenance

USAGE_EXIT_CODE = maintenance.USAGE_EXIT_CODE
_HOUR_S = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The common options of maintenance jobs."""
    maintenance.add_job_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the job; returns its exit status."""
    from pyspark_kafkalog.maintenance.jobs.chunks import MERGE_JOB

    return maintenance.run_job(options, MERGE_JOB, interval_s=lambda config: _HOUR_S)
