"""The address of an object store: a URL with its settings, as it travels to tasks. It opens the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.object_store.location import ObjectLocation, parse_location
from pyspark_kafkalog.object_store.settings import StoreSettings, store_settings
from pyspark_kafkalog.values import dataclass

if TYPE_CHECKING:
    from pyspark_kafkalog.object_store.store import ObjectStore


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """Can be pickled and sent to tasks, with the secrets that the settings hold; its text shows none."""

    location: ObjectLocation
    settings: StoreSettings

    @staticmethod
    def parse(url: str, options: Mapping[str, str]) -> StoreAddress:
        """The address that a URL names, with the settings among `options`, Hadoop's too; see `store_settings`.

        Raises InvalidOptionError for what is no URL of an object store, and for wrong settings.
        """
        location = parse_location(url)
        if not isinstance(location, ObjectLocation):
            raise InvalidOptionError(f"expected the URL of an object store, found {url!r}")
        return StoreAddress(location, store_settings(location, options, hadoop=options))

    def open(self) -> ObjectStore:
        """The store, the same object for all calls in a process. Makes no request.

        Raises MissingPackageError without obstore, InvalidOptionError for settings that the client does not accept.
        """
        from pyspark_kafkalog.object_store.client import open_store  # no root on a file system needs it

        return open_store(self.location, self.settings)

    def __str__(self) -> str:
        return self.location.url
