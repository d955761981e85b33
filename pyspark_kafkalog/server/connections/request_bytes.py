"""Bounds the bytes of requests and of responses that are in memory, over all connections.

RequestBytes         a budget (Kafka: queued.max.request.bytes). A request is charged as its bytes arrive, not for the
                     size that it announces. A connection that would exceed the budget is not read until other
                     requests are handled; the client's TCP window fills up
RequestBytesBySize   a budget of its own for small requests: they do not wait for large ones
ResponseBytes        responses that clients have not taken yet, and records that are in memory for them. A client cannot
                     be made to take them: if there are too many bytes, a connection that takes long ends.

Requests that have begun to arrive cannot keep the budget from others:

- The requests of a host, and those of a principal, have half of a budget at most.
- If requests wait for bytes, those that would arrive for longer than some seconds at their present rate end, the one
  with the longest way to go first. Then those end that have waited for records or for other clients for some seconds.
- The oldest request that arrives may exceed a limit once nothing else could make room. So the budget never consists of
  requests that wait for each other, and a request that is larger than the budget is admitted.

Before a request is read, `request_bytes_max` bounds its size by its API:

    Produce                              socket.request.max.bytes: it holds records
    APIs that list partitions, groups,   16 MiB: a client of a large cluster names all that it knows, and an assignment
    entries or configurations            of a group is in one request
    all others                           64 KiB

A broker takes requests of any API up to socket.request.max.bytes.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.units import KIB, MIB, SECOND_MS

#: Requests up to this size have a budget of their own.
SMALL_REQUEST_BYTES: Final = 64 * KIB
#: The part of the budget that only small requests have.
_SMALL_REQUESTS_SHARE: Final = 4
#: The part of a budget that the requests of one host, or of one principal, have at most.
_OWNER_SHARE: Final = 2
#: A response may take so long, however many bytes wait.
_SENDING_S: Final = 5.0
#: A Fetch waits so long for room for its records: until responses that take long have ended.
_ROOM_S: Final = 10.0
#: How long a request may wait for records while others need its bytes; longer than clients wait by default (0.5 s).
_HANDLING_S: Final = 2.0
#: A request that would arrive for longer than this ends if others want its bytes.
_ARRIVING_S: Final = 5.0
#: The rate of a request that arrives is measured over at least so many seconds.
_RATE_S: Final = 1.0
#: How often it is looked for requests to end while others want bytes.
_LOOK_S: Final = 0.1


class _Account:
    """The bytes of all requests of a budget, of a host or of a principal, and the waits that they keep waiting."""

    __slots__ = ("arriving", "arriving_bytes", "ending_bytes", "idle", "limit_bytes", "used_bytes", "waiting")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        self.arriving_bytes = 0  # of the used ones
        self.ending_bytes = 0  # of the used ones: their connections end
        self.arriving: dict[HeldRequest, None] = {}  # the oldest first
        self.waiting: dict[HeldRequest, None] = {}
        self.idle: dict[HeldRequest, tuple[float, Callable[[], None]]] = {}  # since when, and what ends it

    def fits(self, request: HeldRequest, size_bytes: int) -> bool:
        """Whether the request can have so many more bytes."""
        used_bytes = self.used_bytes
        if not used_bytes or used_bytes + size_bytes <= self.limit_bytes:
            return True
        # Requests that are handled give their bytes back without anybody's help. Those that arrive might not.
        return used_bytes == self.arriving_bytes and request is next(iter(self.arriving), None)

    def make_room(self, now_s: float) -> None:
        """End requests that would keep their bytes for long, as many as those that wait need."""
        missing_bytes = self.used_bytes - self.ending_bytes + sum(each.wanted_bytes for each in self.waiting)
        missing_bytes -= self.limit_bytes
        if missing_bytes <= 0:
            return
        arriving = ((each.left_s(now_s), each) for each in self.arriving if not each.is_ending)
        slow = [each for each in arriving if each[0] > _ARRIVING_S]
        for _, request in sorted(slow, key=lambda each: -each[0]):
            if missing_bytes <= 0:
                return
            missing_bytes -= request.held_bytes
            request.end()
        for request, (began_s, give_up) in list(self.idle.items()):
            if missing_bytes <= 0 or began_s > now_s - _HANDLING_S:
                return
            missing_bytes -= request.held_bytes
            request.forget_idle()
            give_up()


class HeldRequest:
    """The bytes that one request has of a budget. `release` follows in any case."""

    __slots__ = (
        "_abort",
        "_accounts",
        "_arrived_bytes",
        "_budget",
        "_is_arriving",
        "_marked_bytes",
        "_marked_s",
        "_owners",
        "_rate",
        "_size_bytes",
        "_turn",
        "held_bytes",
        "is_ending",
        "wanted_bytes",
    )

    def __init__(
        self,
        budget: RequestBytes,
        accounts: tuple[_Account, ...],
        size_bytes: int,
        *,
        owners: tuple[str, ...] = (),
        abort: Callable[[], None] | None = None,
    ) -> None:
        """With `abort` it is a request that arrives."""
        self._budget = budget
        self._accounts = accounts
        self._size_bytes = size_bytes
        self._owners = owners
        self._abort = abort
        self._is_arriving = abort is not None
        self._turn: asyncio.Future[None] | None = None
        self.held_bytes = 0
        self.wanted_bytes = 0  # while it waits
        self.is_ending = False
        if abort is not None:
            self._arrived_bytes = self._marked_bytes = 0
            self._marked_s = asyncio.get_running_loop().time()
            self._rate: float | None = None
            for account in accounts:
                account.arriving[self] = None

    async def take(self, size_bytes: int) -> None:
        """Wait until so many more bytes are free, and take them. Raises asyncio.TimeoutError if the request ends."""
        if self.take_at_once(size_bytes):
            return
        blocking = self._blocking(size_bytes)
        assert blocking is not None
        loop = asyncio.get_running_loop()
        self._turn = loop.create_future()
        self.wanted_bytes = size_bytes
        blocking.waiting[self] = None
        self._budget.is_short_of(blocking)
        try:
            await self._turn
        finally:
            self._turn = None
            self.wanted_bytes = 0
            for account in self._accounts:
                account.waiting.pop(self, None)
            if self._is_arriving:  # nothing has arrived while nothing was read
                self._marked_s, self._marked_bytes = loop.time(), self._arrived_bytes

    def take_at_once(self, size_bytes: int) -> bool:
        """Take so many more bytes if they are free."""
        if self._blocking(size_bytes) is not None:
            return False
        self._charge(size_bytes)
        return True

    def _blocking(self, size_bytes: int) -> _Account | None:
        """The account that has no room for so many bytes, or others that wait for them; that of an owner first."""
        for account in reversed(self._accounts):
            if (account.waiting and not self._is_oldest(account)) or not account.fits(self, size_bytes):
                return account
        return None

    def _is_oldest(self, account: _Account) -> bool:
        return self is next(iter(account.arriving), None)

    def try_again(self, account: _Account) -> bool:
        """Take what it waits for in `account`, or wait for it in another one; False if `account` has no room for it."""
        size_bytes = self.wanted_bytes
        if not account.fits(self, size_bytes):
            return False
        del account.waiting[self]
        for other in reversed(self._accounts):
            if other is not account and (
                not other.fits(self, size_bytes)
                or (other is self._accounts[0] and other.waiting and not self._is_oldest(other))
            ):
                other.waiting[self] = None
                self._budget.is_short_of(other)
                return True
        if self._turn is not None and not self._turn.done():
            self._charge(size_bytes)
            self._turn.set_result(None)
        return True

    def _charge(self, size_bytes: int) -> None:
        self.held_bytes += size_bytes
        for account in self._accounts:
            account.used_bytes += size_bytes
            if self._is_arriving:
                account.arriving_bytes += size_bytes

    def arrived(self, size_bytes: int) -> None:
        """So many bytes have arrived until now."""
        self._arrived_bytes = size_bytes
        now_s = asyncio.get_running_loop().time()
        passed_s = now_s - self._marked_s
        if passed_s >= _RATE_S:
            self._rate = (size_bytes - self._marked_bytes) / passed_s
            self._marked_s, self._marked_bytes = now_s, size_bytes

    def left_s(self, now_s: float) -> float:
        """For how long it would still arrive at its present rate; 0 while that is not known."""
        rate, passed_s = self._rate, now_s - self._marked_s
        if self._turn is None and passed_s >= _RATE_S:
            rate = (self._arrived_bytes - self._marked_bytes) / passed_s
        if rate is None:
            return 0.0
        return (self._size_bytes - self._arrived_bytes) / rate if rate else math.inf

    def end(self) -> None:
        """End the connection of a request that arrives."""
        assert self._abort is not None
        self.is_ending = True
        for account in self._accounts:
            account.ending_bytes += self.held_bytes
        if self._turn is not None and not self._turn.done():
            self._turn.set_exception(asyncio.TimeoutError("others need the memory of a request that arrives slowly"))
        self._abort()

    def complete(self) -> None:
        """All of it has arrived: it is handled now."""
        if self._is_arriving:
            self._is_arriving = False
            for account in self._accounts:
                del account.arriving[self]
                account.arriving_bytes -= self.held_bytes

    def release(self) -> None:
        """Give the bytes back."""
        self.complete()
        size_bytes, self.held_bytes = self.held_bytes, 0
        for account in self._accounts:
            account.used_bytes -= size_bytes
            if self.is_ending:
                account.ending_bytes -= size_bytes
        self._budget.released(self._accounts, self._owners)

    @contextmanager
    def idle(self, give_up: Callable[[], None]) -> Iterator[None]:
        """Notes that the request waits for something while the block runs.

        `give_up`, which does not raise, ends it if others need its bytes.
        """
        began_s = asyncio.get_running_loop().time()
        for account in self._accounts:
            account.idle[self] = began_s, give_up
        try:
            yield
        finally:
            self.forget_idle()

    def forget_idle(self) -> None:
        for account in self._accounts:
            account.idle.pop(self, None)


class RequestBytes:
    """A budget of `limit_bytes`, given out in the order of the requests for it. Used in the event loop's thread."""

    def __init__(self, limit_bytes: int) -> None:
        self._all = _Account(limit_bytes)
        self._whole = (self._all,)
        self._owners: dict[str, _Account] = {}
        self._short: dict[_Account, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def used_bytes(self) -> int:
        return self._all.used_bytes

    def whole(self, size_bytes: int) -> HeldRequest:
        """A request that has arrived before its bytes are taken: a small one."""
        return HeldRequest(self, self._whole, size_bytes)

    def arriving(self, owners: tuple[str, ...], size_bytes: int, abort: Callable[[], None]) -> HeldRequest:
        """A request of so many bytes that begins to arrive.

        `owners` have a share for all their requests; `abort`, which does not raise, ends the request's connection.
        """
        accounts = (self._all, *map(self._account, owners))
        return HeldRequest(self, accounts, size_bytes, owners=owners, abort=abort)

    def _account(self, owner: str) -> _Account:
        account = self._owners.get(owner)
        if account is None:
            account = self._owners[owner] = _Account(self._all.limit_bytes // _OWNER_SHARE)
        return account

    def is_short_of(self, account: _Account) -> None:
        """A request waits for bytes of the account."""
        self._short[account] = None
        if self._timer is None:
            self._make_room()

    def released(self, accounts: tuple[_Account, ...], owners: tuple[str, ...]) -> None:
        """Bytes of the accounts are free: requests that wait have their turn."""
        if self._short:
            for account in reversed(accounts):
                _give_out(account)
        for owner in owners:
            account = self._owners[owner]
            if not (account.used_bytes or account.arriving or account.waiting):
                del self._owners[owner]

    def _make_room(self) -> None:
        """End requests that keep others waiting; again while others wait."""
        loop = asyncio.get_running_loop()
        self._timer = None
        self._short = {each: None for each in self._short if each.waiting}
        for account in self._short:
            account.make_room(loop.time())
        if self._short:
            self._timer = loop.call_later(_LOOK_S, self._make_room)


def _give_out(account: _Account) -> None:
    """End the waits for which the account has room now."""
    oldest = next(iter(account.arriving), None)
    if oldest is not None and oldest in account.waiting:
        oldest.try_again(account)
    while account.waiting and next(iter(account.waiting)).try_again(account):
        pass


class RequestBytesBySize:
    """Two budgets, which have `limit_bytes` together."""

    def __init__(self, limit_bytes: int) -> None:
        small_bytes = limit_bytes // _SMALL_REQUESTS_SHARE
        self._small = RequestBytes(small_bytes)
        self._large = RequestBytes(limit_bytes - small_bytes)

    @property
    def used_bytes(self) -> int:
        return self._small.used_bytes + self._large.used_bytes

    def of(self, size_bytes: int) -> RequestBytes:
        """The budget of requests of this size."""
        return self._small if size_bytes <= SMALL_REQUEST_BYTES else self._large


class ResponseBytes:
    """The responses that are being sent, and the records that are read for them. Used in the event loop's thread.

    A response counts from the time that it is sent. One that takes long is ended if there are too many bytes: the
    oldest of the host or principal whose responses have the most.

    Records of object stores and of remote storage count while they are in memory, also while a Fetch waits for more of
    them. There is room for at most `limit_bytes`, and for half of it for a host or a principal: a Fetch waits until
    there is, and those that have the least come first. While it waits, responses that take long end.
    """

    def __init__(self, limit_bytes: int, monotonic_ms: Callable[[], int]) -> None:
        self._limit_bytes = limit_bytes
        self._monotonic_ms = monotonic_ms
        self._sending: dict[object, _Sending] = {}
        self._sent_to: Counter[str] = Counter()
        self._read_for: Counter[str] = Counter()
        self._waiting: dict[asyncio.Future[bool], tuple[tuple[str, ...], int, int]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.used_bytes = 0
        self.read_bytes = 0

    @property
    def is_short(self) -> bool:
        """Whether a Fetch waits for room."""
        return bool(self._waiting)

    @contextmanager
    def sending(self, size_bytes: int, abort: Callable[[], None], owners: tuple[str, ...] = ()) -> Iterator[None]:
        """Counts a response while the block runs; `abort`, which does not raise, ends its connection."""
        key = object()
        self._sending[key] = _Sending(size_bytes, self._monotonic_ms(), abort, owners)
        self.used_bytes += size_bytes
        self._sent_to.update(dict.fromkeys(owners, size_bytes))
        try:
            while self.used_bytes > self._limit_bytes and self._end_slow():
                pass
            yield
        finally:
            self._forget(key)

    async def take(self, size_bytes: int, owners: tuple[str, ...]) -> bool:
        """Wait for room for so many bytes of records, and take it; `give_back` follows. False if there is none in time.

        Without a limit of the time, requests that have some room could wait for each other.
        """
        if not self._waiting and self._fits(size_bytes, owners):
            self._take(size_bytes, owners)
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[turn] = owners, size_bytes, self._monotonic_ms()
        self._look()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.give_back(size_bytes, owners)
            raise
        finally:
            self._waiting.pop(turn, None)

    def give_back(self, size_bytes: int, owners: tuple[str, ...]) -> None:
        """So many bytes of records are not in memory any more."""
        self.read_bytes -= size_bytes
        _subtract(self._read_for, size_bytes, owners)

    def _take(self, size_bytes: int, owners: tuple[str, ...]) -> None:
        self.read_bytes += size_bytes
        self._read_for.update(dict.fromkeys(owners, size_bytes))

    def _fits(self, size_bytes: int, owners: tuple[str, ...]) -> bool:
        """Whether there is room. What nothing else could make room for is admitted."""
        limits = [(self.read_bytes, self._limit_bytes)]
        limits += [(self._read_for[each], self._limit_bytes // _OWNER_SHARE) for each in owners]
        return all(not used or used + size_bytes <= limit for used, limit in limits)

    def _look(self) -> None:
        """Give room to those that wait, and make some; again while any wait."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        by_least = sorted(
            self._waiting.items(), key=lambda each: max((self._read_for[owner] for owner in each[1][0]), default=0)
        )
        latest_ms = self._monotonic_ms() - _ROOM_S * SECOND_MS
        for turn, (owners, size_bytes, began_ms) in by_least:
            if not turn.done() and (self._fits(size_bytes, owners) or began_ms <= latest_ms):
                turn.set_result(has_room := self._fits(size_bytes, owners))
                if has_room:
                    self._take(size_bytes, owners)
                del self._waiting[turn]
        if self._waiting:
            self._end_slow()
            self._timer = loop.call_later(_LOOK_S, self._look)

    def _end_slow(self) -> bool:
        """End a response that takes long; False if there is none."""
        latest_ms = self._monotonic_ms() - _SENDING_S * SECOND_MS
        slow = [(key, each) for key, each in self._sending.items() if each.began_ms <= latest_ms]
        if not slow:
            return False
        key, ended = max(slow, key=lambda each: max(map(self._sent_to.__getitem__, each[1].owners), default=0))
        self._forget(key)
        ended.abort()
        return True

    def _forget(self, key: object) -> None:
        ended = self._sending.pop(key, None)
        if ended is not None:
            self.used_bytes -= ended.size_bytes
            _subtract(self._sent_to, ended.size_bytes, ended.owners)


@dataclass(frozen=True, slots=True)
class _Sending:
    """A response that is being sent."""

    size_bytes: int
    began_ms: int
    abort: Callable[[], None]
    owners: tuple[str, ...]


def _subtract(bytes_of: Counter[str], size_bytes: int, owners: tuple[str, ...]) -> None:
    for each in owners:
        bytes_of[each] -= size_bytes
        if not bytes_of[each]:
            del bytes_of[each]


_LIST_BYTES_MAX: Final = 16 * MIB
#: APIs whose requests name one thing: a group, a member, a producer, a mechanism, or the cluster.
_SMALL: Final = frozenset(
    {
        ApiKey.HEARTBEAT,
        ApiKey.LIST_GROUPS,
        ApiKey.SASL_HANDSHAKE,
        ApiKey.API_VERSIONS,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.DESCRIBE_ACLS,
        ApiKey.SASL_AUTHENTICATE,
        ApiKey.UPDATE_FEATURES,
        ApiKey.FETCH_SNAPSHOT,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.LIST_CONFIG_RESOURCES,
    }
)
_MAX: Final = {int(each): SMALL_REQUEST_BYTES if each in _SMALL else _LIST_BYTES_MAX for each in ApiKey}


def request_bytes_max(api_key: int, request_max_bytes: int) -> int:
    """The most bytes that a request of this API has; of an unknown one a small request's, which is refused later."""
    if api_key == ApiKey.PRODUCE:
        return request_max_bytes
    return min(request_max_bytes, _MAX.get(api_key, SMALL_REQUEST_BYTES))
