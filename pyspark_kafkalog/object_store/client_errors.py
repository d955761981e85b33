"""What the client of a store says in an error, as an error of this package that names the cause and the remedy.

obstore's errors have a class and a text, no HTTP status; the text holds the status and the store's own answer, with
URLs that may be signed. Of it only status, code and message are kept.
"""

from __future__ import annotations

import re
from typing import Final

from pyspark_kafkalog.object_store.store import (
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStoreError,
    StoreAccessError,
    StoreNotFoundError,
    StoreUnsuitableError,
)

_STATUS: Final = re.compile(r"status code: (\d{3}[^:\n]{0,60})")
_CODE: Final = re.compile(r"<Code>(\w{1,60})</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,300})")
_EXISTS: Final = ("AlreadyExistsError", "PreconditionError")

_PERMISSIONS: Final = "docs/OBJECT-STORES.md lists the permissions needed; S3 says this of missing objects, too, "
_NO_CREDENTIALS: Final = (
    "no credentials were found: set them by options or the environment, or give this machine a role"
)
_UNKNOWN_KEYS: Final = "the store does not accept the credentials: check key, secret and session token"

#: By the store's code, else by words of the client: the class, and what to do.
_KNOWN: Final[tuple[tuple[str, type[ObjectStoreError], str], ...]] = (
    (r"<Code>(NoSuchBucket|ContainerNotFound)<", StoreNotFoundError, "there is no such bucket"),
    (
        r"<Code>RequestTimeTooSkewed<",
        StoreAccessError,
        "the clock of this machine differs too much from the store's: set it, for example by NTP",
    ),
    (
        r"<Code>(ExpiredToken|TokenRefreshRequired|RequestExpired)<",
        StoreAccessError,
        "the credentials have expired: get new ones",
    ),
    (
        r"<Code>(InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|InvalidSecurity|AuthenticationFailed)<",
        StoreAccessError,
        _UNKNOWN_KEYS,
    ),
    (
        r"<Code>(AuthorizationHeaderMalformed|PermanentRedirect|IllegalLocationConstraintException)<"
        r"|redirect without LOCATION",
        ObjectStoreError,
        "the bucket is in another region: set storeRegion or AWS_REGION to its own",
    ),
    (r"169\.254\.\d+\.\d+|metadata\.google\.internal", StoreAccessError, _NO_CREDENTIALS),
    (r"ConnectionRefused|Connection refused", ObjectStoreError, "nobody listens there: check the endpoint"),
    (r'"dns error"|failed to lookup address', ObjectStoreError, "there is no such host: check endpoint and account"),
    (
        r"object with invalid path",
        ObjectStoreError,
        "an object that is nothing of ours lies there: remove it, or give the log directory a prefix of its own",
    ),
    (r"certificate", ObjectStoreError, "the store's certificate is not trusted: check the endpoint"),
    (r"<Code>(SlowDown|ServerBusy|ServiceUnavailable)<", ObjectStoreError, "the store is busy: try again later"),
)


def store_error(error: Exception, request: str, place: str, *, endpoint: str = "") -> ObjectStoreError:
    """`error`, raised by the client in a `request` ("create", "get", …) for `place`, as one of ours.

    endpoint is named where it could be the cause.
    """
    text = str(error)
    kind = type(error).__name__
    detail = _detail(text)
    if request == "create" and kind in _EXISTS:
        return ObjectExistsError(f"{place}: {request} found an object with this key ({detail})")
    if request == "create" and ("<Code>NotImplemented<" in text or detail.startswith("501")):
        return StoreUnsuitableError(
            f"{place}: the store does not support put-if-absent (If-None-Match), so no log directory can be in it "
            f"({detail})"
        )
    for pattern, error_class, advice in _KNOWN:
        if re.search(pattern, text):
            where = f" at {endpoint}" if endpoint and error_class is ObjectStoreError else ""
            return error_class(f"{place}: {request} failed{where}: {advice} ({detail})")
    if isinstance(error, FileNotFoundError):
        if request in ("create", "put"):  # nothing else has to be there for these
            return StoreNotFoundError(f"{place}: {request} failed: there is no such bucket ({detail})")
        return ObjectNotFoundError(f"{place}: there is no such object")
    if kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return StoreAccessError(
            f"{place}: {request} is not permitted: {_PERMISSIONS}unless it may be listed ({detail})"
        )
    return ObjectStoreError(f"{place}: {request} failed: {detail}")


def _detail(text: str) -> str:
    """Status, code and message of the store's answer, else the client's own words without URLs; one line."""
    status = _STATUS.search(text)
    code = _CODE.search(text)
    message = _MESSAGE.search(text)
    found = [match[1].strip() for match in (status, code, message) if match]
    if not found:
        words = text.partition("\n\nDebug source:")[0].rpartition(" - ")[2]
        found = [re.sub(r"https?://\S+", "the store", words)[:300]]
    return " ".join(": ".join(found).split())
