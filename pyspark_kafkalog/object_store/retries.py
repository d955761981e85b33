"""When requests are sent again, and who holds a name after a create, also when the store's answer is lost or wrong.

*Repeated requests* (`repeat`) have the same effect when they are sent again: time decides when they are given up. A
request is repeated while the store is busy, out of reach, or answers with something cut off or not its own, until
`Waiting.patience_seconds` have passed; delays double from 50 ms to 5 s. A definite answer ends it at once: a missing
object, an object in the way, a refusal. Only `create` is not repeated so.

*Put-if-absent* (`create_once`) has one rule. A commit is made by creating the object with its name, so a writer must
know whether that object is its own. A store's answer alone does not tell:

- A lost answer says nothing: the request may have taken effect, and even a GET that finds no object is not final, since
  the request may still be on its way and land later.
- "Exists" may mean the writer's own object (a proxy has repeated the request), or only that two requests conflicted
  (S3's 409 ConditionalRequestConflict) and there is no object at all.

So after each answer but success the object is read. If there is none, the same body is sent to the same name again,
until the name certainly exists. The next name must not be tried before that: else the body could be
committed twice. The body must hold something of its writer's own (a commit id), by which `is_own` recognises it.

A crash leaves the object complete or absent, or a request on its way: who starts again looks at the name.

*The probe* (`check_store`) finds out by trying, when a root is created, whether a store's put-if-absent decides among
concurrent writers. Some stores ignore the condition, others check it and then write, so that two writers can both win
and one of two commits would be lost. Of eight racing creates of one name exactly one must win, and the object must be
its. A race in which an answer is lost decides nothing, and is repeated with another name.

A crash, or a create that arrives late, leaves objects of the probe below `PROBE_FOLDER`; nothing reads them. The next
probe in the same place, and the clean-up of a root, delete those that are older than an hour.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from pyspark_kafkalog.errors import CommitStateUnknownError, KafkalogError
from pyspark_kafkalog.object_store.store import (
    ObjectExistsError,
    ObjectMetadata,
    ObjectNotFoundError,
    ObjectStore,
    ObjectStoreError,
    StoreAccessError,
    StoreCredentialsError,
    StoreRefusedError,
    StoreUnsuitableError,
)
from pyspark_kafkalog.threads import Workers
from pyspark_kafkalog.units import HOUR_MS
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    from pyspark_kafkalog.record.header import Buffer

#: How often a refusal is believed only after a repetition: services that hand out credentials fail at times.
REFUSALS_REPEATED: Final = 2
_WARNED_ATTEMPT: Final = 6
_FIRST_DELAY_SECONDS: Final = 0.05
_LONGEST_DELAY_SECONDS: Final = 5.0

PROBE_FOLDER: Final = "__kafkalog_probe"
_WRITERS: Final = 8
#: So large that a store which checks first and writes then has time to be caught at it.
_BODY_BYTES: Final = 64 << 10
_RACES: Final = 3
#: Races without a winner (all answered 409, as S3 may do) are repeated, up to this many in all.
_RACES_MAX: Final = 8
_KEY: Final = re.compile(rf"{PROBE_FOLDER}/[\w-]{{1,100}}")
_KEPT_MS: Final = HOUR_MS

T = TypeVar("T")

_LOG: Final = logging.getLogger(__name__)


def _random_writer() -> int:
    return int.from_bytes(os.urandom(4), "big", signed=True)


@dataclass(frozen=True, slots=True)
class Waiting:
    """How the rules tell the time and wait; tests pass a virtual clock. monotonic gives seconds.

    patience_seconds: how long a request is repeated. A store that fails longer than that is down. new_writer: a number
    of 32 bits, with a sign, for a new client that commits; no two processes get the same, also with the same seed.
    """

    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    rng: Callable[[], float] = random.random
    patience_seconds: float = 120.0
    new_writer: Callable[[], int] = _random_writer


def repeat(call: Callable[[], T], waiting: Waiting) -> T:
    """The result of `call`. Raises the ObjectStoreError of the last request, which says how often it was sent."""
    deadline = waiting.monotonic() + waiting.patience_seconds
    attempts = refusals = 0
    while True:
        attempts += 1
        try:
            return call()
        except StoreCredentialsError:
            refusals += 1
            if refusals > REFUSALS_REPEATED:
                raise
        except (ObjectNotFoundError, ObjectExistsError, StoreRefusedError):
            raise
        except ObjectStoreError as error:
            if waiting.monotonic() >= deadline:
                times = f" (after {attempts} requests in {waiting.patience_seconds:g} s)" if attempts > 1 else ""
                raise type(error)(f"{error}{times}") from None
            if attempts == _WARNED_ATTEMPT:
                _LOG.warning("%s; the request is repeated for up to %g s", error, waiting.patience_seconds)
        waiting.sleep(delay_seconds(attempts, waiting.rng()))


def delay_seconds(attempts: int, jitter: float) -> float:
    """How long to wait after so many attempts; jitter is from 0 to 1."""
    longest = min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2.0 ** min(attempts, 30))
    return longest * (0.5 + jitter / 2)


@dataclass(frozen=True, slots=True)
class Created:
    """The object is the caller's own."""


