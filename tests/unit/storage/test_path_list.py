"""Several paths in one text, as in log.dirs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_kafkalog.storage.below_root import absolute_paths, join_paths, split_paths


@pytest.fixture
def disks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a", "b", "c,d"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a", ["a"]),
        ("none", ["none"]),
        ("a,b", ["a", "b"]),
        (" a , b ", ["a", "b"]),
        ("a,,b,", ["a", "b"]),
        ("a,none", ["a", "none"]),
        ("c,d", ["c,d"]),
        ("a,c,d,b", ["a", "c,d", "b"]),
        ("c,d,none", ["c,d", "none"]),
        ("new,one", ["new,one"]),
        ("a,a", ["a", "a"]),
    ],
)
def test_text_is_split_at_commas_unless_a_path_with_them_exists(disks: Path, text: str, expected: list[str]) -> None:
    assert split_paths(text) == tuple(map(Path, expected))
    assert split_paths(Path(text)) == tuple(map(Path, expected))


def test_joined_paths_are_split_again(disks: Path) -> None:
    paths = (disks / "a", disks / "c,d", disks / "b")
    assert split_paths(join_paths(paths)) == paths


def test_each_relative_path_is_made_absolute(disks: Path) -> None:
    assert absolute_paths(Path("a,b")) == Path(f"{disks}/a,{disks}/b")
    assert absolute_paths(Path("c,d")) == disks / "c,d"
    assert absolute_paths(Path("new,one")) == disks / "new,one"
