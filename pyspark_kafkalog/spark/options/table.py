"""The table of all options of `format("kafkalog")`: names, directions, defaults, documentation, parsers.

Names are those of Spark's Kafka source and sink where these have such an option, and of Kafka's producer configuration
for options of the sink. Case does not matter. Options that are not in the table are refused, except settings of Kafka
clients that have no effect without a broker (ignored_options.py). The documentation is generated from this table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, get_args

from pyspark_kafkalog.spark.options.parsers import (
    COMPRESSION_NAMES,
    OFFSET_RESETS,
    PARTITIONERS,
    byte_size,
    duration_ms,
    integer,
    one_of,
    parse_bool,
    parse_committed,
    parse_group_id,
    parse_on_no_match,
    parse_principal,
    parse_text,
    parse_topic,
)
from pyspark_kafkalog.spark.read.offsets import (
    parse_ending_offsets,
    parse_partition_timestamps,
    parse_partitions,
    parse_starting_offsets,
    parse_timestamp,
)
from pyspark_kafkalog.spark.read.subscription import Assign, parse_subscribe, parse_subscribe_pattern
from pyspark_kafkalog.spark.stream.directions import BATCH_READ, EVERYWHERE, READ, STREAM_READ, WRITE, Direction
from pyspark_kafkalog.storage.flush_mode import FlushMode

DEFAULT_MAX_BYTES_PER_PARTITION: Final = 128 << 20
DEFAULT_MAX_TRIGGER_DELAY_MS: Final = 15 * 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option: `default` and `doc` are documentation; `parse` converts the text to a value or raises ValueError."""

    name: str
    applies_to: tuple[Direction, ...]
    default: str
    doc: str
    parse: Callable[[str], Any]


