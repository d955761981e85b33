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
    StoreCredentialsError,
    StoreNotFoundError,
    StoreRefusedError,
    StoreUnsuitableError,
)

_STATUS: Final = re.compile(r"status code: (\d{3}[^:\n]{0,60})")
_CODE: Final = re.compile(r"<Code>([\w.]{1,60})</Code>|\(code: ([\w.]{1,60})\)")
_MESSAGE: Final = re.compile(r"<Message>([^<]{1,300})")
_EXISTS: Final = ("AlreadyExistsError", "PreconditionError")

_PERMISSIONS: Final = "docs/OBJECT-STORES.md lists the permissions needed"
_UNLISTED: Final = "; S3 says this of missing objects, too, unless it may be listed"
_NO_CAUSE: Final = "; otherwise check credentials, region and the clock of this machine"
_NO_CREDENTIALS: Final = (
    "no credentials were found: set them by options or the environment, or give this machine a role"
)
_UNKNOWN_KEYS: Final = "the store does not accept the credentials: check key, secret and session token"
_NOT_THE_STORES: Final = (
    "the answer does not say which object is missing, so it is not the store's: check endpoint and proxy"
)

#: By the store's code: the class, and what to do.
_KNOWN_CODES: Final[tuple[tuple[str, type[ObjectStoreError], str], ...]] = (
    (r"NoSuchBucket|ContainerNotFound", StoreNotFoundError, "there is no such bucket"),
    (
        r"RequestTimeTooSkewed",
        StoreAccessError,
        "the clock of this machine differs too much from the store's: set it, for example by NTP",
    ),
    (
        r"ExpiredToken|TokenRefreshRequired|RequestExpired",
        StoreAccessError,
        "the credentials have expired: get new ones",
    ),
    (
        r"InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken|InvalidSecurity|AuthenticationFailed",
        StoreAccessError,
        _UNKNOWN_KEYS,
    ),
    (
        r"AuthorizationHeaderMalformed|PermanentRedirect|TemporaryRedirect|IllegalLocationConstraintException",
        StoreRefusedError,
        "the bucket is in another region: set storeRegion or AWS_REGION to its own",
    ),
    (r"KMS\..*", StoreRefusedError, "the key that encrypts the objects cannot be used: check it, and its permissions"),
    (
        r"BlobImmutableDueToPolicy|.*ObjectLock.*",
        StoreRefusedError,
        "a policy of the bucket protects its objects: see docs/OBJECT-STORES.md",
    ),
    (r"SlowDown|ServerBusy|ServiceUnavailable", ObjectStoreError, "the store is busy: try again later"),
)
#: By words of the client, where no answer has come: the class, and what to do.
_KNOWN_WORDS: Final[tuple[tuple[str, type[ObjectStoreError], str], ...]] = (
    (
        r"redirect without LOCATION",
        StoreRefusedError,
        "the bucket is in another region: set storeRegion or AWS_REGION to its own",
    ),
    (r"ConnectionRefused|Connection refused", ObjectStoreError, "no process listens there: check the endpoint"),
    (r'"dns error"|failed to lookup address', ObjectStoreError, "there is no such host: check endpoint and account"),
    (
        r"object with invalid path",
        StoreRefusedError,
        "an object that is nothing of ours lies there: remove it, or give the log directory a prefix of its own",
    ),
    (
        r"invalid peer certificate|InvalidCertificate",
        StoreRefusedError,
        "the store's certificate is not trusted: check the endpoint",
    ),
)
#: Where a machine asks for the credentials of its role.
_CREDENTIALS_SERVICE: Final = re.compile(r"169\.254\.\d+\.\d+|metadata\.google\.internal")
#: A missing object, as stores call it.
_MISSING: Final = re.compile(r"NoSuch(Key|Object|Version|Upload)|(Blob|Key|Object|Path|Resource)NotFound")
#: Two requests at once: the later one may be sent again, and a create finds an object or none.
_RACE: Final = re.compile(r".*Conflict|OperationAborted|.*AlreadyExists")
#: Answers that pass, whatever their status.
_PASSING: Final = re.compile(
    r"RequestTimeout|OperationTimedOut|InternalError|SlowDown|ServerBusy|ServiceUnavailable|Throttl.*|.*LimitExceeded"
)
_PASSING_STATUS: Final = (408, 425, 429)


def is_refusal(error: Exception) -> bool:
    """Whether the store, or a server in its place, has answered that the request is wrong or not permitted."""
    return _status(str(error)) // 100 == 4


