"""Endpoints and credentials of stores: options, Hadoop's settings, the environment; and what is never shown."""

from __future__ import annotations

import pickle
from datetime import datetime, timezone
from pathlib import Path

import pytest

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.object_store.location import ObjectLocation
from pyspark_kafkalog.object_store.settings import (
    REDACTED,
    SECRET_OPTION_NAMES,
    STORE_OPTION_NAMES,
    StoreSettings,
    client_config,
    is_secret_name,
    store_settings,
)

S3 = ObjectLocation("s3", "bucket", "log")
AZURE = ObjectLocation("az", "container", "log", "account")
GCS = ObjectLocation("gs", "bucket", "log")


def test_secrets_have_names_that_spark_hides() -> None:
    assert set(filter(is_secret_name, STORE_OPTION_NAMES)) == SECRET_OPTION_NAMES
    assert {"storeAccessKey", "storeSecretKey", "storeSessionToken", "storeSasToken"} == SECRET_OPTION_NAMES


def test_settings_hide_secrets_in_their_text_and_nothing_else() -> None:
    settings = store_settings(
        S3,
        {"storeAccessKey": "key", "storeSecretKey": "hidden", "storeEndpoint": "http://host:1", "startingOffsets": "x"},
    )
    assert repr(settings) == str(settings) == f"{settings}"
    assert repr(settings) == (
        f"StoreSettings(storeEndpoint=http://host:1, storeAccessKey={REDACTED}, storeSecretKey={REDACTED})"
    )
    assert pickle.loads(pickle.dumps(settings)) == settings
    assert store_settings(S3, settings.options()) == settings


def test_option_names_count_in_any_case() -> None:
    assert store_settings(S3, {"storeendpoint": " http://host:1 "}).endpoint == "http://host:1"


def test_hadoops_settings_are_used_where_options_are_not_set() -> None:
    hadoop = {
        "spark.hadoop.fs.s3a.endpoint": "minio:9000",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
        "spark.hadoop.fs.s3a.path.style.access": "TRUE",
        "spark.hadoop.fs.s3a.access.key": "general",
        "spark.hadoop.fs.s3a.secret.key": "general secret",
        "fs.s3a.session.token": "general token",
        "fs.s3a.bucket.bucket.access.key": "of bucket",
        "fs.s3a.bucket.other.secret.key": "of another",
        "fs.s3a.endpoint.region": "eu-west-1",
        "spark.sql.shuffle.partitions": "4",
    }
    settings = store_settings(S3, {}, hadoop=hadoop)
    assert settings == StoreSettings(
        endpoint="http://minio:9000",
        region="eu-west-1",
        path_style="true",
        access_key="of bucket",
        secret_key="general secret",
        session_token="general token",
    )
    own_keys = store_settings(S3, {"storeAccessKey": "own", "storeSecretKey": "own secret"}, hadoop=hadoop)
    assert (own_keys.access_key, own_keys.secret_key, own_keys.session_token) == ("own", "own secret", "")
    assert own_keys.endpoint == "http://minio:9000"
    assert store_settings(GCS, {}, hadoop=hadoop) == StoreSettings()


@pytest.mark.parametrize(
    ("endpoint", "region"),
    [
        ("s3.eu-west-1.amazonaws.com", "eu-west-1"),
        ("https://s3-us-gov-west-1.amazonaws.com/", "us-gov-west-1"),
        ("s3.dualstack.ap-south-1.amazonaws.com", "ap-south-1"),
        ("s3.amazonaws.com", ""),
        ("s3.eu-west-1.example.com", ""),
    ],
)
def test_the_region_is_that_of_an_endpoint_of_aws(endpoint: str, region: str) -> None:
    assert store_settings(S3, {}, hadoop={"fs.s3a.endpoint": endpoint}).region == region