@dataclass(frozen=True, slots=True)
class Taken:
    """The name is held by another writer's object, of which `body` is the content."""

    body: bytes


def create_once(
    store: ObjectStore,
    key: str,
    body: Buffer,
    *,
    is_own: Callable[[bytes], bool],
    max_bytes: int,
    waiting: Waiting | None = None,
) -> Created | Taken:
    """Create the object unless another holds its name. `is_own` tells by an object's body whether this caller has made
    it.

    max_bytes bounds the body that is read if the name is taken.

    Raises StoreRefusedError, at once, if the store refused the request, so that it had no effect;
    CommitStateUnknownError if there is no certain answer within `waiting.patience_seconds`, or if the store refuses a
    repetition after an answer was lost: the object may exist, now or later.
    """
    waiting = waiting if waiting is not None else Waiting()
    attempt = _Attempt(store, key, body, is_own, max_bytes)
    deadline = waiting.monotonic() + waiting.patience_seconds
    while True:
        outcome = attempt.run()
        if outcome is not None:
            return outcome
        if attempt.is_refused or waiting.monotonic() >= deadline:
            within = "" if attempt.is_refused else f" in {waiting.patience_seconds:g} s"
            raise CommitStateUnknownError(
                f"{store.url}/{key}: expected an answer whether the object was created, found none after "
                f"{attempt.count} requests{within}; it may exist, or may appear later: look "
                f"at it before the same data is written again; the last answer was: {attempt.last_error}"
            ) from attempt.last_error
        waiting.sleep(delay_seconds(attempt.count, waiting.rng()))


class _Attempt:
    """One request to create the object, and the look at the object that decides what its answer meant."""

    def __init__(
        self, store: ObjectStore, key: str, body: Buffer, is_own: Callable[[bytes], bool], max_bytes: int
    ) -> None:
        self.count = 0
        self.is_refused = False  # repetitions are refused for good, and an earlier request may have had effect
        self.last_error: ObjectStoreError | None = None
        self._refusals = 0
        self._store = store
        self._key = key
        self._body = body
        self._is_own = is_own
        self._max_bytes = max_bytes
        self._is_known_missing = False  # by the last look, or the store refused that for good, too
        self._may_land = False  # a request of ours, of this attempt or an earlier one, may have had or may get effect

    def run(self) -> Created | Taken | None:
        """None: try again."""
        self.count += 1
        try:
            self._store.create(self._key, self._body)
            return Created()
        except ObjectExistsError as error:
            self.last_error = error
        except StoreRefusedError as error:
            self.last_error = error
            if not self._may_land:
                return self._refused(error)
            self._refusals += 1
            outcome = self._look()
            if outcome is None and self._is_known_missing:
                self.is_refused = self._is_believed(error)
                self.last_error = error
            return outcome
        except ObjectStoreError as error:
            self._may_land = True
            self.last_error = error
        return self._look()

    def _refused(self, error: StoreRefusedError) -> Created | Taken | None:
        """Believe a refusal: of credentials after repetitions, else after a look, as what is there can be immutable."""
        self._refusals += 1
        if not self._is_believed(error):
            return None
        if type(error) is StoreRefusedError and (outcome := self._look()) is not None:
            return outcome
        raise error

    def _is_believed(self, error: StoreRefusedError) -> bool:
        """Services that hand out credentials fail at times."""
        return not isinstance(error, StoreAccessError) or self._refusals > REFUSALS_REPEATED

    def _look(self) -> Created | Taken | None:
        try:
            found = self._store.get(self._key, max_bytes=self._max_bytes, once=True)
        except ObjectNotFoundError:
            self._is_known_missing = True
            return None
        except ObjectStoreError as error:
            self._is_known_missing = isinstance(error, StoreRefusedError)
            self.last_error = error
            return None
        return Created() if self._is_own(found) else Taken(found)


