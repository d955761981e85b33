"""The checker of clients' histories: a clean one is clean, and each anomaly is found and explained."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from simulations.anomalies import Anomaly, find_anomalies
from simulations.history import (
    COMMITTED,
    UNCOMMITTED,
    FinalRead,
    History,
    Outcome,
    Poll,
    Read,
    Reset,
    Send,
    Snapshot,
    Transaction,
    load,
)
from simulations.history_mutations import MUTATIONS, Mutation

A = ("a", 0)
B = ("b", 0)
COPY = ("copy", 0)
KEYED = ("keyed", 0)


def reads(place: tuple[str, int], values: dict[int, str]) -> tuple[Read, ...]:
    return tuple(Read(place, offset, value) for offset, value in values.items())


def finals(place: tuple[str, int], uncommitted: dict[int, str], aborted: tuple[str, ...] = ()) -> list[FinalRead]:
    committed = {offset: value for offset, value in uncommitted.items() if value not in aborted}
    found = ((COMMITTED, committed), (UNCOMMITTED, uncommitted))
    return [FinalRead(who, place, kind, reads(place, values)) for who in ("x", "y") for kind, values in found]


def send(order: int, client: str, place: tuple[str, int], value: str, offset: int, **fields: str) -> Send:
    return Send(order, client, place, value, outcome=Outcome.DONE, offset=offset, **fields)  # type: ignore[arg-type]


#: A plain producer, transactions 1 (committed over two topics), 2 (aborted), 3 (copies), 4 (more of 1's producer).
CLEAN = History(
    sends=(
        send(0, "p", A, "p0", 0),
        send(1, "p", A, "p1", 1),
        send(2, "t", A, "t0", 2, transaction="1"),
        send(3, "t", B, "t1", 0, transaction="1"),
        send(4, "t", A, "t2", 4, transaction="2"),
        send(5, "p", A, "p2", 6),
        send(6, "c", COPY, "c0", 0, transaction="3", source="t1"),
        send(7, "c", COPY, "c1", 1, transaction="3", source="t3"),
        send(8, "t", B, "t3", 2, transaction="4"),
        send(9, "k", KEYED, "k0", 0, key="k"),
        send(10, "k", KEYED, "k1", 1, key="k"),
        Send(11, "p", A, "p3", outcome=Outcome.UNKNOWN),
    ),
    transactions={
        "1": Transaction("1", Outcome.DONE, 100),
        "2": Transaction("2", Outcome.FAILED),
        "3": Transaction("3", Outcome.DONE, 300),
        "4": Transaction("4", Outcome.DONE, 150),
    },
    observations=(
        Poll("r", COMMITTED, 110, reads(A, {0: "p0", 1: "p1", 2: "t0"}), "g"),
        Reset("r", (A,)),
        Poll("s", COMMITTED, 120, reads(A, {2: "t0", 6: "p2"}), "g"),
        Poll("s", COMMITTED, 160, reads(B, {0: "t1", 2: "t3"}), "g"),
        Poll("u", UNCOMMITTED, 90, reads(A, {0: "p0", 1: "p1", 2: "t0", 4: "t2", 6: "p2"})),
        Poll("c", COMMITTED, 200, reads(B, {0: "t1", 2: "t3"}), transaction="3"),
    ),
    snapshots=(
        Snapshot("w", 115, {A: 4, B: 2}, (*reads(A, {0: "p0", 1: "p1", 2: "t0"}), *reads(B, {0: "t1"}))),
        Snapshot("w", 170, {A: 7, B: 4}, (*reads(A, {6: "p2"}), *reads(B, {2: "t3"}))),
    ),
    finals=(
        *finals(A, {0: "p0", 1: "p1", 2: "t0", 4: "t2", 6: "p2"}, ("t2",)),
        *finals(B, {0: "t1", 2: "t3"}),
        *finals(COPY, {0: "c0", 1: "c1"}),
        *finals(KEYED, {1: "k1"}),
    ),
    compacted=frozenset({"keyed"}),
    copies={"b": "copy"},
    subscriptions={"g": frozenset({"a", "b"})},
)


def kinds(history: History) -> set[str]:
    return {each.kind for each in find_anomalies(history)}


def test_clean_history_has_no_anomaly() -> None:
    assert find_anomalies(CLEAN) == []
    assert find_anomalies(History()) == []


@pytest.mark.parametrize(("kind", "mutate"), MUTATIONS, ids=[mutate.__name__ for _, mutate in MUTATIONS])
def test_changed_history_has_the_anomaly(kind: str, mutate: Mutation) -> None:
    for seed in range(20):
        assert kind in kinds(mutate(CLEAN, random.Random(seed)))


def changed_finals(**values: dict[int, str]) -> History:
    places = {"a": A, "b": B, "keyed": KEYED}
    kept = [each for each in CLEAN.finals if each.place[0] not in values]
    return replace(
        CLEAN, finals=(*kept, *(each for name, found in values.items() for each in finals(places[name], found)))
    )


def test_key_without_its_last_record_is_a_lost_write() -> None:
    assert kinds(changed_finals(keyed={0: "k0"})) == {"lost write"}
    assert kinds(changed_finals(keyed={0: "k0", 1: "k1"})) == set()


def test_unknown_send_may_be_there_or_not_but_once_and_in_order() -> None:
    there = {0: "p0", 1: "p1", 2: "t0", 6: "p2", 8: "p3"}
    some = History(CLEAN.sends[:2], finals=tuple(finals(A, {0: "p0", 1: "p1"})))
    assert kinds(some) == set()
    unknown = replace(CLEAN.sends[-1], order=2)
    after = replace(some, sends=(*some.sends, unknown), finals=tuple(finals(A, {0: "p0", 1: "p1", 8: there[8]})))
    assert kinds(after) == set()
    before = replace(after, finals=tuple(finals(A, {0: "p0", 2: "p1", 1: "p3"})))
    assert "non-monotonic send" in kinds(before)


def test_unknown_commit_is_whole_or_absent() -> None:
    unknown = replace(
        CLEAN,
        transactions={**CLEAN.transactions, "1": Transaction("1", Outcome.UNKNOWN, 100)},
        observations=(),
        snapshots=(),
    )
    quiet = replace(unknown, subscriptions={}, copies={})
    assert kinds(quiet) == set()
    half = replace(quiet, finals=tuple(each for each in quiet.finals if each.place != A or each.isolation != COMMITTED))
    assert "torn transaction" in kinds(half)


def test_transaction_that_was_never_to_be_committed_is_an_aborted_read() -> None:
    found = find_anomalies(changed_finals(a={0: "p0", 1: "p1", 2: "t0", 4: "t2", 6: "p2"}))
    assert {each.kind for each in found} == {"aborted read", "poll skip", "unseen"}
    assert any("'t2' of transaction 2 at a-0 offset 4, which was never committed" in each.why for each in found)


def test_part_of_a_transaction_in_a_snapshot_is_torn_unless_another_one_holds_it_back() -> None:
    part = Snapshot("w", 115, {A: 0, B: 2}, reads(B, {0: "t1"}))
    assert kinds(replace(CLEAN, snapshots=(part,))) == set()  # p0 is at the end of what A showed
    own = replace(part, ends={A: 2, B: 2}, reads=(*reads(A, {0: "p0", 1: "p1"}), *part.reads))
    assert kinds(replace(CLEAN, snapshots=(own,))) == {"torn transaction"}


def test_new_position_is_no_skip_and_no_step_back() -> None:
    back = Poll("s", COMMITTED, 170, reads(A, {0: "p0"}))
    assert kinds(replace(CLEAN, observations=(*CLEAN.observations, back))) == {"non-monotonic poll"}
    assert kinds(replace(CLEAN, observations=(*CLEAN.observations, Reset("s", (A,)), back))) == set()


def test_interleaved_writes_are_reported_and_allowed() -> None:
    sends = tuple(
        send(at, name, place, f"{name}{place[0]}", offset, transaction=name)
        for at, (name, place, offset) in enumerate((("1", A, 0), ("2", A, 1), ("2", B, 0), ("1", B, 1)))
    )
    done = {name: Transaction(name, Outcome.DONE, 1) for name in ("1", "2")}
    history = History(sends, done, finals=(*finals(A, {0: "1a", 1: "2a"}), *finals(B, {0: "2b", 1: "1b"})))
    (found,) = find_anomalies(history)
    assert found.is_allowed
    assert found == Anomaly("G0", "2 wrote a-0 1, behind 0 of 1; 1 wrote b-0 1, behind 0 of 2")


@pytest.mark.parametrize(("client", "is_allowed"), [("librdkafka-1.t", True), ("java-1.t", False)])
def test_record_that_was_taken_for_a_purged_one_is_allowed_for_librdkafka(client: str, is_allowed: bool) -> None:
    purged = Send(0, client, A, "purged", transaction="1")
    transactions = {"1": Transaction("1"), "2": Transaction("2", Outcome.DONE, 1)}
    sends = (purged, send(1, client, A, "next", 0, transaction="2"))
    found = find_anomalies(History(sends, transactions, finals=tuple(finals(A, {0: "purged"}, ("purged",)))))
    assert (found == [Anomaly("sequence again", f"{client} sent 'next'")]) == is_allowed
    assert all(each.is_allowed for each in found) == is_allowed


def test_history_is_loaded_from_what_processes_wrote_before_they_were_killed(tmp_path: Path) -> None:
    sent = {"op": "send", "client": "t", "txn": "1", "topic": "a", "partition": 0, "key": None}
    lines = [
        {**sent, "value": "v0"},
        {**sent, "value": "v1"},
        {"op": "sent", "value": "v0", "offset": 7},
        {"op": "commit", "txn": "1", "t": 5},
        {
            "op": "poll",
            "client": "r",
            "group": "g",
            "isolation": COMMITTED,
            "txn": None,
            "t": 6,
            "records": [["a", 0, 7, "v0"]],
        },
        {"op": "reset", "client": "r", "partitions": [["a", 0]]},
        {"op": "snapshot", "client": "w", "t": 8, "partitions": [["a", 0, 9, [[7, "v0"]]]]},
        {"op": "final", "client": "x", "topic": "a", "partition": 0, "isolation": COMMITTED, "records": [[7, "v0"]]},
        {"op": "error", "client": "t"},
    ]
    file = tmp_path / "t.jsonl"
    file.write_text("".join(json.dumps(each) + "\n" for each in lines) + '{"op": "ended", "txn": "1", "comm')
    read = Read(A, 7, "v0")
    assert load([file]) == History(
        sends=(
            Send(0, "t", A, "v0", transaction="1", outcome=Outcome.DONE, offset=7),
            Send(1, "t", A, "v1", transaction="1"),
        ),
        transactions={"1": Transaction("1", Outcome.UNKNOWN, 5)},
        observations=(Poll("r", COMMITTED, 6, (read,), "g"), Reset("r", (A,))),
        snapshots=(Snapshot("w", 8, {A: 9}, (read,)),),
        finals=(FinalRead("x", A, COMMITTED, (read,)),),
    )
    for op, committed in (("true", Outcome.DONE), ("false", Outcome.FAILED)):
        file.write_text(f'{{"op": "ended", "txn": "1", "committed": {op}}}\n')
        assert load([file]).transactions["1"].outcome is committed
    file.write_text('{"op": "other", "client": "x"}\n')
    with pytest.raises(ValueError, match="other"):
        load([file])


def test_record_below_the_log_start_is_not_lost_and_one_above_it_is() -> None:
    gone, first = "p0", 0
    finals_left = tuple(
        replace(final, reads=tuple(each for each in final.reads if each.value != gone)) for final in CLEAN.finals
    )
    without = replace(CLEAN, finals=finals_left)
    assert "lost write" in {each.kind for each in find_anomalies(without)}
    assert "lost write" not in {each.kind for each in find_anomalies(replace(without, log_starts={A: first + 1}))}
    assert "lost write" in {each.kind for each in find_anomalies(replace(without, log_starts={A: first}))}
