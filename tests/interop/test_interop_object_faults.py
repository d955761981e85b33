"""A store in trouble: each fault at each request of each operation, by a relay before S3Proxy.

An operation runs again and again, and the relay answers the request of the next number in the store's place, until the
operation ends before that request. A fault that passes must not be seen by the caller. A refusal may be: then the
operation is tried once more. Either way what was written is there once, in order.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from following_roots import copy_once
from http_relay import Answer, HttpRelay, Request
from leader_writers import append as leader_append
from leader_writers import batch
from metadata_roots import forget_images
from s3_proxy import S3Proxy
from tiered_roots import append_rounds, tiered_root
from tiers import rest_full

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.tier.copy import tier_segments
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.object_store import client
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.object_store.location import ObjectLocation
from pyspark_kafkalog.object_store.settings import store_settings
from pyspark_kafkalog.root.leader.open import leader_writer
from pyspark_kafkalog.root.leader.units import CommitUnit
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.tools.main import main

_PAGE = b"<html><head><title>Proxy</title></head><body>It works</body></html>"
_SMALL = {"internal.segment.bytes": "250000", "index.interval.bytes": "300"}
#: No operation takes so many requests.
_REQUESTS_MAX = 200


def _error(status: int, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Message>made up</Message></Error>".encode())


Fault = Callable[[Request], "Answer | None"]

#: Each with whether it passes.
FAULTS: dict[str, tuple[Fault, bool]] = {
    "answer lost": (lambda request: HttpRelay.HANG_UP, True),
    "request lost": (lambda request: HttpRelay.REFUSE, True),
    "answer cut": (lambda request: HttpRelay.CUT, True),
    "busy": (lambda request: _error(503, "SlowDown"), True),
    "internal error": (lambda request: _error(500, "InternalError"), True),
    "404 cut": (lambda request: _error(404, "NoSuchKey").cut(), True),
    "page": (lambda request: Answer(404, _PAGE), True),
    "page as listing": (lambda request: Answer(200, _PAGE) if request.kind == "LIST" else HttpRelay.REFUSE, True),
    "slow body": (lambda request: _error(400, "RequestTimeout"), True),
    "aborted": (lambda request: _error(409, "OperationAborted"), True),
    "denied": (lambda request: _error(403, "AccessDenied"), False),
    "key disabled": (lambda request: _error(400, "KMS.DisabledException"), False),
    "immutable": (lambda request: _error(409, "BlobImmutableDueToPolicy"), False),
    "other region": (lambda request: _error(301, "PermanentRedirect"), False),
}


class Trouble:
    """A bucket of a server behind a relay, in which one request after the other meets a fault."""

    def __init__(self, location: ObjectLocation, options: dict[str, str], relay: HttpRelay, scratch: Path) -> None:
        self.scratch = scratch
        self.values: list[str] = []
        self._location = location
        self._options = options
        self._relay = relay
        self._numbers = itertools.count()
        self.address = self.place("log")

    def place(self, name: str) -> StoreAddress:
        location = self._location.below(name)
        return StoreAddress(location, store_settings(location, self._options))

    def anew(self, name: str) -> str:
        """A name that no other run has."""
        return f"{name}-{next(self._numbers)}"

    def opened(self) -> LogDir:
        """As in a new process."""
        forget_images()
        client._open_stores.clear()
        return LogDir.open(self.address)

    def create(self) -> None:
        """A root with the topic orders."""
        LogDir.create(self.address).create_topic("orders", partitions=1, configs=_SMALL)

    def append(self, size: int) -> pa.Table:
        """Records of `size` characters, that are expected from now on."""
        values = [self.anew("value") for _ in range(3)]
        self.values += values
        return pa.table({"value": [each.ljust(size, ".") for each in values]})

    def read(self, log_dir: LogDir) -> list[str]:
        values = log_dir.read("orders", columns=["value"]).column("value").to_pylist()
        return [bytes(each).decode().rstrip(".") for each in values]

    def meet(self, run: Callable[[], object], fault: Fault, number: int) -> tuple[bool, Exception | None]:
        """Run, with the fault at that request: whether it was met, and what was raised."""
        lock, seen, met = threading.Lock(), itertools.count(), threading.Event()

        def answer(request: Request) -> Answer | None:
            with lock:
                if next(seen) != number:
                    return None
            met.set()
            return fault(request)

        self._relay.answer = answer
        try:
            run()
        except (KafkalogError, OSError, AssertionError) as error:
            return met.is_set(), error
        finally:
            self._relay.answer = None
        return met.is_set(), None

    def check(self) -> None:
        """What was appended is there once and in order, and the root is without errors."""
        log_dir = self.opened()
        found = self.read(log_dir)
        assert found
        assert found == self.values[len(self.values) - len(found) :]
        assert [each for each in verify(log_dir.root).findings if each.severity.name == "ERROR"] == []


def _command(*arguments: str) -> None:
    status = main(list(arguments))
    assert status == 0, f"status {status}"


def _create(trouble: Trouble) -> Callable[[], object]:
    place = trouble.place(trouble.anew("root"))
    return lambda: LogDir.open_or_create(place)


def _open(trouble: Trouble) -> Callable[[], object]:
    return trouble.opened


def _read(trouble: Trouble) -> Callable[[], object]:
    def read() -> None:
        assert trouble.read(trouble.opened()) == trouble.values

    return read


def _append(size: int) -> Callable[[Trouble], Callable[[], object]]:
    def prepared(trouble: Trouble) -> Callable[[], object]:
        log_dir = trouble.opened()
        table = trouble.append(size)
        return lambda: log_dir.append("orders", table)

    return prepared


def _group(trouble: Trouble) -> Callable[[], object]:
    log_dir = trouble.opened()

    def commit() -> None:
        log_dir.group("billing").commit({TopicPartition("orders", 0): 2})

    return commit


def _serve(trouble: Trouble) -> Callable[[], object]:
    """A batch of an idempotent producer, sent again as its client does; a server keeps its writer."""
    writer = leader_writer(trouble.opened().root.native(), flush="fsync")
    producer = int(trouble.anew("1").partition("-")[2]) + 1
    value = trouble.append(10).column("value").to_pylist()
    data = batch([each.encode() for each in value], producer=(producer, 0, 0))

    def commit() -> None:
        (result,) = writer.commit([CommitUnit.of(leader_append(data, topic="orders"))])
        if isinstance(result, KafkalogError):
            raise result

    return commit


def _job(*command: str) -> Callable[[Trouble], Callable[[], object]]:
    def prepared(trouble: Trouble) -> Callable[[], object]:
        log_dir = trouble.opened()
        if command[0] == "retention":
            log_dir.alter_topic("orders", add={"retention.bytes": "500"})
        for _ in range(2):
            log_dir.append("orders", trouble.append(200_000 if command[0] == "merge-segments" else 10))
        return lambda: _command(*command, "--path", trouble.address.location.url, "--local")

    return prepared


def _export(trouble: Trouble) -> Callable[[], object]:
    target = trouble.scratch / trouble.anew("copy")
    return lambda: _command("export", "--path", trouble.address.location.url, "--to", str(target))


def _follow(trouble: Trouble) -> Callable[[], object]:
    """A root in the store that follows another one in it."""
    copy = trouble.place(trouble.anew("copy"))
    return lambda: copy_once(trouble.address, copy)


def _tier(trouble: Trouble) -> Callable[[], object]:
    name = trouble.anew("tiered")
    log_dir = tiered_root(trouble.scratch / name, trouble.place(name).location.url)
    append_rounds(log_dir, 8)

    def tier() -> None:
        errors = [each.error for each in tier_segments(log_dir.root) if each.error is not None]
        assert errors == []
        _command("retention", "--path", str(log_dir.path), "--local")

    return tier


OPERATIONS: dict[str, Callable[[Trouble], Callable[[], object]]] = {
    "append": _append(10),
    "create": _create,
    "open": _open,
    "read": _read,
    "append large": _append(200_000),
    "group": _group,
    "serve": _serve,
    "merge": _job("merge-segments"),
    "retention": _job("retention"),
    "export": _export,
    "follow": _follow,
    "tier": _tier,
}
_KEPT = [("append", "answer lost"), ("open", "404 cut")]


@pytest.fixture
def trouble(s3_proxy: S3Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trouble]:
    with HttpRelay(s3_proxy.endpoint) as relay:
        options = s3_proxy.options(relay.endpoint)
        monkeypatch.setenv("AWS_ENDPOINT_URL", relay.endpoint)
        monkeypatch.setenv("AWS_REGION", options["storeRegion"])
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_proxy.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_proxy.secret_key)
        yield Trouble(s3_proxy.new_location(), options, relay, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "name"),
    rest_full(
        [*_KEPT, *(each for each in itertools.product(OPERATIONS, FAULTS) if each not in _KEPT)], kept=len(_KEPT)
    ),
)
def test_a_fault_at_any_request_loses_and_doubles_nothing(trouble: Trouble, operation: str, name: str) -> None:
    fault, passes = FAULTS[name]
    trouble.create()
    trouble.opened().append("orders", trouble.append(10))
    for number in range(_REQUESTS_MAX):
        run = OPERATIONS[operation](trouble)
        is_met, error = trouble.meet(run, fault, number)
        if error is not None:
            assert not passes, f"request {number}: {error}"
            assert "may exist, or may appear later" not in str(error)
            run()
        if not is_met:
            break
    assert not is_met
    trouble.check()
