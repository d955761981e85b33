"""Checks the user's options against the option table and converts them to the settings of a read or a write.

A misspelt or unknown option, an invalid value, or options that contradict each other raise InvalidOptionError, which
names the option and lists what is allowed. Options of the other direction are accepted where a table has options for
both.

The option `path` names a log directory, or one partition directory in it, or several directories of brokers with commas
between them, which Spark calls `paths` after `load([...])`. Tasks run in other working directories than the driver, so
a path is made absolute before it is sent to them.

Options of a SQL table, `CREATE TABLE t USING kafkalog OPTIONS (path ..., subscribe ...)`: Spark 4.2 passes them to a
Python data source only when it asks for the schema at CREATE TABLE, among the table's properties; a SELECT has no
options. But Spark stores the schema in the catalog and passes it back. So the options are stored in the metadata of one
column of that schema. That column is timestampType, which no write reads: metadata follows columns into the schemas of
other tables, and must not be mistaken for their options.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructField, StructType

from pyspark_kafkalog.config.definitions import BATCH_SIZE_BYTES, LowerVersion
from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.object_store.location import is_object_url, parse_file_url
from pyspark_kafkalog.object_store.settings import HADOOP_PREFIXES, STORE_OPTION_NAMES, is_secret_name
from pyspark_kafkalog.spark.options.positions import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    AllTopics,
    Assign,
    Earliest,
    GroupOffsets,
    Latest,
    OffsetSpec,
    OnNoMatch,
    SpecificOffsets,
    Subscription,
    check_unresolved,
)
from pyspark_kafkalog.spark.options.table import (
    DEFAULT_MAX_BYTES_PER_PARTITION,
    DEFAULT_MAX_TRIGGER_DELAY_MS,
    IGNORED_OPTIONS,
    OPTIONS,
    Direction,
    Option,
    refusal,
)
from pyspark_kafkalog.storage.artefacts.partition_listing import has_log
from pyspark_kafkalog.storage.below_root import join_paths, split_paths
from pyspark_kafkalog.storage.filesystem import FlushMode
from pyspark_kafkalog.storage.names import TopicPartition, parse_partition_dir

if TYPE_CHECKING:
    from pyspark_kafkalog.tiered.remote_storage import RemoteStorageOption

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)


NO_OPTIONS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Location:
    """An absolute root, and the partition if the path named one of its partition directories."""

    root: Path | StoreAddress
    partition: TopicPartition | None = None


def absolute_path(text: str) -> Path:
    """`text`, a path or a `file:` URI, as an absolute path; see `parse_file_url`.

    Raises InvalidOptionError for other schemes and for other hosts.
    """
    scheme = _SCHEME.fullmatch(text)
    if scheme is not None and scheme[1].lower() != "file":
        raise InvalidOptionError(
            f"option path has the bad value {text!r}: expected a path on a file system that the driver and all "
            "executors see, or a file: URI with such a path"
        )
    if "\0" in text:
        raise InvalidOptionError(f"option path has the bad value {text!r}: it holds a zero byte")
    try:
        return (Path(text) if scheme is None else parse_file_url(text)).absolute()
    except InvalidOptionError as error:
        raise InvalidOptionError(f"option path has the bad value {text!r}: {error}") from None


def locate(text: str, store_options: Mapping[str, str] = NO_OPTIONS) -> Location:
    """The root of `text`, and the partition if it is a partition directory: named like one, with a segment in it.

    The root of several directories is their paths, absolute, with commas between. The root of a URL is its address,
    with the settings in `store_options`.
    """
    if is_object_url(text):
        return Location(StoreAddress.parse(text, store_options))
    path = absolute_path(text)
    if not path.exists():
        several = split_paths(",".join(map(_plain, text.split(","))))
        if len(several) > 1:
            return Location(join_paths(each.absolute() for each in several))
    partition = parse_partition_dir(path.name)
    if partition is not None and has_log(path):
        return Location(path.parent, partition)
    return Location(path)


def _plain(text: str) -> str:
    """`text` as a path if it is a URI."""
    return str(absolute_path(text.strip())) if _SCHEME.fullmatch(text.strip()) is not None else text


def locate_source(options: SourceOptions) -> Location | None:
    """Where a read's log directory is; None if it has none, only remote storage."""
    return None if options.path is None else locate(options.path, options.store)


