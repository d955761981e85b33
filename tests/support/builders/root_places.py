"""Places for the root of a test: a directory, or a bucket in memory, so that one test is of both kinds of root.

    def test_...(root_place: RootPlace) -> None: ...          # runs twice: tests/conftest.py

A place goes wherever a path does, `LogDir.create(root_place)` or the data source's `path`. That in memory is a URL, and
`memory_root` has put its store where the package keeps the stores that a process has open: it is of this process alone.

The metadata store has places of its own, which go behind it to damage what is there. Each creates and opens its root as
a new process would, and its clock stands still but for `clock.now_ms += ...`:

    @pytest.fixture(params=PLACES)
    def place(request, tmp_path): return request.param(tmp_path)
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from fakes.clock import Clock
from fakes.faulty_store import FaultyStore, MemoryBucket, VirtualClock

from builders.metadata_roots import forget_images
from pyspark_kafkalog.metadata.local.backend import LocalMetadataStore
from pyspark_kafkalog.metadata.objects.backend import ObjectMetadataStore
from pyspark_kafkalog.metadata.root_format import METADATA_DIR
from pyspark_kafkalog.metadata.snapshots import POINTER_FILE, SnapshotId
from pyspark_kafkalog.metadata.store import MetadataStore
from pyspark_kafkalog.object_store import client
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.object_store.location import ObjectLocation
from pyspark_kafkalog.object_store.retries import Waiting
from pyspark_kafkalog.object_store.settings import StoreSettings
from pyspark_kafkalog.root.bootstrap import create_root
from pyspark_kafkalog.root.object_root import create_object_root

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


class StillClock(VirtualClock, Clock):
    """The clock of a bucket, which a test sets as it does any other."""

    def __init__(self, now_ms: int = 1_000) -> None:
        VirtualClock.__init__(self, now_ms)

    @property
    def now_ms(self) -> Any:  # both an attribute, as of Clock, and a method, as of VirtualClock
        return _Now(self._now_ms)

    @now_ms.setter
    def now_ms(self, value: int) -> None:
        self._now_ms = int(value)

    def __call__(self) -> int:
        return self._now_ms


class _Now(int):
    def __call__(self) -> int:
        return int(self)


class Place(Protocol):
    """A root's place, and what is there. Names are those of files in the commit log's directory."""

    kind: str
    clock: Clock

    def create(self) -> MetadataStore: ...

    def open(self) -> MetadataStore: ...

    def names(self) -> list[str]: ...

    def read(self, name: str) -> bytes: ...

    def write(self, name: str, data: bytes) -> None: ...

    def remove(self, name: str) -> None: ...


class LocalPlace:
    """A directory."""

    kind = "local"

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "root"
        self.clock = Clock()

    def create(self) -> MetadataStore:
        return create_root(self.root, clock=self.clock)

    def open(self) -> MetadataStore:
        forget_images()
        return LocalMetadataStore.open(self.root, clock=self.clock)

    def names(self) -> list[str]:
        return sorted(path.name for path in (self.root / METADATA_DIR).iterdir())

    def read(self, name: str) -> bytes:
        return (self.root / METADATA_DIR / name).read_bytes()

    def write(self, name: str, data: bytes) -> None:
        (self.root / METADATA_DIR / name).write_bytes(data)

    def remove(self, name: str) -> None:
        (self.root / METADATA_DIR / name).unlink()


class ObjectPlace:
    """A bucket in memory. `client` makes what a process of its own uses."""

    kind = "object"

    def __init__(self, tmp_path: Path | None = None) -> None:
        self.clock = StillClock()
        self.bucket = MemoryBucket(clock=self.clock, request_ms=0)
        self.waiting = waiting_in(self.bucket)

    def create(self) -> MetadataStore:
        return create_object_root(self.client(), clock=self.clock, waiting=self.waiting)

    def open(self) -> MetadataStore:
        return self.open_with(self.client())

    def open_with(self, client: FaultyStore) -> MetadataStore:
        forget_images()
        return ObjectMetadataStore.open(client, clock=self.clock, waiting=self.waiting)

    def client(self, **faults: Any) -> FaultyStore:
        return FaultyStore(self.bucket, **faults)

    def names(self) -> list[str]:
        return [key.removeprefix(f"{METADATA_DIR}/") for key in self.bucket.keys(METADATA_DIR)]

    def read(self, name: str) -> bytes:
        return self.bucket.body(f"{METADATA_DIR}/{name}")

    def write(self, name: str, data: bytes) -> None:
        self.bucket.write(f"{METADATA_DIR}/{name}", data)

    def remove(self, name: str) -> None:
        del self.bucket.objects[f"{METADATA_DIR}/{name}"]


def waiting_in(bucket: MemoryBucket, *, patience_seconds: float = 120.0) -> Waiting:
    """Waits by the clock of the bucket, without chance."""
    return Waiting(bucket.clock.monotonic, bucket.clock.sleep, lambda: 0.5, patience_seconds)


PLACES: Final = (LocalPlace, ObjectPlace)


def commit_names(place: Place) -> list[str]:
    """The commits, oldest first."""
    return [name for name in place.names() if name.endswith(".log")]


def snapshot_names(place: Place) -> list[str]:
    """The snapshots, oldest first."""
    return [name for name in place.names() if SnapshotId.parse(name) is not None]


def point_to(place: Place, snapshot: str) -> None:
    """Set the pointer to the snapshot with that name."""
    size = f" {len(place.read(snapshot))}" if place.kind == "object" else ""
    place.write(POINTER_FILE, f"{snapshot}{size}\n".encode())
