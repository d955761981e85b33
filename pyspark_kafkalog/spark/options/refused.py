"""Settings of Kafka's clients that are refused because they would change the result, each with its replacement here.

Spark's Kafka source refuses most of them too (org.apache.spark.sql.kafka010.KafkaSourceProvider).
"""

from __future__ import annotations

from typing import Final

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
