"""Identity of a log directory: its ids from meta.properties, and the error when another directory is at its path."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_kafkalog.errors import DiskFormatError, LogDirError
from pyspark_kafkalog.storage.artefacts.marker_files import (
    RootIdentity,
    check_identity,
    read_identity,
    readable_identity,
)
from pyspark_kafkalog.storage.names import META_PROPERTIES

C, D, E = "qbDNbxpzkQOTvHqKn4NP1g", "4kobOD6YRg6yBx_qi_e7lQ", "BBKq8Kn8Si-66RyYDIL97A"


def write(root: Path, *lines: str) -> None:
    root.mkdir(exist_ok=True)
    (root / META_PROPERTIES).write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("version=1", "node.id=1", f"cluster.id={C}", f"directory.id={D}"), RootIdentity(C, D)),
        (("version=1", "node.id=1", f"cluster.id={C}"), RootIdentity(C, None)),
        (("version=0", "broker.id=1", f"cluster.id={C}"), RootIdentity(C, None)),
        (("version=0", "broker.id=1"), None),
    ],
)
def test_identity_is_read_from_meta_properties(
    tmp_path: Path, lines: tuple[str, ...], expected: RootIdentity | None
) -> None:
    write(tmp_path, *lines)
    assert read_identity(tmp_path) == expected


def test_directory_without_meta_properties_has_no_identity_and_is_not_checked(tmp_path: Path) -> None:
    assert read_identity(tmp_path) is None
    assert read_identity(tmp_path / "missing") is None
    check_identity(tmp_path / "missing", None)


def test_damaged_meta_properties_are_reported_only_where_identity_is_expected(tmp_path: Path) -> None:
    write(tmp_path, "version=1", "node.id=1", f"cluster.id={C}", "directory.id=!!")
    assert readable_identity(tmp_path) is None
    with pytest.raises(DiskFormatError, match=r"directory\.id"):
        check_identity(tmp_path, RootIdentity(C, D))


@pytest.mark.parametrize(
    ("expected", "found", "fits"),
    [
        (RootIdentity(C, D), RootIdentity(C, D), True),
        (RootIdentity(C, None), RootIdentity(C, D), True),  # brokers from 3.7 on give it an id when they start
        (RootIdentity(C, D), RootIdentity(C, E), False),
        (RootIdentity(C, D), RootIdentity(E, D), False),
        (RootIdentity(C, D), RootIdentity(C, None), False),
        (RootIdentity(C, D), None, False),
    ],
)
def test_directory_fits_with_same_or_newly_assigned_directory_id_only(
    expected: RootIdentity, found: RootIdentity | None, fits: bool
) -> None:
    assert expected.fits(found) is fits


def test_identity_error_has_expected_and_found_ids(tmp_path: Path) -> None:
    expected = RootIdentity(C, D)
    root = tmp_path / "log"
    with pytest.raises(LogDirError, match=f"log: expected .*cluster id {C}, directory id {D}, found no such directory"):
        check_identity(root, expected)
    root.mkdir()
    with pytest.raises(LogDirError, match=r"found no meta\.properties; the volume may be unmounted"):
        check_identity(root, expected)
    write(root, "version=1", "node.id=1", f"cluster.id={C}", f"directory.id={E}")
    with pytest.raises(LogDirError, match=f"found the log directory with cluster id {C}, directory id {E}"):
        check_identity(root, expected)
