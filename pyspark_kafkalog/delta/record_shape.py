"""A topic's records as the columns of a table.

A raw table has the columns of the source: key, value, topic, partition, offset, timestamp, timestampType.

With a schema, the value is JSON with the schema's fields, and the table has

    the key columns       of the key schema, `key STRING` by default
    the value columns     of the schema, except those that are key columns
    _partition, _offset, _timestamp     if requested

With a key schema of one column, the key is bytes (BINARY) or text that is cast to the column's type; with several
columns, a JSON object. A record with a null value is a tombstone: its value columns are null. JSON fields that the
schema does not name are dropped; missing fields are null. Any other value, a key that does not fit, and a timestamp
that Spark's type does not hold, make a bad record.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.units import MAX_SPARK_TIMESTAMP_MS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType


def quoted(name: str) -> str:
    """`name` in backticks, with backticks in it doubled, so that any name is a single identifier."""
    return "`" + name.replace("`", "``") + "`"


DEFAULT_KEY_SCHEMA: Final = "key STRING"
RAW_KEY: Final = "key"

#: Helper columns in addition to the table's own while a micro-batch is processed.
PARTITION: Final = "__kafkalog_partition"
OFFSET: Final = "__kafkalog_offset"
TIMESTAMP: Final = "__kafkalog_timestamp"
DELETED: Final = "__kafkalog_deleted"
BAD: Final = "__kafkalog_bad"
RECORD: Final = "__kafkalog_record"

_CORRUPT: Final = "__kafkalog_corrupt"
_FAR: Final = "__kafkalog_far"
_METADATA: Final = {"_partition": "partition", "_offset": "offset", "_timestamp": "timestamp"}


@dataclass(frozen=True)
class RecordShape:
    """`schema` is that of the value, None for a raw table; `key_schema` that of the key.

    With `keys_needed` a record without a key is bad.
    """

    schema: StructType | None
    key_schema: StructType
    metadata_columns: bool = False
    keys_needed: bool = False

    @classmethod
    def parse(
        cls,
        schema: str | None,
        key_schema: str | None = None,
        *,
        metadata_columns: bool = False,
        keys_needed: bool = False,
    ) -> RecordShape:
        """From DDL such as `id LONG, name STRING`; needs a Spark session. Raises InvalidOptionError for invalid DDL."""
        if schema is None and (key_schema is not None or metadata_columns):
            raise InvalidOptionError("a key schema and metadata columns need a schema: raw tables have the source's")
        taken = _METADATA if metadata_columns else {}
        return cls(
            None if schema is None else _parse_ddl("schema", schema, taken),
            _parse_ddl("key schema", key_schema or DEFAULT_KEY_SCHEMA, taken),
            metadata_columns,
            keys_needed,
        )

    @property
    def keys(self) -> list[str]:
        """The key columns of the table."""
        return [RAW_KEY] if self.schema is None else list(self.key_schema.names)

    def apply(self, records: DataFrame) -> DataFrame:
        """The table's columns and the helper columns. BAD is the reason why a record is bad, null for a good one;
        RECORD is the source row.

        The timestamps of `records` may be bigint, in milliseconds: one that Spark's type does not hold makes a bad
        record, and is null in the columns.
        """
        from pyspark.sql import functions as F
        from pyspark.sql.types import LongType

        names, far = records.columns, F.lit(None).cast("string")
        if isinstance(records.schema["timestamp"].dataType, LongType):
            records, far = _with_timestamps(records), F.col(_FAR)
        beside = {
            PARTITION: F.col("partition"),
            OFFSET: F.col("offset"),
            TIMESTAMP: F.col("timestamp"),
            DELETED: F.col("value").isNull(),
            RECORD: F.struct(*(F.col(name) for name in names)),
        }
        if self.schema is None:
            no_key = F.when(F.col(RAW_KEY).isNull() & F.lit(self.keys_needed), F.lit("it has no key"))
            helpers = {**beside, BAD: F.coalesce(far, no_key)}
            return records.select(*names, *(each.alias(name) for name, each in helpers.items()))
        parsed = records.withColumns({"__kafkalog_key": self._key(), "__kafkalog_value": self._value(self.schema)})
        key_names = {name.lower() for name in self.key_schema.names}
        columns = [F.col(f"__kafkalog_key.{quoted(name)}").alias(name) for name in self.key_schema.names]
        columns += [
            F.col(f"__kafkalog_value.{quoted(name)}").alias(name)
            for name in self.schema.names
            if name.lower() not in key_names
        ]
        if self.metadata_columns:
            columns += [F.col(source).alias(name) for name, source in _METADATA.items()]
        helpers = {**beside, BAD: F.coalesce(far, self._reason())}
        return parsed.select(*columns, *(each.alias(name) for name, each in helpers.items()))

    def _key(self) -> Column:
        """A struct of the key's columns."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import BinaryType

        if len(self.key_schema.fields) > 1:
            return F.from_json(F.col("key").cast("string"), self.key_schema)
        only = self.key_schema.fields[0]
        if isinstance(only.dataType, BinaryType):
            return F.struct(F.col("key").alias(only.name))
        return F.struct(F.col("key").cast("string").try_cast(only.dataType).alias(only.name))

    def _value(self, schema: StructType) -> Column:
        """A struct of the value's columns, and of the text that could not be parsed."""
        from pyspark.sql import functions as F
        from pyspark.sql.types import StringType, StructField, StructType

        with_corrupt = StructType([*schema.fields, StructField(_CORRUPT, StringType())])
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        return F.from_json(F.col("value").cast("string"), with_corrupt, options)

    def _reason(self) -> Column:
        from pyspark.sql import functions as F
        from pyspark.sql.types import BinaryType

        value, key = F.col("__kafkalog_value"), F.col("__kafkalog_key")
        is_parsed = value.isNotNull() & value[_CORRUPT].isNull() & _is_one_object("value")
        unparsed = F.col("value").isNotNull() & ~is_parsed
        fields = [key[field.name] for field in self.key_schema.fields]
        any_null = fields[0].isNull()
        for field in fields[1:]:
            any_null = any_null | field.isNull()
        if len(fields) > 1:
            any_null = any_null | ~_is_one_object("key")
        elif not isinstance(self.key_schema.fields[0].dataType, BinaryType):
            any_null = any_null | ~F.is_valid_utf8(F.col("key").cast("string"))
        missing = F.col("key").isNull() & F.lit(self.keys_needed)
        return (
            F.when(missing, F.lit("it has no key"))
            .when(F.col("key").isNotNull() & any_null, F.lit(f"its key is no {self.key_schema.simpleString()}"))
            .when(unparsed, F.lit("its value is no JSON object of the schema"))
        )


