"""Whether a broker is running on a log directory, was stopped cleanly, or was killed.

A broker holds a POSIX record lock on `.lock` while it runs, and writes `.kafka_cleanshutdown` when it stops. The kernel
releases the lock however the process ends. The lock of a broker on another host is visible only if the file system
shares locks between hosts; otherwise its directory is taken for that of a killed broker.
"""

from __future__ import annotations

import fcntl
import os
import struct
from enum import Enum, auto
from pathlib import Path
from typing import Final

from pyspark_kafkalog.storage.artefacts.marker_files import was_clean_shutdown
from pyspark_kafkalog.storage.filesystem import READ_FLAGS

_LOCK_FILE: Final = ".lock"
#: struct flock: type, whence, start, length, process id.
_FLOCK: Final = struct.Struct("hhqqi4x")


class BrokerProcess(Enum):
    """The state of the broker that wrote a log directory. A copy of a running broker's directory is KILLED, too."""

    RUNNING = auto()
    STOPPED = auto()
    KILLED = auto()


def broker_process(root: Path) -> BrokerProcess:
    """The state of the broker on `root`. Takes no lock and writes nothing."""
    if was_clean_shutdown(root):
        return BrokerProcess.STOPPED
    return BrokerProcess.RUNNING if _is_locked(root / _LOCK_FILE) else BrokerProcess.KILLED


def _is_locked(path: Path) -> bool:
    """Whether a process holds a record lock on the file; False if locks cannot be queried."""
    if not hasattr(fcntl, "F_OFD_GETLK"):
        return False
    try:
        fd = os.open(path, READ_FLAGS)
    except OSError:
        return False
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return False
    finally:
        os.close(fd)
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)
