"""Compile the kernels, and keep their machine code for the next process.

    <base>/kernels-<digest of the sources>/<numba's files>

numba keys its cache by the source file of the compiled function alone, but a kernel also contains what it inlines:
helper functions and constants of other modules. So the machine code is kept in a directory that is named by a digest
of all sources a kernel can contain: every module of `record` and every `kernels_*` module. An edit to any of them,
and an upgrade of the package, uses another directory, so stale machine code is never loaded.

The base is NUMBA_CACHE_DIR where it is set, else `__pycache__` beside this module, else the user's cache directory.
Where none of them can be written to, each process compiles. A crash leaves a temporary file of numba's, which nothing
reads; numba replaces its files atomically.
"""

# mypy: disable-error-code="no-untyped-call, attr-defined"

from __future__ import annotations

import functools
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numba
from numba import njit

_PACKAGE: Final = Path(__file__).parents[1]


def kernel(signature: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function for one signature when its module is loaded, or load the machine code that is kept."""

    def compile_function(function: Callable[..., Any]) -> Any:
        dispatcher = _dispatcher(function)
        dispatcher.compile(signature)
        dispatcher.disable_compile()
        return dispatcher

    return compile_function


def _dispatcher(function: Callable[..., Any]) -> Any:
    """The function for numba to compile, with a cache where there is a directory for one."""
    directory = cache_directory()
    if directory is None:
        return njit(nogil=True)(function)
    # numba looks at the setting when it makes the dispatcher, so other users of numba in the process keep theirs.
    users_setting = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(directory)
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:  # the directory has become unwritable
        return njit(nogil=True)(function)
    finally:
        numba.config.CACHE_DIR = users_setting


@functools.cache
def cache_directory() -> Path | None:
    """Directory for the machine code of this version of the sources, created if missing; None if none is writable."""
    if not kernel_sources():  # imported from a zip archive
        return None
    name = f"kernels-{sources_digest()}"
    for base in _bases():
        directory = base / name
        try:
            directory.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=directory).close()
        except OSError:  # read-only, or no such user
            continue
        return directory
    return None


def _bases() -> Iterator[Path]:
    if numba.config.CACHE_DIR:
        yield Path(numba.config.CACHE_DIR)
        return
    yield Path(__file__).parent / "__pycache__"
    yield Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "pyspark_kafkalog"


def sources_digest(package: Path = _PACKAGE) -> str:
    """Digest, in hexadecimal, of all sources that a kernel of the package can contain."""
    digest = hashlib.sha256()
    for path in kernel_sources(package):
        source = path.read_bytes()
        digest.update(f"{path.relative_to(package).as_posix()} {len(source)}\n".encode())
        digest.update(source)
    return digest.hexdigest()[:16]


def kernel_sources(package: Path = _PACKAGE) -> list[Path]:
    """The modules of which a kernel can contain a part, sorted: `record`, and the kernels of other folders."""
    return sorted({*package.glob("record/*.py"), *package.glob("**/kernels_*.py")})
