"""A store in trouble: each fault at each request of each operation, by a relay before S3Proxy.

An operation runs again and again, and the relay answers the request of the next number in the store's place, until the
operation ends before that request. A fault that passes must not be seen by the caller. A refusal may be, with its code:
then the operation is tried once more. A store that stays in trouble ends each operation after a limited time. Either
way what was written is there once, in order. `make test-stores` does the same with MinIO and Azurite.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from builders.following_roots import copy_once
from builders.leader_writers import append as leader_append
from builders.leader_writers import batch
from builders.tiered_roots import append_rounds, tiered_root
from fakes.http_relay import Answer, Request
from fakes.troubled_stores import FAULTS, PAGE, StoreServer, Trouble, command, is_unknown, started, troubled
from kafka_processes.store_servers import TEST_STORES

from pyspark_kafkalog.errors import KafkalogError, ReadOnlyLogDirError
from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.tier import tier_segments
from pyspark_kafkalog.object_store import client, retries
from pyspark_kafkalog.object_store.store import ObjectStore
from pyspark_kafkalog.root.commit.changes import CommitUnit
from pyspark_kafkalog.storage.names import TopicPartition

#: No operation takes so many requests.
_REQUESTS_MAX = 200
#: No operation tries longer, in seconds of its own clock: some send several requests that are repeated for a time.
_SECONDS_MAX = 900

Operation = Callable[[Trouble], Callable[[], object]]


def _create(trouble: Trouble) -> Callable[[], object]:
    place = trouble.place(trouble.anew("root"))
    return lambda: LogDir.open_or_create(place)


def _open(trouble: Trouble) -> Callable[[], object]:
    return trouble.opened


def _read(trouble: Trouble) -> Callable[[], object]:
    def read() -> None:
        found = trouble.read(trouble.opened())
        assert found == [each for each in trouble.values if each not in trouble.uncertain or each in found]

    return read


def _append(size: int) -> Operation:
    def prepared(trouble: Trouble) -> Callable[[], object]:
        log_dir = trouble.opened()
        table = trouble.append(size)
        return lambda: log_dir.append("orders", table)

    return prepared


def _topics(trouble: Trouble) -> Callable[[], object]:
    """A topic that is made and deleted."""
    log_dir, name = trouble.opened(), trouble.anew("topic")

    def make_and_delete() -> None:
        if name not in log_dir.topics():
            log_dir.create_topic(name, partitions=2)
        log_dir.delete_topic(name)

    return make_and_delete


def _group(trouble: Trouble) -> Callable[[], object]:
    log_dir = trouble.opened()

    def commit() -> None:
        group = log_dir.group("billing")
        group.commit({TopicPartition("orders", 0): 2})
        assert {at: each.offset for at, each in group.fetch().items()} == {TopicPartition("orders", 0): 2}

    return commit


def _serve(trouble: Trouble) -> Callable[[], object]:
    """A batch of an idempotent producer, sent again as its client does; a server keeps its writer."""
    writer = trouble.opened().root.native().committer(flush="fsync")
    producer = int(trouble.anew("1").partition("-")[2]) + 1
    value = trouble.append(10).column("value").to_pylist()
    data = batch([each.encode() for each in value], producer=(producer, 0, 0))

    def commit() -> None:
        (result,) = writer.commit([CommitUnit.of(leader_append(data, topic="orders"))])
        if isinstance(result, KafkalogError):
            raise result

    return commit


def _job(*arguments: str, size: int = 10, configs: dict[str, str] | None = None) -> Operation:
    def prepared(trouble: Trouble) -> Callable[[], object]:
        log_dir = trouble.opened()
        if configs is not None and configs.items() - dict(log_dir.topic("orders").configs).items():
            log_dir.alter_topic("orders", add=configs)
        for _ in range(2):
            log_dir.append("orders", trouble.append(size))
        return lambda: command(*arguments, "--path", trouble.url, "--local")

    return prepared


def _reads(*arguments: str) -> Operation:
    """A job that changes nothing, over segments and runs."""

    def prepared(trouble: Trouble) -> Callable[[], object]:
        log_dir = trouble.opened()
        if not log_dir.root.native().store.image.partition("orders", 0).segments:
            log_dir.append("orders", trouble.append(40_000))
            command("merge-segments", "--path", trouble.url, "--local")
        return lambda: command(*arguments, "--path", trouble.url, "--local")

    return prepared


def _export(trouble: Trouble) -> Callable[[], object]:
    target = trouble.scratch / trouble.anew("copy")
    return lambda: command("export", "--path", trouble.url, "--to", str(target))


def _follow(trouble: Trouble) -> Callable[[], object]:
    """A root in the store that follows another one in it."""
    copy = trouble.place(trouble.anew("copy"))
    return lambda: copy_once(trouble.address, copy)


def _tier(trouble: Trouble) -> Callable[[], object]:
    name = trouble.anew("tiered")
    log_dir = tiered_root(trouble.scratch / name, trouble.place(name).location.url)
    append_rounds(log_dir, 8)

    def tier() -> None:
        errors = [str(each.error) for each in tier_segments(log_dir.root) if each.error is not None]
        assert not errors, "; ".join(errors)
        command("retention", "--path", str(log_dir.path), "--local")

    return tier


OPERATIONS: dict[str, Operation] = {
    "append": _append(10),
    "create": _create,
    "open": _open,
    "read": _read,
    "append large": _append(60_000),
    "topics": _topics,
    "group": _group,
    "serve": _serve,
    "merge": _job("merge-segments", size=50_000),
    "retention": _job("retention", configs={"retention.bytes": "500"}),
    "clean": _job(
        "log-cleaner", configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0", "segment.ms": "1"}
    ),
    "reindex": _reads("reindex", "--force"),
    "verify": _reads("verify"),
    "export": _export,
    "follow": _follow,
    "tier": _tier,
}
#: These remove records.
_REMOVING = ("retention", "clean")
_KINDS = sorted({name for server in TEST_STORES if server in FAULTS for name in FAULTS[server]})
#: These take many requests, each of which meets the fault.
_LONG = ("merge", "retention", "clean", "reindex", "verify", "follow", "tier")
#: A follower goes on for as long as it is told to.
_ENDING = [each for each in OPERATIONS if each != "follow"]
_LASTING = ("busy", "request lost", "page as answer", "denied")


@pytest.fixture(scope="module", params=[each for each in TEST_STORES if each in FAULTS])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, StoreServer]]:
    with started(request.param, request, tmp_path_factory.mktemp(request.param)) as server:
        yield request.param, server


@pytest.fixture
def trouble(server: tuple[str, StoreServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Trouble]:
    monkeypatch.setattr(retries, "_RACES", 1)
    monkeypatch.setattr(retries, "_WRITERS", 2)
    with troubled(server[1], tmp_path, monkeypatch) as trouble:
        yield trouble


@pytest.mark.slow
@pytest.mark.parametrize(
    ("operation", "name"), itertools.product([each for each in OPERATIONS if each not in _LONG], _KINDS)
)
def test_a_fault_at_any_request_loses_and_doubles_nothing(
    server: tuple[str, StoreServer], trouble: Trouble, operation: str, name: str
) -> None:
    _try_each_request(server, trouble, operation, name)


@pytest.mark.full
@pytest.mark.parametrize(("operation", "name"), itertools.product(_LONG, _KINDS))
def test_a_fault_at_any_request_of_a_job_loses_and_doubles_nothing(
    server: tuple[str, StoreServer], trouble: Trouble, operation: str, name: str
) -> None:
    _try_each_request(server, trouble, operation, name)


def _try_each_request(server: tuple[str, StoreServer], trouble: Trouble, operation: str, name: str) -> None:
    fault = FAULTS[server[0]].get(name)
    if fault is None:
        pytest.skip(f"no answer of {server[0]}")
    trouble.create()
    for number in range(_REQUESTS_MAX):
        run = OPERATIONS[operation](trouble)
        is_met, error = trouble.meet(run, fault.answer, number)
        if error is not None:
            assert not fault.passes, f"request {number}: {error}"
            assert "may exist, or may appear later" not in str(error), f"request {number}: {error}"
            assert fault.code in str(error), f"request {number}: {error}"
            run()
        if not is_met:
            break
    assert not is_met
    trouble.check(may_miss=operation in _REMOVING)


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "name"), itertools.product(_ENDING, _LASTING))
def test_a_store_that_stays_in_trouble_ends_operations_in_an_error(
    server: tuple[str, StoreServer], trouble: Trouble, operation: str, name: str
) -> None:
    fault = FAULTS[server[0]][name]
    trouble.create()
    for number in itertools.count(0, 3):
        expected = len(trouble.values)
        run = OPERATIONS[operation](trouble)
        began = trouble.clock.monotonic()
        is_met, error = trouble.meet(run, fault.answer, number, is_lasting=True)
        assert trouble.clock.monotonic() - began < _SECONDS_MAX
        if not is_met:
            break
        if error is not None:
            assert trouble.address.location.bucket in str(error), f"request {number}: {error}"
            assert fault.code in str(error), f"request {number}: {error}"
        if error is not None and is_unknown(error) and operation in ("append", "append large"):
            trouble.uncertain.update(trouble.values[expected:])
        elif error is not None:
            run()
    trouble.check(may_miss=operation in _REMOVING)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_a_page_for_a_listing_is_no_empty_place(trouble: Trouble, number: int) -> None:
    """A root is not created where objects of somebody else are."""
    place = trouble.place("of others")
    other = client.open_store(place.location, place.settings)
    other.put("reports/2026.csv", b"1")
    client._open_stores.clear()
    listed = itertools.count()

    def page(request: Request) -> Answer | None:
        return Answer(200, PAGE) if request.kind == "LIST" and next(listed) == number else None

    trouble.relay.answer = page
    with pytest.raises(ReadOnlyLogDirError, match=r"contains reports/2026\.csv"):
        LogDir.create(place)
    trouble.relay.answer = None
    assert _keys(other) == ["reports/2026.csv"]


def _keys(store: ObjectStore) -> list[str]:
    return [each.key for each in store.list_objects("")]
