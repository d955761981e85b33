"""Changes to a clean history, each of which is an anomaly that the checker must find: one that cannot fail is none."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from simulations.history import COMMITTED, FinalRead, History, Outcome, Poll, Read, Send, Transaction

Mutation = Callable[[History, random.Random], History]


def _with_finals(history: History, change: Callable[[FinalRead], tuple[Read, ...]]) -> History:
    return replace(history, finals=tuple(replace(each, reads=change(each)) for each in history.finals))


def _without(history: History, values: set[str]) -> History:
    return _with_finals(history, lambda final: tuple(each for each in final.reads if each.value not in values))


def _readable(history: History) -> list[Read]:
    """What is committed in the log, but for compacted topics."""
    return [
        read
        for final in history.finals
        if final.isolation == COMMITTED and final.place[0] not in history.compacted
        for read in final.reads
    ]


def _committed(history: History, count_min: int = 1) -> list[list[Send]]:
    """The acknowledged records of committed transactions with at least so many of them."""
    sends: dict[str, list[Send]] = {}
    for send in history.sends:
        if send.transaction is not None and history.transactions[send.transaction].outcome is Outcome.DONE:
            sends.setdefault(send.transaction, []).append(send)
    return [each for each in sends.values() if len(each) >= count_min]


def lose_write(history: History, drawn: random.Random) -> History:
    acked = {each.value for each in history.sends if each.outcome is Outcome.DONE and each.transaction is None}
    return _without(history, {drawn.choice([each.value for each in _readable(history) if each.value in acked])})


def write_twice(history: History, drawn: random.Random) -> History:
    chosen = drawn.choice(_readable(history))
    last = max(each.offset for final in history.finals if final.place == chosen.place for each in final.reads)
    again = replace(chosen, offset=last + 1)
    return _with_finals(history, lambda final: (*final.reads, again) if final.place == chosen.place else final.reads)


def change_value(history: History, drawn: random.Random) -> History:
    chosen = drawn.choice(_readable(history))
    polled = Poll("somebody", COMMITTED, 1 << 62, (replace(chosen, value="another"),))
    return replace(history, observations=(*history.observations, polled))


def swap_sends(history: History, drawn: random.Random) -> History:
    """A producer's two records of a partition change their places in the log."""
    readable = {each.value: each for each in _readable(history)}
    lasts: dict[object, Send] = {}
    pairs = []
    for send in history.sends:
        if send.value in readable and send.transaction is None:
            if (send.client, send.place) in lasts:
                pairs.append((lasts[send.client, send.place], send))
            lasts[send.client, send.place] = send
    first, second = drawn.choice(pairs)
    names = {first.value: second.value, second.value: first.value}

    def swapped(final: FinalRead) -> tuple[Read, ...]:
        return tuple(replace(each, value=names.get(each.value, each.value)) for each in final.reads)

    return _with_finals(history, swapped)


def _long_polls(history: History) -> list[tuple[int, Poll]]:
    """Polls with three records or more of one partition in a row at their beginning."""
    return [
        (at, each)
        for at, each in enumerate(history.observations)
        if isinstance(each, Poll) and len(each.reads) > 2 and len({read.place for read in each.reads[:3]}) == 1
    ]


def _with_observation(history: History, at: int, changed: Poll) -> History:
    return replace(history, observations=(*history.observations[:at], changed, *history.observations[at + 1 :]))


def skip_poll(history: History, drawn: random.Random) -> History:
    final = {(each.place, each.offset) for each in _readable(history)}
    polls = [(at, poll) for at, poll in _long_polls(history) if (poll.reads[1].place, poll.reads[1].offset) in final]
    at, poll = drawn.choice(polls)
    return _with_observation(history, at, replace(poll, reads=(poll.reads[0], *poll.reads[2:])))


def turn_poll(history: History, drawn: random.Random) -> History:
    at, poll = drawn.choice(_long_polls(history))
    first, second = poll.reads[:2]
    return _with_observation(history, at, replace(poll, reads=(second, first, *poll.reads[2:])))


def abort_transaction(history: History, drawn: random.Random) -> History:
    name = drawn.choice(_committed(history))[0].transaction
    assert name is not None
    ended = Transaction(name, Outcome.FAILED, history.transactions[name].commit_ns)
    return replace(history, transactions={**history.transactions, name: ended})


