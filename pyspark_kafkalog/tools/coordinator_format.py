"""Records of Kafka's internal topics as JSON, as kafka-console-consumer's formatters for them print it.

    {"key":{"type":1,"data":{"group":"g","topic":"t","partition":0}},"value":{"version":4,"data":{"offset":7,...}}}

One object per line, where Kafka puts nothing between them. Records of other types are skipped, as are keys of unknown
types. Source of the rules: org.apache.kafka.tools.consumer.CoordinatorRecordMessageFormatter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pyspark_kafkalog.errors import InvalidRecordError, KafkalogError
from pyspark_kafkalog.metadata.messages.json_form import json_text
from pyspark_kafkalog.tools.dump.decoders import CoordinatorDecoder, UnknownRecordTypeError

if TYPE_CHECKING:
    import pyarrow as pa

_OFFSET_COMMITS: Final = frozenset({0, 1})
_GROUP_METADATA: Final = frozenset({2})
#: By class name: the schemas, and the record types that are printed (None: all).
FORMATTERS: Final[Mapping[str, tuple[str, frozenset[int] | None]]] = {
    "OffsetsMessageFormatter": ("group_coordinator", _OFFSET_COMMITS),
    "GroupMetadataMessageFormatter": ("group_coordinator", _GROUP_METADATA),
    "TransactionLogMessageFormatter": ("transaction_coordinator", None),
}


class CoordinatorFormat:
    """Prints the records of one of the internal topics; `name` is one of FORMATTERS."""

    def __init__(self, name: str) -> None:
        schema_file, self._types = FORMATTERS[name]
        self._decoder = CoordinatorDecoder(schema_file)

    def columns(self) -> list[str]:
        """Columns of KAFKA_SCHEMA that `text` needs."""
        return ["key", "value", "offset"]

    def text(self, batch: pa.RecordBatch) -> bytes:
        """The JSON of the records in `batch`, one object per line. Raises InvalidRecordError."""
        keys, values, offsets = (batch.column(name).to_pylist() for name in self.columns())
        lines = (self._line(*record) for record in zip(keys, values, offsets, strict=True))
        return "".join(lines).encode("utf-8", "replace")

    def _line(self, key: bytes | None, value: bytes | None, offset: int) -> str:
        if key is None:
            return ""
        try:
            record = self._decoder.decode(key, value)
        except UnknownRecordTypeError:
            return ""
        except KafkalogError as error:
            raise InvalidRecordError(f"Could not read record at offset {offset} due to: {error}") from error
        if self._types is not None and record.record_type not in self._types:
            return ""
        tree = {"key": {"type": record.record_type, "data": record.key}, "value": None}
        if record.value is not None:
            tree["value"] = {"version": record.version, "data": record.value}
        return json_text(tree) + "\n"
