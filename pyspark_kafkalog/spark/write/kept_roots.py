"""The roots in object stores that a worker process has just written to.

Spark's workers are used again: the one that plans micro-batches plans the next one too, and so does the one that
commits. To open the root each time would cost more requests than the commit itself. So a root is kept for as long as a
commit may be built on its image without a look at the store (30 seconds after the end of the log was seen): nothing is
decided by what the image says. A topic deleted meanwhile, another writer's commit and a later run of the query are
found by the commit.

A root opened for a principal is not kept: what it may do is read again each time.
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark_kafkalog.object_store.address import StoreAddress
    from pyspark_kafkalog.root.objects.object_root import ObjectRoot
    from pyspark_kafkalog.root.protocol import Root
    from pyspark_kafkalog.storage.artefacts.marker_files import RootIdentity

_KEPT_MAX: Final = 4


def keep(address: StoreAddress, root: Root) -> None:
    """Keep `root`, which is at `address`, if it is one that can be kept."""
    from pyspark_kafkalog.root.objects.object_root import ObjectRoot

    if isinstance(root, ObjectRoot):
        kept = _kept(os.getpid())
        kept.pop(address, None)
        kept[address] = root
        while len(kept) > _KEPT_MAX:
            del kept[next(iter(kept))]


def kept_root(address: StoreAddress, identity: RootIdentity | None, *, version: int) -> Root | None:
    """The root at `address` if it was kept, has the identity (None: any), and was up to date a short time ago.

    It is refreshed if it is older than `version`, as of which it is known to exist. Raises the errors of that.
    """
    root = _kept(os.getpid()).get(address)
    if root is None or not root.store.sees_end or (identity is not None and not identity.fits(root.identity)):
        return None
    if root.version < version:
        root.refresh()
    return root


@lru_cache(maxsize=1)
def _kept(process_id: int) -> dict[StoreAddress, ObjectRoot]:
    """The roots of this process, the one used last at the end."""
    return {}
