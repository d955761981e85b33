"""Roots in a store behind a relay that misbehaves at one request, or from one request on.

A `Trouble` has a place in a bucket of a real server and a relay before it. Waiting costs no time: the package's clock
for repetitions is the test's own.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import pyarrow as pa
import pytest
from builders.metadata_roots import forget_images
from kafka_processes.s3_proxy import S3Proxy
from kafka_processes.store_servers import AzuriteServer, MinioServer

from fakes.faulty_store import VirtualClock
from fakes.http_relay import Answer, HttpRelay, Request
from pyspark_kafkalog.errors import CommitStateUnknownError, KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.verify.verify import verify
from pyspark_kafkalog.object_store import client
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.object_store.location import ObjectLocation
from pyspark_kafkalog.object_store.retries import Waiting
from pyspark_kafkalog.object_store.settings import store_settings
from pyspark_kafkalog.tools.main import main

PAGE: Final = b"<html><head><title>Proxy</title></head><body>It works</body></html>"
SMALL_SEGMENTS: Final = {"internal.segment.bytes": "100000", "index.interval.bytes": "300"}

Fault = Callable[[Request], "Answer | None"]


class StoreServer(Protocol):
    """A server that a test has started."""

    @property
    def endpoint(self) -> str: ...

    def new_location(self) -> ObjectLocation: ...

    def options(self, endpoint: str | None = None) -> dict[str, str]: ...


def other_server(name: str, home: Path) -> MinioServer | AzuriteServer:
    """A server that only `make test-stores` starts."""
    servers: dict[str, type[MinioServer | AzuriteServer]] = {"minio": MinioServer, "azurite": AzuriteServer}
    return servers[name](home)


@dataclass(frozen=True, slots=True)
class StoreFault:
    """What the relay answers in the store's place. `passes`: the caller must not see it, however often it is met once.

    `code` is in the error of one that does not pass.
    """

    answer: Fault
    passes: bool = True
    code: str = ""


def _refusal(status: int, code: str) -> StoreFault:
    return StoreFault(lambda request: _error(status, code), passes=False, code=code)


def _error(status: int, code: str) -> Answer:
    body = f"<Error><Code>{code}</Code><Message>made up</Message></Error>".encode()
    return Answer(status, body, {"x-ms-error-code": code, "Content-Type": "application/xml"})


#: Of every protocol.
_COMMON: Final[Mapping[str, StoreFault]] = {
    "answer lost": StoreFault(lambda request: HttpRelay.HANG_UP),
    "request lost": StoreFault(lambda request: HttpRelay.REFUSE),
    "answer cut": StoreFault(lambda request: HttpRelay.CUT),
    "internal error": StoreFault(lambda request: _error(500, "InternalError")),
    "page": StoreFault(lambda request: Answer(404, PAGE)),
    "page as answer": StoreFault(lambda request: Answer(200, PAGE)),
    "gateway": StoreFault(lambda request: Answer(502, PAGE)),
    "immutable": _refusal(409, "BlobImmutableDueToPolicy"),
}
_S3: Final[Mapping[str, StoreFault]] = {
    **_COMMON,
    "busy": StoreFault(lambda request: _error(503, "SlowDown")),
    "404 cut": StoreFault(lambda request: _error(404, "NoSuchKey").cut()),
    "slow body": StoreFault(lambda request: _error(400, "RequestTimeout")),
    "aborted": StoreFault(lambda request: _error(409, "OperationAborted")),
    "denied": _refusal(403, "AccessDenied"),
    "key disabled": _refusal(400, "KMS.DisabledException"),
    "other region": replace(_refusal(301, "PermanentRedirect"), code="another region"),  # of which the client says more
}
_AZURE: Final[Mapping[str, StoreFault]] = {
    **_COMMON,
    "busy": StoreFault(lambda request: _error(503, "ServerBusy")),
    "404 cut": StoreFault(lambda request: _error(404, "BlobNotFound").cut()),
    "timed out": StoreFault(lambda request: _error(500, "OperationTimedOut")),
    "denied": _refusal(403, "AuthorizationPermissionMismatch"),
}
#: By server.
FAULTS: Final[Mapping[str, Mapping[str, StoreFault]]] = {"s3proxy": _S3, "minio": _S3, "azurite": _AZURE}


class Trouble:
    """A bucket of a server behind a relay, in which one request after the other meets a fault."""

    def __init__(self, server: StoreServer, relay: HttpRelay, scratch: Path, clock: VirtualClock) -> None:
        self.scratch = scratch
        self.clock = clock
        self.relay = relay
        self.values: list[str] = []
        #: Of appends whose outcome is unknown: each of them is there once, or not at all.
        self.uncertain: set[str] = set()
        self._location = server.new_location()
        self._options = server.options(relay.endpoint)
        self._numbers = itertools.count()
        self.address = self.place("log")

    @property
    def url(self) -> str:
        return self.address.location.url

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
        """A root with the topic orders, and records in it."""
        LogDir.create(self.address).create_topic("orders", partitions=1, configs=SMALL_SEGMENTS)
        self.opened().append("orders", self.append(10))

    def append(self, size: int) -> pa.Table:
        """Records of `size` characters, that are expected from now on; all have the same key."""
        values = [self.anew("value") for _ in range(3)]
        self.values += values
        return pa.table({"key": ["key"] * 3, "value": [each.ljust(size, ".") for each in values]})

    def read(self, log_dir: LogDir) -> list[str]:
        values = log_dir.read("orders", columns=["value"]).column("value").to_pylist()
        return [bytes(each).decode().rstrip(".") for each in values]

    def meet(
        self, run: Callable[[], object], fault: Fault, number: int, *, is_lasting: bool = False
    ) -> tuple[bool, Exception | None]:
        """Run, with the fault at that request, or from it on: whether it was met, and what was raised."""
        lock, seen, met = threading.Lock(), itertools.count(), threading.Event()

        def answer(request: Request) -> Answer | None:
            with lock:
                at = next(seen)
            if at < number or (at > number and not is_lasting):
                return None
            met.set()
            return fault(request)

        self.relay.answer = answer
        try:
            run()
        except (KafkalogError, OSError, AssertionError) as error:
            return met.is_set(), error
        finally:
            self.relay.answer = None
        return met.is_set(), None

    def check(self, *, may_miss: bool = False) -> None:
        """What was appended is there once and in order, and the root is without errors.

        `may_miss`: a job removes records from the beginning, or others than the latest of a key.
        """
        log_dir = self.opened()
        found = self.read(log_dir)
        assert found
        assert len(found) == len(set(found))
        expected = [each for each in self.values if each not in self.uncertain or each in found]
        if may_miss:
            assert found == [each for each in expected if each in set(found)]
            assert found[-1] == expected[-1]
        else:
            assert found == expected
        assert [each for each in verify(log_dir.root).findings if each.severity.name == "ERROR"] == []


def command(*arguments: str) -> None:
    """Run a kafkalog command in this process. Raises AssertionError with what it says if it fails."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        status = main(list(arguments))
    assert status == 0, f"status {status}: {said.getvalue()}"


