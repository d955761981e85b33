"""`kafkalog warm-up`: compile the record kernels before the first task, when an image or a machine is set up.

Tasks then load the machine code instead of compiling it. It is stored beside the installed package, else in the user's
cache directory, or in NUMBA_CACHE_DIR if that is set; the directory may be read-only afterwards. It is valid for the
Python, the packages and the kind of processor that it was compiled on. If an image runs on several kinds of processor,
set NUMBA_CPU_NAME=generic for this command and for the executors.

examples:
  kafkalog warm-up
  NUMBA_CACHE_DIR=/opt/kafkalog/kernels kafkalog warm-up
"""

from __future__ import annotations

import argparse
import time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds no options."""


def run(options: argparse.Namespace) -> int:
    """Compile the kernels that are not cached yet."""
    began = time.monotonic()
    from pyspark_kafkalog.record.kernels.cache import cache_directories, load_all_kernels

    modules = load_all_kernels()
    kept_in = [str(directory) for directory in cache_directories() if any(directory.glob("*.nbi"))]
    seconds = time.monotonic() - began
    if not kept_in:
        print(
            f"compiled the kernels of {len(modules)} modules in {seconds:.1f} s, but found no directory that can be "
            "written to, to keep them in: set NUMBA_CACHE_DIR to one"
        )
        return 1
    print(f"the kernels of {len(modules)} modules are ready in {', '.join(kept_in)} ({seconds:.1f} s)")
    return 0
