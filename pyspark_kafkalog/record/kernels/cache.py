"""Compiles the kernels, and caches their machine code for the next process.

    <base>/kernels-<digest of the sources>/<numba's files>

numba keys its cache only by the source file of the compiled function, but a kernel also contains the code that it
inlines: helper functions and constants of other modules. The machine code is therefore stored in a directory named
after a digest of all sources that a kernel can contain: `units`, every module of `record`, and every `kernels_*`
module. After an edit of any of them, or an upgrade of the package, another directory is used, so stale machine code is
never loaded.

The base is NUMBA_CACHE_DIR if it is set, else `__pycache__` beside this module, else the user's cache directory. A
read-only directory is used for the kernels that it holds, for example one that `kafkalog warm-up` filled when an image
was built. If no directory is writable, each process compiles the kernels that it does not find. A crash leaves a
temporary file of numba's, which is never read; numba replaces its files atomically.

All kernels take some ten seconds of a core. A Spark job starts as many processes as there are cores: a file lock has
one of them compile a kernel, and the others load it. A process that compiles for long says so, once, in one line.
"""

# mypy: disable-error-code="no-untyped-call, attr-defined"

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import numba
from numba import njit

_LOG: Final = logging.getLogger(__name__)
_PACKAGE: Final = Path(__file__).parents[2]
_LOCK: Final = "lock"
#: A process that compiles for longer than this says so. A single kernel takes less.
_ANNOUNCED_FROM_S: Final = 1.0


def kernel(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for one signature when its module is loaded, or load its cached machine code."""

    def compile_function(function: Callable[..., Any]) -> Any:
        is_kept = True
        try:
            dispatcher = _cached_dispatcher(function)
            with _one_process_at_a_time(Path(dispatcher.stats.cache_path), function):
                began_s = time.monotonic()
                dispatcher.compile(signature)
        except (OSError, RuntimeError):  # not cached, and there is no directory, or it is read-only or full
            is_kept, began_s = False, time.monotonic()
            dispatcher = njit(nogil=True)(function)
            dispatcher.compile(signature)
        if not dispatcher.stats.cache_hits:
            _compilation.add(time.monotonic() - began_s, is_kept=is_kept)
        dispatcher.disable_compile()
        return dispatcher

    return compile_function


class _Compilation:
    """The time that this process has compiled for. Announces it, once, if it is long."""

    def __init__(self) -> None:
        self.is_announced = False
        self._seconds = 0.0

    def add(self, seconds: float, *, is_kept: bool) -> None:
        """Add the time of one kernel; `is_kept`: later processes find its machine code in the cache."""
        self._seconds += seconds
        if self._seconds < _ANNOUNCED_FROM_S or self.is_announced:
            return
        self.is_announced = True
        if is_kept:
            _LOG.warning(
                "compiling the record kernels: some ten seconds, once on this machine; `kafkalog warm-up` does it ahead"
            )
        else:
            _LOG.warning(
                "compiling the record kernels: some ten seconds in each process, as none of these directories can be "
                "written to: %s; set NUMBA_CACHE_DIR to one that can, for Spark also spark.executorEnv.NUMBA_CACHE_DIR",
                ", ".join(map(str, cache_directories())) or "none, as the package is not installed as files",
            )


_compilation: Final = _Compilation()


@contextmanager
def _one_process_at_a_time(directory: Path, function: Any) -> Iterator[None]:
    """Have one process compile a kernel that the directory does not hold; the others wait, and load it.

    Where no lock can be had, all compile.
    """
    with ExitStack() as stack:
        if not _holds(directory, function):
            with suppress(OSError):
                directory.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context((directory / _LOCK).open("wb"))
                fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _holds(directory: Path, function: Any) -> bool:
    """Whether the directory has the machine code of the kernel, as numba names it."""
    code = function.__code__
    index_files = f"{Path(code.co_filename).stem}.{function.__qualname__}-{code.co_firstlineno}.*.nbi"
    return any(directory.glob(index_files))


def _cached_dispatcher(function: Callable[..., Any]) -> Any:
    """The function for numba to compile. Raises RuntimeError if there is no directory for its machine code."""
    # numba reads the setting once, when it creates the dispatcher, so other users of numba in the process keep theirs.
    users_setting = numba.config.CACHE_LOCATOR_CLASSES
    numba.config.CACHE_LOCATOR_CLASSES = f"{__name__}.{KernelLocator.__name__}"
    try:
        return njit(nogil=True, cache=True)(function)
    finally:
        numba.config.CACHE_LOCATOR_CLASSES = users_setting


class KernelLocator:
    """Locates the machine code of one kernel for numba (numba's setting NUMBA_CACHE_LOCATOR_CLASSES)."""

    def __init__(self, directory: Path, line: int) -> None:
        self._directory = directory
        self._line = line

    @classmethod
    def from_function(cls, function: Any, source_path: str) -> KernelLocator | None:
        """A directory that holds the kernel, else a writable one; None if there is neither."""
        line = function.__code__.co_firstlineno
        directories = cache_directories()
        for directory in directories:
            if _holds(directory, function):
                return cls(directory, line)
        for directory in directories:
            if _can_write(directory):
                return cls(directory, line)
        return None

    def get_cache_path(self) -> str:
        return str(self._directory)

    def ensure_cache_path(self) -> None:
        """Create the directory. Raises OSError if it cannot be created."""
        self._directory.mkdir(parents=True, exist_ok=True)

    def get_source_stamp(self) -> str:
        return sources_digest()

    def get_disambiguator(self) -> str:
        return str(self._line)


def load_all_kernels() -> Iterator[tuple[int, int]]:
    """Load all modules that define kernels, which compiles those not cached yet.

    Yields how many kernels are loaded, and how many there are, at first and after each module. Announces nothing: the
    caller shows the progress.
    """
    _compilation.is_announced = True
    counts = {path: path.read_text().count("\n@kernel(") for path in kernel_sources()}  # bounded: our own source
    with_kernels = {path: count for path, count in counts.items() if count}
    loaded, total = 0, sum(with_kernels.values())
    yield loaded, total
    for path, count in with_kernels.items():
        importlib.import_module(".".join(path.relative_to(_PACKAGE.parent).with_suffix("").parts))
        loaded += count
        yield loaded, total


def cache_directories() -> list[Path]:
    """The directories for the machine code of this version of the sources, in order of preference."""
    if not kernel_sources():  # imported from a zip archive
        return []
    name = f"kernels-{sources_digest()}"
    return [base / name for base in _bases()]


def _bases() -> Iterator[Path]:
    if numba.config.CACHE_DIR:
        yield Path(numba.config.CACHE_DIR)
        return
    yield Path(__file__).parent / "__pycache__"
    yield Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "pyspark_kafkalog"


def _can_write(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(directory, os.W_OK | os.X_OK)


@functools.cache
def sources_digest(package: Path = _PACKAGE) -> str:
    """Digest, in hexadecimal, of all sources that a kernel of the package can contain."""
    digest = hashlib.sha256()
    for path in kernel_sources(package):
        source = path.read_bytes()  # bounded: our own source
        digest.update(f"{path.relative_to(package).as_posix()} {len(source)}\n".encode())
        digest.update(source)
    return digest.hexdigest()[:16]


@functools.cache
def kernel_sources(package: Path = _PACKAGE) -> tuple[Path, ...]:
    """The modules whose code a kernel can contain, sorted: `record`, `units`, and the kernels of other folders."""
    return tuple(sorted({*package.glob("units.py"), *package.glob("record/**/*.py"), *package.glob("**/kernels_*.py")}))
