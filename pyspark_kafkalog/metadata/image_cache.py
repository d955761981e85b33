"""Cache of the images of the roots that this process has open; opening a root again reads only new commits."""

from __future__ import annotations

import threading
from typing import Final

from pyspark_kafkalog.metadata.log_tail import LoadedImage

_MAX_ROOTS: Final = 32


class ImageCache:
    """The newest known image of each root; keeps the most recently used roots."""

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
