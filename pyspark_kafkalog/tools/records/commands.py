"""The commands that write and read records, and their options; what they do is loaded when they run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from pyspark_kafkalog.record.codecs.codec import CODEC_NAMES
from pyspark_kafkalog.tools.command import (
    FORMS,
    Command,
    add_local_only,
    add_path,
    add_path_or_remote_storage,
    add_read_to_log_end,
    later,
    positive,
    time_ms,
)
from pyspark_kafkalog.tools.output import add_output

_CONSUMER_HELP: Final = """\
`kafkalog console-consumer`: print the records of topics as they arrive, as kafka-console-consumer does.

Options and output are those of kafka-console-consumer, with --path in place of --bootstrap-server. Reading starts at
the end of the log, or as given by --from-beginning, --from-time, --offset or the committed offsets of --group. It
continues until --max-messages, --timeout-ms without a record, or Ctrl-C. A group's offsets are committed to
__consumer_offsets every five seconds and at the end. --property sets the output format:

  print.timestamp, print.partition, print.offset, print.headers, print.key, print.value  (true or false)
  key.separator=TEXT (a tab)   line.separator=TEXT   headers.separator=TEXT (,)   null.literal=TEXT (null)
  key.deserializer, value.deserializer, headers.deserializer  (class names: StringDeserializer, LongDeserializer, ...)

-f, --format takes a format string, as kcat does; records are separated only by what the format contains:

  %t topic   %p partition   %o offset   %k key   %s value   %T timestamp (ms)   %h headers (name=value,name=value)
  %K, %S length of key, value (-1: null)   %R length of value in 4 bytes   %% percent sign   \\n \\t \\r \\xHH bytes

A null key or value is empty, or null.literal if that is set. --output json prints one object for each record.

--key prints only records with this key, in all partitions that are read; --max-messages counts these. It is compared
with the bytes of the key as UTF-8, or as a number with key.deserializer ShortDeserializer, IntegerDeserializer or
LongDeserializer. Without --partition all partitions are searched: which one a key is in depends on the producer.

--grep prints only records with a key or a value in which a regular expression (RE2) is found; (?i) ignores case. It
searches the stored bytes, whatever the deserializers: in binary data a dot is one byte, and \\xHH is the byte HH. Text
that is not ASCII is found by its UTF-8 bytes. --key and --grep together print records that match both.

--to-time ends each partition before its first record since that time, or at its present end, without waiting for more;
it begins at the log start unless another start is given.

--formatter takes Kafka's class names: DefaultMessageFormatter, NoOpMessageFormatter, and for internal topics
OffsetsMessageFormatter, GroupMetadataMessageFormatter and TransactionLogMessageFormatter.

examples:
  kafkalog console-consumer --path /data/log --topic orders --from-beginning --max-messages 10
  kafkalog console-consumer --path /data/log --topic orders --property print.key=true --property print.timestamp=true
  kafkalog console-consumer --path /data/log --topic orders --partition 0 --offset 4200 --timeout-ms 1000
  kafkalog console-consumer --path /data/log --topic orders --from-time 2026-01-31T10:00 --to-time 2026-01-31T11:00
  kafkalog console-consumer --path /data/log --topic orders --from-beginning --timeout-ms 0 --grep '(?i)refund'
  kafkalog console-consumer --path /data/log --topic orders --from-beginning --timeout-ms 0 --key customer-7 \\
      -f '%p %o %T %k: %s\\n'
  kafkalog console-consumer --path /data/log --topic __consumer_offsets --from-beginning \\
      --formatter org.apache.kafka.tools.consumer.OffsetsMessageFormatter
"""


_PRODUCER_HELP: Final = """\
`kafkalog console-producer`: write lines of standard input to a topic, as kafka-console-producer does.

Options are those of kafka-console-producer, with --path in place of --bootstrap-server; those that tune a network
client are accepted and have no effect. Lines are collected for --timeout ms, or up to 32 MiB, and written in one
commit; with --sync each line has its own commit. A log directory or topic that does not exist is created, and a line on
standard error says so. --property sets the line format:

  parse.key=true|false       key.separator=TEXT (a tab)
  parse.headers=true|false   headers.delimiter=TEXT (a tab), headers.separator=REGEX (,), headers.key.separator=TEXT (:)
  null.marker=TEXT           fields that equal it are null
  ignore.error=true|false    lines without a separator are values as they are, instead of an error

If a line is refused, the lines before it are written, and the exit code is 1.

examples:
  kafkalog console-producer --path /data/log --topic orders
  kafkalog console-producer --path /data/log --topic t --property parse.key=true --property key.separator=: < lines
  zcat events.gz | kafkalog console-producer --path /data/log --topic events --compression-codec zstd
"""


_PERF_TEST_HELP: Final = """\
`kafkalog perf-test`: measure writing to a topic, or reading it, on this machine and file system.