def is_unknown(error: Exception) -> bool:
    """Whether the error says that a write may have taken effect."""
    return isinstance(error, CommitStateUnknownError) or "may exist, or may appear later" in str(error)


@contextlib.contextmanager
def troubled(server: StoreServer, scratch: Path, patch: pytest.MonkeyPatch) -> Iterator[Trouble]:
    """A `Trouble` at the server; commands in this process reach it by the environment."""
    clock = VirtualClock()
    patch.setattr(Waiting.__init__, "__defaults__", (clock.monotonic, clock.sleep, lambda: 0.5, 120.0, os.getpid))
    with HttpRelay(server.endpoint) as relay:
        options = server.options(relay.endpoint)
        names = {
            "storeEndpoint": ("AWS_ENDPOINT_URL", "AZURE_STORAGE_ENDPOINT"),
            "storeRegion": ("AWS_REGION",),
            "storeAccessKey": ("AWS_ACCESS_KEY_ID",),
            "storeSecretKey": ("AWS_SECRET_ACCESS_KEY", "AZURE_STORAGE_ACCOUNT_KEY"),
        }
        for option, variables in names.items():
            for variable in variables if option in options else ():
                patch.setenv(variable, options[option])
        trouble = Trouble(server, relay, scratch, clock)
        try:
            yield trouble
        finally:
            relay.answer = None
            client._open_stores.clear()
            store = client.open_store(trouble._location, store_settings(trouble._location, options))
            store.delete([each.key for each in store.list_objects("")])  # the server keeps objects in memory


def started(name: str, request: pytest.FixtureRequest, home: Path) -> contextlib.AbstractContextManager[StoreServer]:
    """The server of that name: S3Proxy of the test session, or another one, which ends with the block."""
    if name == "s3proxy":
        s3_proxy: S3Proxy = request.getfixturevalue("s3_proxy")
        return contextlib.nullcontext(s3_proxy)
    return other_server(name, home)
