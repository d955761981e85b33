"""`kafkalog dump-log`: print the contents of the files of a log, as Kafka's kafka-dump-log does.

stdout, stderr and the exit code are those of kafka-dump-log 4.1. If that ends with a Java exception, this command
prints the same stdout up to there, then one line on stderr, and exits with 1. It also reads `.staged` files, and
objects by their URLs.

In place of --files, an offset of a partition names what is dumped: the segment with that offset, on a disk or in remote
storage, also a compressed or encrypted one; in an object store also what is not merged into segments yet. Bytes of
objects are copied to a scratch file first, in TMPDIR.

examples:
  kafkalog dump-log --files /data/log/orders-0/00000000000000000000.log --print-data-log
  kafkalog dump-log --files /data/log/orders-0/00000000000000000000.index,/data/log/orders-0/00000000000000000000.log
  kafkalog dump-log --files /data/log/__consumer_offsets-0/00000000000000000000.log --offsets-decoder --output json
  kafkalog dump-log --path s3://bucket/log --topic orders --partition 0 --offset 1234 --print-data-log
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Final

from pyspark_kafkalog.root.commit.cut_files import cut_file_first_offset
from pyspark_kafkalog.storage.names import (
    CHECKPOINT_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    PRODUCER_SNAPSHOT_SUFFIX,
    STAGED_SUFFIX,
    TIME_INDEX_SUFFIX,
    TXN_INDEX_SUFFIX,
    TopicPartition,
)
from pyspark_kafkalog.tools.command import UsageError, add_path_or_remote_storage
from pyspark_kafkalog.tools.dump.decoders import internal_topic_decoder
from pyspark_kafkalog.tools.dump.indexes import (
    CorruptSnapshotError,
    Findings,
    base_offset_of,
    dump_offset_index,
    dump_producer_snapshot,
    dump_time_index,
    dump_transaction_index,
)
from pyspark_kafkalog.tools.dump.java_text import absolute_path, normalize_path, parse_long, split_files, wrap_int64
from pyspark_kafkalog.tools.dump.printers import (
    DECODER_CLASSES,
    STRING_DECODER,
    JsonPrinter,
    PlainDecoder,
    Printer,
    RecordDecoder,
    TextPrinter,
)
from pyspark_kafkalog.tools.dump.walk import DumpError, LogFile, log_at
from pyspark_kafkalog.tools.output import notice
from pyspark_kafkalog.tools.running import open_log_dir
from pyspark_kafkalog.units import INT32_MAX

_DEFAULT_MAX_MESSAGE_BYTES: Final = 5 * 1024 * 1024
INTERNAL_TOPICS_BY_DECODER: Final = {
    "offsets": "__consumer_offsets",
    "transaction-log": "__transaction_state",
    "cluster-metadata": "__cluster_metadata",
    "share-group-state": "__share_group_state",
}
_SEGMENT_SUFFIXES: Final = (LOG_SUFFIX, CHECKPOINT_SUFFIX, STAGED_SUFFIX)


class _Once(argparse.Action):
    """An option that may not be given twice: the first of two lists would be lost."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        if getattr(namespace, self.dest) is not None:
            parser.error(f"argument {option}: given more than once")
        setattr(namespace, self.dest, values)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of kafka-dump-log, `--output`, and those that name a segment by an offset."""
    parser.add_argument(
        "--files", action=_Once, metavar="F[,F...]", help="files to dump, or URLs of objects, separated by commas"
    )
    add_path_or_remote_storage(parser)
    parser.add_argument("--topic", metavar="NAME", help="in place of --files: dump what holds this topic's")
    parser.add_argument("--partition", type=_int32, metavar="N", help="and partition's")
    parser.add_argument("--offset", type=_int64, metavar="N", help="and this offset")
    parser.add_argument("--deep-iteration", action="store_true", help="show each record, not only the batches")
    parser.add_argument("--print-data-log", action="store_true", help="show keys and payloads (and each record)")
    parser.add_argument("--skip-record-metadata", action="store_true", help="show only the contents of records")
    parser.add_argument("--index-sanity-check", action="store_true", help="only check indexes as a broker does")
    parser.add_argument(
        "--verify-index-only", action="store_true", help="check indexes against the log, print no entry"
    )
    parser.add_argument("--max-bytes", type=_int32, default=INT32_MAX, help="read at most this many bytes of each .log")
    parser.add_argument(
        "--max-message-size",
        type=_int32,
        default=_DEFAULT_MAX_MESSAGE_BYTES,
        help="size of the largest batch, for checking an index (default %(default)s)",
    )
    for name, topic in INTERNAL_TOPICS_BY_DECODER.items():
        parser.add_argument(f"--{name}-decoder", action="store_true", help=f"decode the records of {topic}")
    for name in ("key", "value"):
        parser.add_argument(
            f"--{name}-decoder-class",
            nargs="?",
            const=STRING_DECODER,
            choices=DECODER_CLASSES,
            metavar="CLASS",
            help=f"show the {name} as text or a number: {', '.join(DECODER_CLASSES)}",
        )
    parser.add_argument("--output", choices=("text", "json"), default="text", help="json: one object a line")


def _int32(text: str) -> int:
    value = parse_long(text)
    if value is None or not -INT32_MAX - 1 <= value <= INT32_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a 32-bit number")
    return value


def _int64(text: str) -> int:
    value = parse_long(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a 64-bit number")
    return value


def run(options: argparse.Namespace) -> int:
    """Dump the files to sys.stdout and their errors to sys.stderr. Returns the exit code."""
    _check(options)
    decoder = _decoder(options)
    printer_class = JsonPrinter if options.output == "json" else TextPrinter
    printer: Printer = printer_class(sys.stdout, decoder=decoder, skip_metadata=options.skip_record_metadata)
    findings = Findings()
    deep = options.deep_iteration or decoder is not None
    try:
        if options.files is None:
            _dump_at(printer, findings, options, deep=deep)
        for name in split_files(options.files) if options.files is not None else ():
            path = normalize_path(name)
            printer.file(path)
            _dump_file(path, printer, findings, options, deep=deep)
    except DumpError as error:
        notice(f"kafkalog dump-log: {error}")
        return 1
    sys.stdout.flush()
    findings.write(sys.stderr)
    return 0


def _check(options: argparse.Namespace) -> None:
    place = (options.topic, options.partition, options.offset)
    is_by_offset = any(each is not None for each in (*place, options.path, options.remote_storage))
    if options.files is not None and is_by_offset:
        raise UsageError("--files cannot be used with --path, --remote-storage, --topic, --partition and --offset")
    if options.files is None and not is_by_offset:
        raise UsageError("the following arguments are required: --files, or --path, --topic, --partition and --offset")
    if options.files is None and None in place:
        raise UsageError("the following arguments are required with --path: --topic, --partition and --offset")


def _decoder(options: argparse.Namespace) -> RecordDecoder | None:
    """The decoder of records' contents; None if they are not printed. The first decoder of the list wins."""
    for name in INTERNAL_TOPICS_BY_DECODER:
        if getattr(options, f"{name.replace('-', '_')}_decoder"):
            return internal_topic_decoder(INTERNAL_TOPICS_BY_DECODER[name])
    if options.print_data_log or options.key_decoder_class or options.value_decoder_class:
        return PlainDecoder(options.key_decoder_class or STRING_DECODER, options.value_decoder_class or STRING_DECODER)
    return None


