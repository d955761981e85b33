"""Base of the classes of requests and responses, whose schemas lie in `protocol/schemas`.

A message's schema is in the file that has the name of the module of its class.
"""

from __future__ import annotations

from functools import cache
from typing import Final

from pyspark_kafkalog.metadata.messages.codec import Message, MessageSchema
from pyspark_kafkalog.metadata.messages.schema import load_schema_file

SCHEMAS_PACKAGE: Final = "pyspark_kafkalog.protocol"
#: The schema files, and the modules of this package with their classes.
AREAS: Final = (
    "records",
    "cluster",
    "replicas",
    "topics",
    "groups",
    "offsets",
    "consumer_groups",
    "transactions",
    "security",
)


class ApiMessage(Message):
    """A request or a response."""

    __slots__ = ()

    @classmethod
    @cache
    def schema(cls) -> MessageSchema:
        area = cls.__module__.rpartition(".")[2]
        return MessageSchema(load_schema_file(area, SCHEMAS_PACKAGE)[cls.__name__])
