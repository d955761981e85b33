"""Quotas by token buckets, and the limits of connections."""

from __future__ import annotations

import contextlib
import math

import pytest
from fakes.clock import Clock

from pyspark_kafkalog.metadata.users import CLIENT_ID, IP, USER, Quotas, quota_entity
from pyspark_kafkalog.server.config import ConnectionSettings
from pyspark_kafkalog.server.context import Session
from pyspark_kafkalog.server.security.connection_policy import ConnectionLimits, TooManyConnectionsError
from pyspark_kafkalog.server.security.quotas import ClientQuotas, find_quota

RATE = "producer_byte_rate"


def session(user: str = "ann") -> Session:
    return Session("10.0.0.1", 1, principal=f"User:{user}")


def quotas_of(clock: Clock, quotas: Quotas) -> ClientQuotas:
    return ClientQuotas(lambda: quotas, monotonic_ms=clock)


def entity(user: str | None = "-", client_id: str | None = "-") -> object:
    parts = [(USER, user)] if user != "-" else []
    return quota_entity([*parts, *([(CLIENT_ID, client_id)] if client_id != "-" else [])])


def test_most_specific_quota_counts_in_kafkas_order() -> None:
    levels = [
        entity("ann", "app"),
        entity("ann", None),
        entity("ann"),
        entity(None, "app"),
        entity(None, None),
        entity(None),
        entity(client_id="app"),
        entity(client_id=None),
    ]
    quotas = {each: {RATE: float(at)} for at, each in enumerate(levels)}
    for at, each in enumerate(levels):
        found = find_quota(quotas, RATE, "ann", "app")  # type: ignore[arg-type]
        assert found is not None
        assert found[0] == at
        del quotas[each]
    assert find_quota({}, RATE, "ann", "app") is None
    other = {entity("ann", "app"): {"request_percentage": 1.0}, entity(None): {RATE: 9.0}}
    assert find_quota(other, RATE, "ann", "app") == (9.0, True, False)  # type: ignore[arg-type]


def test_rate_above_the_quota_is_throttled_until_it_is_made_up_for() -> None:
    clock = Clock(0)
    quotas = quotas_of(clock, {quota_entity([(USER, "ann")]): {RATE: 1_000.0}})
    ann = session()
    assert quotas.throttle(ann, "app", RATE, 10_000) == 0  # ten seconds' worth at once
    assert quotas.throttle(ann, "app", RATE, 500) == 500
    assert ann.mute_until_ms == 500
    assert quotas.throttle(session(), "other-app", RATE, 0) == 500  # all connections of the user share it
    assert quotas.throttle(session("bob"), "app", RATE, 1e9) == 0
    assert quotas.throttle(ann, "app", "consumer_byte_rate", 1e9) == 0
    assert quotas.admit(ann, "app", RATE, 1) == 500  # refused, and so not charged
    clock.now_ms = 500
    assert quotas.admit(ann, "app", RATE, 0) == 0
    assert quotas.throttle(ann, "app", RATE, 2_000) == 2_000
    quotas.give_back(ann, "app", RATE, 2_000)
    assert quotas.throttle(ann, "app", RATE, 0) == 0


def test_average_over_time_is_the_quota() -> None:
    clock = Clock(0)
    quotas = quotas_of(clock, {quota_entity([(USER, None)]): {RATE: 1_000.0}})
    sent = 0
    while clock.now_ms < 100_000:
        sent += 300
        clock.now_ms += max(quotas.throttle(session(), "app", RATE, 300), 1)
    assert 100_000 <= sent <= 110_500  # and the ten seconds that were saved up at the beginning


def test_default_quota_of_users_holds_for_each_user_by_himself() -> None:
    clock = Clock(0)
    quotas = quotas_of(clock, {quota_entity([(USER, None)]): {RATE: 1.0}})
    assert quotas.throttle(session("ann"), "app", RATE, 11) == 1_000
    assert quotas.throttle(session("bob"), "app", RATE, 11) == 1_000
    assert quotas.throttle(session("ann"), "app", RATE, 1) == 2_000


def test_changed_quotas_apply_at_once() -> None:
    clock = Clock(0)
    newest: list[Quotas] = [{}]
    quotas = ClientQuotas(lambda: newest[0], monotonic_ms=clock)
    assert quotas.throttle(session(), "app", RATE, 1e9) == 0
    newest[0] = {quota_entity([(USER, "ann")]): {RATE: 1.0}}
    assert quotas.throttle(session(), "app", RATE, 11) == 1_000
    newest[0] = {}
    assert quotas.throttle(session(), "app", RATE, 1e9) == 0


