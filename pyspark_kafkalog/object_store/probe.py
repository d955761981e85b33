"""Whether a store's put-if-absent decides among concurrent writers, found out by trying, when a root is created.

Some stores ignore the condition, others check it and then write, so that two writers can both win and one of two
commits would be lost. Of eight racing creates of one name exactly one must win, and the object must be its.

A race in which an answer is lost decides nothing, and is repeated with another name.

A crash, or a create that arrives late, leaves objects of the probe below `PROBE_FOLDER`; nothing reads them. The next
probe in the same place, and the clean-up of a root, delete those that are older than an hour.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable
from typing import Final

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.object_store.retries import Waiting, repeat
from pyspark_kafkalog.object_store.store import (
    ObjectExistsError,
    ObjectMetadata,
    ObjectNotFoundError,
    ObjectStore,
    ObjectStoreError,
    StoreUnsuitableError,
)
from pyspark_kafkalog.threads import Workers
from pyspark_kafkalog.units import HOUR_MS

PROBE_FOLDER: Final = "__kafkalog_probe"
_WRITERS: Final = 8
#: So large that a store which checks first and writes then has time to be caught at it.
_BODY_BYTES: Final = 64 << 10
_RACES: Final = 3
#: Races without a winner (all answered 409, as S3 may do) are repeated, up to this many in all.
_RACES_MAX: Final = 8
_KEY: Final = re.compile(rf"{PROBE_FOLDER}/[\w-]{{1,100}}")
_KEPT_MS: Final = HOUR_MS


def check_store(
    store: ObjectStore,
    probe_id: str,
    *,
    waiting: Waiting | None = None,
    then: Callable[[], None] = lambda: None,
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
