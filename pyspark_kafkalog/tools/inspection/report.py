"""`kafkalog report`: write a report on a log directory as one HTML page, for any browser.

The report shows topics with configurations, partitions with watermarks and skew, segments over time and by size,
writers over time, lag of consumer groups, past and due work of cleaner and retention, the largest keys, and findings
that need an operator, with what was read to find them. The page is self-contained: it can be mailed, and opens without
a network. The log directory is not changed; it may be a broker's directory, also while the broker runs.

Damage is looked for in the metadata log, checkpoints, and names and sizes of files. The bytes of batches are not
checked, unless --verify reads all of them, as `kafkalog verify` does, in this one process. Exit status: 0 the page is
written; 1 it cannot be, or shows only why the metadata log cannot be loaded; findings do not change it.

examples:
  kafkalog report /data/log -o report.html
  kafkalog report /data/log -o report.html --history /data/maintenance-runs
  kafkalog report /data/log -o report.html --verify
  kafkalog report --path /var/lib/kafka/data --sample-bytes 0 -o -
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import KafkalogError, UnsupportedFormatError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.tools.command import UsageError, add_read_to_log_end, path_or_url
from pyspark_kafkalog.tools.running import warn_of_unread_offsets

if TYPE_CHECKING:
    from pyspark_kafkalog.report.facts import RootFacts

_SAMPLE_BYTES = 256 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The root, as a positional argument or `--path`; the output file; further sources of the report."""
    parser.add_argument("root", nargs="?", metavar="ROOT", type=path_or_url, help="the log directory")
    parser.add_argument("--path", metavar="ROOT", type=path_or_url, help="the log directory, as with other commands")
    add_read_to_log_end(parser)
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        default=Path("report.html"),
        help="the file to write, - for stdout (default: report.html)",
    )
    parser.add_argument(
        "--history",
        metavar="DELTA_PATH",
        type=Path,
        help="the Delta table of the maintenance jobs' runs (their --history)",
    )
    parser.add_argument(
        "--sample-bytes",
        metavar="BYTES",
        type=int,
        default=_SAMPLE_BYTES,
        help=f"how much of the log's end to read for the largest keys, 0: nothing (default: {_SAMPLE_BYTES})",
    )

    parser.add_argument(
        "--verify",
        action="store_true",
        help="read and check the bytes of all batches too, as kafkalog verify does, and show its findings",
    )


def run(options: argparse.Namespace) -> int:
    """Write the page; prints a summary of its contents to sys.stdout."""
    if (options.root is None) == (options.path is None):
        raise UsageError("name one log directory, as an argument or with --path")
    if options.sample_bytes < 0:
        raise UsageError(f"--sample-bytes must be 0 or more, not {options.sample_bytes}")
    from pyspark_kafkalog.report.page import render

    root = _facts(options)
    page = render(root)
    if str(options.output) == "-":
        sys.stdout.write(page)
        return _status(root)
    try:
        options.output.write_text(page, encoding="utf-8")
    except OSError as error:  # it does not name the file if the disk is full
        raise OSError(error.errno, error.strerror, str(options.output)) from None
    partitions = sum(len(each.partitions) for each in root.topics)
    sys.stdout.write(
        f"{options.output}: {len(root.topics):,} topics, {partitions:,} partitions, {len(root.findings):,} findings\n"
    )
    for unread in root.coverage.unread:
        sys.stdout.write(f"not read: {unread}\n")
    return _status(root)


def _facts(options: argparse.Namespace) -> RootFacts:
    from pyspark_kafkalog.maintenance.verify.job import findings_of_unopened
    from pyspark_kafkalog.report.gather import GatherOptions, gather, unopened

    path = options.root or options.path
    try:
        log_dir = LogDir.open(path, read_to_log_end=options.read_to_log_end)
    except UnsupportedFormatError:
        raise  # for a later version of this package
    except KafkalogError:
        findings = findings_of_unopened(path)
        if not findings:
            raise
        return unopened(path, findings)
    warn_of_unread_offsets("report", log_dir)
    return gather(
        log_dir.root,
        GatherOptions(sample_bytes=options.sample_bytes, runs_table=options.history, verify=options.verify),
    )


def _status(root: RootFacts) -> int:
    """The exit status: 1 if the log directory cannot be opened, and the page has only what is wrong with it."""
    if root.is_opened:
        return 0
    sys.stderr.write(f"kafkalog report: the metadata log of {root.path} cannot be loaded, see the findings\n")
    return 1
