"""How a store is reached: its endpoint and credentials, and the arguments with which its client is built from them.

Settings are options of the data source, or Hadoop's. What neither of them gives comes from the environment of the
process that makes the requests (AWS_*, AZURE_*, GOOGLE_*), and what that does not give from the machine it runs on (the
instance's or pod's role). Options have precedence over Hadoop's settings. Credentials are taken as a group: keys of one
source are never joined with a session token of another.

The client reads the environment itself, and asks the machine for credentials if it finds none. `client_config` does
what it would get wrong: settings must win over any variable, keys must not be joined with a session token of the
environment, and an endpoint without TLS must be permitted.

The names of options that hold secrets match Spark's `spark.redaction.regex`, so that Spark hides them in plans and in
its pages; `StoreSettings` hides them in its own text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields, replace
from datetime import datetime, timedelta, timezone
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.object_store.location import ObjectLocation
from pyspark_kafkalog.values import dataclass

#: What Spark writes in place of a secret (org.apache.spark.util.Utils.REDACTION_REPLACEMENT_TEXT).
REDACTED: Final = "*********(redacted)"

#: How Hadoop's settings of S3A begin.
HADOOP_PREFIXES: Final = ("fs.s3a.", "spark.hadoop.fs.s3a.")
_HADOOP: Final = HADOOP_PREFIXES[0]
_AWS_HOST: Final = re.compile(
    r"(?:https?://)?s3[.-](?:dualstack\.)?([a-z]{2}(?:-[a-z]+)+-\d)\.amazonaws\.com(?:\.cn)?/?"
)
_ENDPOINT: Final = re.compile(r"https?://[^/?#@\s]+(?:/[^?#@\s]*)?")

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


def _option(name: str, *, secret: bool = False) -> str:
    return field(default="", metadata={"option": name, "secret": secret})


@dataclass(frozen=True, slots=True, repr=False)
class StoreSettings:
    """The settings of one store; "" is not set. May be pickled and sent to tasks: it holds no client.

    endpoint           "http://host:port" or "https://host", without the bucket
    region             S3: of the bucket
    path_style         S3: "true" (the bucket is a part of the path) or "false" (of the host's name)
    access_key         S3: id of the access key
    secret_key         S3: secret access key; Azure: key of the account
    session_token      S3: of temporary keys
    account            Azure: the storage account, if the URL does not name it
    sas_token          Azure: shared access signature, instead of a key
    service_account    GCS: path of a service account's JSON file
    credentials_file   S3: path of a file in the format of ~/.aws/credentials, which is read again every few minutes
    encryption         S3: how the store encrypts what is written: one of `ENCRYPTIONS`
    kms_key            S3: id or ARN of the KMS key that it encrypts with
    requester_pays     S3: "true" if the bucket's owner does not pay for the requests
    checksum           S3: one of `CHECKSUMS`, sent with what is written; buckets with object lock demand it
    proxy              "http://host:port" through which requests go
    """

    endpoint: str = _option("storeEndpoint")
    region: str = _option("storeRegion")
    path_style: str = _option("storePathStyle")
    access_key: str = _option("storeAccessKey", secret=True)
    secret_key: str = _option("storeSecretKey", secret=True)
    session_token: str = _option("storeSessionToken", secret=True)
    account: str = _option("storeAccount")
    sas_token: str = _option("storeSasToken", secret=True)
    service_account: str = _option("storeServiceAccount")
    credentials_file: str = _option("storeCredentialsFile")
    encryption: str = _option("storeEncryption")
    kms_key: str = _option("storeKmsKey")
    requester_pays: str = _option("storeRequesterPays")
    checksum: str = _option("storeChecksum")
    proxy: str = _option("storeProxy")

    def options(self) -> dict[str, str]:
        """The settings that are set, by the names of their options. Contains the secrets."""
        return {each.metadata["option"]: getattr(self, each.name) for each in fields(self) if getattr(self, each.name)}

    def __repr__(self) -> str:
        shown = {name: REDACTED if name in SECRET_OPTION_NAMES else value for name, value in self.options().items()}
        return f"StoreSettings({', '.join(f'{name}={value}' for name, value in shown.items())})"


#: The data source's options for stores.
STORE_OPTION_NAMES: Final = tuple(str(each.metadata["option"]) for each in fields(StoreSettings))
#: Those of them that hold secrets.
SECRET_OPTION_NAMES: Final = frozenset(
    str(each.metadata["option"]) for each in fields(StoreSettings) if each.metadata["secret"]
)
#: The default of Spark's `spark.redaction.regex` (org.apache.spark.internal.config.SECRET_REDACTION_PATTERN).
_SECRET_NAME: Final = re.compile(r"(?i)secret|password|token|access[.]?key")


def is_secret_name(name: str) -> bool:
    """Whether an option or a setting of that name holds a secret: the store's options, Hadoop's settings."""
    return _SECRET_NAME.search(name) is not None


_CREDENTIALS: Final = ("access_key", "secret_key", "session_token", "sas_token", "service_account", "credentials_file")
_S3_ONLY: Final = ("encryption", "kms_key", "requester_pays", "checksum")
#: What S3 calls the ways to encrypt, by Hadoop's names for them (org.apache.hadoop.fs.s3a.S3AEncryptionMethods).
_HADOOP_ENCRYPTIONS: Final = {"SSE-KMS": "aws:kms", "DSSE-KMS": "aws:kms:dsse"}
ENCRYPTIONS: Final = ("AES256", *_HADOOP_ENCRYPTIONS.values())
CHECKSUMS: Final = ("SHA256", "CRC64NVME")


def store_settings(
    location: ObjectLocation, options: Mapping[str, str], *, hadoop: Mapping[str, str] | None = None
) -> StoreSettings:
    """The settings for a location.

    options may hold other options too; names count in any case, as Spark passes them. hadoop holds Hadoop's settings,
    named "fs.s3a.…" or "spark.hadoop.fs.s3a.…"; only those of S3A are looked at, and only for S3.

    Raises InvalidOptionError for settings that are wrong, contradict each other or the location.
    """
    lower = {name.lower(): value for name, value in options.items()}
    chosen = {each.name: lower.get(str(each.metadata["option"]).lower(), "").strip() for each in fields(StoreSettings)}
    if location.scheme == "s3" and hadoop:
        given = _from_hadoop(location.bucket, hadoop)
        if any(chosen[name] for name in _CREDENTIALS):
            given = {name: value for name, value in given.items() if name not in _CREDENTIALS}
        chosen = {name: value or given.get(name, "") for name, value in chosen.items()}
    chosen["region"] = chosen["region"] or _region_of(chosen["endpoint"])
    settings = StoreSettings(**chosen)
    _check(location, settings)
    return settings


def _from_hadoop(bucket: str, hadoop: Mapping[str, str]) -> dict[str, str]:
    """S3A's settings under our names, those of the bucket first, as Hadoop does (S3AUtils.propagateBucketOptions)."""

    def get(name: str) -> str:
        for start in (f"{_HADOOP}bucket.{bucket}.", _HADOOP):
            for key in (f"spark.hadoop.{start}{name}", f"{start}{name}"):
                if hadoop.get(key, "").strip():
                    return hadoop[key].strip()
        return ""

    endpoint = get("endpoint")
    if endpoint and "://" not in endpoint:
        endpoint = f"{'http' if get('connection.ssl.enabled').lower() == 'false' else 'https'}://{endpoint}"
    proxy, encryption = get("proxy.host"), get("encryption.algorithm")
    if proxy:
        proxy = f"{'https' if get('proxy.ssl.enabled').lower() == 'true' else 'http'}://{proxy}"
        proxy += f":{get('proxy.port')}" if get("proxy.port") else ""
    return {
        "encryption": _HADOOP_ENCRYPTIONS.get(encryption, encryption),
        "kms_key": get("encryption.key") if encryption in _HADOOP_ENCRYPTIONS else "",
        "requester_pays": get("requester.pays.enabled").lower(),
        "proxy": proxy,
        "endpoint": endpoint,
        "region": get("endpoint.region"),
        "path_style": get("path.style.access").lower(),
        "access_key": get("access.key"),
        "secret_key": get("secret.key"),
        "session_token": get("session.token"),
    }


def _region_of(endpoint: str) -> str:
    """The region that an endpoint of AWS names, else ""."""
    found = _AWS_HOST.fullmatch(endpoint)
    return found[1] if found else ""


def check_endpoint(source: str, endpoint: str) -> None:
    """Raises InvalidOptionError, which does not repeat the endpoint: it could hold credentials. source: its option."""
    try:
        is_valid = _ENDPOINT.fullmatch(endpoint) is not None and urlsplit(endpoint).port != 0
    except ValueError:  # of a port above 65535
        is_valid = False
    if not is_valid:
        raise InvalidOptionError(
            f"{source}: expected http://host:port or https://host, without credentials, found something else"
        )


def _check(location: ObjectLocation, settings: StoreSettings) -> None:
    if settings.endpoint:
        check_endpoint("storeEndpoint", settings.endpoint)
    if settings.proxy:
        check_endpoint("storeProxy", settings.proxy)
    _check_choices(settings)
    if settings.kms_key and not settings.encryption.startswith("aws:kms"):
        raise InvalidOptionError(
            f"storeKmsKey: expected storeEncryption aws:kms, found {settings.encryption or 'none'}"
        )
    for each in fields(StoreSettings):
        if each.name in _S3_ONLY and location.scheme != "s3" and getattr(settings, each.name):
            raise InvalidOptionError(f"{each.metadata['option']}: expected s3://bucket/prefix, found {location}")
    if location.account and settings.account not in ("", location.account):
        raise InvalidOptionError(
            f"storeAccount: expected {location.account}, as in {location}, found {settings.account}"
        )
    _check_credentials(location, settings)


def _check_choices(settings: StoreSettings) -> None:
    choices = {
        "storePathStyle": (settings.path_style, ("true", "false")),
        "storeEncryption": (settings.encryption, ENCRYPTIONS),
        "storeRequesterPays": (settings.requester_pays, ("true", "false")),
        "storeChecksum": (settings.checksum, CHECKSUMS),
    }
    for option, (found, expected) in choices.items():
        if found and found not in expected:
            raise InvalidOptionError(f"{option}: expected {' or '.join(expected)}, found {found!r}")


def _check_credentials(location: ObjectLocation, settings: StoreSettings) -> None:
    usable = {
        "s3": ("access_key", "secret_key", "session_token", "credentials_file"),
        "az": ("secret_key", "sas_token"),
        "gs": ("service_account",),
    }[location.scheme]
    option = {each.name: str(each.metadata["option"]) for each in fields(StoreSettings)}
    for name in _CREDENTIALS:
        if name not in usable and getattr(settings, name):
            expected = " and ".join(option[each] for each in usable)
            raise InvalidOptionError(f"expected {expected} for {location}, found {option[name]}")
    if location.scheme == "s3" and bool(settings.access_key) != bool(settings.secret_key):
        raise InvalidOptionError(f"expected both storeAccessKey and storeSecretKey for {location}, found only one")
    if settings.access_key and settings.credentials_file:
        raise InvalidOptionError(f"expected storeAccessKey or storeCredentialsFile for {location}, found both")
    if settings.session_token and not settings.access_key:
        raise InvalidOptionError(f"expected the keys that storeSessionToken belongs to for {location}, found none")
    if settings.secret_key and settings.sas_token:
        raise InvalidOptionError(f"expected storeSecretKey or storeSasToken for {location}, found both")


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
        import configparser  # few processes read such a file

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
