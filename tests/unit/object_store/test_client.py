"""The client of object stores against answers that the test makes up: errors, lies, and what is sent.

What a real server does: tests/interop/objects/test_store.py.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

import pytest
from fakes.faulty_store import VirtualClock
from fakes.http_relay import Answer, HttpRelay, Request

from pyspark_kafkalog.errors import InvalidOptionError, MissingPackageError
from pyspark_kafkalog.object_store import client
from pyspark_kafkalog.object_store.client import open_store
from pyspark_kafkalog.object_store.location import ObjectLocation
from pyspark_kafkalog.object_store.retries import Waiting, create_once
from pyspark_kafkalog.object_store.settings import StoreSettings
from pyspark_kafkalog.object_store.store import (
    ByteRange,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectStore,
    ObjectStoreError,
    StoreAccessError,
    StoreNotFoundError,
    StoreRefusedError,
    StoreUnsuitableError,
)

S3 = ObjectLocation("s3", "bucket", "log")
AZURE = ObjectLocation("az", "container", "log", "account")
GCS = ObjectLocation("gs", "bucket", "log")
FOUND = {"ETag": '"1"', "Last-Modified": formatdate(1_700_000_000, usegmt=True)}
SIGNATURE = "sv=2024&sig=HIDDEN"


def answers(*planned: Answer) -> Callable[[Request], Answer]:
    """Each planned answer once, then the last one again and again."""
    left = list(planned)
    return lambda request: left.pop(0) if len(left) > 1 else left[0]


def error(status: int, code: str = "", message: str = "what the store says") -> Answer:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>" if code else ""
    return Answer(status, body.encode())


def open_at(relay: HttpRelay, location: ObjectLocation = S3, *, clock: VirtualClock | None = None) -> ObjectStore:
    """The store at the relay, whose requests wait by a virtual clock."""
    clock = clock if clock is not None else VirtualClock()
    credentials = {
        "s3": {"access_key": "key", "secret_key": "HIDDEN", "region": "us-east-1"},
        "az": {"sas_token": SIGNATURE},
        "gs": {},
    }[location.scheme]
    settings = StoreSettings(endpoint=relay.endpoint, **credentials)
    return open_with(location, settings, clock=clock)


def open_with(location: ObjectLocation, settings: StoreSettings, *, clock: VirtualClock) -> ObjectStore:
    waiting = Waiting(clock.monotonic, clock.sleep, lambda: 0.5, client._RETRY_SECONDS)
    return client._ObstoreClient(location, client.client_config(location, settings, os.environ), waiting=waiting)


def listing(*keys: str) -> Answer:
    """Of objects with one byte; those whose keys end with a slash, or are empty, have none."""

    def entry(key: str) -> str:
        size_bytes = 0 if f"/{key}".endswith("/") else 1
        time = "<LastModified>2026-01-01T00:00:00.000Z</LastModified>"
        return f"<Contents><Key>log/{key}</Key><Size>{size_bytes}</Size>{time}<ETag>1</ETag></Contents>"

    entries = "".join(map(entry, keys))
    return Answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode())


@pytest.mark.parametrize(
    ("answer", "expected", "message"),
    [
        (error(404, "NoSuchBucket"), StoreNotFoundError, "there is no such bucket"),
        (error(404, "ContainerNotFound"), StoreNotFoundError, "there is no such bucket"),
        (error(403, "RequestTimeTooSkewed"), StoreAccessError, "the clock of this machine differs"),
        (error(403, "InvalidAccessKeyId"), StoreAccessError, "does not accept the credentials"),
        (error(403, "SignatureDoesNotMatch"), StoreAccessError, "does not accept the credentials"),
        (error(403, "AuthenticationFailed"), StoreAccessError, "does not accept the credentials"),
        (error(400, "ExpiredToken"), StoreAccessError, "the credentials have expired"),
        (error(403, "AccessDenied"), StoreAccessError, "lists the permissions needed"),
        (error(401), StoreAccessError, "lists the permissions needed"),
        (error(301, "PermanentRedirect"), StoreRefusedError, "in another region: set storeRegion or AWS_REGION"),
        (error(400, "AuthorizationHeaderMalformed", "expecting eu-west-1"), StoreRefusedError, "expecting eu-west-1"),
        (error(400, "KMS.DisabledException"), StoreRefusedError, "the key that .* Request: KMS.DisabledException: "),
        (error(400), StoreRefusedError, "check credentials, region and the clock of this machine: 400 Bad Request"),
        (error(400, "EntityTooLarge"), StoreRefusedError, "400 Bad Request: EntityTooLarge: what the store says"),
    ],
)
@pytest.mark.parametrize("request_name", ["get", "create", "put"])
def test_an_error_names_the_cause(
    request_name: str, answer: Answer, expected: type[ObjectStoreError], message: str
) -> None:
    with HttpRelay(answer=answers(answer)) as relay:
        store = open_at(relay)
        request = {
            "get": lambda: store.get("key", max_bytes=9),
            "create": lambda: store.create("key", b""),
            "put": lambda: store.put("key", b""),
        }[request_name]
        with pytest.raises(ObjectStoreError, match=message) as raised:
            request()
    assert raised.type is expected
    assert str(raised.value).startswith("s3://bucket/log/key: ")
    assert "\n" not in str(raised.value)
    assert "HIDDEN" not in "".join(traceback.format_exception(raised.value))


HTML = b"<html><head><title>Welcome</title></head><body><h1>It works!</h1></body></html>"
PAGE = Answer(404, HTML)
#: Each request, with an answer that lets it succeed.
REQUESTS: dict[str, tuple[Callable[[ObjectStore], object], Answer]] = {
    "get": (lambda store: store.get("key", max_bytes=9), Answer(200, b"body", FOUND)),
    "ranges": (
        lambda store: store.get_range("key", ByteRange(0, 4)),
        Answer(206, b"body", FOUND | {"Content-Range": "bytes 0-3/9"}),
    ),
    "head": (lambda store: store.head("key"), Answer(200, b"", FOUND)),
    "list": (lambda store: list(store.list_objects("")), listing("a", "b")),
    "put": (lambda store: store.put("key", b"body"), Answer(200, b"", FOUND)),
    "copy": (
        lambda store: store.copy("key", "other"),
        Answer(200, b"<CopyObjectResult><ETag>1</ETag></CopyObjectResult>"),
    ),
    "delete": (
        lambda store: store.delete(["a"]),
        Answer(200, b"<DeleteResult><Deleted><Key>log/a</Key></Deleted></DeleteResult>"),
    ),
}
every_request = pytest.mark.parametrize("name", REQUESTS)


@pytest.mark.parametrize("code", ["NoSuchKey", "BlobNotFound"])
def test_a_404_that_names_the_object_is_a_missing_object(code: str) -> None:
    with HttpRelay(answer=answers(error(404, code))) as relay:
        store = open_at(relay)
        for read in (
            lambda: store.get("key", max_bytes=9),
            lambda: store.head("key"),
            lambda: store.get_range("key", ByteRange(0, 1)),
        ):
            with pytest.raises(ObjectNotFoundError, match="log/key: there is no such object"):
                read()


@every_request
@pytest.mark.parametrize("answer", [PAGE, Answer(404)], ids=["page", "empty"])
def test_a_404_of_somebody_else_is_no_missing_object(name: str, answer: Answer) -> None:
    request, _ = REQUESTS[name]
    with HttpRelay(answer=answers(answer)) as relay:
        with pytest.raises(ObjectStoreError, match="check endpoint and proxy") as raised:
            request(open_at(relay))
        assert raised.type is ObjectStoreError


def test_a_page_for_a_batch_of_deletions_is_repeated_on_azure() -> None:
    clock = VirtualClock()
    with HttpRelay(answer=answers(PAGE)) as relay:
        with pytest.raises(ObjectStoreError, match="check endpoint and proxy") as raised:
            open_at(relay, AZURE, clock=clock).delete(["a"])
        assert raised.type is ObjectStoreError
        assert relay.requests.total() > 20


@pytest.mark.parametrize("status", [400, 403])
def test_a_refused_head_is_repeated_if_the_object_can_be_read(status: int) -> None:
    byte = Answer(206, b"b", FOUND | {"Content-Range": "bytes 0-0/9"})
    with HttpRelay(answer=answers(Answer(status), byte, Answer(200, b"123456789", FOUND))) as relay:
        assert open_at(relay).head("key").size_bytes == 9
        assert [each.method for each in relay.log] == ["HEAD", "GET", "HEAD"]


def test_a_page_of_html_is_no_empty_listing_where_an_object_was_seen() -> None:
    page = Answer(200, HTML)
    clock = VirtualClock()

    def answer(request: Request) -> Answer:
        return page if request.kind == "LIST" else Answer(200, b"body", FOUND)

    with HttpRelay(answer=answer) as relay:
        store = open_at(relay, clock=clock)
        store.get("folder/key", max_bytes=9)
        for prefix in ("", "folder"):
            with pytest.raises(ObjectStoreError, match="expected a listing with folder/key, found an empty one"):
                list(store.list_objects(prefix))
        assert list(store.list_objects("other")) == []
        page = listing("folder/key")
        assert [each.key for each in store.list_objects("")] == ["folder/key"]


@every_request
def test_a_busy_store_is_asked_for_90_seconds(name: str) -> None:
    request, _ = REQUESTS[name]
    clock = VirtualClock()
    with HttpRelay(answer=answers(error(503, "SlowDown"))) as relay:
        store = open_at(relay, clock=clock)
        began = clock.monotonic()
        with pytest.raises(
            ObjectStoreError, match=r"503 Service Unavailable.* \(after \d+ requests in 90 s\)"
        ) as raised:
            request(store)
        assert raised.type is ObjectStoreError
        assert 90 <= clock.monotonic() - began < 96
        assert 20 < relay.requests.total() < 40


PASSING = {
    "busy": error(503, "SlowDown"),
    "internal": error(500, "InternalError"),
    "gateway": Answer(502, HTML),
    "too many": error(429, "TooManyRequests"),
    "slow body": error(400, "RequestTimeout"),
    "conflict": error(409, "OperationAborted"),
    "page": PAGE,
    "no answer": HttpRelay.REFUSE,
    "cut 404": error(404, "NoSuchKey").cut(),
    "cut 503": error(503, "SlowDown").cut(),
}


@every_request
@pytest.mark.parametrize("fault", PASSING)
def test_an_answer_that_passes_is_repeated(name: str, fault: str) -> None:
    request, good = REQUESTS[name]
    with HttpRelay(answer=answers(PASSING[fault], good)) as relay:
        request(open_at(relay))
        assert relay.requests.total() == (3 if name == "head" and PASSING[fault].status // 100 == 4 else 2)


@pytest.mark.parametrize("name", ["get", "ranges", "list", "delete"])
def test_an_answer_that_breaks_off_is_repeated(name: str) -> None:
    request, good = REQUESTS[name]
    with HttpRelay(answer=answers(good.cut(), good)) as relay:
        request(open_at(relay))
        assert relay.requests.total() == 2


def test_a_listing_whose_second_page_breaks_off_goes_on_behind_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_LIST_CHUNK", 2)
    first = listing("a", "b").body.replace(
        b"<IsTruncated>false", b"<NextContinuationToken>1</NextContinuationToken><IsTruncated>true"
    )
    with HttpRelay(answer=answers(Answer(200, first), listing("c").cut(), listing("c", "d"), listing())) as relay:
        assert [each.key for each in open_at(relay).list_objects("")] == ["a", "b", "c", "d"]
        assert "start-after=log%2Fb" in relay.log[2].query


def test_a_page_of_html_is_no_end_of_a_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_LIST_CHUNK", 2)
    first = listing("a", "b").body.replace(
        b"<IsTruncated>false", b"<NextContinuationToken>1</NextContinuationToken><IsTruncated>true"
    )
    with HttpRelay(answer=answers(Answer(200, first), Answer(200, HTML), listing("c"))) as relay:
        assert [each.key for each in open_at(relay).list_objects("")] == ["a", "b", "c"]
        assert "start-after=log%2Fb" in relay.log[2].query


def test_a_page_of_html_for_each_request_is_no_empty_place() -> None:
    with HttpRelay(answer=answers(Answer(200, HTML))) as relay:
        for prefix in ("", "folder"):
            with pytest.raises(ObjectStoreError, match="a proxy has answered in place of the store"):
                list(open_at(relay).list_objects(prefix))
    with HttpRelay(answer=answers(listing(), error(404, "NoSuchKey"))) as relay:
        assert list(open_at(relay).list_objects("")) == []


@pytest.mark.parametrize("name", [each for each in REQUESTS if each not in ("list", "copy")])
def test_a_page_of_html_is_no_answer(name: str) -> None:
    request, good = REQUESTS[name]
    with HttpRelay(answer=answers(Answer(200, HTML), good)) as relay:
        assert request(open_at(relay)) != HTML
        assert relay.requests.total() == 2


REFUSALS = {
    "key disabled": error(400, "KMS.DisabledException"),
    "key gone": error(409, "KMS.Disabled"),
    "lock": error(400, "InvalidRequest", "Content-MD5 OR x-amz-checksum- HTTP header is required"),
    "immutable": error(409, "BlobImmutableDueToPolicy"),
    "region": error(301, "PermanentRedirect"),
    "other region": error(400, "AuthorizationHeaderMalformed"),
    "redirect": Answer(307, b""),
    "denied": error(403, "AccessDenied"),
    "clock": error(403, "RequestTimeTooSkewed"),
    "nameless": error(400),
}


@every_request
@pytest.mark.parametrize("fault", REFUSALS)
def test_a_refusal_ends_a_request_at_once(name: str, fault: str) -> None:
    request, _ = REQUESTS[name]
    with HttpRelay(answer=answers(REFUSALS[fault])) as relay:
        with pytest.raises(StoreRefusedError):
            request(open_at(relay))
        assert relay.requests.total() <= (2 if name == "head" else 1)


@pytest.mark.parametrize("fault", REFUSALS)
def test_a_refused_create_ends_with_the_stores_answer(fault: str) -> None:
    def answer(request: Request) -> Answer:
        return REFUSALS[fault] if request.method == "PUT" else error(404, "NoSuchKey")

    clock = VirtualClock()
    waiting = Waiting(clock.monotonic, clock.sleep, lambda: 0.5)
    with HttpRelay(answer=answer) as relay:
        with pytest.raises(StoreRefusedError):
            create_once(open_at(relay), "key", b"body", is_own=lambda found: True, max_bytes=9, waiting=waiting)
        assert relay.requests["PUT"] <= 3
    assert clock.monotonic() - VirtualClock().monotonic() < 1


def test_a_listing_that_is_not_permitted_says_what_to_check() -> None:
    expected = "lists the permissions needed; otherwise check credentials, region and the clock"
    with HttpRelay(answer=answers(error(403, "AccessDenied"))) as relay:
        store = open_at(relay)
        with pytest.raises(StoreAccessError, match=expected):
            list(store.list_objects(""))


def test_a_refused_head_says_what_the_answer_to_a_get_says() -> None:
    with HttpRelay(answer=answers(error(400, "ExpiredToken"))) as relay:
        store = open_at(relay)
        with pytest.raises(StoreAccessError, match="the credentials have expired"):
            store.head("key")


@pytest.mark.parametrize(
    ("answer", "expected", "message"),
    [
        (error(412, "PreconditionFailed"), ObjectExistsError, "found an object with this key"),
        (error(409, "ConditionalRequestConflict"), ObjectExistsError, "409 Conflict"),
        (error(501, "NotImplemented"), StoreUnsuitableError, "does not support put-if-absent"),
        (error(503, "SlowDown"), ObjectStoreError, "the store is busy"),
        (error(500, "InternalError"), ObjectStoreError, "500 Internal Server Error: InternalError"),
    ],
)
def test_a_create_is_sent_once_with_its_condition(
    answer: Answer, expected: type[ObjectStoreError], message: str
) -> None:
    with HttpRelay(answer=answers(answer, Answer(200, b"", FOUND))) as relay:
        with pytest.raises(ObjectStoreError, match=message) as raised:
            open_at(relay).create("key", b"body")
        assert raised.type is expected
        assert relay.requests == {"PUT": 1}
        (request,) = relay.log
    assert (request.path, request.body) == ("/bucket/log/key", b"body")
    assert request.headers["if-none-match"] == "*"


def test_other_requests_are_repeated_while_the_store_is_busy() -> None:
    busy = error(503, "SlowDown")
    with HttpRelay(answer=answers(busy, Answer(200, b"body", FOUND))) as relay:
        assert open_at(relay).get("key", max_bytes=9) == b"body"
        assert relay.requests == {"GET": 2}
    with HttpRelay(answer=answers(busy, Answer(200, b"", FOUND))) as relay:
        open_at(relay).put("key", b"body")
        assert relay.requests == {"PUT": 2}


def test_a_create_gives_up_after_its_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_CREATE_TIMEOUT", client.timedelta(milliseconds=200))
    with HttpRelay(answer=answers(Answer(200, b"", FOUND)), latency_seconds=60) as relay:
        with pytest.raises(ObjectStoreError, match="create failed") as raised:
            open_at(relay).create("key", b"")
        assert raised.type is ObjectStoreError
        assert relay.requests == {"PUT": 1}


def test_azure_and_gcs_get_their_own_conditions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "HIDDEN")
    with HttpRelay(answer=answers(error(409, "BlobAlreadyExists"))) as relay:
        with pytest.raises(ObjectExistsError):
            open_at(relay, AZURE).create("key", b"body")
        assert (relay.log[0].path, relay.log[0].headers["if-none-match"]) == ("/container/log/key", "*")
    with HttpRelay(answer=answers(error(412, "PreconditionFailed"))) as relay:
        with pytest.raises(ObjectExistsError):
            open_at(relay, GCS).create("key", b"body")
        assert relay.log[0].headers["x-goog-if-generation-match"] == "0"


def test_an_error_does_not_show_the_signature_in_azures_urls() -> None:
    with HttpRelay(answer=answers(error(403, "AuthenticationFailed"))) as relay:
        store = open_at(relay, AZURE)
        with pytest.raises(StoreAccessError) as raised:
            store.get("key", max_bytes=9)
        assert "HIDDEN" in relay.log[0].query
    assert "HIDDEN" not in "".join(traceback.format_exception(raised.value)) + repr(store)


def test_nobody_listening_is_said_with_the_endpoint() -> None:
    with HttpRelay() as relay:
        endpoint = relay.endpoint
        store = open_at(relay)
    for request in (lambda: store.get("key", max_bytes=9), lambda: store.create("key", b"")):
        with pytest.raises(ObjectStoreError, match=f"at {endpoint}: no process listens there"):
            request()


def test_a_host_that_does_not_exist_is_said_with_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    settings = StoreSettings(endpoint="http://no-such-host.invalid", access_key="key", secret_key="HIDDEN")
    with pytest.raises(ObjectStoreError, match=r"at http://no-such-host\.invalid: there is no such host"):
        open_with(S3, settings, clock=VirtualClock()).head("key")


def test_an_object_larger_than_the_bound_is_not_read() -> None:
    with HttpRelay(answer=answers(Answer(200, b"x" * 100, FOUND))) as relay:
        store = open_at(relay)
        with pytest.raises(ObjectStoreError, match="s3://bucket/log/key: expected at most 99 bytes, found 100"):
            store.get("key", max_bytes=99)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, b"x" * 100, FOUND),
        Answer(206, b"x" * 100, FOUND | {"Content-Range": "bytes 0-99/1000"}),
        Answer(206, b"x" * 10, FOUND | {"Content-Range": "bytes 50-59/1000"}),
        Answer(206, b"x" * 10, FOUND),
    ],
)
def test_a_store_that_sends_another_range_is_not_believed(answer: Answer) -> None:
    with HttpRelay(answer=answers(answer)) as relay, pytest.raises(ObjectStoreError, match="s3://bucket/log/key"):
        open_at(relay).get_range("key", ByteRange(0, 10))


@pytest.mark.parametrize("secret", ["access_key", "session_token"])
def test_a_line_break_in_a_credential_is_an_error_of_the_store_that_does_not_repeat_it(secret: str) -> None:
    settings = {"access_key": "HIDDEN", "secret_key": "HIDDEN", "session_token": "HIDDEN", "region": "us-east-1"}
    settings[secret] += "\n"  # as from a file or a secret that was mounted
    with HttpRelay(answer=answers(Answer(200))) as relay:
        store = open_store(S3, StoreSettings(endpoint=relay.endpoint, **settings))
        with pytest.raises(ObjectStoreError, match="could not make the request; look for line breaks") as failed:
            store.head("key")
    assert "HIDDEN" not in "".join(traceback.format_exception(failed.value))


@pytest.mark.parametrize("endpoint", ["127.0.0.1:9000", "http://127.0.0.1:99999", "http://user:HIDDEN@host"])
def test_a_variable_that_holds_no_endpoint_is_refused_by_name(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    with pytest.raises(InvalidOptionError, match="AWS_ENDPOINT_URL: expected http://host:port") as refused:
        open_store(ObjectLocation("s3", "bucket-of-a-wrong-endpoint"))
    assert "HIDDEN" not in str(refused.value)


def test_a_listing_out_of_order_is_refused_where_order_is_promised() -> None:
    with HttpRelay(answer=answers(listing("b", "a"))) as relay:
        store = open_at(relay)
        with pytest.raises(ObjectStoreError, match="in the order of keys, found 'a' after 'b'"):
            list(store.list_objects(""))


@pytest.mark.parametrize(
    ("listed", "prefix", "expected"),
    [(("", "a-b", "a/", "a/1"), "", ["a-b", "a/1"]), (("a/", "a/1", "a/b/", "a/b/1"), "a", ["a/1", "a/b", "a/b/1"])],
)
def test_markers_of_folders_do_not_disturb_a_listing(listed: tuple[str, ...], prefix: str, expected: list[str]) -> None:
    with HttpRelay(answer=answers(listing(*listed))) as relay:
        assert [each.key for each in open_at(relay).list_objects(prefix)] == expected


def test_objects_that_are_no_files_of_ours_stop_a_listing_with_their_name() -> None:
    with HttpRelay(answer=answers(listing("a//b"))) as relay:
        store = open_at(relay)
        with pytest.raises(ObjectStoreError, match=r'nothing of ours .*Path "log/a//b" contained empty'):
            list(store.list_objects(""))


def test_a_store_without_order_is_sorted() -> None:
    directory_bucket = ObjectLocation("s3", "bucket--x-s3", "log")
    settings = StoreSettings(endpoint="", access_key="key", secret_key="HIDDEN")
    with HttpRelay(answer=answers(listing("b", "c", "a"))) as relay:
        store = open_at(relay)
        in_no_order = client._ObstoreClient(
            S3, client.ClientConfig("S3Store", store._config.arguments, "http://x", False)
        )
        assert [each.key for each in in_no_order.list_objects("")] == ["a", "b", "c"]
        assert [each.key for each in in_no_order.list_objects("", after="a")] == ["b", "c"]
    assert not client.client_config(directory_bucket, settings, {}).lists_in_order


def test_missing_keys_do_not_stop_a_deletion(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "HIDDEN")

    def answer(request: Request) -> Answer:
        return error(404, "NoSuchKey") if "missing" in request.path else Answer(204)

    with HttpRelay(answer=answer) as relay:
        open_at(relay, GCS).delete(["missing 1", "a", "missing 2", "b"])
        assert {request.path.rpartition("%2F")[2] for request in relay.log} == {"missing%201", "a", "missing%202", "b"}


@pytest.mark.parametrize("key", ["", "a//b", "../a", "a/..", "/a", "a/", "a\nb", "x" * 1025])
def test_a_wrong_key_makes_no_request(key: str) -> None:
    with HttpRelay() as relay:
        store = open_at(relay)
        for request in (
            lambda: store.create(key, b""),
            lambda: store.put(key, b""),
            lambda: store.get(key, max_bytes=9),
            lambda: store.get_range(key, ByteRange(0, 1)),
            lambda: store.head(key),
            lambda: store.delete(["a", key]),
            lambda: store.copy("a", key),
            lambda: store.copy(key, "a"),
            lambda: store.sign(key, expires_in_seconds=1),
            lambda: list(store.list_objects(key or "a//b")),
        ):
            with pytest.raises(ValueError, match="expected a key"):
                request()
        assert not relay.requests


def test_encryption_payer_and_checksum_of_the_environment_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "AWS_SERVER_SIDE_ENCRYPTION": "aws:kms",
        "AWS_SSE_KMS_KEY_ID": "key-id",
        "AWS_REQUEST_PAYER": "requester",
        "AWS_CHECKSUM_ALGORITHM": "SHA256",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with HttpRelay(answer=answers(Answer(200, b"", FOUND))) as relay:
        open_at(relay).put("key", b"body")
        open_at(relay).create("key", b"body")
    for request in relay.log:
        assert request.headers["x-amz-server-side-encryption"] == "aws:kms"
        assert request.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "key-id"
        assert request.headers["x-amz-request-payer"] == "requester"
        assert request.headers["x-amz-checksum-sha256"]


def test_requests_go_through_a_proxy() -> None:
    with HttpRelay(answer=answers(Answer(200, b"body", FOUND))) as relay:
        settings = StoreSettings(
            endpoint="http://store.invalid", access_key="key", secret_key="HIDDEN", proxy=relay.endpoint
        )
        assert open_with(S3, settings, clock=VirtualClock()).get("key", max_bytes=9) == b"body"
    assert relay.log[0].path == "/bucket/log/key"


def test_a_credentials_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "credentials"
    with HttpRelay(answer=answers(Answer(200, b"body", FOUND))) as relay:
        settings = StoreSettings(endpoint=relay.endpoint, credentials_file=str(missing))
        store = open_with(S3, settings, clock=VirtualClock())
        with pytest.raises(
            StoreAccessError, match=f"no credentials were found: .*{missing}: expected aws_access_key_id"
        ):
            store.head("key")
        missing.write_text("[default]\naws_access_key_id = key\naws_secret_access_key = HIDDEN\n")
        assert store.get("key", max_bytes=9) == b"body"


def test_a_store_is_opened_once_for_the_same_settings() -> None:
    settings = StoreSettings(access_key="key", secret_key="HIDDEN")
    assert open_store(S3, settings) is open_store(S3, StoreSettings(access_key="key", secret_key="HIDDEN"))
    assert open_store(S3, settings) is not open_store(S3.below("other"), settings)
    assert repr(open_store(S3, settings)) == "<object store s3://bucket/log>"


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'pyspark_kafkalog\[object-store\]'"):
        open_store(ObjectLocation("s3", "never-opened-before"))


def test_the_client_is_loaded_on_first_use() -> None:
    program = "import sys, pyspark_kafkalog.object_store.client, pyspark_kafkalog; assert 'obstore' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)


def _read_in_child(endpoint: str) -> bytes:
    settings = StoreSettings(endpoint=endpoint, access_key="key", secret_key="HIDDEN")
    return open_store(S3, settings).get("key", max_bytes=9)


_FORKS_BEFORE_THE_FIRST_REQUEST = """
import os, sys
from pyspark_kafkalog.object_store.client import open_store
from pyspark_kafkalog.object_store.location import ObjectLocation
from pyspark_kafkalog.object_store.settings import StoreSettings
store = open_store(ObjectLocation("s3", "bucket", "log"), StoreSettings(sys.argv[1], access_key="k", secret_key="s"))
if os.fork() == 0:
    assert store.get("key", max_bytes=9) == b"body"
    os._exit(0)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
assert store.get("key", max_bytes=9) == b"body"
if os.fork() == 0:
    try:
        store.head("key")
    except OSError as error:
        assert "forked from process" in str(error), error
        os._exit(0)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 0
"""


def test_a_process_forked_before_the_first_request_may_use_the_store_and_one_forked_later_not() -> None:
    with HttpRelay(answer=answers(Answer(200, b"body", FOUND))) as relay:
        command = [sys.executable, "-c", _FORKS_BEFORE_THE_FIRST_REQUEST, relay.endpoint]
        subprocess.run(command, check=True, timeout=60)
        assert relay.requests == {"GET": 2}


def test_a_spawned_process_has_a_store_of_its_own() -> None:
    with HttpRelay(answer=answers(Answer(200, b"body", FOUND))) as relay:
        assert _read_in_child(relay.endpoint) == b"body"
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(_read_in_child, (relay.endpoint,)) == b"body"
        assert relay.requests == {"GET": 2}
    assert client._pid_of_first_request == os.getpid()
