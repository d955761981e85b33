"""The handlers of this package by API, but ApiVersions, which has to know all others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.server.context import Handler
from pyspark_kafkalog.server.metadata.find_coordinator import handle_find_coordinator
from pyspark_kafkalog.server.metadata.topics import handle_metadata

HANDLERS: Final[Mapping[ApiKey, Handler]] = {
    ApiKey.METADATA: handle_metadata,
    ApiKey.FIND_COORDINATOR: handle_find_coordinator,
}
