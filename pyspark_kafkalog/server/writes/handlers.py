"""The handler of this package by API."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.server.context import Handler
from pyspark_kafkalog.server.writes.produce import TransactionGate, produce_handler


def handlers(gate: TransactionGate) -> Mapping[ApiKey, Handler]:
    """The handlers; see `produce_handler`."""
    return {ApiKey.PRODUCE: produce_handler(gate)}
