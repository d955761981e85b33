"""The table of all options of `format("kafkalog")`: names, directions, defaults, documentation, parsers.

Names are those of Spark's Kafka source and sink where these have such an option, and of Kafka's producer configuration
for options of the sink. Case does not matter. The documentation (docs/OPTIONS.md) is generated from this table.

- `OPTIONS`: the options that have an effect
- `IGNORED_OPTIONS`: settings of Spark's source and of Kafka's clients that are accepted and have no effect without a
  broker, so that jobs need not remove them
- `refusal`: settings that are refused because they would change the result, each with its replacement here; Spark's
  Kafka source refuses most of them too (org.apache.spark.sql.kafka010.KafkaSourceProvider)
- the parsers of single values, which raise ValueError with a message that states the expected value

Any other option is refused as unknown (options/parse.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from pyspark_kafkalog.config.definitions import LowerVersion
from pyspark_kafkalog.record.codecs.codec import CODEC_NAMES
from pyspark_kafkalog.spark.options.positions import (
    Assign,
    OffsetReset,
    OnNoMatch,
    parse_ending_offsets,
    parse_partition_timestamps,
    parse_partitions,
    parse_starting_offsets,
    parse_subscribe,
    parse_subscribe_pattern,
    parse_timestamp,
)
from pyspark_kafkalog.storage.filesystem import FlushMode
from pyspark_kafkalog.storage.names import check_principal, validate_group_id, validate_topic_name
from pyspark_kafkalog.units import DAY_MS, HOUR_MS, INT32_MAX, INT64_MAX, MINUTE_MS, SECOND_MS
from pyspark_kafkalog.values import guess

Direction: TypeAlias = Literal["read", "stream", "write"]

#: Batch and streaming reads, batch reads only, streaming reads only, batch and streaming writes.
READ: Final[tuple[Direction, ...]] = ("read", "stream")
BATCH_READ: Final[tuple[Direction, ...]] = ("read",)
STREAM_READ: Final[tuple[Direction, ...]] = ("stream",)
EVERYWHERE: Final[tuple[Direction, ...]] = (*READ, "write")
WRITE: Final[tuple[Direction, ...]] = ("write",)


ISOLATION_LEVELS: Final = ("read_uncommitted", "read_committed")
OFFSET_RESETS: Final = get_args(OffsetReset)
_STORE_OPTIONS: Final = {
    "storeEndpoint": "The endpoint of the object store, https://host or http://host:port, in place of the cloud's.",
    "storeRegion": "S3: the region of the bucket.",
    "storePathStyle": "S3: whether the bucket is a part of the path (true) or of the host's name (false).",
    "storeAccessKey": "S3: the id of the access key. Without credentials those of the environment are used.",
    "storeSecretKey": "S3: the secret access key; Azure: the key of the account.",
    "storeSessionToken": "S3: the session token of temporary keys.",
    "storeAccount": "Azure: the storage account, if the URL does not name it.",
    "storeSasToken": "Azure: a shared access signature, in place of a key.",
    "storeServiceAccount": "GCS: the path of a service account's JSON file.",
    "storeCredentialsFile": "S3: the path of a file as ~/.aws/credentials, on all machines, read again every minute.",
    "storeEncryption": "S3: how the store encrypts new objects: AES256, aws:kms or aws:kms:dsse.",
    "storeKmsKey": "S3: the id or ARN of the KMS key for this encryption.",
    "storeRequesterPays": "S3: whether the requester pays for the requests (true).",
    "storeChecksum": "S3: the checksum of new objects, SHA256 or CRC64NVME; object lock requires one.",
    "storeProxy": "The proxy for all requests, http://host:port; default: that of the environment.",
}
REMOTE_STORAGE_LAYOUTS: Final = ("local", "aiven")
PARTITIONERS: Final = ("murmur2", "round_robin")
_DURATION: Final = re.compile(r"([0-9]{1,15})([a-z]*)", re.ASCII)
_UNIT_MS: Final = {"": 1, "ms": 1, "s": SECOND_MS, "m": MINUTE_MS, "min": MINUTE_MS, "h": HOUR_MS, "d": DAY_MS}


def parse_text(text: str) -> str:
    """Any text that is not blank."""
    if not text.strip():
        raise ValueError("expected a value, it is empty")
    return text.strip()


def parse_bool(text: str) -> bool:
    """`true` or `false`, in upper or lower case."""
    words = {"true": True, "false": False}
    if text.strip().lower() not in words:
        raise ValueError(f"{guess(text.strip().lower(), words)}expected true or false")
    return words[text.strip().lower()]


def parse_topic(text: str) -> str:
    """A topic name that Kafka allows."""
    return validate_topic_name(text.strip())


def parse_group_id(text: str) -> str:
    """The name of a consumer group that Kafka allows."""
    return validate_group_id(text.strip())


def parse_principal(text: str) -> str:
    """A principal, `type:name`."""
    return check_principal(text.strip())


def parse_on_no_match(text: str) -> OnNoMatch:
    """`error` or `latest`."""
    word = text.strip().lower()
    if word == "error":
        return "error"
    if word == "latest":
        return "latest"
    raise ValueError("expected error or latest")


def parse_committed(text: str) -> bool:
    """Whether the isolation level is read_committed."""
    return one_of(*ISOLATION_LEVELS)(text) == "read_committed"


def one_of(*words: str) -> Callable[[str], str]:
    """A parser that accepts one of `words`, in upper or lower case."""

    def parse(text: str) -> str:
        word = text.strip().lower()
        if word not in words:
            raise ValueError(f"{guess(word, words)}expected one of {', '.join(words)}")
        return word

    return parse


def integer(smallest: int, largest: int) -> Callable[[str], int]:
    """A parser of integers from `smallest` to `largest`."""

    def parse(text: str) -> int:
        try:
            number = int(text.strip())
        except ValueError:
            number = smallest - 1
        if not smallest <= number <= largest:
            raise ValueError(f"expected a whole number from {smallest} to {largest}")
        return number

    return parse


def duration_ms(text: str) -> int:
    """A duration in ms, as a number or with a unit: 500, 500ms, 30s, 15m (also min), 1h, 1d, as in Spark."""
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None or found[2] not in _UNIT_MS:
        raise ValueError("expected a time as 500ms, 30s, 15m, 1h or 1d; a number without a unit is in ms")
    return int(found[1]) * _UNIT_MS[found[2]]


def byte_size(smallest: int, largest: int) -> Callable[[str], int]:
    """A parser of sizes in bytes, as a number or with a unit: 1048576, 1024k, 128m, 1g (1k is 1024)."""
    units = {"k": 10, "m": 20, "g": 30}

    def parse(text: str) -> int:
        digits = text.strip().lower().removesuffix("b")
        shift = units.get(digits[-1:], 0)
        digits = digits[:-1] if shift else digits
        size_bytes = int(digits) << shift if digits.isascii() and digits.isdigit() else smallest - 1
        if not smallest <= size_bytes <= largest:
            raise ValueError(f"expected a size from {smallest} to {largest} bytes, as 1048576 or 1024k or 128m")
        return size_bytes

    return parse


_SERIALIZED: Final = "keys and values are written as they are; CAST the column to STRING or BINARY, or use to_json"

_ADVICE: Final = (
    (
        "kafka.partitioner.",
        "rows with a key go where the default partitioner of Kafka's Java clients puts them; the option partitioner "
        "with round_robin spreads all rows, and a column partition (INT) says it row by row",
    ),
    ("kafka.key.deserializer", "keys are read as BINARY; CAST(key AS STRING), or another expression, decodes them"),
    (
        "kafka.value.deserializer",
        "values are read as BINARY; CAST(value AS STRING), or another expression, decodes them",
    ),
    ("kafka.key.serializer", _SERIALIZED),
    ("kafka.value.serializer", _SERIALIZED),
    (
        "kafka.enable.auto.commit",
        "a streaming query goes by its checkpoint; with kafka.group.id it commits its progress to that group after "
        "each micro-batch, unless commitOffsets is false",
    ),
    (
        "kafka.transactional.id",
        "each write is a transaction by itself; to have a batch write made once, give txnAppId and txnVersion",
    ),
    ("kafka.interceptor.classes", "there is no client to intercept; use expressions on the DataFrame"),
    ("kafka.topic", "the option is called topic to write and subscribe to read"),
)


def refusal(name: str) -> str | None:
    """What to use instead of the option `name`; None for an unknown option."""
    lowered = name.lower()
    for start, advice in _ADVICE:
        if lowered == start or (start.endswith(".") and lowered.startswith(start)):
            return advice
    return None


@dataclass(frozen=True, slots=True)
class IgnoredOption:
    """Settings that are accepted and have no effect; a `name` that ends in `*` stands for all with that prefix."""

    name: str
    applies_to: tuple[Direction, ...]
    doc: str

    def matches(self, option: str) -> bool:
        if self.name.endswith("*"):
            return option.lower().startswith(self.name[:-1].lower())
        return option.lower() == self.name.lower()


_ACKNOWLEDGED: Final = "Every write is durable when it returns, in order and without duplicates."
_NO_BROKER: Final = "The package connects to no broker, and groups have no members."

_SPARKS_OWN: Final = "Spark's own setting of a streaming query."

IGNORED_OPTIONS: Final = (
    IgnoredOption("checkpointLocation", WRITE, _SPARKS_OWN),
    IgnoredOption("queryName", WRITE, _SPARKS_OWN),
    IgnoredOption("kafka.bootstrap.servers", EVERYWHERE, _NO_BROKER),
    IgnoredOption("kafka.client.*", EVERYWHERE, _NO_BROKER),
    IgnoredOption("kafka.group.*", READ, _NO_BROKER),
    IgnoredOption("groupIdPrefix", READ, _NO_BROKER),
    IgnoredOption("kafka.security.*", EVERYWHERE, _NO_BROKER),
    IgnoredOption("kafka.sasl.*", EVERYWHERE, _NO_BROKER),
    IgnoredOption("kafka.ssl.*", EVERYWHERE, _NO_BROKER),
    IgnoredOption("kafka.request.timeout.ms", EVERYWHERE, _NO_BROKER),
    IgnoredOption("kafka.session.timeout.ms", READ, _NO_BROKER),
    IgnoredOption("kafka.heartbeat.interval.ms", READ, _NO_BROKER),
    IgnoredOption("kafka.fetch.*", READ, _NO_BROKER),
    IgnoredOption("kafka.max.partition.fetch.bytes", READ, _NO_BROKER),
    IgnoredOption("kafka.max.poll.*", READ, _NO_BROKER),
    IgnoredOption("kafka.receive.buffer.bytes", EVERYWHERE, _NO_BROKER),
    IgnoredOption("kafka.send.buffer.bytes", EVERYWHERE, _NO_BROKER),
    IgnoredOption("kafka.default.api.timeout.ms", READ, _NO_BROKER),
    IgnoredOption("kafka.max.block.ms", WRITE, _NO_BROKER),
    IgnoredOption("kafka.metadata.*", EVERYWHERE, _NO_BROKER),
    IgnoredOption("kafka.reconnect.*", EVERYWHERE, _NO_BROKER),
    IgnoredOption("kafka.retry.*", EVERYWHERE, _NO_BROKER),
    IgnoredOption("kafka.connections.max.idle.ms", EVERYWHERE, _NO_BROKER),
    IgnoredOption("kafka.socket.*", EVERYWHERE, _NO_BROKER),
    IgnoredOption("kafka.partition.assignment.strategy", READ, _NO_BROKER),
    IgnoredOption("kafka.check.crcs", READ, "CRCs are always checked."),
    IgnoredOption("kafka.allow.auto.create.topics", READ, "A read creates no topic."),
    IgnoredOption("kafka.max.request.size", WRITE, "The topic's max.message.bytes is the limit."),
    IgnoredOption("kafkaConsumer.pollTimeoutMs", READ, _NO_BROKER),
    IgnoredOption("fetchOffset.*", READ, _NO_BROKER),
    IgnoredOption("kafka.acks", WRITE, _ACKNOWLEDGED),
    IgnoredOption("kafka.retries", WRITE, _ACKNOWLEDGED),
    IgnoredOption("kafka.enable.idempotence", WRITE, _ACKNOWLEDGED),
    IgnoredOption("kafka.linger.ms", WRITE, _ACKNOWLEDGED),
    IgnoredOption("kafka.delivery.timeout.ms", WRITE, _ACKNOWLEDGED),
    IgnoredOption("kafka.max.in.flight.requests.per.connection", WRITE, _ACKNOWLEDGED),
    IgnoredOption("kafka.buffer.memory", WRITE, _ACKNOWLEDGED),
)


DEFAULT_MAX_BYTES_PER_PARTITION: Final = 128 << 20
DEFAULT_MAX_TRIGGER_DELAY_MS: Final = 15 * MINUTE_MS


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
        doc="The log directory: a path or a file: URI that the driver and all executors see, or an object store's URL "
        "(s3://, gs://, az://, abfss://). A relative path is relative to the driver's working directory. A read also "
        "takes one partition directory, <root>/orders-0, or several directories of brokers, separated by commas as in "
        "log.dirs. An existing path that contains a comma is one path.",
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
        parse=integer(1, INT32_MAX),
    ),
    Option(
        name="maxRecordsPerPartition",
        applies_to=READ,
        default="",
        doc="Maximum number of offsets in a task.",
        parse=integer(1, INT64_MAX),
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
        parse=integer(1, INT64_MAX),
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
        parse=integer(1, INT64_MAX),
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
        name="remoteStorage",
        applies_to=READ,
        default="",
        doc="On a broker's directory: the remote storage of its tiered topics, as a path (what rsm.config.dir names) "
        "or a URL of bucket and prefix. Reads then include the offsets that are only there. Without the option path, "
        "the remote storage alone is read.",
        parse=parse_text,
    ),
    Option(
        name="remoteStorageLayout",
        applies_to=READ,
        default="found by looking at its objects",
        doc="How remoteStorage is laid out: local (Kafka's LocalTieredStorage) or aiven (Aiven's plugin).",
        parse=one_of(*REMOTE_STORAGE_LAYOUTS),
    ),
    Option(
        name="remoteStorageKeyFiles",
        applies_to=READ,
        default="",
        doc="For segments that Aiven's plugin has encrypted: the PEM file with the private RSA key, which all "
        "executors see; for several keys <key id>:<path>, with commas between.",
        parse=parse_text,
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
        doc=f"{', '.join(CODEC_NAMES[:-1])} or {CODEC_NAMES[-1]}.",
        parse=one_of(*CODEC_NAMES),
    ),
    Option(
        name="kafka.compression.type",
        applies_to=WRITE,
        default="",
        doc="The same as compression.type.",
        parse=one_of(*CODEC_NAMES),
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
        doc="Batch writes: with txnVersion, makes the write idempotent. A write whose version is the last one that was "
        "committed with this id is skipped, with a warning; a write that began earlier with this id is fenced. In "
        "foreachBatch give each write its own id, which changes with the checkpoint, and the batch id as version. A "
        "streaming write needs neither.",
        parse=parse_text,
    ),
    Option(
        name="txnVersion",
        applies_to=WRITE,
        default="",
        doc="The version for txnAppId: an integer from 0 that increases from write to write.",
        parse=integer(0, INT64_MAX),
    ),
    Option(
        name="txnLowerVersion",
        applies_to=WRITE,
        default="fail",
        doc="What a batch write does whose txnVersion is below the last one that was committed with its txnAppId: fail "
        "names that version and its time; skip writes nothing, with a warning. To write the rows, as a back-fill, give "
        "the write another txnAppId.",
        parse=one_of(*get_args(LowerVersion)),
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
    *(
        Option(name=name, applies_to=EVERYWHERE, default="", doc=doc, parse=parse_text)
        for name, doc in _STORE_OPTIONS.items()
    ),
)
