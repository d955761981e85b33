"""Requests that the parts of an object root's metadata share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from pyspark_kafkalog.object_store.store import ObjectNotFoundError, ObjectStore

_SMALL_BYTES_MAX: Final = 1 << 10

_T = TypeVar("_T")


def name_of(store: ObjectStore, key: str) -> str:
    """What messages call the object: its URL."""
    return f"{store.url}/{key}"


def read_if_there(store: ObjectStore, key: str, *, max_bytes: int = _SMALL_BYTES_MAX) -> bytes | None:
    """The content of a small object; None if it does not exist. Raises ObjectStoreError."""
    try:
        return store.get(key, max_bytes=max_bytes)
    except ObjectNotFoundError:
        return None


def side_by_side(requests: Sequence[Callable[[], _T]]) -> list[_T]:
    """The results of the requests, sent at the same time, in order. Raises the error of the first that failed.

    In threads of its own: the caller may hold locks that all threads of a shared pool wait for.
    """
    if len(requests) < 2:
        return [request() for request in requests]
    with ThreadPoolExecutor(len(requests)) as threads:
        return list(threads.map(lambda request: request(), requests))
