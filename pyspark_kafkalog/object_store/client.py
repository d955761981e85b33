"""The object store behind a URL: requests to S3, GCS or Azure by obstore, which is loaded on first use.

Requests are repeated for a minute and a half while the store is busy or out of reach, by the rule of `repeat` and not
by obstore, which counts repetitions and ends at answers that break off; only within an upload in parts obstore repeats
the request of one part. `create` is sent once, with a time-out of 10 s, since `create_once` must see each of its
answers. Up to 80 MiB go in one request, more in parts of 16 MiB.

The client's threads do not survive a fork: in the child each request would wait forever. So a process that has made a
request cannot be forked into one that makes requests, and a store says so instead of waiting. Spark's Python workers
are forked before they load this module.

obstore's errors have a class and a text, no HTTP status; the text holds the status and the store's own answer, with
URLs that may be signed. Of it only status, code and message are kept, in an error of this package that names the cause
and the remedy.

A crash during an upload in parts leaves parts in the bucket, invisible and paid for, until a lifecycle rule of the
bucket removes them.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import timedelta
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote

from pyspark_kafkalog.errors import missing_package
from pyspark_kafkalog.object_store.location import ObjectLocation
from pyspark_kafkalog.object_store.retries import Waiting, repeat
from pyspark_kafkalog.object_store.settings import ClientConfig, StoreSettings, client_config
from pyspark_kafkalog.object_store.store import (
    ByteRange,
    ObjectExistsError,
    ObjectMetadata,
    ObjectNotFoundError,
    ObjectStore,
    ObjectStoreError,
    StoreAccessError,
    StoreCredentialsError,
    StoreNotFoundError,
    StoreRefusedError,
    StoreUnsuitableError,
    check_key,
)
from pyspark_kafkalog.threads import Workers
from pyspark_kafkalog.units import SECOND_MS

if TYPE_CHECKING:
    from pyspark_kafkalog.record.header import Buffer

#: What one request puts: a data object of a task, which is one PUT then and not six. Four parts at once would need the
#: same bandwidth to be in time.
WHOLE_BYTES: Final = 80 << 20
PART_BYTES: Final = 16 << 20
_PARTS_AT_ONCE: Final = 4
_LIST_CHUNK: Final = 1000
#: As many keys as S3 deletes in one request.
_DELETED_AT_ONCE: Final = 1000
_DELETES_AT_ONCE: Final = 10
_NOBODYS_NAME: Final = "__kafkalog_none"

_CREATE_TIMEOUT: Final = timedelta(seconds=10)
_CONNECT_TIMEOUT: Final = timedelta(seconds=5)
#: Of a request with its body: 80 MiB at 700 kB/s.
_TIMEOUT: Final = timedelta(seconds=120)
_READ_TIMEOUT: Final = timedelta(seconds=60)
_RETRY_SECONDS: Final = 90.0
#: Of the requests of an upload in parts, which obstore repeats: so many that its time ends them.
_PART_RETRIES: Final = 10_000
_PART_BACKOFF: Final = {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 3}
#: The class of what the client raises, outside of Exception, for settings that it has not checked itself.
_PANIC: Final = "PanicException"

T = TypeVar("T")

_lock = threading.Lock()
_open_stores: dict[tuple[ObjectLocation, StoreSettings], ObjectStore] = {}
_pid_of_first_request: int | None = None


def open_store(location: ObjectLocation, settings: StoreSettings | None = None) -> ObjectStore:
    """The store at a location, one for each location and settings in a process. Makes no request.

    Raises MissingPackageError without obstore, InvalidOptionError for settings that the client does not accept.
    """
    key = (location, settings if settings is not None else StoreSettings())
    with _lock:
        if key not in _open_stores:
            _open_stores[key] = _ObstoreClient(location, client_config(*key, os.environ))
        return _open_stores[key]


def _load_obstore() -> ModuleType:
    try:
        import obstore
        import obstore.store
    except ImportError as error:
        raise missing_package("obstore", "log directories on object stores need") from error
    return obstore


class _ObstoreClient:
    """An `ObjectStore` over three clients of obstore: for uploads in parts, for `create`, and for all other requests.

    waiting: how requests are repeated.
    """

    def __init__(self, location: ObjectLocation, config: ClientConfig, *, waiting: Waiting | None = None) -> None:
        self._location = location
        self._config = config
        self._waiting = waiting if waiting is not None else Waiting(patience_seconds=_RETRY_SECONDS)
        self._obstore = _load_obstore()
        self._store = self._build(_TIMEOUT, 0)
        self._create_store = self._build(_CREATE_TIMEOUT, 0)
        self._parts_store = self._build(_TIMEOUT, _PART_RETRIES)
        self._was_answered = False
        self._seen: dict[str, str] = {}

    def _build(self, timeout: timedelta, retries: int) -> Any:
        store_class = getattr(self._obstore.store, self._config.store_class)
        client_options: dict[str, Any] = {
            "allow_http": self._config.allows_http,
            "connect_timeout": _CONNECT_TIMEOUT,
            "read_timeout": min(timeout, _READ_TIMEOUT),
            "timeout": timeout,
        }
        if self._config.proxy:
            client_options["proxy_url"] = self._config.proxy
        retry_timeout = timedelta(seconds=self._waiting.patience_seconds)
        retry_config = {"max_retries": retries, "retry_timeout": retry_timeout, "backoff": _PART_BACKOFF}
        try:
            return store_class(**self._config.arguments, client_options=client_options, retry_config=retry_config)
        except self._errors as error:
            raise _store_error(error, "opening", self.url) from None

    @property
    def _errors(self) -> tuple[type[Exception], ...]:
        return (self._obstore.exceptions.BaseError, OSError, ValueError, NotImplementedError)

    @property
    def url(self) -> str:
        return self._location.url

    def __repr__(self) -> str:
        return f"<object store {self.url}>"

    def create(self, key: str, body: Buffer) -> None:
        put = self._obstore.put
        self._ask_once("create", key, lambda: put(self._create_store, key, _bytes_view(body), mode="create"))
        self._saw(key)

    def put(self, key: str, body: Buffer) -> None:
        data = _bytes_view(body)
        in_parts = len(data) > WHOLE_BYTES
        store = self._parts_store if in_parts else self._store
        how = {"chunk_size": PART_BYTES, "max_concurrency": _PARTS_AT_ONCE, "use_multipart": in_parts}
        self._ask("put", key, lambda: self._obstore.put(store, key, data, **how))
        self._saw(key)

    def get(self, key: str, *, max_bytes: int, once: bool = False) -> bytes:
        ask = self._ask_once if once else self._ask
        size_bytes, body = ask("get", key, lambda: self._get(key, max_bytes))
        self._saw(key)
        if body is None:
            raise ObjectStoreError(f"{self._place(key)}: expected at most {max_bytes} bytes, found {size_bytes}")
        return body

    def _get(self, key: str, max_bytes: int) -> tuple[int, bytes | None]:
        """The size of the object, and its content unless it is larger than `max_bytes`."""
        found = self._obstore.get(self._store, key)
        self._check_is_object(key, "get", found.meta)
        size_bytes = int(found.meta["size"])
        if size_bytes > max_bytes:
            return size_bytes, None
        body = bytes(found.bytes())
        if len(body) != size_bytes:
            raise ObjectStoreError(f"{self._place(key)}: expected {size_bytes} bytes, found {len(body)}")
        return size_bytes, body

    def get_range(self, key: str, wanted: ByteRange) -> Buffer:
        try:
            found = self._ask("get", key, lambda: self._range(key, wanted))
        except _BeyondEndError:
            size_bytes = self.head(key).size_bytes
            if wanted.start >= size_bytes:
                return b""
            wanted = ByteRange(wanted.start, min(wanted.end, size_bytes) - wanted.start)
            found = self._ask("get", key, lambda: self._range(key, wanted))
        self._saw(key)
        if len(found) > wanted.size_bytes:
            raise ObjectStoreError(
                f"{self._place(key)} at byte {wanted.start}: expected {wanted.size_bytes} bytes, found {len(found)}"
            )
        return found

    def _range(self, key: str, wanted: ByteRange) -> memoryview:
        try:
            return memoryview(self._obstore.get_range(self._store, key, start=wanted.start, end=wanted.end))
        except self._obstore.exceptions.BaseError as error:
            if "416 Range Not Satisfiable" in str(error):
                raise _BeyondEndError from None
            raise

    def head(self, key: str) -> ObjectMetadata:
        found = self._ask("head", key, lambda: self._head(key))
        self._saw(key)
        return _metadata(found | {"path": key})  # obstore 0.11 gives the path with the store's prefix here

    def _head(self, key: str) -> Any:
        """Asks for a byte after a refusal: the answer to a HEAD has no body, which would tell who refuses, and why."""
        try:
            found = self._obstore.head(self._store, key)
            self._check_is_object(key, "head", found)
            return found
        except ObjectStoreError:
            raise
        except self._errors as error:
            if not _is_refusal(error):
                raise
            self._obstore.get_range(self._store, key, start=0, length=1)
            what = "found no object" if isinstance(error, FileNotFoundError) else "was refused"
            raise ObjectStoreError(f"{self._place(key)}: head {what}, and get found an object") from None

    def _check_is_object(self, key: str, request: str, found: Any) -> None:
        """Raise ObjectStoreError for a page of HTML: each store gives an ETag with an object."""
        if not found["e_tag"]:
            raise ObjectStoreError(
                f"{self._place(key)}: {request} failed: expected an object with an ETag, found {found['size']} bytes "
                "without one: perhaps a proxy has answered in place of the store; check endpoint and proxy"
            )

    def list_objects(self, prefix: str, *, after: str | None = None) -> Iterator[ObjectMetadata]:
        if prefix:
            check_key(prefix)
        if self._config.lists_in_order:
            yield from self._check_order(self._list(prefix, after))
        else:  # nor need such a store understand `offset`
            listed = self._ask("list", prefix, lambda: self._list_all(prefix))
            yield from sorted(_listed_below(listed, prefix, after), key=lambda each: each.key)

    def _list(self, prefix: str, after: str | None) -> Iterator[ObjectMetadata]:
        """Lists objects; a page that is requested again begins after the last key of the page before.

        An end behind a full page is asked for again, too: the client takes pages of HTML for it.
        """
        last = after
        pages = self._pages(prefix, last)
        is_full = False

        def next_page() -> list[Any] | None:
            nonlocal pages
            try:
                page = next(pages, None)
                if page is None and is_full:
                    page = next(self._pages(prefix, last), None)
                if page is None and last is None:
                    self._check_vacant(prefix)
                return page
            except self._errors:
                pages = self._pages(prefix, last)
                raise

        while page := self._ask("list", prefix, next_page):
            yield from _listed_below(page, prefix, after)
            last, is_full = str(page[-1]["path"]), len(page) >= _LIST_CHUNK

    def _list_all(self, prefix: str) -> list[Any]:
        listed = [each for page in self._pages(prefix, None) for each in page]
        if not listed:
            self._check_vacant(prefix)
        return listed

    def _saw(self, key: str) -> None:
        """Remember that there is an object: one for each folder."""
        self._seen[key.partition("/")[0]] = key

    def _check_vacant(self, prefix: str) -> None:
        """Raise ObjectStoreError if an object is below the folder `prefix`, of which nothing was listed.

        The client takes pages of HTML, which a proxy may send, for empty listings. If no object was seen there, the
        answer to a request for a random key must be a store's.
        """
        key = next((each for each in self._seen.values() if not prefix or each.startswith(f"{prefix}/")), None)
        if key is None:
            self._check_answers(f"{prefix}/{_NOBODYS_NAME}" if prefix else _NOBODYS_NAME)
            return
        try:
            self._obstore.head(self._store, key)
        except FileNotFoundError:
            self._seen.pop(key.partition("/")[0], None)
            return
        raise ObjectStoreError(
            f"{self._place(prefix)}: expected a listing with {key}, found an empty one: "
            "perhaps a proxy has answered in place of the store; check endpoint and proxy"
        )

    def _check_answers(self, key: str) -> None:
        try:
            self._check_is_object(key, "get", self._obstore.get(self._store, key).meta)
        except ObjectStoreError:
            raise
        except self._errors as error:
            ours = _store_error(error, "get", self._place(key), endpoint=self._config.endpoint)
            if type(ours) is ObjectStoreError:  # neither a missing object nor a refusal
                raise ours from None

    def _pages(self, prefix: str, offset: str | None) -> Iterator[list[Any]]:
        yield from self._obstore.list(self._store, prefix or None, offset=offset, chunk_size=_LIST_CHUNK)

    def _check_order(self, listing: Iterator[ObjectMetadata]) -> Iterator[ObjectMetadata]:
        """Leaves out folders' markers (empty objects "a/", made by consoles), of which the client drops the slash."""
        last = ""
        for each in listing:
            if each.key <= last:
                if each.size_bytes == 0 and (not each.key or f"{each.key}/" > last):
                    continue
                raise ObjectStoreError(
                    f"{self.url}: expected a listing in the order of keys, found {each.key!r} after {last!r}"
                )
            last = each.key
            yield each

    def delete(self, keys: Collection[str]) -> None:
        wanted = [check_key(key) for key in keys]
        for start in range(0, len(wanted), _DELETED_AT_ONCE):
            some = wanted[start : start + _DELETED_AT_ONCE]
            if not self._delete_all(some):  # GCS and Azure stop at the first key without an object
                with Workers(_DELETES_AT_ONCE) as threads:
                    list(threads.map(lambda key: self._delete_all([key]), some))

    def _delete_all(self, keys: list[str]) -> bool:
        """False if there was no object for one of them."""
        for key in keys:
            self._seen.pop(key.partition("/")[0], None)
        try:
            self._ask("delete", keys[0], lambda: self._obstore.delete(self._store, keys))
            return True
        except ObjectNotFoundError:
            return False

    def copy(self, source: str, target: str) -> None:
        check_key(target)
        self._ask("copy", source, lambda: self._obstore.copy(self._store, source, target))

    def sign(self, key: str, *, expires_in_seconds: int) -> str:
        place = self._place(key)
        if self._location.scheme == "az" and quote(place, safe="/:@") != place:
            raise ObjectStoreError(f"{place}: the client signs wrong URLs for Azure if they need percent encoding")
        expires = timedelta(seconds=expires_in_seconds)
        return str(self._ask("sign", key, lambda: self._obstore.sign(self._store, "GET", key, expires)))

    def _ask(self, request: str, key: str, call: Callable[[], T]) -> T:
        """As `_ask_once`, again and again while the store is busy or out of reach."""
        return repeat(lambda: self._ask_once(request, key, call), self._waiting)

    def _ask_once(self, request: str, key: str, call: Callable[[], T]) -> T:
        """Make a request with the client; its errors become ours, without the originals, which show signed URLs."""
        if key or request != "list":
            check_key(key)
        _check_process(self.url)
        try:
            answer = call()
        except ObjectStoreError:
            raise
        except self._errors as error:
            ours = _store_error(error, request, self._place(key), endpoint=self._config.endpoint)
            if isinstance(ours, StoreCredentialsError) and self._was_answered:  # there were some: they will be back
                ours = ObjectStoreError(str(ours))
            raise ours from None
        except BaseException as error:
            if type(error).__name__ != _PANIC:
                raise
            raise StoreRefusedError(
                f"{self._place(key)}: {request} failed: the client could not make the request; look for line breaks "
                "and other control characters in key, secret, session token and endpoint"
            ) from None
        self._was_answered = True
        return answer

    def _place(self, key: str) -> str:
        return f"{self.url}/{key}" if key else self.url


