"""An object store within the test's own process, that fails, answers late and kills its clients when told to.

A `MemoryBucket` is what all clients share: the objects, a virtual clock, and the requests that are still on their way.
A `FaultyStore` is one client of it, a process of its own as far as the package can tell: it numbers its calls, counts
its requests, and meets at each call the fault that the test has planned. Without faults it is a plain store in memory.

    bucket = MemoryBucket()
    store = FaultyStore(bucket, faults={7: Fault.FAILS_AFTER})   # the eighth call
    store = FaultyStore(bucket, faults=lambda call: Fault.CONFLICT if call.kind == "create" else None)

Everything is deterministic if the clients are. Hooks run outside of all locks, so that they may use other clients: what
happens between two calls of one writer is written there.
"""

from __future__ import annotations

import contextlib
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, TypeVar

from fakes.stopping_filesystem import Killed
from pyspark_kafkalog.object_store.store import (
    ByteRange,
    ObjectExistsError,
    ObjectMetadata,
    ObjectNotFoundError,
    ObjectStoreError,
    StoreAccessError,
    check_key,
)

WRITES: Final = ("create", "put", "delete", "copy")
KINDS: Final = (*WRITES, "get", "get_range", "head", "list", "sign")
TIMEOUT_MS: Final = 10_000
#: Keys a delete request takes, as on S3.
DELETED_AT_ONCE: Final = 1000

T = TypeVar("T")


class Fault(Enum):
    """What happens to one call. "Lost" means ObjectStoreError for the client."""

    #: The request never arrives: lost, no effect.
    FAILS_BEFORE = auto()
    #: The request takes effect, its answer does not arrive: lost.
    FAILS_AFTER = auto()
    #: Lost after a time-out, and takes effect after later calls (`MemoryBucket.late_calls`), if it still can then.
    LANDS_LATE = auto()
    #: 409: no effect; a create is told that the object exists, others are lost.
    CONFLICT = auto()
    #: 503: no effect, lost.
    UNAVAILABLE = auto()
    #: 403: no effect, StoreAccessError.
    DENIED = auto()
    #: No effect, lost after a time-out.
    TIMEOUT = auto()
    #: The client's process is killed (Killed, now and at each later call of this client): before the request leaves,
    CRASH_BEFORE = auto()
    #: after it took effect,
    CRASH_AFTER = auto()
    #: while it is on its way: it takes effect after later calls of other clients.
    CRASH_IN_FLIGHT = auto()


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a client, numbered from 0. A page of a listing is a call."""

    number: int
    kind: str
    keys: tuple[str, ...]

    @property
    def is_write(self) -> bool:
        return self.kind in WRITES


@dataclass(frozen=True, slots=True)
class StoredObject:
    body: bytes
    last_modified_ms: int


class VirtualClock:
    """Time that passes only by requests and by `sleep`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic(self) -> float:
        """Seconds, as time.monotonic gives them."""
        return self._now_ms / 1000

    def advance(self, by_ms: int) -> None:
        with self._lock:
            self._now_ms += by_ms

    def sleep(self, seconds: float) -> None:
        self.advance(round(seconds * 1000))


class MemoryBucket:
    """Objects in memory.

    late_calls: after how many further calls on the bucket a late request lands; None: when `land` is called. Every
    call takes `request_ms` of the virtual clock. Buckets that one process has open need different names.
    """

    def __init__(
        self,
        *,
        clock: VirtualClock | None = None,
        late_calls: int | None = 2,
        request_ms: int = 1,
        name: str = "bucket",
    ) -> None:
        self.name = name
        self.clock = clock if clock is not None else VirtualClock()
        self.late_calls = late_calls
        self.objects: dict[str, StoredObject] = {}
        self._request_ms = request_ms
        self._in_flight: list[tuple[int | None, Callable[[], object]]] = []
        self._lock = threading.RLock()

    def __contains__(self, key: str) -> bool:
        return key in self.objects

    def keys(self, prefix: str = "") -> list[str]:
        """The keys below the folder, in order, without a request."""
        with self._lock:
            return sorted(key for key in self.objects if not prefix or key.startswith(f"{prefix}/"))

    def body(self, key: str) -> bytes:
        """An object's bytes, without a request."""
        return self.objects[key].body

    def write(self, key: str, body: bytes) -> None:
        """Create or replace an object without a request: damage, or what somebody else has put there."""
        with self._lock:
            self.objects[check_key(key)] = StoredObject(bytes(body), self.clock.now_ms())

    def land(self) -> int:
        """Let all requests on their way take effect, in the order of their departure. Returns how many there were."""
        with self._lock:
            landing, self._in_flight = self._in_flight, []
            for _, apply in landing:
                self._land_one(apply)
            return len(landing)

    def apply(self, effect: Callable[[], T]) -> T:
        """A request arrives: time passes, and late ones whose turn it is land before it."""
        with self._lock:
            self.pass_call()
            return effect()

    def pass_call(self) -> None:
        with self._lock:
            self.clock.advance(self._request_ms)
            waiting = [(left - 1 if left is not None else None, apply) for left, apply in self._in_flight]
            self._in_flight = [each for each in waiting if each[0] is None or each[0] > 0]
            for left, apply in waiting:
                if left is not None and left <= 0:
                    self._land_one(apply)

    def send_late(self, effect: Callable[[], object]) -> None:
        with self._lock:
            self._in_flight.append((self.late_calls, effect))

    @staticmethod
    def _land_one(effect: Callable[[], object]) -> None:
        with contextlib.suppress(ObjectStoreError):  # nobody waits for the answer any more
            effect()