def test_buckets_of_clients_that_make_up_names_are_bounded() -> None:
    clock = Clock(0)
    quotas = quotas_of(clock, {quota_entity([(CLIENT_ID, None)]): {RATE: 1.0}})
    assert quotas.throttle(session(), "slow", RATE, 1e6)
    for at in range(10_100):
        quotas.throttle(session(), f"app{at}", RATE, 0)
    assert len(quotas._buckets) <= 10_000
    assert quotas.throttle(session(), "slow", RATE, 0)


def test_connections_are_counted_in_all_and_by_host() -> None:
    limits = ConnectionLimits(ConnectionSettings(connections_max=3, per_host_max=2), monotonic_ms=Clock(0))
    limits.open("a")
    limits.open("a")
    with pytest.raises(TooManyConnectionsError, match=r"per\.ip"):
        limits.open("a")
    limits.open("b")
    with pytest.raises(TooManyConnectionsError, match="3 connections"):
        limits.open("c")
    limits.close("a")
    limits.open("c")
    assert limits.count == 3


def test_connections_above_a_hosts_rate_are_refused() -> None:
    clock = Clock(0)
    quotas = {
        quota_entity([(IP, "10.0.0.1")]): {"connection_creation_rate": 1.0},
        quota_entity([(IP, None)]): {"connection_creation_rate": 1_000.0},
    }
    rates = quotas_of(clock, quotas)
    limits = ConnectionLimits(ConnectionSettings(), creation_rate=rates.connection_creation_rate, monotonic_ms=clock)
    for _ in range(10):
        limits.open("10.0.0.1")
    with pytest.raises(TooManyConnectionsError, match="1 a second") as refused:
        limits.open("10.0.0.1")
    assert refused.value.throttle_ms == 1_000
    limits.open("10.0.0.2")
    clock.now_ms = 1_000
    limits.open("10.0.0.1")
    assert limits.count == 12


def test_rate_of_a_host_is_found_however_its_address_is_written_and_names_of_hosts_have_none() -> None:
    quotas = {
        quota_entity([(IP, "fe80::0001")]): {"connection_creation_rate": 1.0},
        quota_entity([(IP, "localhost")]): {"connection_creation_rate": 2.0},
    }
    rates = quotas_of(Clock(0), quotas)
    assert rates.connection_creation_rate("fe80:0:0:0:0:0:0:1") == 1.0
    assert rates.connection_creation_rate("127.0.0.1") is None


def test_unknown_client_of_the_host_with_the_most_makes_room() -> None:
    ended: list[str] = []

    def connect(host: str) -> Session:
        limits.open(host)
        connected = Session(host, 1)
        limits.unknown.add(connected, lambda: ended.append(host))
        return connected

    limits = ConnectionLimits(ConnectionSettings(connections_max=8), monotonic_ms=Clock(0))
    for host in ("a", "a", "a", "b"):
        connect(host)
    assert not ended
    known = connect("b")
    assert ended == ["a"]
    limits.unknown.discard(known)
    connect("c")
    assert ended == ["a"]
    connect("c")
    assert limits.unknown.count == 4
    assert ended[1:] in (["a"], ["c"])


def test_host_leaves_a_quarter_of_the_connections_to_others() -> None:
    limits = ConnectionLimits(ConnectionSettings(connections_max=8), monotonic_ms=Clock(0))
    for _ in range(6):
        limits.open("a")
    with pytest.raises(TooManyConnectionsError, match=r"per\.ip"):
        limits.open("a")
    limits.open("b")


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf, 5e-324, 1e-9])
def test_rate_of_a_copied_log_that_no_quota_can_have_is_no_defect(rate: float) -> None:
    clock = Clock(0)
    rates = quotas_of(
        clock, {quota_entity([(IP, None)]): {"connection_creation_rate": rate}, entity("ann"): {RATE: rate}}
    )  # type: ignore[dict-item]
    limits = ConnectionLimits(ConnectionSettings(), creation_rate=rates.connection_creation_rate, monotonic_ms=clock)
    with contextlib.suppress(TooManyConnectionsError):
        limits.open("10.0.0.1")
    assert 0 <= rates.throttle(session(), "app", RATE, 10) <= 2**31 - 1