class _BeyondEndError(Exception):
    """A range starts beyond the object's end, for which stores answer 416 and nothing else."""


def _check_process(url: str) -> None:
    """Remember who makes requests, or raise StoreRefusedError in a child of that process."""
    global _pid_of_first_request
    if _pid_of_first_request is None:
        _pid_of_first_request = os.getpid()
    elif _pid_of_first_request != os.getpid():
        raise StoreRefusedError(
            f"{url}: expected a process of its own, found one that was forked from process {_pid_of_first_request} "
            "after that had made requests to a store: start such processes by 'spawn' or 'forkserver'"
        )


def _bytes_view(body: Buffer) -> memoryview:
    return memoryview(body).cast("B")


def _listed_below(page: Iterable[Any], prefix: str, after: str | None) -> Iterator[ObjectMetadata]:
    """The objects of a page below the folder `prefix` with keys above `after`, whatever the store has listed."""
    below = f"{prefix}/" if prefix else ""
    for each in map(_metadata, page):
        if (after is None or each.key > after) and each.key.startswith(below):
            yield each


def _metadata(found: Any) -> ObjectMetadata:
    return ObjectMetadata(found["path"], found["size"], int(found["last_modified"].timestamp() * SECOND_MS))


#: Parts of the text of an error.
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


def _is_refusal(error: Exception) -> bool:
    """Whether the store, or a server in its place, has answered that the request is wrong or not permitted."""
    return _status(str(error)) // 100 == 4


def _store_error(error: Exception, request: str, place: str, *, endpoint: str = "") -> ObjectStoreError:
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
