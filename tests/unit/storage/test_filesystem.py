"""Errors of a full, read-only or failing disk name the file and say what to do, also for calls by descriptor."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders.staged_writes import ROLLED, make_log_dir, stage
from fakes.stopping_filesystem import StoppingFileSystem

from pyspark_kafkalog.errors import KafkalogError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.storage.filesystem import LOCAL, open_to_read, pread
from pyspark_kafkalog.tools.command import one_line

CODES = {
    errno.ENOSPC: "kafkalog retention",
    errno.EDQUOT: "kafkalog retention",
    errno.EROFS: "mount the file system writable",
    errno.EIO: "kafkalog verify",
}
#: The system's calls by descriptor, each with how the package makes it on the file `fd`.
BY_DESCRIPTOR: dict[str, Callable[[int], object]] = {
    "pwrite": lambda fd: LOCAL.pwrite_all(fd, b"x", 0),
    "ftruncate": lambda fd: LOCAL.truncate(fd, 1),
    "fdatasync": LOCAL.fsync,
    "copy_file_range": lambda fd: LOCAL.copy_range(fd, 0, fd, 1, 1),
    "pread": lambda fd: pread(fd, 1, 0),
}
#: By name, on the path of a file that is not there yet.
BY_NAME: dict[str, Callable[[Path], object]] = {
    "open": lambda path: LOCAL.open(path, os.O_WRONLY | os.O_CREAT),
    "replace": lambda path: LOCAL.rename(path, path),
    "link": lambda path: LOCAL.link(path, path),
    "mkdir": LOCAL.mkdir,
    "unlink": LOCAL.unlink,
    "utime": LOCAL.touch,
}


def fail(monkeypatch: pytest.MonkeyPatch, name: str, code: int, *, names_files: bool = False) -> None:
    real = getattr(os, name)

    def call(*arguments: Any, **named: Any) -> Any:
        if name == "open" and "dir_fd" not in named:
            return real(*arguments, **named)  # of the directory
        raise OSError(code, os.strerror(code), *(map(str, arguments[:1]) if names_files else ()))

    monkeypatch.setattr(os, name, call)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", BY_DESCRIPTOR)
def test_error_of_call_by_descriptor_names_file_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    path = tmp_path / "segment.log"
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        with monkeypatch.context() as patched:
            fail(patched, name, code)
            with pytest.raises(OSError, match=r"segment\.log") as caught:
                BY_DESCRIPTOR[name](fd)
    finally:
        os.close(fd)
    check(caught.value, path, code)


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("name", BY_NAME)
def test_error_of_call_by_name_names_file_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    path = tmp_path / "segment.log"
    with monkeypatch.context() as patched:
        fail(patched, name, code, names_files=True)
        with pytest.raises(OSError, match=r"segment\.log") as caught:
            BY_NAME[name](path)
    check(caught.value, path, code)


def check(error: OSError, path: Path, code: int) -> None:
    assert error.errno == code
    assert error.filename == str(path)
    assert CODES[code] in str(error)
    line = one_line(error)
    assert line.startswith(str(path))
    assert os.strerror(code) in line
    assert CODES[code] in line
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_errors_without_remedy_stay_unchanged(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        LOCAL.unlink(tmp_path / "none")
    assert caught.value.filename == str(tmp_path / "none")
    assert caught.value.strerror == os.strerror(errno.ENOENT)
    (tmp_path / "there").touch()
    with pytest.raises(FileExistsError):
        LOCAL.link(tmp_path / "there", tmp_path / "there")


def test_failed_read_and_close_of_small_file_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "small"
    path.write_bytes(b"small")
    with open_to_read(path) as file:
        os.close(file.fileno())  # EBADF is an error of the kernel's without a name, as EIO is
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            file.read()
        with pytest.raises(OSError, match="Bad file descriptor"):
            file.close()
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("name", ["pwrite", "fdatasync", "copy_file_range"])
def test_failed_commit_names_its_file_and_succeeds_on_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    log_dir = make_log_dir(tmp_path / "log")
    staged = [stage(log_dir.path, "w", ROLLED)]
    with monkeypatch.context() as patched:
        fail(patched, name, errno.ENOSPC)
        with pytest.raises(OSError, match=r"orders-0|__cluster_metadata-0") as caught:
            log_dir.commit_staged(staged)
    assert not isinstance(caught.value, KafkalogError)
    assert str(tmp_path) in str(caught.value)
    log_dir.commit_staged(staged)


def test_failed_read_of_records_names_the_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_dir = make_log_dir(tmp_path / "log")
    log_dir.commit_staged([stage(log_dir.path, "w")])
    with monkeypatch.context() as patched:
        fail(patched, "preadv", errno.EIO)
        with pytest.raises(OSError, match=r"orders-0/0+\.log") as caught:
            LogDir.open(log_dir.path).read("orders")
    assert CODES[errno.EIO] in str(caught.value)


@pytest.mark.parametrize("refused", ["pwrite_all", "fsync", "rename"])
def test_refused_atomic_write_leaves_the_old_content_and_no_temporary_file(tmp_path: Path, refused: str) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(b"old")
    stops_at = ["open", "pwrite_all", "fsync", "rename"].index(refused)
    disk = StoppingFileSystem(stops_at, error=lambda: OSError(errno.ENOSPC, "full"), once=True, torn=True)
    with pytest.raises(OSError, match="full"):
        disk.write_file_atomic(path, b"new")
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {"checkpoint": b"old"}


def test_refused_atomic_write_raises_its_first_error_when_its_file_cannot_be_removed(tmp_path: Path) -> None:
    codes = iter([errno.ENOSPC, errno.EROFS])
    disk = StoppingFileSystem(1, error=lambda: OSError(next(codes), "refused"))
    with pytest.raises(OSError, match="refused") as raised:
        disk.write_file_atomic(tmp_path / "checkpoint", b"new")
    assert raised.value.errno == errno.ENOSPC
    assert next(codes, None) is None