def read_early(history: History, drawn: random.Random) -> History:
    visible = {each.value: each for each in _readable(history)}
    send = drawn.choice([each for sends in _committed(history) for each in sends if each.value in visible])
    assert send.transaction is not None
    commit_ns = history.transactions[send.transaction].commit_ns or 0
    polled = Poll("somebody", COMMITTED, commit_ns - 1, (visible[send.value],))
    return replace(history, observations=(*history.observations, polled))


def tear_transaction(history: History, drawn: random.Random) -> History:
    return _without(history, {drawn.choice(_committed(history, 2))[0].value})


def see_part(history: History, drawn: random.Random) -> History:
    """A snapshot holds a record of a transaction, and not another one that lies below its end."""
    readable = {each.value for each in _readable(history)}
    whole = [sends for sends in _committed(history, 2) if all(each.value in readable for each in sends)]
    transactions = {each.value: at for at, sends in enumerate(whole) for each in sends}
    chosen = []
    for at, snapshot in enumerate(history.snapshots):
        seen: dict[int, list[str]] = {}
        for read in snapshot.reads:
            if read.value in transactions:
                seen.setdefault(transactions[read.value], []).append(read.value)
        chosen += [(at, values[0]) for each, values in seen.items() if len(values) == len(whole[each])]
    at, value = drawn.choice(chosen)
    kept = tuple(each for each in history.snapshots[at].reads if each.value != value)
    changed = replace(history.snapshots[at], reads=kept)
    return replace(history, snapshots=(*history.snapshots[:at], changed, *history.snapshots[at + 1 :]))


def _copies(history: History) -> list[Send]:
    visible = {each.value for each in _readable(history)}
    return [each for each in history.sends if each.source is not None and each.value in visible]


def lose_copy(history: History, drawn: random.Random) -> History:
    return _without(history, {drawn.choice(_copies(history)).value})


def copy_twice(history: History, drawn: random.Random) -> History:
    first, second = drawn.sample(_copies(history), 2)
    sends = tuple(replace(each, source=first.source) if each is second else each for each in history.sends)
    return replace(history, sends=sends)


def hide_from_group(history: History, drawn: random.Random) -> History:
    group, topics = drawn.choice(sorted(history.subscriptions.items()))
    hidden = drawn.choice([each for each in _readable(history) if each.place[0] in topics])
    observations = tuple(
        replace(each, reads=tuple(read for read in each.reads if read != hidden))
        if isinstance(each, Poll) and each.group == group
        else each
        for each in history.observations
    )
    return replace(history, observations=observations)


def differ(history: History, drawn: random.Random) -> History:
    at = drawn.choice([at for at, each in enumerate(history.finals) if each.reads])
    final = history.finals[at]
    changed = replace(final, reads=final.reads[:-1])
    return replace(history, finals=(*history.finals[:at], changed, *history.finals[at + 1 :]))


def read_in_circle(history: History, drawn: random.Random) -> History:
    """Two transactions have each read what the other one wrote."""
    visible = {each.value: each for each in _readable(history)}
    committed = [found for sends in _committed(history) if (found := [e for e in sends if e.value in visible])]
    first, second = drawn.sample(committed, 2)
    polls = tuple(
        Poll(f"reader {at}", COMMITTED, 1 << 62, (visible[read[0].value],), transaction=by[0].transaction)
        for at, (by, read) in enumerate(((first, second), (second, first)))
    )
    return replace(history, observations=(*history.observations, *polls))


#: The anomaly that each of them makes.
MUTATIONS: Final[tuple[tuple[str, Mutation], ...]] = (
    ("lost write", lose_write),
    ("duplicate", write_twice),
    ("inconsistent offset", change_value),
    ("unknown value", change_value),
    ("non-monotonic send", swap_sends),
    ("poll skip", skip_poll),
    ("non-monotonic poll", turn_poll),
    ("aborted read", abort_transaction),
    ("intermediate read", read_early),
    ("torn transaction", tear_transaction),
    ("torn transaction", see_part),
    ("lost copy", lose_copy),
    ("doubled copy", copy_twice),
    ("unseen", hide_from_group),
    ("different reads", differ),
    ("G1c", read_in_circle),
)
