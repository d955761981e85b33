"""The arguments with which the client of a store is built: from its location, its settings and the environment.

The client reads AWS_*, AZURE_* and GOOGLE_* itself, and asks the machine for credentials if it finds none. What is done
here is what it would get wrong: settings must win over any variable, keys must not be joined with a session token of
the environment, and an endpoint without TLS must be permitted.
"""

from __future__ import annotations

import configparser
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.object_store.location import ObjectLocation
from pyspark_kafkalog.object_store.settings import StoreSettings, check_endpoint

#: Where each cloud's variables name an endpoint, the most specific first.
_ENDPOINT_VARIABLES: Final = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "az": ("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
}
_FILE_VARIABLE: Final = "AWS_SHARED_CREDENTIALS_FILE"
#: How long keys of a file are used at most; the client asks for new ones five minutes before.
_FILE_EXPIRY: Final = timedelta(minutes=6)
_FILE_CHARACTERS_MAX: Final = 1 << 20
_ACCOUNT_VARIABLE: Final = "AZURE_STORAGE_ACCOUNT_NAME"
#: How the names of S3 Express's directory buckets end.
_DIRECTORY_BUCKET: Final = "--x-s3"


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """What `obstore.store.S3Store`, `AzureStore` or `GCSStore` are called with, but timeouts and retries.

    endpoint is "" for the cloud's own, proxy for that of the environment (HTTPS_PROXY, HTTP_PROXY, NO_PROXY).
    lists_in_order: whether listings come in the order of keys.
    """

    store_class: str
    arguments: Mapping[str, Any]
    endpoint: str
    lists_in_order: bool
    proxy: str = ""

    @property
    def allows_http(self) -> bool:
        return self.endpoint.startswith("http://")


def client_config(location: ObjectLocation, settings: StoreSettings, environ: Mapping[str, str]) -> ClientConfig:
    """Raises InvalidOptionError if no account is known for an Azure container, or a variable holds no endpoint."""
    return replace(_config_of(location, settings, environ), proxy=settings.proxy)


def _config_of(location: ObjectLocation, settings: StoreSettings, environ: Mapping[str, str]) -> ClientConfig:
    endpoint = settings.endpoint or _endpoint_of(environ, _ENDPOINT_VARIABLES[location.scheme])
    if location.scheme == "s3":
        return _s3_config(location, settings, endpoint, environ)
    if location.scheme == "az":
        return _azure_config(location, settings, endpoint, environ)
    arguments = {"bucket": location.bucket}
    if endpoint:
        arguments["base_url"] = endpoint
    if settings.service_account:
        arguments["service_account"] = settings.service_account
    return ClientConfig("GCSStore", _with_prefix(arguments, location), endpoint, lists_in_order=True)


def _endpoint_of(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    for name in names:
        endpoint = environ.get(name, "").strip()
        if endpoint:
            check_endpoint(name, endpoint)
            return endpoint
    return ""


def _s3_config(
    location: ObjectLocation, settings: StoreSettings, endpoint: str, environ: Mapping[str, str]
) -> ClientConfig:
    # As the SDK for Java does it: TLS protects the body, whose hash would take a third of the time of an upload. What
    # is stored has checksums of its own.
    arguments: dict[str, Any] = {"bucket": location.bucket, "unsigned_payload": True}
    is_directory_bucket = location.bucket.endswith(_DIRECTORY_BUCKET)
    if is_directory_bucket:
        arguments["s3_express"] = True
    if settings.path_style:
        arguments["virtual_hosted_style_request"] = settings.path_style == "false"
    if endpoint:
        with_bucket = settings.path_style == "false"
        # the one of its two names for this that no variable overrides
        arguments["aws_endpoint_url_s3"] = _bucket_endpoint(endpoint, location.bucket) if with_bucket else endpoint
    if settings.region:
        arguments["region"] = settings.region
    # What is not set here the client takes from AWS_SERVER_SIDE_ENCRYPTION, AWS_SSE_KMS_KEY_ID, AWS_REQUEST_PAYER and
    # AWS_CHECKSUM_ALGORITHM.
    chosen = {
        "server_side_encryption": settings.encryption,
        "sse_kms_key_id": settings.kms_key,
        "checksum_algorithm": settings.checksum,
    }
    arguments.update((name, value) for name, value in chosen.items() if value)
    if settings.requester_pays:
        arguments["request_payer"] = settings.requester_pays == "true"
    credentials_file = settings.credentials_file or environ.get(_FILE_VARIABLE, "").strip()
    if settings.access_key:
        arguments["credential_provider"] = _provider(
            access_key_id=settings.access_key,
            secret_access_key=settings.secret_key,
            token=settings.session_token or None,
        )
    elif settings.credentials_file or (credentials_file and not environ.get("AWS_ACCESS_KEY_ID")):
        arguments["credential_provider"] = _file_provider(credentials_file, environ.get("AWS_PROFILE") or "default")
    return ClientConfig("S3Store", _with_prefix(arguments, location), endpoint, lists_in_order=not is_directory_bucket)


def _azure_config(
    location: ObjectLocation, settings: StoreSettings, endpoint: str, environ: Mapping[str, str]
) -> ClientConfig:
    account = location.account or settings.account or environ.get(_ACCOUNT_VARIABLE, "").strip()
    if not account:
        raise InvalidOptionError(
            f"{location}: expected the storage account, by storeAccount, {_ACCOUNT_VARIABLE} or "
            "abfss://container@account.dfs.core.windows.net, found none"
        )
    arguments: dict[str, Any] = {"container_name": location.bucket, "account_name": account}
    if endpoint:
        arguments["endpoint"] = endpoint
    if settings.secret_key:
        arguments["credential_provider"] = _provider(access_key=settings.secret_key)
    elif settings.sas_token:
        arguments["credential_provider"] = _provider(sas_token=settings.sas_token.removeprefix("?"))
    # An account with a hierarchical namespace lists folder by folder.
    return ClientConfig("AzureStore", _with_prefix(arguments, location), endpoint, lists_in_order=False)


def _with_prefix(arguments: dict[str, Any], location: ObjectLocation) -> dict[str, Any]:
    return {**arguments, "prefix": location.prefix} if location.prefix else arguments


def _provider(**credential: str | None) -> Callable[[], dict[str, Any]]:
    """Credentials that never expire; the client asks for them once."""
    return lambda: {**credential, "expires_at": None}


def _file_provider(path: str, profile: str) -> Callable[[], dict[str, Any]]:
    """The keys of a profile in a file that others write anew before they expire; read again each minute of use."""

    def read() -> dict[str, Any]:
        parser = configparser.RawConfigParser()
        try:
            with open(path, encoding="utf-8") as file:
                parser.read_string(file.read(_FILE_CHARACTERS_MAX))
            found = dict(parser.items(profile))
            keys = {"access_key_id": found["aws_access_key_id"], "secret_access_key": found["aws_secret_access_key"]}
        except (
            OSError,
            ValueError,
            configparser.Error,
            KeyError,
        ) as error:  # texts of the parser hold lines of the file
            reason = error.strerror if isinstance(error, OSError) else "something else"
            raise InvalidOptionError(
                f"{path}: expected aws_access_key_id and aws_secret_access_key of the profile {profile}, found {reason}"
            ) from None
        expires_at = datetime.now(timezone.utc) + _FILE_EXPIRY
        return {**keys, "token": found.get("aws_session_token"), "expires_at": expires_at}

    return read


def _bucket_endpoint(endpoint: str, bucket: str) -> str:
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(netloc=f"{bucket}.{parts.netloc}"))