def store_error(error: Exception, request: str, place: str, *, endpoint: str = "") -> ObjectStoreError:
    """`error`, raised by the client in a `request` ("create", "get", …) for `place`, as one of ours.

    StoreRefusedError is an answer that repetition does not change. endpoint is named where it could be the cause.
    """
    text = str(error)
    kind = type(error).__name__
    code, detail = _code(text), _detail(text)
    is_conflict = kind in _EXISTS or _status(text) == 409
    is_race = is_conflict and (not code or _status(text) == 412 or _RACE.fullmatch(code) is not None)
    if request == "create" and is_race:
        return ObjectExistsError(f"{place}: {request} found an object with this key ({detail})")
    if request == "create" and (code == "NotImplemented" or _status(text) == 501):
        return StoreUnsuitableError(
            f"{place}: the store does not support put-if-absent (If-None-Match), so no log directory can be in it "
            f"({detail})"
        )
    if kind == "UnauthenticatedError" and not _status(text):  # a provider has failed, before any request
        return StoreCredentialsError(f"{place}: {request} failed: {_NO_CREDENTIALS} ({detail})")
    known = _known(text, code)
    if known is not None:
        error_class, advice = known
        where = f" at {endpoint}" if endpoint and not issubclass(error_class, StoreAccessError) else ""
        return error_class(f"{place}: {request} failed{where}: {advice} ({detail})")
    if isinstance(error, FileNotFoundError) or (_status(text) == 404 and (request == "list" or not code)):
        return _missing(text, request, place, code, endpoint)
    if _status(text) in (401, 403) or code == "AccessDenied":
        hint = _NO_CAUSE if request == "list" else _UNLISTED
        return StoreAccessError(f"{place}: {request} is not permitted: {_PERMISSIONS}{hint} ({detail})")
    if is_race or not _is_final(error, text, code):
        return ObjectStoreError(f"{place}: {request} failed: {detail}")
    hint = "" if code else f": {_PERMISSIONS}{_NO_CAUSE}"
    return StoreRefusedError(f"{place}: {request} was refused{hint}: {detail}")


def _known(text: str, code: str) -> tuple[type[ObjectStoreError], str] | None:
    """The class and the advice for an answer with this code, or for what the client says without an answer."""
    if not code and _CREDENTIALS_SERVICE.search(text):
        return StoreCredentialsError, _NO_CREDENTIALS
    for pattern, error_class, advice in _KNOWN_CODES:
        if re.fullmatch(pattern, code):
            return error_class, advice
    for pattern, error_class, advice in () if _status(text) or code else _KNOWN_WORDS:
        if re.search(pattern, text):
            return error_class, advice
    return None


def _missing(text: str, request: str, place: str, code: str, endpoint: str) -> ObjectStoreError:
    """The error for a 404: an object is missing only if the store says so."""
    if code and request in ("create", "put"):  # nothing else has to be there for these
        return StoreNotFoundError(f"{place}: {request} failed: there is no such bucket ({_detail(text)})")
    if _MISSING.fullmatch(code) or not _status(text):
        return ObjectNotFoundError(f"{place}: there is no such object")
    where = f" at {endpoint}" if endpoint else ""
    return ObjectStoreError(f"{place}: {request} failed{where}: {_NOT_THE_STORES} ({_detail(text)})")


def _is_final(error: Exception, text: str, code: str) -> bool:
    """Whether a repetition of the request would get the same answer."""
    status = _status(text)
    if _PASSING.fullmatch(code) or status in _PASSING_STATUS:
        return False
    if status:
        return status // 100 in (3, 4) or status == 501
    return bool(code) or isinstance(error, (ValueError, NotImplementedError))


def _status(text: str) -> int:
    """The status of the answer; 0 without one."""
    found = _STATUS.search(text)
    return int(found[1][:3]) if found else 0


def _code(text: str) -> str:
    found = _CODE.search(text)
    return (found[1] or found[2]) if found else ""


def _detail(text: str) -> str:
    """Status, code and message of the store's answer, else the client's own words without URLs; one line."""
    status = _STATUS.search(text)
    message = _MESSAGE.search(text)
    found = [status[1].strip() if status else "", _code(text), message[1].strip() if message else ""]
    found = [each for each in found if each]
    if not found:
        words = text.partition("\n\nDebug source:")[0].rpartition(" - ")[2]
        found = [re.sub(r"https?://\S+", "the store", words)[:300]]
    return " ".join(": ".join(found).split())