@pytest.mark.parametrize(
    ("location", "options", "message"),
    [
        (S3, {"storeEndpoint": "host:9000"}, "storeEndpoint: expected http://host:port"),
        (S3, {"storeEndpoint": "http://user:hidden@host"}, "storeEndpoint: expected http://host:port"),
        (
            S3,
            {"storeEncryption": "SSE-C"},
            "storeEncryption: expected AES256 or aws:kms or aws:kms:dsse, found 'SSE-C'",
        ),
        (S3, {"storeKmsKey": "key"}, "storeKmsKey: expected storeEncryption aws:kms, found none"),
        (S3, {"storeChecksum": "MD5"}, "storeChecksum: expected SHA256 or CRC64NVME, found 'MD5'"),
        (S3, {"storeProxy": "http://user:hidden@proxy"}, "storeProxy: expected http://host:port"),
        (
            S3,
            {"storeAccessKey": "k", "storeSecretKey": "hidden", "storeCredentialsFile": "/f"},
            "Key or storeCredentials",
        ),
        (GCS, {"storeRequesterPays": "true"}, "storeRequesterPays: expected s3://bucket/prefix, found gs://bucket/log"),
        (S3, {"storePathStyle": "yes"}, "storePathStyle: expected true or false, found 'yes'"),
        (S3, {"storeAccessKey": "hidden"}, "expected both storeAccessKey and storeSecretKey"),
        (S3, {"storeSecretKey": "hidden"}, "expected both storeAccessKey and storeSecretKey"),
        (S3, {"storeSessionToken": "hidden"}, "expected the keys that storeSessionToken belongs to"),
        (S3, {"storeSasToken": "hidden"}, "expected storeAccessKey and .* for s3://bucket/log, found storeSasToken"),
        (AZURE, {"storeAccessKey": "hidden"}, "expected storeSecretKey and storeSasToken .* found storeAccessKey"),
        (AZURE, {"storeSecretKey": "hidden", "storeSasToken": "hidden"}, "storeSecretKey or storeSasToken .* both"),
        (AZURE, {"storeAccount": "other"}, "storeAccount: expected account, as in abfss://.*, found other"),
        (GCS, {"storeSecretKey": "hidden"}, "expected storeServiceAccount for gs://bucket/log, found storeSecretKey"),
    ],
)
def test_wrong_settings_are_refused_without_showing_secrets(
    location: ObjectLocation, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidOptionError, match=message) as refused:
        store_settings(location, options)
    assert "hidden" not in str(refused.value)


def test_the_client_of_s3_gets_the_settings_and_no_token_of_the_environment() -> None:
    options = {
        "storeAccessKey": "key",
        "storeSecretKey": "secret",
        "storeEndpoint": "http://host:1",
        "storeRegion": "r",
    }
    config = client_config(S3, store_settings(S3, options), {"AWS_ENDPOINT_URL_S3": "http://other:2"})
    arguments = dict(config.arguments)
    assert arguments.pop("credential_provider")() == {
        "access_key_id": "key",
        "secret_access_key": "secret",
        "token": None,
        "expires_at": None,
    }
    expected = {
        "bucket": "bucket",
        "unsigned_payload": True,
        "prefix": "log",
        "aws_endpoint_url_s3": "http://host:1",
        "region": "r",
    }
    assert arguments == expected
    assert config.allows_http
    assert config.lists_in_order


@pytest.mark.parametrize(
    ("environ", "endpoint"),
    [
        ({}, ""),
        ({"AWS_ENDPOINT_URL": "https://a"}, "https://a"),
        ({"AWS_ENDPOINT_URL": "https://a", "AWS_ENDPOINT_URL_S3": "http://b"}, "http://b"),
    ],
)
def test_an_endpoint_of_the_environment_is_used_without_an_option(environ: dict[str, str], endpoint: str) -> None:
    config = client_config(S3, StoreSettings(), environ)
    assert config.endpoint == config.arguments.get("aws_endpoint_url_s3", "") == endpoint
    assert config.allows_http is endpoint.startswith("http:")
    assert "credential_provider" not in config.arguments


def test_without_path_style_the_bucket_is_part_of_the_host() -> None:
    settings = StoreSettings(endpoint="https://oss.example.com:8443", path_style="false")
    arguments = client_config(S3, settings, {}).arguments
    assert arguments["aws_endpoint_url_s3"] == "https://bucket.oss.example.com:8443"
    assert arguments["virtual_hosted_style_request"] is True


def test_a_directory_bucket_is_asked_as_such_and_lists_in_no_order() -> None:
    config = client_config(ObjectLocation("s3", "logs--use1-az4--x-s3"), StoreSettings(), {})
    assert config.arguments["s3_express"] is True
    assert not config.lists_in_order


