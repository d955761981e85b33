"""The handlers of this package by API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.server.context import Handler
from pyspark_kafkalog.server.writes.produce import TransactionGate, produce_handler
from pyspark_kafkalog.server.writes.read_only import refuse_produce, refuse_producer_id

#: The handlers of a server that only reads.
READ_ONLY_HANDLERS: Final[Mapping[ApiKey, Handler]] = {ApiKey.PRODUCE: refuse_produce}
#: Those of a server over a broker's directory, which has no coordinator of transactions.
NO_PRODUCER_IDS: Final[Mapping[ApiKey, Handler]] = {ApiKey.INIT_PRODUCER_ID: refuse_producer_id}


def handlers(gate: TransactionGate) -> Mapping[ApiKey, Handler]:
    """The handlers; see `produce_handler`."""
    return {ApiKey.PRODUCE: produce_handler(gate)}
