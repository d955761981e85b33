"""`kafkalog retention`: delete old segments of all topics, as a broker's log manager does.

retention.ms, retention.bytes, cleanup.policy and the log start offset apply, by Kafka's rules; the active segment is
deleted too if all of it is due. --output json prints one line for each partition when it is done. It is safe to run
this command beside readers and writers, to run it twice at once (a partition that another run is working on is left to
that run), and to kill it at any time.

Exit status: 0 all fine, also where another run has a partition; 1 a partition failed, or nothing could be done; 2 wrong
options. With --loop: 0 when ended by SIGTERM or SIGINT, 1 when the Spark session is gone. --interval is
log.retention.check.interval.ms by default.

examples:
  kafkalog retention --path /data/log
  kafkalog retention --path /data/log --topic orders --dry-run | jq .bytesDropped
  kafkalog retention --path /data/log --loop --interval 300
  spark-submit jobs/retention.py --path /data/log
"""

from __future__ import annotations

import argparse

from pyspark_kafkalog.tools import maintenance

USAGE_EXIT_CODE = maintenance.USAGE_EXIT_CODE


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The common options of maintenance jobs."""
    maintenance.add_job_arguments(parser)


def run(options: argparse.Namespace) -> int:
    """Run the job; returns its exit status."""
    from pyspark_kafkalog.maintenance.jobs.chunks import RETENTION_JOB

    return maintenance.run_job(
        options, RETENTION_JOB, interval_s=lambda config: config.log_retention_check_interval_ms / 1000
    )
