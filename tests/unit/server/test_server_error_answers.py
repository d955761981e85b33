"""A handler that fails is answered with errors for all that was asked for, in the versions of all APIs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest
from random_messages import RandomMessages

from pyspark_kafkalog.errors import LogDirError
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.protocol.api import APIS, Api, ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.headers import decode_response, encode_request, joined, parse_request
from pyspark_kafkalog.server.connections.dispatch import Exchange
from pyspark_kafkalog.server.context import CloseConnection, Session

#: Their answers have no error codes, or none if nothing is named: all topics, all log directories.
WITHOUT_PLACE = frozenset({ApiKey.METADATA})


class NoQuotas:
    @staticmethod
    def has(quota: str) -> bool:
        return False

    @staticmethod
    def throttle(*charged: Any) -> int:
        return 0


class Context:
    @staticmethod
    async def run(work: Callable[[], Any]) -> Any:
        return work()


class Gate:
    quotas = NoQuotas


def answered(api: Api, version: int, body: Message, error: Exception) -> Message:
    """The response of a handler that raises."""

    async def handler(context: Any, request: Any) -> Any:
        raise error

    frame = bytearray(joined(encode_request(api, version, 1, "tests", body))[4:])  # type: ignore[arg-type]
    parsed = parse_request(frame)
    parts: Any = (Context, Gate, parsed, handler, parsed.body(), Session("h", 1), 1, lambda *told: None)
    pieces = asyncio.run(Exchange(*parts).handle())
    assert pieces is not None
    return decode_response(api, version, joined(pieces)[4:], api.response)[1]


def codes(value: Any) -> list[int]:
    """All error codes in a response."""
    if isinstance(value, tuple):
        return [code for each in value for code in codes(each)]
    if not isinstance(value, Message):
        return []
    found = []
    for name in value.FIELDS:
        inner = getattr(value, name)
        found += [inner] if name.endswith("error_code") else codes(inner)
    return found


@pytest.mark.parametrize("api", APIS.values(), ids=[each.key.name for each in APIS.values()])
def test_error_of_a_handler_is_answered_in_all_versions(api: Api) -> None:
    messages = RandomMessages(random.Random(5))
    for version in api.versions:
        told = 0
        for _ in range(12):
            try:
                body = messages.draw(api.request, version)
                response = answered(api, version, body, LogDirError("cannot be read"))
            except CloseConnection:
                continue
            told += 1
            assert ErrorCode.KAFKA_STORAGE_ERROR in codes(response)
        assert told or api.key in WITHOUT_PLACE, version


def test_defect_of_a_handler_is_answered_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    heartbeat = APIS[ApiKey.HEARTBEAT]
    assert codes(answered(heartbeat, 4, heartbeat.request(), ZeroDivisionError())) == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert "HEARTBEAT failed" in caplog.text
