"""The one decision by kind of root outside the roots themselves: what to do where a root is.

Work on a root is written once, over a protocol. The protocol has an implementation for each kind of root:

    files      a root of this package on a file system     segments, replaced and deleted under locks
    objects    a root in an object store                   runs and segment objects, replaced by commits
    brokers    a Kafka broker's directory                  read only, so only for work that changes nothing
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, cast, overload

from pyspark_kafkalog.root.file_root import FileRoot
from pyspark_kafkalog.root.protocol import Root

if TYPE_CHECKING:
    from pyspark_kafkalog.root.object_root import ObjectRoot

Files = TypeVar("Files")
Objects = TypeVar("Objects")
Brokers = TypeVar("Brokers")


@overload
def for_kind(
    root: Root, files: Callable[[FileRoot], Files], objects: Callable[[ObjectRoot], Objects]
) -> Files | Objects: ...


@overload
def for_kind(
    root: Root,
    files: Callable[[FileRoot], Files],
    objects: Callable[[ObjectRoot], Objects],
    brokers: Callable[[Root], Brokers],
) -> Files | Objects | Brokers: ...


def for_kind(
    root: Root,
    files: Callable[[FileRoot], Files],
    objects: Callable[[ObjectRoot], Objects],
    brokers: Callable[[Root], Brokers] | None = None,
) -> Files | Objects | Brokers:
    """Call the function for the kind of `root`.

    `brokers` None: raises ReadOnlyLogDirError for a broker's directory.
    """
    if brokers is not None and root.is_broker_directory:
        return brokers(root)
    native = root.native()
    return files(native) if isinstance(native, FileRoot) else objects(cast("ObjectRoot", native))
