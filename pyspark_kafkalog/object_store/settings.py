"""How a store is reached: its endpoint and credentials, by options of the data source or from Hadoop's settings.

What neither of them gives comes from the environment of the process that makes the requests (AWS_*, AZURE_*,
GOOGLE_*), and what that does not give from the machine it runs on (the instance's or pod's role); client.py asks there.
Options have precedence over Hadoop's settings. Credentials are taken as a group: keys of one source are never joined
with a session token of another.

The names of options that hold secrets match Spark's `spark.redaction.regex`, so that Spark hides them in plans and in
its pages; `StoreSettings` hides them in its own text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final
from urllib.parse import urlsplit

from pyspark_kafkalog.errors import InvalidOptionError
from pyspark_kafkalog.object_store.location import ObjectLocation

#: What Spark writes in place of a secret (org.apache.spark.util.Utils.REDACTION_REPLACEMENT_TEXT).
REDACTED: Final = "*********(redacted)"

#: How Hadoop's settings of S3A begin.
HADOOP_PREFIXES: Final = ("fs.s3a.", "spark.hadoop.fs.s3a.")
_HADOOP: Final = HADOOP_PREFIXES[0]
_AWS_HOST: Final = re.compile(
    r"(?:https?://)?s3[.-](?:dualstack\.)?([a-z]{2}(?:-[a-z]+)+-\d)\.amazonaws\.com(?:\.cn)?/?"
)
_ENDPOINT: Final = re.compile(r"https?://[^/?#@\s]+(?:/[^?#@\s]*)?")


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


_CREDENTIALS: Final = (
    "access_key",
    "secret_key",
    "session_token",
    "sas_token",
    "service_account",
    "credentials_file",
)
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
