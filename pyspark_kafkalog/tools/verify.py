"""`kafkalog verify`: check every batch, index entry, snapshot and checkpoint of a log directory, native or a broker's.

It is read-only, and safe beside writers, readers and maintenance: files that they change meanwhile are checked again.
--output json prints one line for each finding ("action": "finding"), with its severity, file, position, offset, kind
("what"), the expected and the found value, and the remedy; and one line for each partition when it is done. Findings
about the directory itself are reported with __cluster_metadata, partition 0. Severities:

  error    bytes are not what they must be, or committed records cannot be read: exit status 1
  warning  no committed record is affected, or the next writer, or broker, repairs it automatically
  info     left by running or killed writes and maintenance; it is removed automatically

--repair first prints its plan ("action": "repair", "state": "planned"); with --dry-run it stops there. Then it carries
out the repairs ("done", or "failed" with the error) and verifies the repaired items again. It rebuilds what can be
derived: indexes, snapshots, checkpoints, hints; it finishes interrupted swaps and removes leftover files by the rules.
It never changes committed records: damaged ones remain errors, with a remedy. --repair refuses a broker's directory.

Exit status: 0 no errors, or none left; 1 errors, or something could not be done; 2 wrong options. --interval is an hour
by default.

examples:
  kafkalog verify --path /data/log | jq 'select(.action == "finding" and .severity != "info")'
  kafkalog verify --path /var/lib/kafka/data --topic orders --deep
  kafkalog verify --path /data/log --repair --dry-run
  spark-submit jobs/verify.py --path /data/log --repair
"""

from __future__ import annotations

import argparse
import sys

from pyspark_kafkalog.tools import maintenance

USAGE_EXIT_CODE = maintenance.USAGE_EXIT_CODE

_INTERVAL_S = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The extent of the checks, and whether to repair."""
    maintenance.add_job_arguments(parser)
    parser.add_argument("--repair", action="store_true", help="set right what can be, see above")
    parser.add_argument(
        "--deep",
        action="store_true",
        help="check the records of compressed batches too, which takes as long as decompressing them; "
        "those of uncompressed batches, and all CRCs, are checked in any case",
    )


def run(options: argparse.Namespace) -> int:
    """Run the job; returns its exit status."""
    maintenance.log_to_stderr()  # before the kernels are loaded, as they may be compiled then
    from pyspark_kafkalog.maintenance.verify.job import VerifyJob, open_or_findings

    if options.loop and options.interval is None:
        options.interval = _INTERVAL_S  # a broker's directory has no settings that define it
    output = maintenance.job_output(options)
    log_dir, findings = open_or_findings(options.path)
    if log_dir is None:
        for finding in findings:
            output.tell(finding.tree())
        sys.stderr.write(f"kafkalog verify: the metadata log of {options.path} cannot be loaded, see the findings\n")
        return 1
    job = VerifyJob(output.tell, is_repairing=options.repair, are_records_checked=options.deep)
    return maintenance.run_job(options, job, interval_s=lambda _: _INTERVAL_S, output=output)
