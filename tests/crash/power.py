"""A disk whose power is cut: what had not been synced is gone, or there in part.

`PowerFileSystem` works on real files and keeps book of what a disk must have kept of them:

    contents of a file       as of its last fsync
    names in a directory     as of its last fsync_dir

At call number `at` it stops for good, and `Disk.restore` writes what may be found afterwards into another directory:

    lost      nothing but what was synced
    hollow    all names, of the contents nothing but what was synced: a new file is there and empty, or full of zeros
    mixed     of the names of each directory the first so many changes; of the contents of each file some sectors, at
              the old length or the new one; drawn by chance

These are harsher than ext4 and XFS, which keep a new file's name with its fsync, and names in order over directories.
"""

from __future__ import annotations

import contextlib
import copy
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from tests.crash.faults import Call, SeamFileSystem

Loss = Literal["lost", "hollow", "mixed"]
LOSSES: Final[tuple[Loss, ...]] = ("lost", "hollow", "mixed")
_SECTOR_BYTES: Final = 512


class PowerCut(BaseException):
    """The machine has stopped: nothing that runs on it catches this."""


@dataclass(eq=False)
class File:
    """A file: its contents as of the last sync (None: never), and its last contents once it has no name."""

    synced: bytes | None = None
    gone: bytes = b""


@dataclass(eq=False)
class Directory:
    """A directory: names as they are, as of the last sync, and the changes since, oldest first."""

    names: dict[str, Node] = field(default_factory=dict)
    synced: dict[str, Node] = field(default_factory=dict)
    changes: list[dict[str, Node | None]] = field(default_factory=list)

    def change(self, **names: Node | None) -> None:
        """Names that get a node or, with None, go; all of them in one step."""
        self.changes.append(names)
        _apply(names, self.names)

    def sync(self) -> None:
        self.synced = dict(self.names)
        self.changes = []


Node = File | Directory


