"""URLs of object stores and paths, as users write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.object_store.location import ObjectLocation, is_object_url, parse_location


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("s3://bucket", ObjectLocation("s3", "bucket")),
        ("s3://bucket/", ObjectLocation("s3", "bucket")),
        ("s3://bucket/a/b/", ObjectLocation("s3", "bucket", "a/b")),
        ("s3a://my.bucket/log", ObjectLocation("s3", "my.bucket", "log")),
        ("S3N://bucket/Log dir", ObjectLocation("s3", "bucket", "Log dir")),
        ("s3://bucket/a%20b", ObjectLocation("s3", "bucket", "a%20b")),
        ("gs://bucket/log", ObjectLocation("gs", "bucket", "log")),
        ("az://container/log", ObjectLocation("az", "container", "log")),
        ("abfss://c1@account.dfs.core.windows.net/log", ObjectLocation("az", "c1", "log", "account")),
        ("wasbs://c1@account.blob.core.windows.net/log", ObjectLocation("az", "c1", "log", "account")),
    ],
)
def test_an_object_url_names_scheme_bucket_prefix_and_account(text: str, expected: ObjectLocation) -> None:
    assert parse_location(text) == expected
    assert is_object_url(text)
    assert parse_location(expected.url) == expected
    assert str(expected) == expected.url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/a/b", "/a/b"),
        ("relative/dir", "relative/dir"),
        ("a:b", "a:b"),
        ("~/log", "~/log"),
        ("file:///a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file://localhost/a%20b c", "/a%20b c"),
    ],
)
def test_a_path_or_file_url_is_a_path(text: str, expected: str) -> None:
    assert parse_location(text) == Path(expected)
    assert not is_object_url(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a path, .*found an empty text"),
        ("hdfs://node/log", "found a URL with hdfs://"),
        ("s3:/bucket/log", "found a URL with s3:/"),
        ("dbfs:/log", "found a URL with dbfs:/"),
        ("s3://", "expected s3://bucket/prefix, found ''"),
        ("s3:///log", "expected s3://bucket/prefix, found ''"),
        ("s3://bu_cket!/log", "found 'bu_cket!'"),
        ("s3://bucket//log", "none of them empty"),
        ("s3://bucket/a/../b", r"found 'a/\.\./b'"),
        ("s3://bucket/" + "x" * 1025, "at most 1024 bytes, found 1025"),
        ("gs://user@bucket/log", "expected gs://bucket/prefix, found 'user@bucket'"),
        ("abfss://container/log", "expected abfss://container@account.dfs.core.windows.net/prefix, found 'container'"),
        ("abfss://c1@account.example.com/log", "set the endpoint"),
        ("wasb://c1@/log", "expected wasb://container@account.blob.core.windows.net/prefix"),
        ("file://host/log", "names the host 'host'"),
        ("file:log", "an absolute path"),
    ],
)
def test_a_wrong_url_is_refused_with_what_was_expected_and_found(text: str, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        parse_location(text)


@pytest.mark.parametrize(
    "text", ["s3://key:hidden@bucket/log", "az://container/log?sig=hidden", "s3://bucket/a#hidden"]
)
def test_a_url_with_credentials_is_refused_without_repeating_them(text: str) -> None:
    with pytest.raises(InvalidOptionError, match="credentials by options") as refused:
        parse_location(text)
    assert "hidden" not in str(refused.value)


def test_a_place_below_a_location_extends_its_prefix() -> None:
    assert ObjectLocation("s3", "bucket").below("a").below("b/c") == ObjectLocation("s3", "bucket", "a/b/c")


@pytest.mark.parametrize("name", ["", "..", "a//b", "/a", "x" * 1020])
def test_a_name_that_is_no_key_is_not_below_a_location(name: str) -> None:
    with pytest.raises(ValueError, match="expected a key"):
        ObjectLocation("s3", "bucket", "prefix").below(name)
