"""Keys and payloads of records as text or numbers, as by the decoder classes of Kafka's tool."""

from __future__ import annotations

import struct
from typing import Final

from pyspark_kafkalog.tools.dump.printer import Contents
from pyspark_kafkalog.tools.dump.records import DumpRecord
from pyspark_kafkalog.tools.dump.walk import DumpError

STRING_DECODER: Final = "org.apache.kafka.tools.api.StringDecoder"
_NUMBER_DECODERS: Final = {
    "org.apache.kafka.tools.api.IntegerDecoder": struct.Struct(">i"),
    "org.apache.kafka.tools.api.LongDecoder": struct.Struct(">q"),
}
DECODER_CLASSES: Final = (STRING_DECODER, *_NUMBER_DECODERS)


class PlainDecoder:
    """Keys and payloads as UTF-8 text, or as numbers by Kafka's decoder classes."""

    def __init__(self, key_class: str = STRING_DECODER, value_class: str = STRING_DECODER) -> None:
        self._key_number = _NUMBER_DECODERS.get(key_class)
        self._value_number = _NUMBER_DECODERS.get(value_class)

    def __call__(self, record: DumpRecord) -> Contents:
        return _plain(record.key, self._key_number, record), _plain(record.value, self._value_number, record)


def _plain(data: bytes | None, number: struct.Struct | None, record: DumpRecord) -> object | None:
    if data is None or number is None:
        return data
    if len(data) < number.size:
        raise DumpError(f"a number of {number.size} bytes expected at offset {record.offset}, found {len(data)} bytes")
    return str(number.unpack_from(data)[0])
