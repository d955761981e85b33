"""The answers of a server to frames that are sent together, and what it has counted of them."""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any

from fakes.hostile_clients import connected, sized

from pyspark_kafkalog.protocol.api import APIS, ApiKey, encode_request, joined
from pyspark_kafkalog.protocol.messages.cluster import ApiVersionsRequest
from pyspark_kafkalog.server.metrics import ServerMetrics

TIMES = re.compile(rb"out of \[[^]]*\]")  # the clock is in the message of a refusal
LAST = 1 << 30  # the correlation id of a request whose answer is the last one


def answers(port: int, frames: Sequence[bytes]) -> list[bytes]:
    """All answers to the frames, which are sent together, up to the end of the connection or to a last request."""
    last = joined(encode_request(APIS[ApiKey.API_VERSIONS], 0, LAST, "last", ApiVersionsRequest()))
    found: list[bytes] = []
    with connected(port) as sock:
        sock.settimeout(60)
        sock.sendall(b"".join([*map(sized, frames), last]))
        with sock.makefile("rb") as stream:
            while len(head := _read(stream, 4)) == 4:
                answer = _read(stream, *struct.unpack(">i", head))
                if answer[:4] == struct.pack(">i", LAST):
                    return [*found, b"last"]
                found.append(TIMES.sub(b"", answer))
    return found


def _read(stream: Any, size: int) -> bytes:
    try:
        data: bytes = stream.read(size)
    except ConnectionError:
        return b""
    return data


def counts(metrics: ServerMetrics, api: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """What was counted of an API and of topics, without times and commits, which depend on when requests arrive."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if (api.lower() in sample.name.lower() or "topic" in sample.labels or sample.labels.get("request") == api)
        and not any(each in sample.name for each in ("time", "_sum", "_bucket", "created", "commit"))
    }