def test_the_client_of_azure_gets_account_and_key_or_signature() -> None:
    config = client_config(AZURE, store_settings(AZURE, {"storeSecretKey": "key"}), {})
    assert config.arguments["account_name"] == "account"
    assert config.arguments["credential_provider"]() == {"access_key": "key", "expires_at": None}
    assert not config.lists_in_order
    signed = client_config(AZURE, store_settings(AZURE, {"storeSasToken": "?sv=1&sig=x"}), {})
    assert signed.arguments["credential_provider"]() == {"sas_token": "sv=1&sig=x", "expires_at": None}


def test_the_client_of_s3_gets_encryption_payer_checksum_and_proxy() -> None:
    options = {
        "storeEncryption": "aws:kms",
        "storeKmsKey": "arn:aws:kms:eu-west-1:1:key/2",
        "storeRequesterPays": "true",
        "storeChecksum": "SHA256",
        "storeProxy": "http://proxy:3128",
    }
    config = client_config(S3, store_settings(S3, options), {})
    assert config.proxy == "http://proxy:3128"
    assert config.arguments == {
        "bucket": "bucket",
        "prefix": "log",
        "unsigned_payload": True,
        "server_side_encryption": "aws:kms",
        "sse_kms_key_id": "arn:aws:kms:eu-west-1:1:key/2",
        "request_payer": True,
        "checksum_algorithm": "SHA256",
    }


def test_hadoops_encryption_payer_and_proxy_are_used() -> None:
    hadoop = {
        "fs.s3a.bucket.bucket.encryption.algorithm": "SSE-KMS",
        "fs.s3a.encryption.key": "key-id",
        "fs.s3a.requester.pays.enabled": "True",
        "fs.s3a.proxy.host": "proxy",
        "fs.s3a.proxy.port": "3128",
    }
    assert store_settings(S3, {}, hadoop=hadoop) == StoreSettings(
        encryption="aws:kms", kms_key="key-id", requester_pays="true", proxy="http://proxy:3128"
    )


def test_keys_of_a_file_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text("[default]\naws_access_key_id = first\naws_secret_access_key = hidden\n[other]\n")
    provider = client_config(S3, store_settings(S3, {"storeCredentialsFile": str(file)}), {}).arguments[
        "credential_provider"
    ]
    assert (provider()["access_key_id"], provider()["token"]) == ("first", None)
    file.write_text("[default]\naws_access_key_id=next\naws_secret_access_key=hidden\naws_session_token=token\n")
    assert (provider()["access_key_id"], provider()["token"]) == ("next", "token")
    assert provider()["expires_at"] > datetime.now(timezone.utc)
    environ = {"AWS_SHARED_CREDENTIALS_FILE": str(file), "AWS_PROFILE": "other"}
    other = client_config(S3, StoreSettings(), environ).arguments["credential_provider"]
    with pytest.raises(InvalidOptionError, match=r"aws_access_key_id .* of the profile other, found something else"):
        other()
    assert (
        "credential_provider" not in client_config(S3, StoreSettings(), environ | {"AWS_ACCESS_KEY_ID": "k"}).arguments
    )


def test_azures_account_is_looked_for_in_url_option_and_environment() -> None:
    container = ObjectLocation("az", "container")
    environ = {"AZURE_STORAGE_ACCOUNT_NAME": "environment"}
    assert client_config(container, StoreSettings(account="option"), environ).arguments["account_name"] == "option"
    assert client_config(container, StoreSettings(), environ).arguments["account_name"] == "environment"
    with pytest.raises(InvalidOptionError, match="az://container: expected the storage account"):
        client_config(container, StoreSettings(), {})


def test_the_client_of_gcs_gets_endpoint_and_service_account() -> None:
    settings = store_settings(GCS, {"storeServiceAccount": "/etc/key.json", "storeEndpoint": "https://gcs.example.com"})
    assert client_config(GCS, settings, {}).arguments == {
        "bucket": "bucket",
        "prefix": "log",
        "base_url": "https://gcs.example.com",
        "service_account": "/etc/key.json",
    }
