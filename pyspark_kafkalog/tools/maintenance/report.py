"""`kafkalog report`: the page about a log directory, and what is printed about it."""

from __future__ import annotations

import argparse
import sys

from pyspark_kafkalog.errors import KafkalogError, UnsupportedFormatError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.verify.job import findings_of_unopened
from pyspark_kafkalog.report.facts import RootFacts
from pyspark_kafkalog.report.gather import GatherOptions, gather, unopened
from pyspark_kafkalog.report.page import render
from pyspark_kafkalog.tools.command import UsageError
from pyspark_kafkalog.tools.running import warn_of_unread_offsets
from pyspark_kafkalog.units import plural


def run(options: argparse.Namespace) -> int:
    """Write the page; prints a summary of its contents to sys.stdout."""
    if (options.root is None) == (options.path is None):
        raise UsageError("name one log directory, as an argument or with --path")
    if options.sample_bytes < 0:
        raise UsageError(f"--sample-bytes must be 0 or more, not {options.sample_bytes}")

    root = _facts(options)
    page = render(root)
    if str(options.file) == "-":
        sys.stdout.write(page)
        return _status(root)
    try:
        options.file.write_text(page, encoding="utf-8")
    except OSError as error:  # it does not name the file if the disk is full
        raise OSError(error.errno, error.strerror, str(options.file)) from None
    partitions = sum(len(each.partitions) for each in root.topics)
    counts = ((len(root.topics), "topic"), (partitions, "partition"), (len(root.findings), "finding"))
    sys.stdout.write(f"{options.file}: {', '.join(plural(count, name) for count, name in counts)}\n")
    for unread in root.coverage.unread:
        sys.stdout.write(f"not read: {unread}\n")
    return _status(root)


def _facts(options: argparse.Namespace) -> RootFacts:

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
