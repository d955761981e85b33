"""Java properties files, meta.properties and the clean-shutdown file: read and written as Java and Kafka do."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafkalog.config.properties_file import format_properties, parse_properties
from pyspark_kafkalog.errors import DiskFormatError, UnsupportedFormatError
from pyspark_kafkalog.storage.artefacts.marker_files import (
    MetaProperties,
    read_meta_properties,
    remove_clean_shutdown,
    was_clean_shutdown,
    write_meta_properties,
)

_UUID = "UU043bJQTDCZbZ9gozZPMQ"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", {}),
        ("# a=1\n  ! b=2\n\n \t\f\n", {}),
        ("a=1\nb:2\nc 3\nd\te", {"a": "1", "b": "2", "c": "3", "d": "e"}),
        ("  a  =  1  \n", {"a": "1  "}),
        ("a\nb=\nc:\n", {"a": "", "b": "", "c": ""}),
        ("a = = 1\nb : = 2", {"a": "= 1", "b": "= 2"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\r\nb=2\rc=3", {"a": "1", "b": "2", "c": "3"}),
        ("a=1,\\\n   2,\\\r\n\t3\nb=4", {"a": "1,2,3", "b": "4"}),
        ("a=1\\\n# no comment", {"a": "1# no comment"}),
        ("a=1\\\n\nb=2", {"a": "1", "b": "2"}),
        ("a=1\\\\\nb=2", {"a": "1\\", "b": "2"}),
        ("a=1\\", {"a": "1"}),
        ("# comment \\\na=1", {"a": "1"}),
        ("\\ a\\=\\:b = 1\\tx\\ny\\rz\\f\\q", {" a=:b": "1\tx\ny\rz\fq"}),
        ("a=\\u0041\\u00e9\\uD83D\\uDE00", {"a": "Aé😀"}),
        ("a=\xe9", {"a": "é"}),
        ("=1", {"": "1"}),
    ],
)
def test_properties_are_parsed_as_java_parses_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text.encode("latin-1"), file="f") == expected


@pytest.mark.parametrize("escape", ["\\u12", "\\u", "\\uzzzz", "\\u 123", "\\u+123"])
def test_bad_unicode_escape_is_reported_with_its_position(escape: str) -> None:
    with pytest.raises(DiskFormatError, match=r"server\.properties at byte 4: expected four hexadecimal digits"):
        parse_properties(f"a=1\nb={escape}\nc=2".encode(), file="server.properties")


def test_properties_are_written_as_java_writes_them() -> None:
    at = datetime(2026, 11, 1, 3, 4, 5, tzinfo=timezone.utc)
    written = format_properties({"node.id": "1", " k:=#!\\": "  v é=😀\n"}, written_at=at)
    assert written.decode("ascii").splitlines() == [
        "#",
        "#Sun Nov 01 03:04:05 UTC 2026",
        "node.id=1",
        "\\ k\\:\\=\\#\\!\\\\=\\  v \\u00E9\\=\\uD83D\\uDE00\\n",
    ]


_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(st.dictionaries(_TEXTS, _TEXTS, max_size=5))
def test_any_properties_round_trip(properties: dict[str, str]) -> None:
    assert parse_properties(format_properties(properties), file="f") == properties


@given(st.text("a=: \\u0#!\t\n\r\f", max_size=60))
def test_any_text_is_parsed_or_reported_as_damaged(text: str) -> None:
    try:
        properties = parse_properties(text.encode("latin-1"), file="f")
    except DiskFormatError:
        return
    assert len(properties) <= len(text)


def test_meta_properties_of_version_1_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    properties = MetaProperties(cluster_id="my-cluster", node_id=3, directory_id=_UUID)
    write_meta_properties(path, properties, written_at=datetime(2026, 1, 2, tzinfo=timezone.utc))
    assert path.read_text().splitlines() == [
        "#",
        "#Fri Jan 02 00:00:00 UTC 2026",
        "node.id=3",
        f"directory.id={_UUID}",
        "version=1",
        "cluster.id=my-cluster",
    ]
    assert read_meta_properties(path) == properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", MetaProperties(version=0)),
        ("version=0\nbroker.id=4\n", MetaProperties(version=0, node_id=4)),
        ("broker.id=4\ncluster.id=c\n", MetaProperties(version=0, node_id=4, cluster_id="c")),
        ("version=1\nnode.id=4\ncluster.id=c\n", MetaProperties(node_id=4, cluster_id="c")),
    ],
)
def test_meta_properties_of_versions_0_and_1_are_read(tmp_path: Path, text: str, expected: MetaProperties) -> None:
    path = tmp_path / "meta.properties"
    path.write_text(text)
    assert read_meta_properties(path) == expected
    again = tmp_path / "again.properties"
    write_meta_properties(again, expected)
    assert read_meta_properties(again) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("version=one", "for version"),
        ("version=1\ncluster.id=c", "property node.id"),
        ("version=1\nnode.id=1", "property cluster.id"),
        ("version=1\nnode.id=one\ncluster.id=c", "for node.id"),
        ("version=1\nnode.id=2147483648\ncluster.id=c", "for node.id"),
        ("broker.id=x", "for broker.id"),
        ("version=1\nnode.id=1\ncluster.id=c\ndirectory.id=short", "for directory.id"),
    ],
)
def test_damaged_meta_properties_are_reported_with_property(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "meta.properties"
    path.write_text(text)
    with pytest.raises(DiskFormatError, match=r"meta\.properties") as caught:
        read_meta_properties(path)
    assert expected in caught.value.expected


@pytest.mark.parametrize("length_bytes", range(40, 62, 3))
def test_truncated_meta_properties_are_refused(tmp_path: Path, length_bytes: int) -> None:
    path = tmp_path / "meta.properties"
    path.write_bytes(b"#\n#Sat Nov 21 00:20:02 UTC 2026\nversion=1\nnode.id=1\ncluster.id=c"[:length_bytes])
    with pytest.raises(DiskFormatError):
        read_meta_properties(path)


def test_later_version_of_meta_properties_is_refused_as_unsupported(tmp_path: Path) -> None:
    path = tmp_path / "meta.properties"
    path.write_text("version=2\nnode.id=1\ncluster.id=c")
    with pytest.raises(UnsupportedFormatError, match="version 0 to 1, found version 2"):
        read_meta_properties(path)


def test_version_1_without_cluster_or_node_id_is_not_written(tmp_path: Path) -> None:
    for properties in (MetaProperties(node_id=1), MetaProperties(cluster_id="c")):
        with pytest.raises(ValueError, match="needs a cluster id and a node id"):
            write_meta_properties(tmp_path / "meta.properties", properties)
    assert not list(tmp_path.iterdir())


def test_clean_shutdown_file_is_found_and_removed(tmp_path: Path) -> None:
    assert not was_clean_shutdown(tmp_path)
    (tmp_path / ".kafka_cleanshutdown").write_text('{"version":0,"brokerEpoch":12}')
    assert was_clean_shutdown(tmp_path)
    remove_clean_shutdown(tmp_path)
    remove_clean_shutdown(tmp_path)
    assert not was_clean_shutdown(tmp_path)


@pytest.mark.parametrize("content", [b"", b'{"version":0,"brokerEp'])
def test_damaged_clean_shutdown_file_counts_as_clean(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".kafka_cleanshutdown").write_bytes(content)
    assert was_clean_shutdown(tmp_path)
