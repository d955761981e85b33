"""Options of a SQL table: `CREATE TABLE t USING kafkalog OPTIONS (path ..., subscribe ...)`.

Spark 4.2 passes a table's options to a Python data source only when it asks for the schema at CREATE TABLE, among the
table's properties: a SELECT has no options. But Spark stores the schema in the catalog and passes it back. So the
options are stored in the metadata of one column of that schema. That column is timestampType, which no write reads:
metadata follows columns into the schemas of other tables, and must not be mistaken for their options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

_METADATA_KEY: Final = "kafkalog.tableOptions"
_CARRIER: Final = "timestampType"
_OPTION_PREFIX: Final = "option."


def of_create_table(raw: Mapping[str, str]) -> dict[str, str] | None:
    """The options of a CREATE TABLE, from the table properties that Spark passes; None if it is no CREATE TABLE."""
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
    """`raw`; if it has no path, a table is read: then `raw` overrides the options in the schema's metadata."""
    if "path" in raw or _CARRIER not in schema.names:
        return dict(raw)
    carried = (schema[_CARRIER].metadata or {}).get(_METADATA_KEY, {})
    return {**carried, **raw}
