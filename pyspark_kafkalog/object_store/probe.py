"""Whether a store's put-if-absent decides among concurrent writers, found out by trying, when a root is created.

Some stores ignore the condition, others check it and then write, so that two writers can both win and one of two
commits would be lost. Of eight racing creates of one name exactly one must win, and the object must be its.

A crash, or a store that refuses requests, leaves objects of the probe below `PROBE_FOLDER`; nothing reads them.
"""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from pyspark_kafkalog.object_store.store import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStore,
    ObjectStoreError,
    StoreUnsuitableError,
)

PROBE_FOLDER: Final = "__kafkalog_probe"
_WRITERS: Final = 8
#: So large that a store which checks first and writes then has time to be caught at it.
_BODY_BYTES: Final = 64 << 10
_RACES: Final = 3
#: Races without a winner (all answered 409, as S3 may do) are repeated, up to this many in all.
_RACES_MAX: Final = 8


def check_store(store: ObjectStore, probe_id: str) -> None:
    """Raise StoreUnsuitableError if the store lets more than one of eight concurrent creates win.

    `probe_id` is a name that nobody else has, such as a UUID. Raises another ObjectStoreError if the store cannot be
    reached or refuses the requests.
    """
    keys: list[str] = []
    won = 0
    try:
        while won < _RACES:
            if len(keys) == _RACES_MAX:
                raise StoreUnsuitableError(
                    f"{store.url}: expected one of {_WRITERS} concurrent creates of one object to win, found that none "
                    f"did in {_RACES_MAX - won} of {_RACES_MAX} races; no log directory can be in this store"
                )
            keys.append(f"{PROBE_FOLDER}/{probe_id}-{len(keys)}")
            won += _race(store, keys[-1])
    except StoreUnsuitableError:
        with contextlib.suppress(ObjectStoreError):
            store.delete(keys)
        raise
    store.delete(keys)


def _race(store: ObjectStore, key: str) -> bool:
    """Whether one create has won; False if none has."""
    start = threading.Barrier(_WRITERS)

    def write(writer: int) -> ObjectStoreError | None:
        start.wait()
        try:
            store.create(key, _body(writer))
            return None
        except ObjectStoreError as error:
            return error

    with ThreadPoolExecutor(_WRITERS) as threads:
        answers = list(threads.map(write, range(_WRITERS)))
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
