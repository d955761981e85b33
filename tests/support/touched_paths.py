"""The paths that this process opens, lists, creates, renames or removes: what strace would show of a test.

Python reports each such call to its audit hooks, which cannot be removed again: one hook serves all tests. Calls of
`os.stat` are not reported.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_EVENTS = frozenset(("open", "shutil.rmtree", "shutil.move")) | {
    f"os.{call}"
    for call in (
        "chmod",
        "link",
        "listdir",
        "mkdir",
        "remove",
        "rename",
        "rmdir",
        "scandir",
        "symlink",
        "truncate",
        "utime",
    )
}
_active: list[set[str]] = []
_is_installed = False


@contextmanager
def touched_paths() -> Iterator[set[str]]:
    """The absolute paths that any thread of this process touches meanwhile, without `..` and not through links."""
    global _is_installed
    if not _is_installed:
        sys.addaudithook(_note)
        _is_installed = True
    found: set[str] = set()
    _active.append(found)
    try:
        yield found
    finally:
        _active.remove(found)


def _note(event: str, args: tuple[object, ...]) -> None:
    if not _active or event not in _EVENTS:
        return
    for each in args[:2]:
        text = os.fsdecode(each) if isinstance(each, (str, bytes, os.PathLike)) else ""
        if "/" in text:  # a name alone is below the directory whose descriptor is given
            for found in _active:
                found.add(os.path.normpath(os.path.join(os.getcwd(), text)))
