"""`kafkalog verify`: check every batch, index entry, snapshot and checkpoint of a log directory, ours or a broker's.

Read-only, and safe beside writers, readers and maintenance: what they change meanwhile is looked at anew. --output json
prints one line for each finding ("action": "finding"), with its severity, file, position, offset, kind ("what"), what
was expected and found, and what to do; and one line for each partition when it is done. What is found of the
directory itself comes with __cluster_metadata, partition 0. Severities:

  error    bytes are not what they must be, or committed records cannot be read: exit status 1
  warning  no committed record is touched, or the next writer, or broker, sets it right by itself
  info     left over by writes and maintenance under way, or killed; it goes by itself

--repair says first what it will do ("action": "repair", "state": "planned"), with --dry-run no more than that; then it
does it ("done", or "failed" with the error) and verifies again what it was about. It makes anew what can be derived:
indexes, snapshots, checkpoints, hints; it finishes swaps that were killed and removes what is left over by the rules.
Committed records are never touched: damaged ones stay errors, which say what to do. Not for a broker's directory.

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
    """How much is checked, and whether it is repaired."""
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
    maintenance.log_to_stderr()  # before kernels are loaded, which may have to be compiled
    from pyspark_kafkalog.maintenance.verify_job import VerifyJob, open_or_findings

    if options.loop and options.interval is None:
        options.interval = _INTERVAL_S  # a broker's directory has no settings to take it from
    output = maintenance.job_output(options)
    log_dir, findings = open_or_findings(options.path)
    if log_dir is None:
        for finding in findings:
            output.tell(finding.tree())
        sys.stderr.write(f"kafkalog verify: the metadata log of {options.path} cannot be loaded, see the findings\n")
        return 1
    job = VerifyJob(output.tell, is_repairing=options.repair, are_records_checked=options.deep)
    return maintenance.run_job(options, job, interval_s=lambda _: _INTERVAL_S, output=output)
