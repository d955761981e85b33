"""Places for the root of a test: a directory, or a bucket in memory, so that one test is of both kinds of root.

    def test_...(root_place: RootPlace) -> None: ...          # runs twice: tests/conftest.py

A place goes wherever a path does, `LogDir.create(root_place)` or the data source's `path`. That in memory is a URL, and
`memory_root` has put its store where the package keeps the stores that a process has open: it is of this process alone.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Final, TypeAlias

from faulty_store import FaultyStore, MemoryBucket

from pyspark_kafkalog.object_store import client
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.object_store.location import ObjectLocation
from pyspark_kafkalog.object_store.settings import StoreSettings

#: A directory, or the URL of a folder in a bucket.
RootPlace: TypeAlias = Path | str
KINDS: Final = ("file", "object")

_numbers = itertools.count()


def memory_root(store: FaultyStore | None = None) -> str:
    """The URL of a new place in memory, which the package opens as `store`; without one, as a store without faults."""
    location = ObjectLocation("s3", "in-memory", f"{next(_numbers)}/log")
    return open_as(location.url, store if store is not None else FaultyStore(MemoryBucket(name=location.prefix)))


def open_as(url: str, store: FaultyStore) -> str:
    """Let the package open the place as `store` from now on: as another process of the same bucket, or with faults."""
    client._open_stores[_location(url), StoreSettings()] = store
    return url


def client_address(url: str, store: FaultyStore) -> StoreAddress:
    """The same place as a process of its own opens it, whose client is `store`; others keep theirs."""
    address = StoreAddress(_location(url), StoreSettings(region=f"client-{next(_numbers)}"))
    client._open_stores[address.location, address.settings] = store
    return address


def store_of(place: RootPlace) -> FaultyStore:
    """The client that the package uses for a place in memory."""
    store = client._open_stores[_location(str(place)), StoreSettings()]
    assert isinstance(store, FaultyStore)
    return store


def forget(url: str) -> None:
    """Give the memory of a place back."""
    for key in [each for each in client._open_stores if each[0] == _location(url)]:
        del client._open_stores[key]


def is_object_place(place: RootPlace) -> bool:
    return isinstance(place, str)


def _location(url: str) -> ObjectLocation:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return ObjectLocation("s3", bucket, prefix)
