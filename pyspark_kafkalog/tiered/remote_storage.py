"""Remote storage: the store that brokers copied segments to, and the layout of its objects.

`RemoteStorage` is a small record that travels to tasks; each process opens the store once, after its fork. The layout
is found by looking at some objects if the user has not named it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Final

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.object_store.location import parse_location
from pyspark_kafkalog.object_store.settings import StoreSettings, store_settings
from pyspark_kafkalog.tiered.layouts.aiven import MANIFEST, AivenLayout, find_prefix, parse_key
from pyspark_kafkalog.tiered.layouts.local import FOLDER, LocalLayout, parse_file, parse_folder
from pyspark_kafkalog.tiered.layouts.segment_objects import SegmentLayout
from pyspark_kafkalog.tiered.objects import DirectoryObjects, ReadableObjects, SegmentStore

LAYOUTS: Final = ("local", "aiven")
_LOOKED_AT_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class RemoteStorage:
    """Where remote segments are: `location` is an absolute path or a URL, `settings` are those of an object store."""

    location: str
    layout: SegmentLayout
    settings: StoreSettings | None = None

    def store(self) -> ReadableObjects:
        """The store, opened once a process."""
        return open_objects(self.location, self.settings)


@dataclass(frozen=True, slots=True)
class RemoteStorageOption:
    """What the user gave: a path or URL, and a layout (one of LAYOUTS) or None to find it.

    `key_files`: paths of PEM files with private keys, by key id ("" for every key); for encrypted segments.
    """

    location: str
    layout: str | None = None
    settings: StoreSettings | None = None
    key_files: tuple[tuple[str, str], ...] = ()

    def without_objects(self) -> RemoteStorage:
        """The storage as long as it holds no segments: then its layout is of no importance."""
        return RemoteStorage(self.location, LocalLayout(), self.settings)

    def find(self) -> RemoteStorage:
        """The storage with its layout. Raises InvalidOptionError if the layout cannot be found, ObjectStoreError."""
        store = open_objects(self.location, self.settings)
        place = parse_location(self.location)
        found = _layout_of(store, self.layout, "" if isinstance(place, Path) else place.prefix, self.key_files)
        if found is None:
            raise InvalidOptionError(
                f"{self.location} holds no remote log segments"
                f"{'' if self.layout is None else f' in the layout {self.layout}'}: expected "
                f"[{FOLDER}/]<topic>-<partition>-<topic id>/<offset>-<segment id>.log (local) or "
                "<topic>-<topic id>/<partition>/<offset>-<segment id>.rsm-manifest (aiven); name the directory or the "
                "bucket and prefix that the broker writes to"
            )
        return RemoteStorage(self.location, found, self.settings)


def parse_remote_storage(
    location: str,
    layout: str | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
    *,
    key_files: str | None = None,
) -> RemoteStorageOption:
    """The option of a path or URL. `options` may hold those of an object store (object_store.settings).

    `key_files` is a comma-separated list of <key id>:<path>, or the one path of all keys.

    Raises InvalidOptionError.
    """
    if layout is not None and layout not in LAYOUTS:
        raise InvalidOptionError(f"the layout of remote storage must be one of {', '.join(LAYOUTS)}, not {layout!r}")
    place = parse_location(location)
    if isinstance(place, Path):
        return RemoteStorageOption(str(place.absolute()), layout, key_files=_key_files(key_files))
    return RemoteStorageOption(place.url, layout, store_settings(place, options, hadoop=options), _key_files(key_files))


def _key_files(text: str | None) -> tuple[tuple[str, str], ...]:
    """The paths by key id, absolute: tasks run in other working directories."""
    found = []
    for each in () if text is None else text.split(","):
        key_id, colon, path = each.strip().rpartition(":")
        if not path or (colon and not key_id):
            raise InvalidOptionError(f"expected <key id>:<path of a PEM file>[,...], found {text!r}")
        found.append((key_id, str(Path(path).absolute())))
    return tuple(found)


def open_objects(location: str, settings: StoreSettings | None) -> SegmentStore:
    """The store at a path or URL, one for each process. Makes no request."""
    place = parse_location(location)
    if isinstance(place, Path):
        return DirectoryObjects(place)
    from pyspark_kafkalog.object_store.client import open_store  # heavy: loads obstore

    return open_store(place, settings)


def _layout_of(
    store: ReadableObjects, wanted: str | None, base: str, key_files: tuple[tuple[str, str], ...]
) -> SegmentLayout | None:
    """The layout of the first object that is one of a whole segment."""
    for each in islice(store.list_objects(""), _LOOKED_AT_MAX):
        parts = each.key.split("/")
        if wanted in (None, "local") and len(parts) >= 2 and parse_file(parts[-1]) and parse_folder(parts[-2]):
            return LocalLayout("/".join(parts[:-2]))
        if wanted in (None, "aiven") and each.key.endswith(MANIFEST) and parse_key("/".join(parts[-3:])):
            return AivenLayout(find_prefix(store, each.key), base, key_files)
    return None