class FaultyStore:
    """One client of a bucket, an `ObjectStore`. See the module's docstring.

    faults: by number of the call, or a function of the call. before, after: called ahead of each call and behind each
    that succeeded. requests: calls by kind as a server would count them at most: a range is a request, a page of a
    listing, and each 1000 keys deleted. calls: all of them, in order.
    """

    def __init__(
        self,
        bucket: MemoryBucket | None = None,
        *,
        faults: Mapping[int, Fault] | Callable[[Call], Fault | None] | None = None,
        before: Callable[[Call], None] | None = None,
        after: Callable[[Call], None] | None = None,
        page_size: int = 1000,
    ) -> None:
        self.bucket = bucket if bucket is not None else MemoryBucket()
        self.faults = faults if faults is not None else {}
        self.before = before
        self.after = after
        self.requests: Counter[str] = Counter()
        self.calls: list[Call] = []
        self.is_killed = False
        self._page_size = page_size
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"memory://{self.bucket.name}"

    def create(self, key: str, body: Any) -> None:
        check_key(key)
        stored = bytes(body)

        def effect() -> None:
            if key in self.bucket.objects:
                raise ObjectExistsError(f"{self.url}/{key}: the object exists")
            self.bucket.write(key, stored)

        self._call("create", (key,), effect)

    def put(self, key: str, body: Any) -> None:
        check_key(key)
        stored = bytes(body)
        self._call("put", (key,), lambda: self.bucket.write(key, stored))

    def get(self, key: str, *, max_bytes: int, once: bool = False) -> bytes:
        body = self._call("get", (check_key(key),), lambda: self._find(key).body)
        if len(body) > max_bytes:
            raise ObjectStoreError(f"{self.url}/{key}: expected at most {max_bytes} bytes, found {len(body)}")
        return body

    def get_range(self, key: str, wanted: ByteRange) -> Any:
        body = self._call("get_range", (check_key(key),), lambda: self._find(key).body)
        return memoryview(body)[wanted.start : wanted.end]

    def head(self, key: str) -> ObjectMetadata:
        check_key(key)
        return self._call("head", (key,), lambda: self._metadata(key))

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectMetadata]:
        if prefix:
            check_key(prefix)
        last = after
        while True:
            page = self._call("list", (prefix,), lambda from_key=last: self._page(prefix, from_key))
            yield from page
            if len(page) < self._page_size:
                return
            last = page[-1].key

    def delete(self, keys: Collection[str]) -> None:
        wanted = tuple(map(check_key, keys))
        for start in range(0, len(wanted), DELETED_AT_ONCE):
            some = wanted[start : start + DELETED_AT_ONCE]

            def effect(some: tuple[str, ...] = some) -> None:
                for key in some:
                    self.bucket.objects.pop(key, None)

            self._call("delete", some, effect)

    def copy(self, source: str, target: str) -> None:
        check_key(source)
        check_key(target)
        self._call("copy", (source, target), lambda: self.bucket.write(target, self._find(source).body))

    def sign(self, key: str, *, expires_in_seconds: int) -> str:
        check_key(key)
        return self._call("sign", (key,), lambda: f"{self.url}/{key}?expires={expires_in_seconds}", requests=0)

    def _find(self, key: str) -> StoredObject:
        found = self.bucket.objects.get(key)
        if found is None:
            raise ObjectNotFoundError(f"{self.url}/{key}: there is no such object")
        return found

    def _metadata(self, key: str) -> ObjectMetadata:
        found = self._find(key)
        return ObjectMetadata(key, len(found.body), found.last_modified_ms)

    def _page(self, prefix: str, after: str | None) -> list[ObjectMetadata]:
        keys = self.bucket.keys(prefix)
        start = bisect_right(keys, after) if after is not None else 0
        return [self._metadata(key) for key in keys[start : start + self._page_size]]

    def _call(self, kind: str, keys: tuple[str, ...], effect: Callable[[], T], *, requests: int = 1) -> T:
        with self._lock:
            if self.is_killed:
                raise Killed
            call = Call(len(self.calls), kind, keys)
            self.calls.append(call)
            self.requests[kind] += requests
        if self.before is not None:
            self.before(call)
        fault = self.faults(call) if callable(self.faults) else self.faults.get(call.number)
        answer = self.bucket.apply(effect) if fault is None else self._meet(fault, call, effect)
        if self.after is not None:
            self.after(call)
        return answer

    def _meet(self, fault: Fault, call: Call, effect: Callable[[], T]) -> T:
        """Never returns: each fault ends with an exception, if only with that of the request itself."""
        what = f"{self.url}/{call.keys[0]}: {call.kind}"
        if fault in (Fault.FAILS_AFTER, Fault.CRASH_AFTER):
            with contextlib.suppress(ObjectStoreError):  # the answer is lost, whatever it was
                self.bucket.apply(effect)
        else:
            self.bucket.pass_call()
        if fault in (Fault.LANDS_LATE, Fault.CRASH_IN_FLIGHT) and call.is_write:
            self.bucket.send_late(effect)
        if fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_IN_FLIGHT):
            self.is_killed = True
            raise Killed
        if fault in (Fault.LANDS_LATE, Fault.TIMEOUT):
            self.bucket.clock.advance(TIMEOUT_MS)
            raise ObjectStoreError(f"{what}: no answer in {TIMEOUT_MS} ms")
        if fault is Fault.CONFLICT:
            error = ObjectExistsError if call.kind == "create" else ObjectStoreError
            raise error(f"{what}: 409 conflicting request")
        if fault is Fault.DENIED:
            raise StoreAccessError(f"{what}: 403 not permitted")
        if fault is Fault.UNAVAILABLE:
            raise ObjectStoreError(f"{what}: 503 slow down")
        raise ObjectStoreError(f"{what}: connection reset")