def _apply(change: dict[str, Node | None], names: dict[str, Node]) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class Disk:
    """The book of all that is below `home`; what is there at first is on the disk."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.top = _scan(home)

    def moved_to(self, home: Path) -> Disk:
        """A book of its own for a copy of the files at `home`."""
        moved = copy.deepcopy(self)
        moved.home = home
        return moved

    def find(self, path: Path) -> Node:
        node: Node = self.top
        for name in path.relative_to(self.home).parts:
            assert isinstance(node, Directory)
            node = node.names[name]
        return node

    def directory(self, path: Path) -> Directory:
        node = self.find(path)
        assert isinstance(node, Directory)
        return node

    def restore(self, target: Path, loss: Loss, seed: int) -> None:
        """Write what may be left after the power cut to `target`, which is not there."""
        paths = {id(node): path for path, node in _walk(self.top, self.home)}
        _Restoration(paths, loss, random.Random(seed)).directory(self.top, target)


def _scan(path: Path) -> Directory:
    found = Directory()
    for entry in path.iterdir():
        found.names[entry.name] = _scan(entry) if entry.is_dir() else File(entry.read_bytes())
    found.sync()
    return found


def _walk(directory: Directory, path: Path) -> Iterator[tuple[Path, Node]]:
    for name, node in directory.names.items():
        yield path / name, node
        if isinstance(node, Directory):
            yield from _walk(node, path / name)


@dataclass(frozen=True)
class _Restoration:
    paths: dict[int, Path]
    loss: Loss
    rng: random.Random

    def directory(self, node: Directory, target: Path) -> None:
        target.mkdir()
        for name, child in self._names(node).items():
            if isinstance(child, Directory):
                self.directory(child, target / name)
            else:
                (target / name).write_bytes(self._contents(child))

    def _names(self, node: Directory) -> dict[str, Node]:
        if self.loss == "hollow":
            return node.names
        names = dict(node.synced)
        if self.loss == "mixed":
            for change in node.changes[: self.rng.randint(0, len(node.changes))]:
                _apply(change, names)
        return names

    def _contents(self, node: File) -> bytes:
        path = self.paths.get(id(node))
        new = node.gone if path is None else path.read_bytes()
        old = node.synced
        if old == new:
            return new
        if self.loss == "mixed":
            return self._mix(old or b"", new)
        if old is None:
            return bytes(len(new)) if self.loss == "hollow" and self.rng.random() < 0.5 else b""
        return old

    def _mix(self, old: bytes, new: bytes) -> bytes:
        length = self.rng.choice((len(old), len(new)))
        sectors = range(0, length, _SECTOR_BYTES)
        kept = (self.rng.choice((old, new))[at : at + _SECTOR_BYTES].ljust(_SECTOR_BYTES, b"\0") for at in sectors)
        return b"".join(kept)[:length]


class PowerFileSystem(SeamFileSystem):
    """Keeps `disk` in step, and stops in front of call number `at`."""

    def __init__(self, disk: Disk, at: int = -1) -> None:
        super().__init__()
        self.disk = disk
        self._stops: Callable[[Call], bool] = lambda call: call.number == at
        self._files: dict[int, Node] = {}
        self._one_at_a_time = threading.RLock()
        self.is_cut = False

    def cut(self) -> None:
        """Stop now."""
        self.is_cut = True

    @contextlib.contextmanager
    def stopped(self, stops: Callable[[Call], bool]) -> Iterator[None]:
        """For the block: as if the process were killed in front of the first call that `stops`. The block is left."""
        before, self._stops = self._stops, stops
        with contextlib.suppress(PowerCut):
            yield
        assert self.is_cut
        self._stops, self.is_cut = before, False

    def on_call(self, call: Call, act: Callable[[], Any]) -> Any:
        with self._one_at_a_time:
            self.is_cut = self.is_cut or self._stops(call)
            if self.is_cut and call.name != "close":
                raise PowerCut
            book: Callable[..., Any] | None = getattr(self, f"_{call.name}", None)
            return act() if book is None else book(act, *call.arguments)

    def _open(self, act: Callable[[], Any], path: Path, flags: int, mode: int = 0) -> Any:
        is_new = not path.exists()
        fd = act()
        if is_new:
            self.disk.directory(path.parent).change(**{path.name: File()})
        self._files[fd] = self.disk.find(path)
        return fd

    def _close(self, act: Callable[[], Any], fd: int, path: Path | None = None) -> None:
        self._files.pop(fd, None)
        act()

    def _start_writeback(self, act: Callable[[], Any], *_: object) -> None:
        pass

    def _fsync(self, act: Callable[[], Any], fd: int) -> None:
        node = self._files[fd]
        assert isinstance(node, File)
        node.synced = Path(f"/proc/self/fd/{fd}").read_bytes()

    def _fsync_dir(self, act: Callable[[], Any], path: Path) -> None:
        self.disk.directory(path).sync()

    def _mkdir(self, act: Callable[[], Any], path: Path) -> None:
        act()
        self.disk.directory(path.parent).change(**{path.name: Directory()})

    def _rmdir(self, act: Callable[[], Any], path: Path) -> None:
        act()
        self.disk.directory(path.parent).change(**{path.name: None})

    def _unlink(self, act: Callable[[], Any], path: Path) -> None:
        self._keep(path)
        act()
        self.disk.directory(path.parent).change(**{path.name: None})

    def _link(self, act: Callable[[], Any], source: Path, target: Path) -> None:
        act()
        self.disk.directory(target.parent).change(**{target.name: self.disk.find(source)})

    def _rename(self, act: Callable[[], Any], source: Path, target: Path) -> None:
        self._keep(target)
        act()
        node = self.disk.find(source)
        if source.parent == target.parent:
            self.disk.directory(source.parent).change(**{source.name: None, target.name: node})
        else:
            self.disk.directory(target.parent).change(**{target.name: node})
            self.disk.directory(source.parent).change(**{source.name: None})

    def _keep(self, path: Path) -> None:
        """Remember the contents of a file that may lose its last name."""
        if path.is_file():
            node = self.disk.find(path)
            assert isinstance(node, File)
            node.gone = path.read_bytes()


def power_cuts(
    root: Path, into: Path, act: Callable[[Path, PowerFileSystem], object], loss: Loss, points: int
) -> Iterator[Path]:
    """What a power failure leaves of `root` at so many points of `act`, from its first call to its last; in `into`."""
    disk = Disk(root)
    whole = into / "whole"
    shutil.copytree(root, whole)
    fs = PowerFileSystem(disk.moved_to(whole))
    act(whole, fs)
    for number in range(points):
        at = 1 + number * (fs.calls - 1) // (points - 1)
        case = into / f"{at}"
        shutil.copytree(root, case)
        cut = PowerFileSystem(disk.moved_to(case), at)
        with contextlib.suppress(PowerCut):  # the last call may be one that lets go of a file
            act(case, cut)
        left = into / f"{at}-left"
        cut.disk.restore(left, loss, seed=at)
        yield left