`perf-test producer` takes the options of kafka-producer-perf-test, `perf-test consumer` those of
kafka-consumer-perf-test, and both print their lines, with --path in place of the brokers. One process writes or reads;
for Spark with many processes, see benchmarks/.

A commit contains 32 MiB of records, or with --throughput those of linger.ms (100 by default). A record's latency is
the time from when it was due to the end of its commit, after which it can be read.

examples:
  kafkalog perf-test --path /data/log producer --topic perf --num-records 5000000 --record-size 100 --throughput -1
  kafkalog perf-test --path /data/log producer --topic perf --num-records 100000 --record-size 100 --throughput 10000 \\
      --command-property compression.type=lz4 linger.ms=20 flush=os
  kafkalog perf-test --path /data/log consumer --topic perf --num-records 5000000
"""


DEFAULT_FORMATTER: Final = "DefaultMessageFormatter"
LINE_READER: Final = "org.apache.kafka.tools.LineMessageReader"


#: Options of kafka-console-producer for its network client, which does not exist here.
_PRODUCER_OPTIONS_WITHOUT_EFFECT: Final = (
    "batch-size",
    "message-send-max-retries",
    "retry-backoff-ms",
    "request-required-acks",
    "request-timeout-ms",
    "metadata-expiry-ms",
    "max-block-ms",
    "max-memory-bytes",
    "max-partition-memory-bytes",
    "socket-buffer-size",
    "producer-property",
    "producer.config",
    "command-property",
    "command-config",
)


_PERF_TEST_OPTIONS_WITHOUT_EFFECT: Final = (
    "fetch-size",
    "socket-buffer-size",
    "consumer.config",
    "command-config",
    "command-property",
    "threads",
)


def _add_consumer(parser: argparse.ArgumentParser) -> None:
    """The options of kafka-console-consumer, and `--path`."""
    add_path_or_remote_storage(parser)
    add_read_to_log_end(parser)
    add_local_only(parser, "start at the first offset in the directory if earlier ones are in remote storage")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--topic", metavar="TOPIC", help="the topic, or a regular expression of topics")
    what.add_argument("--include", metavar="REGEX", help="a regular expression of topics, without internal ones")
    parser.add_argument(
        "--partition", type=int, action="append", metavar="N", help="only this partition; may be repeated"
    )
    parser.add_argument("--offset", metavar="N", help="where to start: a number, earliest or latest (--partition)")
    parser.add_argument("--from-time", type=time_ms, metavar="TIME", help=f"start at the first record since: {FORMS}")
    parser.add_argument(
        "--to-time", type=time_ms, metavar="TIME", help="end at the first record since that time, or at the present end"
    )
    parser.add_argument("--from-beginning", action="store_true", help="start at the log start, not at the end")
    parser.add_argument(
        "--group", metavar="GROUP", help="start at this group's committed offsets, and commit its progress"
    )
    parser.add_argument("--max-messages", type=int, default=-1, metavar="N", help="stop after this many records")
    parser.add_argument(
        "--timeout-ms", type=int, default=-1, metavar="MS", help="stop after this time without a record"
    )
    parser.add_argument(
        "--key", action="append", metavar="KEY", help="only records with this key, see above; may be repeated"
    )
    parser.add_argument(
        "--grep", metavar="PATTERN", help="only records whose key or value the pattern is found in, see above"
    )
    parser.add_argument("--isolation-level", choices=("read_uncommitted", "read_committed"), default="read_uncommitted")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--formatter", default=DEFAULT_FORMATTER, metavar="CLASS", help="the formatter of records")
    how.add_argument("-f", "--format", metavar="FORMAT", help="a format string as kcat's -f, see above")
    parser.add_argument(
        "--property",
        "--formatter-property",
        dest="properties",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the output format, see above; may be repeated",
    )
    parser.add_argument(
        "--formatter-config", metavar="FILE", type=Path, help="a properties file; --property overrides it"
    )
    for name in ("key", "value"):
        parser.add_argument(f"--{name}-deserializer", metavar="CLASS", help=f"the deserializer of the {name}")
    parser.add_argument("--skip-message-on-error", action="store_true", help="skip records that cannot be formatted")
    parser.add_argument(
        "--consumer-property",
        "--command-property",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="group.id, auto.offset.reset, enable.auto.commit or auto.commit.interval.ms; others have no effect",
    )
    parser.add_argument(
        "--consumer.config",
        "--command-config",
        dest="consumer_config",
        metavar="FILE",
        type=Path,
        help="a file of such properties",
    )
    add_output(parser, "one object a line, by record")


def _add_producer(parser: argparse.ArgumentParser) -> None:
    """The options of kafka-console-producer, `--path` and `--flush`."""
    add_path(parser, "the log directory, created if it does not exist")
    parser.add_argument("--topic", required=True, metavar="TOPIC", help="the topic to write to")
    parser.add_argument(
        "--property",
        "--reader-property",
        dest="properties",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the line format, see above; may be repeated",
    )
    parser.add_argument("--reader-config", metavar="FILE", type=Path, help="a properties file; --property overrides it")
    parser.add_argument("--line-reader", default=LINE_READER, metavar="CLASS", help="only %(default)s")
    parser.add_argument(
        "--compression-codec",
        nargs="?",
        const="gzip",
        default="none",
        choices=CODEC_NAMES,
        help="used if the topic leaves it to the producer (default none; gzip without a name)",
    )
    parser.add_argument("--sync", action="store_true", help="a commit for each line, before the next is read")
    parser.add_argument(
        "--timeout", type=int, default=1000, metavar="MS", help="collect lines for this time (%(default)s)"
    )
    parser.add_argument(
        "--flush", choices=("fsync", "os"), default="fsync", help="what a commit waits for (default %(default)s)"
    )
    for name in _PRODUCER_OPTIONS_WITHOUT_EFFECT:
        parser.add_argument(f"--{name}", action="append", metavar="X", help=argparse.SUPPRESS)


def _add_perf_test(parser: argparse.ArgumentParser) -> None:
    """`--path`, and the options of Kafka's two tools."""
    add_path(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    producer = commands.add_parser("producer", help="write records", allow_abbrev=False)
    _add_writing(producer)
    add_output(producer, "one object, the totals")
    consumer = commands.add_parser("consumer", help="read records", allow_abbrev=False)
    _add_reading(consumer)
    add_output(consumer, "one object, the totals; with --show-detailed-stats one a line, by interval")


def _add_writing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic", required=True, metavar="TOPIC", help="the topic to write to, created if needed")
    parser.add_argument("--num-records", required=True, type=positive, metavar="N", help="how many records to write")
    payload = parser.add_mutually_exclusive_group(required=True)
    payload.add_argument("--record-size", type=positive, metavar="BYTES", help="values of this many random letters")
    payload.add_argument("--payload-file", type=Path, metavar="FILE", help="values chosen at random from this file")
    payload.add_argument("--payload-monotonic", action="store_true", help="values are the numbers from 0 on")
    parser.add_argument("--payload-delimiter", default="\\n", metavar="TEXT", help="between values of --payload-file")
    parser.add_argument(
        "--throughput", required=True, type=float, metavar="N", help="approximate records per second; -1: no limit"
    )
    parser.add_argument(
        "--producer-props",
        "--command-property",
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="compression.type, linger.ms, transactional.id, and flush (fsync or os); others have no effect",
    )
    parser.add_argument(
        *("--producer.config", "--command-config"),
        dest="producer_config",
        metavar="FILE",
        type=Path,
        help="a file of those",
    )
    parser.add_argument("--transactional-id", metavar="ID", help="write with this transactional id")
    parser.add_argument("--transaction-duration-ms", type=positive, metavar="MS", help="collect records for this time")
    parser.add_argument(
        "--warmup-records", type=int, default=0, metavar="N", help="print the figures without the first N records, too"
    )
    _add_reporting_interval(parser)
    parser.add_argument("--print-metrics", action="store_true", help=argparse.SUPPRESS)


def _add_reading(parser: argparse.ArgumentParser) -> None:
    add_read_to_log_end(parser)
    add_local_only(parser, "start at the first offset in the directory if earlier ones are in remote storage")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--topic", metavar="TOPIC", help="the topic, or a regular expression of topics")
    what.add_argument("--include", metavar="REGEX", help="a regular expression of topics, without internal ones")
    parser.add_argument(
        *("--num-records", "--messages"),
        dest="num_records",
        required=True,
        type=positive,
        metavar="N",
        help="how many records to read",
    )
    parser.add_argument(
        "--group", metavar="GROUP", help="start at this group's committed offsets; nothing is committed"
    )
    parser.add_argument("--from-latest", action="store_true", help="start at the end of the log")
    parser.add_argument(
        "--timeout", type=int, default=10_000, metavar="MS", help="stop after this time without a record"
    )
    parser.add_argument("--show-detailed-stats", action="store_true", help="a line each --reporting-interval")
    _add_reporting_interval(parser)
    parser.add_argument("--hide-header", action="store_true", help="leave out the line with the columns' names")
    parser.add_argument(
        "--date-format", default="yyyy-MM-dd HH:mm:ss:SSS", metavar="FORMAT", help="of java.text.SimpleDateFormat"
    )
    parser.add_argument("--print-metrics", action="store_true", help=argparse.SUPPRESS)
    for name in _PERF_TEST_OPTIONS_WITHOUT_EFFECT:
        parser.add_argument(f"--{name}", metavar="X", help=argparse.SUPPRESS)


def _add_reporting_interval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reporting-interval", type=positive, default=5000, metavar="MS", help="default %(default)s")


COMMANDS: Final = {
    "console-consumer": Command(_CONSUMER_HELP, _add_consumer, later("records.console:run_consumer")),
    "console-producer": Command(_PRODUCER_HELP, _add_producer, later("records.console:run_producer")),
    "perf-test": Command(_PERF_TEST_HELP, _add_perf_test, later("records.perf_test:run")),
}