OPTIONS: Final = (
    Option(
        name="path",
        applies_to=EVERYWHERE,
        default="(required)",
        doc="The log directory: a root that contains partition directories; for reads also one partition directory, "
        "<root>/orders-0. A path or a file: URI that every executor sees; a relative path is relative to the "
        "driver's working directory.",
        parse=parse_text,
    ),
    Option(
        name="subscribe",
        applies_to=READ,
        default="all topics that are not internal",
        doc="Topics to read, separated by commas. Set at most one of subscribe, subscribePattern and assign.",
        parse=parse_subscribe,
    ),
    Option(
        name="subscribePattern",
        applies_to=READ,
        default="",
        doc="Java regular expression, as in Spark's Kafka source. Reads all topics that are not internal and whose "
        "name contains a match. An expression that only Java's own engine can match (such as a lookbehind of variable "
        "length) is an error.",
        parse=parse_subscribe_pattern,
    ),
    Option(
        name="assign",
        applies_to=READ,
        default="",
        doc='Partitions to read: {"topicA":[0,1],"topicB":[2]}.',
        parse=lambda text: Assign(parse_partitions(text)),
    ),
    Option(
        name="startingOffsets",
        applies_to=READ,
        default="earliest; latest in a streaming read",
        doc="Where to start: earliest, latest (streaming reads only), group (the committed offsets of the group "
        'kafka.group.id), or an offset for each partition, {"topicA":{"0":23,"1":-2}} (-2: earliest; -1: latest). '
        "startingTimestamp and startingOffsetsByTimestamp take precedence. A streaming query with a checkpoint "
        "continues from the checkpoint; new partitions start at earliest.",
        parse=parse_starting_offsets,
    ),
    Option(
        name="startingTimestamp",
        applies_to=READ,
        default="",
        doc="Start in every partition at the first record with this timestamp (ms) or a later one. Takes precedence "
        "over startingOffsetsByTimestamp and startingOffsets.",
        parse=parse_timestamp,
    ),
    Option(
        name="startingOffsetsByTimestamp",
        applies_to=READ,
        default="",
        doc='Like startingTimestamp, with a timestamp for each partition: {"topicA":{"0":1700000000000}}.',
        parse=parse_partition_timestamps,
    ),
    Option(
        name="startingOffsetsByTimestampStrategy",
        applies_to=READ,
        default="error",
        doc="What to do if all records of a partition are older than the starting timestamp: error, or latest to read "
        "nothing from that partition.",
        parse=parse_on_no_match,
    ),
    Option(
        name="kafka.group.id",
        applies_to=READ,
        default="",
        doc="The consumer group to which a streaming query commits its progress, and from which startingOffsets group "
        "starts. Queries of one group do not share partitions among themselves.",
        parse=parse_group_id,
    ),
    Option(
        name="commitOffsets",
        applies_to=STREAM_READ,
        default="true with kafka.group.id",
        doc="Whether the query commits the end of each micro-batch to its group, for tools that show lag. The query "
        "itself uses its checkpoint; a failed commit is logged and does not fail the query.",
        parse=parse_bool,
    ),
    Option(
        name="auto.offset.reset",
        applies_to=READ,
        default="earliest; latest in a streaming read",
        doc="Where startingOffsets group starts in partitions for which the group has no offset, or one that is out of "
        "range: earliest, latest, or none, which raises an error.",
        parse=one_of(*OFFSET_RESETS),
    ),
    Option(
        name="kafka.auto.offset.reset",
        applies_to=READ,
        default="",
        doc="The same as auto.offset.reset.",
        parse=one_of(*OFFSET_RESETS),
    ),
    Option(
        name="endingOffsets",
        applies_to=BATCH_READ,
        default="latest",
        doc="Where to end: latest, or for each partition the first offset that is not read, "
        '{"topicA":{"0":50,"1":-1}} (-1: latest). '
        "endingTimestamp and endingOffsetsByTimestamp take precedence.",
        parse=parse_ending_offsets,
    ),
    Option(
        name="endingTimestamp",
        applies_to=BATCH_READ,
        default="",
        doc="End in every partition before the first record with this timestamp (ms) or a later one; "
        "at latest if no such record exists.",
        parse=parse_timestamp,
    ),
    Option(
        name="endingOffsetsByTimestamp",
        applies_to=BATCH_READ,
        default="",
        doc="Like endingTimestamp, with a timestamp for each partition.",
        parse=parse_partition_timestamps,
    ),
    Option(
        name="minPartitions",
        applies_to=READ,
        default="",
        doc="Approximate minimum number of tasks of a read; large topic partitions are split in proportion "
        "to their offsets. Without it a streaming read puts partitions with few new records together in a task.",
        parse=integer(1, 2**31 - 1),
    ),
    Option(
        name="maxRecordsPerPartition",
        applies_to=READ,
        default="",
        doc="Maximum number of offsets in a task.",
        parse=integer(1, 2**63 - 1),
    ),
    Option(
        name="maxBytesPerPartition",
        applies_to=READ,
        default="128m",
        doc="Topic partitions with more bytes on disk are split at index entries into tasks of about equal "
        "size below this value.",
        parse=byte_size(1, 2**62),
    ),
    Option(
        name="maxOffsetsPerTrigger",
        applies_to=STREAM_READ,
        default="no limit",
        doc="Maximum number of offsets in a micro-batch, divided among the partitions in proportion to their new "
        "offsets, at least one for each.",
        parse=integer(1, 2**63 - 1),
    ),
    Option(
        name="maxBytesPerTrigger",
        applies_to=STREAM_READ,
        default="no limit",
        doc="Approximate maximum of bytes on disk in a micro-batch, divided like maxOffsetsPerTrigger; split at index "
        "entries.",
        parse=byte_size(1, 2**62),
    ),
    Option(
        name="minOffsetsPerTrigger",
        applies_to=STREAM_READ,
        default="",
        doc="Minimum number of new offsets for a micro-batch; it waits for them, but no longer than maxTriggerDelay.",
        parse=integer(1, 2**63 - 1),
    ),
    Option(
        name="maxTriggerDelay",
        applies_to=STREAM_READ,
        default="15m",
        doc="Maximum delay of a micro-batch by minOffsetsPerTrigger: 500ms, 30s, 15m, 1h, 1d; ms without a unit.",
        parse=duration_ms,
    ),
    Option(
        name="failOnDataLoss",
        applies_to=READ,
        default="true",
        doc="Whether a read fails if requested offsets are missing, also offsets that a tiering broker has moved to "
        "remote storage; if false, the read returns the available records and logs a warning.",
        parse=parse_bool,
    ),
    Option(
        name="readToLogEnd",
        applies_to=READ,
        default="false",
        doc="On a broker's directory: whether to read to the log end, the last complete, valid batch, and not only to "
        "the high watermark of its checkpoint, which is up to five seconds older than the log while the broker runs "
        "and after it was killed. If brokers replicate, records above the high watermark may be uncommitted. No "
        "effect on a native log directory.",
        parse=parse_bool,
    ),
    Option(
        name="includeHeaders",
        applies_to=READ,
        default="false",
        doc="Adds the column headers. A schema given by the user overrides this option.",
        parse=parse_bool,
    ),
    Option(
        name="isolationLevel",
        applies_to=READ,
        default="read_uncommitted",
        doc="read_uncommitted reads to the high watermark; read_committed to the last stable offset, "
        "without records of aborted transactions.",
        parse=parse_committed,
    ),
    Option(
        name="filterPushdown",
        applies_to=BATCH_READ,
        default="false",
        doc="Whether filters on topic, partition, offset and timestamp skip partitions, segments and batches, if "
        "spark.sql.python.filterPushdown.enabled is on too. Set it only if the loaded DataFrame serves one query: "
        "Spark 4.2 keeps the read plan of the last filter with the loaded source, and returns its rows to every other "
        "query on the same DataFrame.",
        parse=parse_bool,
    ),
    Option(
        name="kafka.isolation.level",
        applies_to=READ,
        default="read_uncommitted",
        doc="The same as isolationLevel.",
        parse=parse_committed,
    ),
    Option(
        name="topic",
        applies_to=WRITE,
        default="the column topic",
        doc="The topic to which all rows are written; the column topic is then ignored.",
        parse=parse_topic,
    ),
    Option(
        name="compression.type",
        applies_to=WRITE,
        default="the topic's compression.type, none if that is producer",
        doc="none, gzip, snappy, lz4 or zstd.",
        parse=one_of(*COMPRESSION_NAMES),
    ),
    Option(
        name="kafka.compression.type",
        applies_to=WRITE,
        default="",
        doc="The same as compression.type.",
        parse=one_of(*COMPRESSION_NAMES),
    ),
    Option(
        name="batch.size",
        applies_to=WRITE,
        default="256k",
        doc="Bytes of records, before compression, at which a record batch is closed. Larger than Kafka's 16384 "
        "because no record waits here for others: large batches compress better and cost less to read.",
        parse=byte_size(1, 64 << 20),
    ),
    Option(
        name="kafka.batch.size",
        applies_to=WRITE,
        default="",
        doc="The same as batch.size.",
        parse=byte_size(1, 64 << 20),
    ),
    Option(
        name="partitioner",
        applies_to=WRITE,
        default="murmur2",
        doc="For rows without a partition: murmur2 assigns rows with a key to the same partition as Kafka's Java "
        "clients, and spreads the others in whole batches; round_robin spreads all in whole batches.",
        parse=one_of(*PARTITIONERS),
    ),
    Option(
        name="txnAppId",
        applies_to=WRITE,
        default="",
        doc="Batch writes: with txnVersion, makes the write idempotent. A write does nothing if its version, or a "
        "later one, was committed with this id; a write that began earlier with this id is fenced. In foreachBatch "
        "give each write its own id and the batch id as version. A streaming write needs neither.",
        parse=parse_text,
    ),
    Option(
        name="txnVersion",
        applies_to=WRITE,
        default="",
        doc="The version for txnAppId: an integer from 0 that increases from write to write.",
        parse=integer(0, 2**63 - 1),
    ),
    Option(
        name="flush",
        applies_to=WRITE,
        default="fsync",
        doc="fsync: a write that has returned survives a power failure. os: it survives the end of any process, and "
        "the kernel writes it to the disk later, as with Kafka's defaults.",
        parse=one_of(*get_args(FlushMode)),
    ),
    Option(
        name="principal",
        applies_to=EVERYWHERE,
        default="",
        doc="The principal that reads or writes, such as User:ann: operations that the access control entries "
        "(kafkalog acls) do not permit raise an error. Without it nothing is checked.",
        parse=parse_principal,
    ),
)
