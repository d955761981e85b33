"""A metadata log copied in the background of a process: by a thread, which survives what may pass.

A disk that is full or fails, and controllers that do not answer, are reported and tried again; after an error of the
disk the copy is opened again, which brings it to what is on disk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark_kafkalog.protocol.client_settings import ClientSettings
from pyspark_kafkalog.replication.metadata.observer import MetadataObserver, ObservedMetadata
from pyspark_kafkalog.threads import start

_RETRY_S: Final = 1.0


@contextmanager
def observing(
    controllers: str,
    path: Path,
    settings: ClientSettings | None = None,
    *,
    report: Callable[[ObservedMetadata | Exception], None],
) -> Iterator[None]:
    """Keep the copy in the directory `path` up to date while the block runs; `report` is called in another thread.

    Raises what `MetadataObserver` raises if the copy cannot be begun.
    """
    first = MetadataObserver(controllers, path, settings)
    is_ending = threading.Event()

    def observe() -> None:
        observer: MetadataObserver | None = first
        while not is_ending.is_set():
            try:
                if observer is None:
                    observer = MetadataObserver(controllers, path, settings)
                observer.run(is_stopping=is_ending.is_set, report=report)
            except OSError as error:  # among them those of the network
                report(error)
                if observer is not None:
                    observer.close()
                    observer = None
                is_ending.wait(_RETRY_S)
        if observer is not None:
            observer.close()

    thread = threading.Thread(target=observe, name="kafkalog-metadata", daemon=True)
    start(thread)
    try:
        yield
    finally:
        is_ending.set()
        thread.join()
