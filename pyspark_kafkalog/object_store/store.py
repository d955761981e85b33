"""What an object store can do: nine requests on immutable objects, each atomic.

A key is a path below the root of the store (a bucket, or a prefix in one): names separated by `/`, none of them empty,
`.` or `..`. An object is created or replaced as a whole. Only `create` (put-if-absent) is conditional: everything that
must not be lost or doubled is decided by it. Listings serve clean-up and lost hints, since some stores list in no
order and some list late.

No request is made when a store is constructed. A crash during a request leaves the object either as it was or as the
request makes it; parts of an interrupted multipart upload remain in the bucket until a lifecycle rule removes them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Final, Protocol

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    from pyspark_kafkalog.record.header import Buffer

#: The limit of S3, GCS and Azure, in bytes of UTF-8.
MAX_KEY_BYTES: Final = 1024


class ObjectStoreError(KafkalogError, OSError):
    """A request failed, also after the retries. The request may have taken effect."""


class ObjectNotFoundError(ObjectStoreError, FileNotFoundError):
    """There is no object with this key."""


class ObjectExistsError(ObjectStoreError, FileExistsError):
    """`create` found an object with this key, or a conflicting request.

    The object may be this request's own: a store can answer a repetition of a request that was already applied.
    `retries.create_once` decides that.
    """


class StoreRefusedError(ObjectStoreError):
    """The store refuses the request: it had no effect, and gets the same answer when it is sent again."""


class StoreAccessError(StoreRefusedError, PermissionError):
    """The store refuses the credentials, or the request is not permitted."""


class StoreCredentialsError(StoreAccessError):
    """No credentials could be had, so that no request was sent."""


class StoreNotFoundError(StoreRefusedError):
    """There is no such bucket, container or account."""


class StoreUnsuitableError(StoreRefusedError):
    """The store has no put-if-absent that decides among concurrent writers, so no log directory can be there."""


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes [start, start + size_bytes) of an object. Raises ValueError unless start >= 0 and size_bytes > 0."""

    start: int
    size_bytes: int

    def __post_init__(self) -> None:
        if self.start < 0 or self.size_bytes <= 0:
            raise ValueError(f"a range needs start >= 0 and size > 0, found {self.start} and {self.size_bytes}")

    @property
    def end(self) -> int:
        return self.start + self.size_bytes


@dataclass(frozen=True, slots=True)
class ObjectMetadata:
    """An object's key, size, and the time of its last change (ms, by the clock of the store)."""

    key: str
    size_bytes: int
    last_modified_ms: int


class ObjectStore(Protocol):
    """One bucket, or a prefix in one. Thread-safe; must not be used in a process forked after its first request.

    Every method raises ObjectStoreError, or a subclass of it that names the cause.
    """

    @property
    def url(self) -> str:
        """What error messages call the store ("s3://bucket/prefix"); contains no credentials."""
        ...

    def create(self, key: str, body: Buffer) -> None:
        """Create the object if the key is free. One request, never repeated by the store's client.

        Raises ObjectExistsError if the key is taken; for any other error the object may have been created, or may
        still be created after this returns. Callers use `retries.create_once`.
        """
        ...

    def put(self, key: str, body: Buffer) -> None:
        """Create or replace the object."""
        ...

    def get(self, key: str, *, max_bytes: int, once: bool = False) -> bytes:
        """The whole object. Raises ObjectNotFoundError, ObjectStoreError if it has more than `max_bytes`.

        once: send one request, for a caller that repeats it itself.
        """
        ...

    def get_range(self, key: str, wanted: ByteRange) -> Buffer:
        """The bytes of the range, in memory that is the caller's alone if it can be written to. Fewer beyond the end.

        Raises ObjectNotFoundError.
        """
        ...

    def head(self, key: str) -> ObjectMetadata:
        """Raises ObjectNotFoundError."""
        ...

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectMetadata]:
        """The objects below the folder `prefix` ("": all), in the order of their keys; those with keys above `after`.

        `prefix` is a whole path ("a/b" lists a/b/c but not a/bc). Raises ObjectStoreError while iterating.
        """
        ...

    def delete(self, keys: Collection[str]) -> None:
        """Delete the objects. Keys without an object are ignored."""
        ...

    def copy(self, source: str, target: str) -> None:
        """Create or replace `target` as a copy of `source`, within the store. Raises ObjectNotFoundError."""
        ...

    def sign(self, key: str, *, expires_in_seconds: int) -> str:
        """A URL that permits everyone to get the object for that time. Raises ObjectStoreError if not supported."""
        ...


def check_key(key: str) -> str:
    """`key` if it is valid, else ValueError."""
    parts = key.split("/")
    if any(part in ("", ".", "..") for part in parts) or not key.isprintable():
        raise ValueError(f"expected a key of names separated by '/', none of them empty, '.' or '..', found {key!r}")
    if len(key.encode()) > MAX_KEY_BYTES:
        raise ValueError(f"expected a key of at most {MAX_KEY_BYTES} bytes, found {len(key.encode())}")
    return key
