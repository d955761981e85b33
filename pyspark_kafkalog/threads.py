"""Threads and memory of a process, also where the system starts no thread.

A thread takes address space: its stack, and an arena of the C library. With a limit (`spark.executor.pyspark.memory`,
`ulimit -v`) or at the limit of processes, a thread may not start. `Workers` then calls in the caller's thread, so that
the work is done, only slower. `start` is for threads that nothing replaces: its error names the limits.

`bound_address_space` keeps what libraries reserve and do not use small, in a process that has a limit: by default
Arrow's allocator reserves 1 GiB, and each thread an arena of 64 MiB.

`keep_freed_memory` lets a Spark worker use the memory of one batch for the next. The C library gives the top of its
heap back once 128 KiB, or twice the largest freed block, are free; the kernel then clears the same pages again.

`freeze_imports` spares Spark's Python workers work: after each task a worker process (pyspark.daemon) runs a full
garbage collection. With numba, numpy and Arrow imported it traverses 130,000 objects, which takes 20 ms of a core, more
than the rest of a task of a small micro-batch. None of these objects ever becomes garbage: `gc.freeze` excludes them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, TypeVar

from pyspark_kafkalog.errors import KafkalogError

_T = TypeVar("_T")

#: Threads of one pool in a process with a limit of address space.
_THREADS_WITHIN_LIMIT: Final = 4
#: Of CPython's error, whose class is RuntimeError. It names nothing else that is about threads.
_NO_THREAD: Final = "new thread"
#: mallopt(3) of glibc: how many arenas there may be.
_M_ARENA_MAX: Final = -8
_ARENAS: Final = 1
#: mallopt(3) of glibc: how much free memory at the top of the heap is kept, and from what size a block is mapped alone.
#: glibc takes at most 32 MiB for the second.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 64 << 20
_MAPPED_BYTES: Final = 32 << 20
#: What limits an address space, and the settings of libraries that read them when they are loaded or first used.
_LIMITS: Final = (resource.RLIMIT_AS, resource.RLIMIT_DATA)
_SETTINGS: Final = {"ARROW_DEFAULT_MEMORY_POOL": "system", "TOKIO_WORKER_THREADS": "2"}
_WORKER_MODULE: Final = "pyspark.daemon"

_is_bound = False
_keeps_freed = False
_modules_frozen = 0


class NoThreadError(KafkalogError, RuntimeError):
    """The system starts no thread, and the work cannot be done without it."""


def start(thread: threading.Thread) -> None:
    """Start the thread. Raises NoThreadError."""
    if not starts(thread):
        raise NoThreadError(
            f"cannot start the thread {thread.name}: a limit of address space or of processes is reached; "
            "raise the limit (ulimit -v, ulimit -u, TasksMax of systemd, pids of a container)"
        )


def starts(thread: threading.Thread) -> bool:
    """Start the thread; False if the system starts none."""
    try:
        thread.start()
    except (RuntimeError, MemoryError) as error:
        if not _is_without_thread(error):
            raise
        return False
    return True


class Workers(ThreadPoolExecutor):
    """A pool of threads. If the system starts no thread for a call, `submit` makes the call itself.

    So calls of one pool must not wait for later ones.
    """

    def __init__(self, threads: int, thread_name_prefix: str = "") -> None:
        super().__init__(min(threads, _THREADS_WITHIN_LIMIT) if is_limited() else threads, thread_name_prefix)

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """The future result of the call, which may be done already."""
        call = _Call(lambda: fn(*args, **kwargs))
        try:
            return super().submit(call)
        except (RuntimeError, MemoryError) as error:
            if not _is_without_thread(error):
                raise
        # The pool has queued the call all the same: a thread that it has may be first.
        with contextlib.suppress(BaseException):  # the future has it
            call()
        return call.future


class _Call:
    """A call that is made once, by the first of the threads that come to it."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self.future: Future[Any] = Future()
        self._work = work
        self._free = threading.Lock()

    def __call__(self) -> Any:
        if not self._free.acquire(blocking=False):
            return None
        try:
            result = self._work()
        except BaseException as error:
            self.future.set_exception(error)
            del self  # the frames of the error would hold what holds the error
            raise
        self.future.set_result(result)
        return result


def side_by_side(calls: Sequence[Callable[[], _T]]) -> list[_T]:
    """The results of the calls, made at the same time, in order. Raises the error of the first that failed.

    In threads of its own: the caller may hold locks that all threads of a shared pool wait for.
    """
    if len(calls) < 2:
        return [call() for call in calls]
    with Workers(len(calls)) as workers:
        return list(workers.map(lambda call: call(), calls))


def is_limited() -> bool:
    """Whether this process has a limit of address space."""
    return any(resource.getrlimit(each)[0] != resource.RLIM_INFINITY for each in _LIMITS)


def bound_address_space() -> None:
    """In a process with a limit of address space, have libraries reserve little; called before they do much.

    Settings that the user has made in the environment stay.
    """
    global _is_bound
    if _is_bound or not is_limited():
        return
    _is_bound = True
    if "MALLOC_ARENA_MAX" not in os.environ:
        import ctypes  # few processes have such a limit

        with contextlib.suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)
    has_pool = "ARROW_DEFAULT_MEMORY_POOL" in os.environ
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if not has_pool and "pyarrow" in sys.modules:
        pyarrow = sys.modules["pyarrow"]
        pyarrow.set_memory_pool(pyarrow.system_memory_pool())


def keep_freed_memory() -> None:
    """Have the C library keep up to 64 MiB of freed memory in a Spark worker: a task frees and takes the same sizes.

    Settings that the user has made in the environment stay. Does nothing in other processes.
    """
    global _keeps_freed
    if _keeps_freed or not _is_worker() or is_limited():
        return
    _keeps_freed = True
    if not {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"} & set(os.environ):
        import ctypes  # for Spark workers only

        with contextlib.suppress(OSError, AttributeError):  # another C library
            library = ctypes.CDLL(None)
            library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
            library.mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)


def _is_without_thread(error: BaseException) -> bool:
    return isinstance(error, MemoryError) or _NO_THREAD in str(error)


def freeze_imports() -> None:
    """Freeze all objects of a Spark worker that has imported anything since the last call; call it late in a task.

    Frozen objects are still freed when nothing refers to them, except those in reference cycles. Does nothing in other
    processes, such as a user's driver.
    """
    global _modules_frozen
    if len(sys.modules) == _modules_frozen or not _is_worker():
        return
    _modules_frozen = len(sys.modules)
    gc.collect()
    gc.freeze()


def _is_worker() -> bool:
    return getattr(sys.modules["__main__"].__spec__, "name", None) == _WORKER_MODULE
