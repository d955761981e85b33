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
"""

# mypy: disable-error-code="no-untyped-call, attr-defined"

from __future__ import annotations

import functools
import hashlib
import importlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numba
from numba import njit

_LOG: Final = logging.getLogger(__name__)
_PACKAGE: Final = Path(__file__).parents[2]


def kernel(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for one signature when its module is loaded, or load its cached machine code."""

    def compile_function(function: Callable[..., Any]) -> Any:
        try:
            dispatcher = _cached_dispatcher(function)
            dispatcher.compile(signature)
        except (OSError, RuntimeError):  # not cached, and there is no directory, or it is read-only or full
            dispatcher = njit(nogil=True)(function)
            dispatcher.compile(signature)
        dispatcher.disable_compile()
        return dispatcher

    return compile_function


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
        index_files = f"{Path(source_path).stem}.{function.__qualname__}-{line}.*.nbi"
        directories = cache_directories()
        for directory in directories:
            if any(directory.glob(index_files)):
                return cls(directory, line)
        _announce_compiling()
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


@functools.cache
def _announce_compiling() -> None:
    """Announce once that the process pauses to compile."""
    _LOG.info("compiling the record kernels, which takes some seconds and happens once on each machine")


def load_all_kernels() -> list[str]:
    """Load all modules that define kernels, which compiles those not cached yet. Returns the modules."""
    in_package = (path.relative_to(_PACKAGE.parent).with_suffix("") for path in kernel_sources())
    with_kernels = [".".join(path.parts) for path in in_package if _defines_kernels(path)]
    for name in with_kernels:
        importlib.import_module(name)
    return with_kernels


def _defines_kernels(module: Path) -> bool:
    in_kernels = module.parent.name == "kernels" and module.name != "__init__"
    return in_kernels or module.name == "partitioner" or module.name.startswith("kernels_")


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