def check_store(
    store: ObjectStore, probe_id: str, *, waiting: Waiting | None = None, then: Callable[[], None] = lambda: None
) -> None:
    """Raise StoreUnsuitableError if the store lets more than one of eight concurrent creates win.

    `probe_id` is a name that no other process uses, such as a UUID. `then` is called while objects of the probe are
    there: a listing without them is not the store's, and is not believed. Raises another ObjectStoreError if the store
    refuses the requests, or cannot be reached within `waiting.patience_seconds`, and what `then` raises.
    """
    waiting = waiting if waiting is not None else Waiting()
    keys: list[str] = []

    def race() -> bool:
        keys.append(f"{PROBE_FOLDER}/{probe_id}-{len(keys)}")
        return _race(store, keys[-1])

    try:
        won = races = 0
        while won < _RACES:
            if races == _RACES_MAX:
                raise StoreUnsuitableError(
                    f"{store.url}: expected one of {_WRITERS} concurrent creates of one object to win, found that none "
                    f"did in {_RACES_MAX - won} of {_RACES_MAX} races; no log directory can be in this store"
                )
            won += repeat(race, waiting)
            races += 1
        listed = list(store.list_objects(PROBE_FOLDER))
        then()
    except KafkalogError:
        with contextlib.suppress(ObjectStoreError):
            store.delete(keys)
        raise
    now_ms = max((each.last_modified_ms for each in listed if each.key in keys), default=0)
    store.delete([*keys, *(each.key for each in listed if is_old_probe(each, now_ms=now_ms))])


def is_old_probe(found: ObjectMetadata, *, now_ms: int) -> bool:
    """Whether a probe has left the object more than an hour before `now_ms`."""
    return _KEY.fullmatch(found.key) is not None and found.last_modified_ms < now_ms - _KEPT_MS


def _race(store: ObjectStore, key: str) -> bool:
    """Whether one create has won; False if none has. Raises ObjectStoreError if an answer is lost."""
    caller = threading.get_ident()
    go = threading.Event()

    def write(writer: int) -> ObjectStoreError | None:
        if threading.get_ident() == caller:  # no thread has started for this one
            go.set()
        go.wait()
        try:
            store.create(key, _body(writer))
            return None
        except ObjectStoreError as error:
            return error

    with Workers(_WRITERS) as threads:
        under_way = [threads.submit(write, writer) for writer in range(_WRITERS)]
        go.set()
        answers = [each.result() for each in under_way]
    winners = [writer for writer, answer in enumerate(answers) if answer is None]
    if len(winners) > 1:
        raise StoreUnsuitableError(
            f"{store.url}: expected one of {_WRITERS} concurrent creates of one object to win, found {len(winners)}; "
            "commits of concurrent writers would be lost in this store, so no log directory can be in it"
        )
    for answer in answers:
        if answer is not None and not isinstance(answer, ObjectExistsError):
            raise answer
    expected = _body(winners[0]) if winners else None
    if _body_of(store, key) != expected:
        raise StoreUnsuitableError(
            f"{store.url}: expected the object of the create that won, found {'another' if winners else 'one'} "
            "that no create was said to have made; no log directory can be in this store"
        )
    return bool(winners)


def _body_of(store: ObjectStore, key: str) -> bytes | None:
    try:
        return store.get(key, max_bytes=_BODY_BYTES)
    except ObjectNotFoundError:
        return None


def _body(writer: int) -> bytes:
    return bytes([writer]) * _BODY_BYTES