def at_location(subscription: Subscription, location: Location | None) -> Subscription:
    """`subscription`, or the partition whose directory the path names. Raises InvalidOptionError if both are given."""
    if location is None or location.partition is None:
        return subscription
    if not isinstance(subscription, AllTopics):
        raise InvalidOptionError(
            f"option path names the partition directory of {location.partition}, which is then all "
            "that is read: leave out subscribe, subscribePattern and assign, or give the root as path"
        )
    return Assign((location.partition,))


_METADATA_KEY: Final = "kafkalog.tableOptions"
_CARRIER: Final = "timestampType"
_PATHS: Final = "paths"
_OPTION_PREFIX: Final = "option."


def of_create_table(raw: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a CREATE TABLE, from the table properties that Spark passes; None if it is no CREATE TABLE.

    Raises InvalidOptionError for secrets: the catalog stores them in clear, and so does whatever stores the schema of a
    DataFrame that was read from the table, as Parquet files and Delta tables do.
    """
    if "provider" not in raw:
        return None
    options = {name[len(_OPTION_PREFIX) :]: text for name, text in raw.items() if name.startswith(_OPTION_PREFIX)}
    for name in options:
        if is_secret_name(name):
            raise InvalidOptionError(
                f"option {name} of CREATE TABLE would be stored in clear, in the catalog and in what is written from "
                "the table: leave it out. Give credentials by the environment of driver and executors, or set "
                "spark.hadoop.fs.s3a.… on the session and call pyspark_kafkalog.register(spark)"
            )
    if "path" in raw:
        options["path"] = raw["path"]
    return options


def with_table_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """`schema` with `options` in its metadata."""
    return StructType(
        [
            StructField(field.name, field.dataType, field.nullable, {_METADATA_KEY: dict(options)})
            if field.name == _CARRIER
            else field
            for field in schema
        ]
    )


def effective_read_options(raw: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """`raw`; if it has no path, a table is read: then `raw` overrides the options in the schema's metadata."""
    if not raw.keys().isdisjoint(("path", _PATHS)) or _CARRIER not in schema.names:
        return dict(raw)
    carried = (schema[_CARRIER].metadata or {}).get(_METADATA_KEY, {})
    return {**carried, **raw}


_BY_LOWER_NAME: Final[Mapping[str, Option]] = {option.name.lower(): option for option in OPTIONS}
_SUBSCRIPTIONS: Final = ("subscribe", "subscribePattern", "assign")
_STARTS: Final = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")
_ENDS: Final = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")
_TRIGGER_LIMITS: Final = ("maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay")

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Settings of batch and streaming reads. `path` is as given; sizes are in bytes; None means no limit.

    Without a `path`, `remote_storage` alone is read.
    `store`: the options of the object store that `path` is a URL of, or that a native log directory tiers to.

    `on_no_match`: the meaning of a starting timestamp later than all records.
    """

    path: str | None
    store: Mapping[str, str] = field(repr=False)
    principal: str | None
    subscription: Subscription
    starting: OffsetSpec
    on_no_match: OnNoMatch
    min_partitions: int | None
    max_records_per_partition: int | None
    max_bytes_per_partition: int
    fail_on_data_loss: bool
    read_to_log_end: bool
    remote_storage: RemoteStorageOption | None
    include_headers: bool
    committed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions(SourceOptions):
    """Settings of a batch read."""

    ending: OffsetSpec
    filter_pushdown: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamReadOptions(SourceOptions):
    """Settings of a streaming read and limits of its micro-batches. `group_id`: the group that gets its progress."""

    group_id: str | None
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Settings of a write. `topic` None: each row names it. `compression_type` None: from the topic's configuration.

    `txn_app_id` and `txn_version` are both given or both None.
    """

    path: str
    store: Mapping[str, str] = field(repr=False)
    principal: str | None
    topic: str | None
    compression_type: str | None
    batch_size_bytes: int
    partitioner: str
    txn_app_id: str | None
    txn_version: int | None
    txn_lower_version: LowerVersion
    flush: FlushMode


def parse_read_options(raw: Mapping[str, str]) -> ReadOptions:
    """Options of a batch read. Raises InvalidOptionError."""
    given = _parse(raw, "read")
    starting, ending = _starting(given, Earliest()), _first(given, _ENDS, Latest())
    _check_batch_ends(starting, ending)
    without_effect = [name for name in (*_TRIGGER_LIMITS, "commitOffsets") if name in given]
    if without_effect:
        _LOG.warning("%s: of no effect in a batch read", ", ".join(without_effect))
    return ReadOptions(
        **_source_options(given, raw, starting), ending=ending, filter_pushdown=given.get("filterPushdown", False)
    )


def parse_stream_read_options(raw: Mapping[str, str]) -> StreamReadOptions:
    """Options of a streaming read. Raises InvalidOptionError, also for an end offset, which a stream does not have."""
    given = _parse(raw, "stream")
    for name in _ENDS:
        if name in given:
            raise InvalidOptionError(
                f"option {name} is not valid in a streaming read, which has no end: leave it out (to end at the "
                "end offsets of the query's start, use trigger(availableNow=True))"
            )
    smallest, largest = given.get("minOffsetsPerTrigger"), given.get("maxOffsetsPerTrigger")
    return StreamReadOptions(
        **_source_options(given, raw, _starting(given, Latest())),
        group_id=_committing_group(given),
        max_offsets_per_trigger=largest,
        max_bytes_per_trigger=given.get("maxBytesPerTrigger"),
        min_offsets_per_trigger=smallest,
        max_trigger_delay_ms=given.get("maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
    )


def parse_load_options(raw: Mapping[str, str]) -> SourceOptions:
    """Options of a read that may still become a batch or a stream: parsed as the kind that they are valid for.

    Raises InvalidOptionError if they are valid for neither.
    """
    with contextlib.suppress(InvalidOptionError):
        return parse_stream_read_options(raw)
    return parse_read_options(raw)


def _source_options(given: Mapping[str, Any], raw: Mapping[str, str], starting: OffsetSpec) -> dict[str, Any]:
    subscription = _subscription(given)
    if isinstance(subscription, AllTopics) and "topic" in given:
        raise InvalidOptionError("option topic is for writing; to read, name topics with the option subscribe")
    smallest, largest = given.get("minOffsetsPerTrigger"), given.get("maxOffsetsPerTrigger")
    # It has no effect in a batch read, but load() does not know the kind, and a streaming query would fail later.
    if smallest is not None and largest is not None and smallest > largest:
        raise InvalidOptionError(
            f"option minOffsetsPerTrigger ({smallest}) is greater than maxOffsetsPerTrigger ({largest})"
        )
    if given.get("commitOffsets", False) and "kafka.group.id" not in given:
        raise InvalidOptionError("option commitOffsets needs the option kafka.group.id: which group")
    return {
        "path": None if "path" not in given and "remoteStorage" in given else _path(given, "" if raw else _TABLE_READ),
        "store": _store(given),
        "principal": given.get("principal"),
        "subscription": subscription,
        "starting": starting,
        "on_no_match": given.get("startingOffsetsByTimestampStrategy", "error"),
        "min_partitions": given.get("minPartitions"),
        "max_records_per_partition": given.get("maxRecordsPerPartition"),
        "max_bytes_per_partition": given.get("maxBytesPerPartition", DEFAULT_MAX_BYTES_PER_PARTITION),
        "fail_on_data_loss": given.get("failOnDataLoss", True),
        "read_to_log_end": given.get("readToLogEnd", False),
        "remote_storage": _remote_storage(given),
        "include_headers": given.get("includeHeaders", False),
        "committed": _either(given, "isolationLevel", "kafka.isolation.level", False),
    }


def _store(given: Mapping[str, Any]) -> dict[str, str]:
    """The options of an object store, by name, and Hadoop's settings of S3A."""
    return {
        name: text for name, text in given.items() if name in STORE_OPTION_NAMES or name.startswith(HADOOP_PREFIXES)
    }


def _remote_storage(given: Mapping[str, Any]) -> RemoteStorageOption | None:
    """The broker's remote storage, if it is given."""
    location = given.get("remoteStorage")
    if location is None:
        for name in ("remoteStorageLayout", "remoteStorageKeyFiles"):
            if name in given:
                raise InvalidOptionError(f"option {name} goes with the option remoteStorage: give that too")
        return None
    from pyspark_kafkalog.tiered.remote_storage import parse_remote_storage  # few reads have one

    key_files = given.get("remoteStorageKeyFiles")
    return parse_remote_storage(location, given.get("remoteStorageLayout"), given, key_files=key_files)


def parse_write_options(raw: Mapping[str, str]) -> WriteOptions:
    """Options of a write. Raises InvalidOptionError."""
    given = _parse(raw, "write")
    if ("txnAppId" in given) != ("txnVersion" in given):
        raise InvalidOptionError("options txnAppId and txnVersion go together: give both or none")
    if "txnLowerVersion" in given and "txnAppId" not in given:
        raise InvalidOptionError("option txnLowerVersion goes with txnAppId and txnVersion: give those too")
    return WriteOptions(
        path=_path(given, _TABLE_WRITE),
        store=_store(given),
        principal=given.get("principal"),
        topic=given.get("topic"),
        compression_type=_either(given, "compression.type", "kafka.compression.type", None),
        batch_size_bytes=_either(given, "batch.size", "kafka.batch.size", BATCH_SIZE_BYTES),
        partitioner=given.get("partitioner", "murmur2"),
        txn_app_id=given.get("txnAppId"),
        txn_version=given.get("txnVersion"),
        txn_lower_version=given.get("txnLowerVersion", "fail"),
        flush=given.get("flush", "fsync"),
    )


def parse_stream_write_options(raw: Mapping[str, str]) -> WriteOptions:
    """Options of a streaming write. Raises InvalidOptionError."""
    options = parse_write_options(raw)
    if options.txn_app_id is not None:
        raise InvalidOptionError(
            "options txnAppId and txnVersion are for batch writes; a streaming write is made once by its query id "
            "and batch id, with nothing to set"
        )
    return options


def _parse(raw: Mapping[str, str], direction: Direction) -> dict[str, Any]:
    """Values by canonical name. Options of the other direction are checked too: a table has options for both."""
    given: dict[str, Any] = {}
    for name, text in raw.items():
        if name.lower() == _PATHS:
            given["path"] = _joined(text)
            continue
        if name.startswith(HADOOP_PREFIXES):
            given[name] = text
            continue
        option = _BY_LOWER_NAME.get(name.lower())
        if option is None:
            if any(ignored.matches(name) for ignored in IGNORED_OPTIONS):
                continue
            raise InvalidOptionError(_unknown(name, direction))
        try:
            given[option.name] = option.parse(text)
        except ValueError as error:
            raise InvalidOptionError(f"option {option.name} has the bad value {text!r}: {error}") from error
    return given


def _joined(text: str) -> str:
    """The option `path` for the paths of `load([...])`, which Spark passes as JSON."""
    try:
        paths = json.loads(text)
    except (ValueError, RecursionError):
        paths = None
    if not isinstance(paths, list) or not paths or not all(isinstance(each, str) and each.strip() for each in paths):
        raise InvalidOptionError(f"option paths has the bad value {text!r}: expected a JSON list of paths")
    return ",".join(paths)


def _unknown(name: str, direction: Direction) -> str:
    advice = refusal(name)
    if advice is not None:
        return f"option {name} has no counterpart in kafkalog: {advice}"
    close = [_BY_LOWER_NAME[each].name for each in difflib.get_close_matches(name.lower(), _BY_LOWER_NAME, n=2)]
    meant = f"did you mean {' or '.join(close)}? " if close else ""
    kind = "write" if direction == "write" else "read"
    streams_alone = f"; of a streaming read also {_allowed('stream', but='read')}" if direction == "read" else ""
    return f"unknown option {name!r} of kafkalog: {meant}options of a {kind}: {_allowed(direction)}{streams_alone}"


def _allowed(direction: Direction, *, but: Direction | None = None) -> str:
    """Names of the options that apply to `direction`, except those that apply to `but`; those of stores as one."""
    names = [each.name for each in OPTIONS if direction in each.applies_to and but not in each.applies_to]
    shown = [name for name in names if name not in STORE_OPTION_NAMES]
    return ", ".join(shown if len(shown) == len(names) else [*shown, "store… of an object store"])


#: What a table of the catalog needs. Spark hands its options to a Python data source in the table's schema only.
_TABLE_READ: Final = (
    "; of a table of the catalog Spark hands on the options only if CREATE TABLE lists no columns: create the table "
    "without them"
)
_TABLE_WRITE: Final = (
    "; Spark hands on no options of a table of the catalog to writes, so give them with the write: INSERT INTO t WITH "
    "(path = '...', topic = '...') ..., df.writeTo('t').option('path', '...').option('topic', '...').append(), "
    "df.writeStream.option('path', '...').option('topic', '...').toTable('t'); or write without a table: "
    "df.write.format('kafkalog').mode('append').save('...'), df.writeStream.format('kafkalog').start('...')"
)


def _path(given: Mapping[str, Any], hint: str) -> str:
    if "path" in given:
        path: str = given["path"]
        return path
    raise InvalidOptionError(f"option path is missing: the log directory, in place of kafka.bootstrap.servers{hint}")


def _subscription(given: Mapping[str, Any]) -> Subscription:
    named = [name for name in _SUBSCRIPTIONS if name in given]
    if len(named) > 1:
        raise InvalidOptionError(
            f"only one of the options {', '.join(_SUBSCRIPTIONS)} can be given, not {' and '.join(named)}"
        )
    subscription: Subscription = given[named[0]] if named else AllTopics()
    return subscription


def _first(given: Mapping[str, Any], names: tuple[str, ...], default: OffsetSpec) -> OffsetSpec:
    return next((given[name] for name in names if name in given), default)


def _starting(given: Mapping[str, Any], default: Earliest | Latest) -> OffsetSpec:
    """The start of the read; for `startingOffsets=group`, with the group's details from other options."""
    starting = _first(given, _STARTS, default)
    reset = _either(given, "auto.offset.reset", "kafka.auto.offset.reset", None)
    if not isinstance(starting, GroupOffsets):
        if reset is not None:
            raise InvalidOptionError("option auto.offset.reset goes with startingOffsets group; set that too")
        return starting
    if "kafka.group.id" not in given:
        raise InvalidOptionError("option startingOffsets group needs the option kafka.group.id: which group")
    return GroupOffsets(given["kafka.group.id"], reset or ("earliest" if isinstance(default, Earliest) else "latest"))


def _committing_group(given: Mapping[str, Any]) -> str | None:
    """The group that a streaming query commits its progress to, or None."""
    group_id: str | None = given.get("kafka.group.id")
    return group_id if given.get("commitOffsets", True) else None


def _either(given: Mapping[str, Any], name: str, same: str, default: Any) -> Any:
    if name in given and same in given and given[name] != given[same]:
        raise InvalidOptionError(f"options {name} and {same} mean the same and have different values")
    return given.get(name, given.get(same, default))


def _check_batch_ends(starting: OffsetSpec, ending: OffsetSpec) -> None:
    if isinstance(starting, Latest):
        raise InvalidOptionError("option startingOffsets cannot be latest in a batch read: nothing would be read")
    if isinstance(ending, Earliest):
        raise InvalidOptionError("option endingOffsets cannot be earliest in a batch read: nothing would be read")
    for name, spec, refused in (
        ("startingOffsets", starting, LATEST_OFFSET),
        ("endingOffsets", ending, EARLIEST_OFFSET),
    ):
        if isinstance(spec, SpecificOffsets):
            for topic_partition, offset in spec.offsets.items():
                if offset == refused:
                    word = "latest (-1)" if refused == LATEST_OFFSET else "earliest (-2)"
                    raise InvalidOptionError(f"option {name} for {topic_partition} cannot be {word} in a batch read")
    check_unresolved(starting, ending)
