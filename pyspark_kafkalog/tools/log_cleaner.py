"""`kafkalog log-cleaner`: clean compacted topics: keep the last record of each key, by Kafka's rules.

The filthiest partitions come first. log.cleaner.threads is the number of concurrent tasks (default: all cores); they
share log.cleaner.dedupe.buffer.size and log.cleaner.io.max.bytes.per.second. A partition whose cleaning fails is
marked uncleanable (see kafkalog metrics); the others continue, and the next run retries it. --output json prints one
line for each partition of a compacted topic when it is done; "skipped" states why it was not cleaned. It is safe to run
this command beside readers and writers, to run it twice at once (a partition that another run is working on is left to
that run), and to kill it at any time.

Exit status: 0 all fine, also where another run has a partition; 1 a partition failed, or nothing could be done; 2 wrong
options. With --loop: 0 when ended by SIGTERM or SIGINT, 1 when the Spark session is gone. --interval is
log.cleaner.backoff.ms by default.

examples:
  kafkalog log-cleaner --path /data/log
  kafkalog log-cleaner --path /data/log --topic users --dry-run | jq .dirtyPercent
  kafkalog log-cleaner --path /data/log --loop
  spark-submit jobs/log_cleaner.py --path /data/log
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
    maintenance.log_to_stderr()  # before the kernels are loaded, as they may be compiled then
    from pyspark_kafkalog.maintenance.cleaner.job import CleanerJob, cleaner_slots

    return maintenance.run_job(
        options, CleanerJob(), interval_s=lambda config: config.log_cleaner_backoff_ms / 1000, slots=cleaner_slots
    )
