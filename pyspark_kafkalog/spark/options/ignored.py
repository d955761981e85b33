"""Settings of Spark's Kafka source and of Kafka's clients that jobs may keep: they are accepted and have no effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.spark.stream.directions import EVERYWHERE, READ, WRITE, Direction


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