def _with_timestamps(records: DataFrame) -> DataFrame:
    """`records` with their milliseconds as timestamps, null where that is too far, and with the reason as _FAR."""
    from pyspark.sql import functions as F

    ms = F.col("timestamp")
    fits = ms.between(-MAX_SPARK_TIMESTAMP_MS, MAX_SPARK_TIMESTAMP_MS)
    far = F.concat(F.lit("its timestamp, "), ms.cast("string"), F.lit(" ms, is beyond those of Spark"))
    return records.withColumns({"timestamp": F.when(fits, F.timestamp_millis(ms)), _FAR: F.when(~fits, far)})


def _is_one_object(column: str) -> Column:
    """Whether the column is text with one JSON object and nothing after it, which `from_json` does not check."""
    from pyspark.sql import functions as F

    text = F.col(column).cast("string")
    documents = F.json_array_length(F.concat(F.lit("["), text, F.lit("]")))  # null unless the whole text is JSON
    # A closing bracket in the text would end the array early.
    return F.is_valid_utf8(text) & F.coalesce(documents == 1, F.lit(False)) & ~text.rlike(r"\]\s*$")


def _parse_ddl(what: str, text: str, taken: Collection[str]) -> StructType:
    """The columns of a schema. Raises InvalidOptionError for a duplicate name or one that is in `taken`."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        parsed = StructType.fromDDL(text)
    except PySparkException as error:
        first_line = str(error).strip().splitlines()[0]
        raise InvalidOptionError(f"{what} {text!r} is no DDL, such as 'id LONG, at TIMESTAMP': {first_line}") from error
    if not isinstance(parsed, StructType) or not parsed.fields:
        raise InvalidOptionError(f"{what} {text!r} has no columns, such as 'id LONG, at TIMESTAMP'")
    lower = [name.lower() for name in parsed.names]
    twice = [name for name in lower if lower.count(name) > 1]
    if twice:
        raise InvalidOptionError(f"{what} {text!r}: column {twice[0]} occurs twice")
    clash = [name for name in lower if name in taken]
    if clash:
        raise InvalidOptionError(f"{what} {text!r}: {clash[0]} is one of the metadata columns; leave them or it out")
    return parsed
