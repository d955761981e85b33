"""Log directories with a clock, a file system or an identity that a test controls; users have no such arguments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark_kafkalog import LogDir
from pyspark_kafkalog.object_store.address import StoreAddress
from pyspark_kafkalog.object_store.location import RootPath
from pyspark_kafkalog.root.adopt.adopt import adopt
from pyspark_kafkalog.security.open import AnyPath, create_native_root, open_or_create_root, open_root
from pyspark_kafkalog.storage.filesystem import LOCAL, FileSystem, time_ms

Clock = Callable[[], int]


def open_log_dir(path: AnyPath, *, clock: Clock = time_ms, fs: FileSystem = LOCAL, **options: Any) -> LogDir:
    """As `LogDir.open`; the options are those of `open_root`."""
    return LogDir(open_root(path, clock=clock, fs=fs, **options), clock=clock)


def create_log_dir(path: str | RootPath | StoreAddress, *, clock: Clock = time_ms, fs: FileSystem = LOCAL) -> LogDir:
    """As `LogDir.create`."""
    return LogDir(create_native_root(path, clock=clock, fs=fs), clock=clock)


def open_or_create_log_dir(
    path: str | RootPath | StoreAddress, *, clock: Clock = time_ms, fs: FileSystem = LOCAL
) -> LogDir:
    """As `LogDir.open_or_create`."""
    return LogDir(open_or_create_root(path, clock=clock, fs=fs), clock=clock)


def adopt_log_dir(path: Path, *, clock: Clock, **options: Any) -> LogDir:
    """As `LogDir.adopt`."""
    adopt(path, clock=clock, **options)
    return open_log_dir(path, clock=clock)
