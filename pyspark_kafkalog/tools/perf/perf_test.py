"""`kafkalog perf-test`: measure writing to a topic, or reading it, on this machine and file system.

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

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.record.codecs.codec import CODEC_NAMES
from pyspark_kafkalog.storage.names import validate_topic_name
from pyspark_kafkalog.tools.command import UsageError, add_local_only, add_path, add_read_to_log_end, positive
from pyspark_kafkalog.tools.output import add_output, output_of
from pyspark_kafkalog.tools.running import open_log_dir, parse_properties_options, warn_of_unread_offsets

_CONSUMER_OPTIONS_WITHOUT_EFFECT: Final = (
    "fetch-size",
    "socket-buffer-size",
    "consumer.config",
    "command-config",
    "command-property",
    "threads",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`--path`, and the options of Kafka's two tools."""
    add_path(parser)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    producer = commands.add_parser("producer", help="write records", allow_abbrev=False)
    _add_producer(producer)
    add_output(producer, "one object, the totals")
    consumer = commands.add_parser("consumer", help="read records", allow_abbrev=False)
    _add_consumer(consumer)
    add_output(consumer, "one object, the totals; with --show-detailed-stats one a line, by interval")


def _add_producer(parser: argparse.ArgumentParser) -> None:
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


def _add_consumer(parser: argparse.ArgumentParser) -> None:
    add_read_to_log_end(parser)
    add_local_only(parser, "start at the first offset in the directory if earlier ones are in remote storage")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--topic", metavar="TOPIC", help="the topic to read")
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
    for name in _CONSUMER_OPTIONS_WITHOUT_EFFECT:
        parser.add_argument(f"--{name}", metavar="X", help=argparse.SUPPRESS)


def _add_reporting_interval(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reporting-interval", type=positive, default=5000, metavar="MS", help="default %(default)s")


def run(options: argparse.Namespace) -> int:
    """Measure; prints to sys.stdout."""
    if options.command == "producer":
        _produce(options)
    else:
        _consume(options)
    return 0


def _produce(options: argparse.Namespace) -> None:
    from pyspark_kafkalog.tools.perf import measure

    validate_topic_name(options.topic)
    if not 0 <= options.warmup_records < options.num_records:
        raise UsageError(f"--warmup-records={options.warmup_records}: expected 0 or more, and less than --num-records")
    properties = parse_properties_options(options.producer_props, options.producer_config)
    plan = measure.Plan(
        topic=options.topic,
        records=options.num_records,
        warmup_records=options.warmup_records,
        interval_s=options.reporting_interval / 1000,
        throughput=options.throughput,
        gather_ms=options.transaction_duration_ms or _number(properties, "linger.ms", measure.GATHER_MS),
        compression_type=_choice(properties, "compression.type", CODEC_NAMES),
        flush="os" if _choice(properties, "flush", ("fsync", "os")) == "os" else "fsync",
        transactional_id=options.transactional_id or properties.get("transactional.id"),
    )
    output = output_of(options)
    payloads: measure.Payloads
    if options.payload_file is not None:
        payloads = measure.chosen_payloads(options.payload_file, options.payload_delimiter, output)
    elif options.payload_monotonic:
        payloads = measure.NumberPayloads()
    else:
        payloads = measure.RandomPayloads(options.record_size)
    measure.produce(LogDir.open_or_create(options.path), payloads, plan, output)


def _consume(options: argparse.Namespace) -> None:
    from pyspark_kafkalog.tools.perf import measure

    log_dir = open_log_dir(options)
    measure.consume(
        log_dir,
        topic=options.topic,
        include=options.include,
        messages=options.num_records,
        group=options.group,
        from_latest=options.from_latest,
        local_only=options.local_only,
        timeout_ms=options.timeout,
        report=measure.Report(
            interval_ms=options.reporting_interval,
            is_detailed=options.show_detailed_stats,
            has_header=not options.hide_header,
            date_format=options.date_format,
            output=output_of(options),
        ),
    )
    warn_of_unread_offsets("perf-test", log_dir)


def _number(properties: Mapping[str, str], name: str, default: int) -> int:
    text = properties.get(name, str(default))
    if not text.isdecimal():
        raise UsageError(f"{name}={text}: expected a number of 0 or more")
    return int(text)


def _choice(properties: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    value = properties.get(name, choices[0])
    if value not in choices:
        raise UsageError(f"{name}={value}: expected one of {', '.join(choices)}")
    return value
