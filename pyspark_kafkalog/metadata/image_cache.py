"""Images of the roots that this process has open, so that opening one again reads only what is new."""

from __future__ import annotations

import threading
from typing import Final

from pyspark_kafkalog.metadata.log_tail import LoadedImage

_MAX_ROOTS: Final = 32


class ImageCache:
    """The newest image seen of each root; the roots that were used last are kept."""

    def __init__(self) -> None:
        self._images: dict[object, LoadedImage] = {}
        self._lock = threading.Lock()

    def get(self, root: object) -> LoadedImage | None:
        with self._lock:
            return self._images.get(root)

    def put(self, root: object, loaded: LoadedImage) -> None:
        with self._lock:
            newest = self._images.pop(root, None)
            if newest is None or newest.image.next_offset <= loaded.image.next_offset:
                newest = loaded
            self._images[root] = newest
            while len(self._images) > _MAX_ROOTS:
                del self._images[next(iter(self._images))]
