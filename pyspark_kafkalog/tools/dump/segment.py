"""Dumps of files of record batches: `.log`, KRaft's `.checkpoint` and the `.staged` files of this package."""

from __future__ import annotations

import os

from pyspark_kafkalog.storage.names import CHECKPOINT_SUFFIX, LOG_SUFFIX
from pyspark_kafkalog.tools.dump.findings import Findings
from pyspark_kafkalog.tools.dump.indexes import base_offset_of
from pyspark_kafkalog.tools.dump.java_text import INT32_MAX, absolute_path, parse_long, wrap_int64
from pyspark_kafkalog.tools.dump.printer import Printer
from pyspark_kafkalog.tools.dump.walk import DumpError, LogFile

BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
_OFFSET_DIGITS = 20
_EPOCH_DIGITS = 10


def dump_segment(path: str, printer: Printer, findings: Findings, *, deep: bool, max_bytes: int) -> None:
    """Print the batches of a file, and their records if `deep`; stops before the batch that ends after `max_bytes`.

    Raises DumpError where Kafka's tool ends with an exception.
    """
    _start(path, printer)
    with LogFile(path) as log:
        end = log.slice_end(0, max_bytes)
        valid_bytes = 0
        file = absolute_path(path)
        last_offset = -1
        for batch in log.batches(0, end):
            printer.batch(batch)
            if deep:
                for record in batch.records():
                    if last_offset != -1 and record.offset != wrap_int64(last_offset + 1):
                        findings.non_consecutive(file, last_offset, record.offset)
                    last_offset = record.offset
                    printer.record(batch, record)
            valid_bytes += batch.size_bytes
        if end > valid_bytes and max_bytes == INT32_MAX:
            printer.invalid_tail(os.path.basename(path), end - valid_bytes)


def _start(path: str, printer: Printer) -> None:
    name = os.path.basename(path)
    if name == BOOTSTRAP_CHECKPOINT:
        printer.bootstrap_start()
    elif name.endswith(CHECKPOINT_SUFFIX):
        end_offset = parse_long(name[:_OFFSET_DIGITS])
        epoch = parse_long(name[_OFFSET_DIGITS + 1 : _OFFSET_DIGITS + 1 + _EPOCH_DIGITS])
        if end_offset is None or epoch is None or not -INT32_MAX <= epoch <= INT32_MAX:
            raise DumpError(f"{path}: a snapshot's name is <20 digit end offset>-<10 digit epoch>{CHECKPOINT_SUFFIX}")
        printer.snapshot_start(end_offset, epoch)
    elif name.endswith(LOG_SUFFIX):
        printer.log_start(base_offset_of(path))
    else:
        printer.staged_start()
