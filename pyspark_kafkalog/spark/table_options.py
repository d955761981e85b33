"""Options of a SQL table: `CREATE TABLE t USING kafkalog OPTIONS (path ..., subscribe ...)`.

Spark 4.2 hands a table's options to a Python data source when it asks for the schema at CREATE TABLE, among the
table's properties, and never again: a SELECT comes with no options. But it keeps the schema in the catalog and hands it
back. So the options go into the metadata of one column of that schema. The column is timestampType, which no write
looks at: metadata follows columns into other tables' schemas, and there it must not be taken for theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

_METADATA_KEY: Final = "kafkalog.tableOptions"
_CARRIER: Final = "timestampType"
_OPTION_PREFIX: Final = "option."


def of_create_table(raw: Mapping[str, str]) -> dict[str, str] | None:
    """The options that a CREATE TABLE gives, out of the table properties that Spark hands over; None if it is none."""
    if "provider" not in raw:
        return None
    options = {name[len(_OPTION_PREFIX) :]: text for name, text in raw.items() if name.startswith(_OPTION_PREFIX)}
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
    """`raw`, over what the schema's metadata carries when `raw` has no path: then it is a table that is read."""
    if "path" in raw or _CARRIER not in schema.names:
        return dict(raw)
    carried = (schema[_CARRIER].metadata or {}).get(_METADATA_KEY, {})
    return {**carried, **raw}
