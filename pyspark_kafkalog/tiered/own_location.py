"""The place to which a root on a file system copies its closed segments, as broker-level configurations name it.

    rsm.config.location   URL of a place in an object store, or absolute path of a directory that all machines see
    rsm.config.layout     the layout of the objects (own_segments.py)

The machine's environment may restrict the places, because the log directory itself names its place.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pyspark_kafkalog.errors import InvalidConfigError, InvalidOptionError
from pyspark_kafkalog.object_store.location import ObjectLocation, parse_location

LOCATION_CONFIG: Final = "rsm.config.location"
LAYOUT_CONFIG: Final = "rsm.config.layout"

#: Places, with commas between them, to which log directories may copy segments, and from which they read them.
PERMITTED_VARIABLE: Final = "KAFKALOG_REMOTE_LOCATIONS"


def check_permitted(location: str) -> None:
    """Raise InvalidConfigError if KAFKALOG_REMOTE_LOCATIONS is set and no place in it is `location`, or above it.

    A log directory names the place itself, and one that comes from elsewhere may name any.
    """
    permitted = os.environ.get(PERMITTED_VARIABLE)
    if permitted is None:
        return
    place = _canonical(location)
    for each in filter(None, map(str.strip, permitted.split(","))):
        above = _canonical(each)
        if place == above or place.startswith(above.rstrip("/") + "/"):
            return
    raise InvalidConfigError(
        f"{LOCATION_CONFIG}={location} is not permitted on this machine: expected a place of {PERMITTED_VARIABLE}, "
        f"found {permitted!r}; add the place there if the log directory may copy to it"
    )


def _canonical(location: str) -> str:
    place = parse_own_location(location)
    return os.path.realpath(place) if isinstance(place, Path) else place.url


def check_location(text: str) -> None:
    """Raise InvalidConfigError unless `text` can be rsm.config.location."""
    parse_own_location(text)


def check_outside(text: str, root: Path) -> None:
    """Raise InvalidConfigError if the location is in the log directory `root`, or the other way round."""
    place = parse_own_location(text) if text else None
    if not isinstance(place, Path):
        return
    place, root = place.resolve(), root.resolve()
    if place == root or place in root.parents or root in place.parents:
        raise InvalidConfigError(
            f"{LOCATION_CONFIG}={text} is not allowed: expected a directory of its own, outside of the log directory "
            f"{root}"
        )


def parse_own_location(text: str) -> Path | ObjectLocation:
    """The place that rsm.config.location names. Raises InvalidConfigError."""
    try:
        place = parse_location(text)
    except InvalidOptionError as error:
        raise InvalidConfigError(f"{LOCATION_CONFIG} is not allowed: {error}") from None
    if isinstance(place, Path) and (not place.is_absolute() or ".." in place.parts):
        raise InvalidConfigError(
            f"{LOCATION_CONFIG}={text} is not allowed: expected a URL, or an absolute path without '..'"
        )
    return place
