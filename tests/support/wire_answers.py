"""The answers of servers to frames that are sent together, what they counted, and what they handled straight."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from fakes.hostile_clients import connected, sized
from kafka_processes.served import serve
from tiers import examples

from pyspark_kafkalog.protocol.api import APIS, ApiKey, encode_request, joined
from pyspark_kafkalog.protocol.messages.cluster import ApiVersionsRequest
from pyspark_kafkalog.server import run
from pyspark_kafkalog.server.connections.dispatch import Dispatcher
from pyspark_kafkalog.server.metrics import ServerMetrics

TIMES = re.compile(rb"out of \[[^]]*\]")  # the clock is in the message of a refusal
Counts: TypeAlias = dict[tuple[str, tuple[tuple[str, str], ...]], float]  # by name and labels
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


def counts(metrics: ServerMetrics, api: str) -> Counts:
    """What was counted of an API and of topics, without times and commits, which depend on when requests arrive."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if (api.lower() in sample.name.lower() or "topic" in sample.labels or sample.labels.get("request") == api)
        and not any(each in sample.name for each in ("time", "_sum", "_bucket", "created", "commit"))
    }


def sent_together(draw: Callable[[], tuple[bytes, bool]], count: int) -> list[bytes]:
    """Up to `count` frames that `draw` gives; one that may end the connection, as it says, is alone."""
    drawn = [draw() for _ in range(count)]
    return next(([frame] for frame, is_alone in drawn if is_alone), [frame for frame, _ in drawn])


def note_straight(monkeypatch: pytest.MonkeyPatch, root: Path, api_key: ApiKey) -> list[bool]:
    """Whether each request of an API to the server of `root` was handled straight; none of another root is."""
    found: list[bool] = []
    real = Dispatcher.straight

    def noted(self: Dispatcher, frame: bytearray, *arguments: Any) -> Any:
        if self._roles.current.context.root.path != root:
            return None
        exchange = real(self, frame, *arguments)
        if frame[:2] == struct.pack(">h", api_key):
            found.append(exchange is not None)
        return exchange

    monkeypatch.setattr(Dispatcher, "straight", noted)
    return found


def check_alike(
    monkeypatch: pytest.MonkeyPatch, roots: Sequence[Path], draw: Callable[[], Sequence[bytes]], api: str
) -> Counts:
    """Send drawn frames to servers of two roots, whose answers and counts of the API, returned, are the same."""
    metrics: list[ServerMetrics] = []

    def made() -> ServerMetrics:
        metrics.append(ServerMetrics())
        return metrics[-1]

    monkeypatch.setattr(run, "ServerMetrics", made)
    with serve(roots[0]) as first, serve(roots[1]) as second:
        ports = [int(each.rpartition(":")[2]) for each in (first, second)]
        for _ in range(examples(1000)):
            frames = draw()
            one, other = (answers(port, frames) for port in ports)
            assert one == other, frames
    one_counted, other_counted = (counts(each, api) for each in metrics)
    assert one_counted == other_counted
    return one_counted