def _dump_file(path: str, printer: Printer, findings: Findings, options: argparse.Namespace, *, deep: bool) -> None:
    name = path.rpartition("/")[2]
    _, dot, suffix = name.rpartition(".")
    suffix = dot + suffix
    if not dot:
        raise DumpError(f"{path}: the file's name has no suffix")
    checks = {"sanity_only": options.index_sanity_check, "verify_only": options.verify_index_only}
    if suffix in _SEGMENT_SUFFIXES:
        dump_segment(path, printer, findings, deep=deep, max_bytes=options.max_bytes)
    elif suffix == INDEX_SUFFIX:
        dump_offset_index(path, printer, findings, max_message_bytes=options.max_message_size, **checks)
    elif suffix == TIME_INDEX_SUFFIX:
        dump_time_index(path, printer, findings, **checks)
    elif suffix == TXN_INDEX_SUFFIX:
        dump_transaction_index(path, printer)
    elif suffix == PRODUCER_SNAPSHOT_SUFFIX:
        try:
            dump_producer_snapshot(path, printer)
        except CorruptSnapshotError as error:
            _report(str(error))
    else:
        _report(f"Ignoring unknown file {path}")


def _report(message: str) -> None:
    notice(message)


def _dump_at(printer: Printer, findings: Findings, options: argparse.Namespace, *, deep: bool) -> None:
    topic_partition = TopicPartition(options.topic, options.partition)
    found = log_at(open_log_dir(options), topic_partition, options.offset, max_bytes=options.max_bytes)
    printer.file(found.name)
    printer.log_start(found.base_offset)
    with LogFile(found.name, found.fd) as log:
        _dump_batches(log, printer, findings, deep=deep, max_bytes=options.max_bytes)


BOOTSTRAP_CHECKPOINT = "bootstrap.checkpoint"
_OFFSET_DIGITS = 20
_EPOCH_DIGITS = 10


def dump_segment(path: str, printer: Printer, findings: Findings, *, deep: bool, max_bytes: int) -> None:
    """Print the batches of a file, and their records if `deep`; stops before the batch that ends after `max_bytes`.

    Raises DumpError where Kafka's tool ends with an exception.
    """
    _start(path, printer)
    with LogFile(path) as log:
        _dump_batches(log, printer, findings, deep=deep, max_bytes=max_bytes)


def _dump_batches(log: LogFile, printer: Printer, findings: Findings, *, deep: bool, max_bytes: int) -> None:
    end = log.slice_end(0, max_bytes)
    valid_bytes = 0
    file = absolute_path(log.path)
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
        printer.invalid_tail(os.path.basename(log.path), end - valid_bytes)


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
        cut_first = cut_file_first_offset(name)
        printer.log_start(base_offset_of(path) if cut_first is None else cut_first)
    else:
        printer.staged_start()
