"""Finds what a log must never do to its clients in a history of them, in the manner of Jepsen's workload for Kafka.

| anomaly | what happened |
| --- | --- |
| lost write | an acknowledged record, of no transaction or of a committed one, is not in the log |
| duplicate | a value that was sent once is at two offsets |
| inconsistent offset | two values at one offset, or a value at another offset than its producer was told |
| unknown value | a value that nobody sent |
| non-monotonic send | a producer's records of one partition are in another order than it sent them |
| non-monotonic poll | a consumer went back (internal: within one poll; external: between two) without a new position |
| poll skip | a consumer passed over a record that it should have got |
| aborted read | G1a: a record that failed, or of an aborted transaction, was read as committed |
| intermediate read | G1b: a record was read as committed before its commit was asked for |
| torn transaction | a part of a transaction is visible, another one is not |
| lost copy, doubled copy | read-process-write with offsets in the transaction left a record out, or did it twice |
| unseen | a group that was at the end of a topic had never been given a record of it |
| different reads | two complete reads of a partition, of the same isolation, differ |
| G1c | transactions that have read from each other in a circle |
| G0 | transactions whose writes lie in a circle of orders; allowed: Kafka does not isolate writes |
| sequence again | an acknowledged record was taken for one of an aborted transaction; allowed: see below |

librdkafka may purge a batch that it has sent, when it aborts a transaction, and give its sequence to the next batch.
A broker takes that for the purged one, too (test_answers.py compares).

Each finding names the few operations that show it. Sources: jepsen/redpanda and jepsen.tests.kafka of Jepsen, and its
analysis of Redpanda 21.10.1, for which of them Kafka promises to exclude.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from simulations.history import COMMITTED, UNCOMMITTED, FinalRead, History, Outcome, Place, Poll, Read, Reset, Send

#: Kinds that do not count against a log.
ALLOWED: Final = frozenset({"G0", "sequence again"})


@dataclass(frozen=True, slots=True)
class Anomaly:
    """One finding."""

    kind: str
    why: str

    @property
    def is_allowed(self) -> bool:
        return self.kind in ALLOWED

    def __str__(self) -> str:
        return f"{self.kind}: {self.why}"


def find_anomalies(history: History) -> list[Anomaly]:
    """All of them, those that are allowed at the end."""
    log = _Log.of(history)
    again = [each for each in history.sends if _has_sequence_again(each, history, log)]
    found = [Anomaly("sequence again", f"{each.client} sent {each.value!r}") for each in again]
    unknown = {each: replace(each, outcome=Outcome.UNKNOWN) for each in again}
    history = replace(history, sends=tuple(unknown.get(each, each) for each in history.sends))
    found += [anomaly for check in _CHECKS for anomaly in check(history, log)]
    return sorted(found, key=lambda each: each.is_allowed)


def _has_sequence_again(send: Send, history: History, log: _Log) -> bool:
    """Whether the place of an acknowledged record has one of librdkafka's that was purged when a transaction ended."""
    there = log.sends.get(log.values[UNCOMMITTED].get(send.place, {}).get(send.offset, ""))
    return (
        send.outcome is Outcome.DONE
        and there is not None
        and there.transaction is not None
        and there.client == send.client
        and there.client.startswith("librdkafka")
        and there.order < send.order
        and there.outcome is Outcome.UNKNOWN
        and history.transactions[there.transaction].outcome is Outcome.FAILED
    )


def _at(place: Place, offset: int) -> str:
    return f"{place[0]}-{place[1]} offset {offset}"


@dataclass(frozen=True, slots=True)
class _Log:
    """The log as the final reads have it, by isolation: of each partition the values by offset; where each value is."""

    sends: Mapping[str, Send]
    values: Mapping[str, Mapping[Place, Mapping[int, str]]]
    offsets: Mapping[str, Mapping[str, tuple[Place, int]]]

    @classmethod
    def of(cls, history: History) -> _Log:
        values: dict[str, dict[Place, dict[int, str]]] = {COMMITTED: {}, UNCOMMITTED: {}}
        for final in history.finals:
            values[final.isolation].setdefault(final.place, {read.offset: read.value for read in final.reads})
        offsets = {
            isolation: {value: (place, offset) for place, found in places.items() for offset, value in found.items()}
            for isolation, places in values.items()
        }
        return cls({each.value: each for each in history.sends}, values, offsets)

    def is_visible(self, value: str) -> bool:
        return value in self.offsets[COMMITTED]


# What is in the log


def _lost_writes(history: History, log: _Log) -> Iterator[Anomaly]:
    newest = _newest_of_keys(history, log)
    for send in history.sends:
        if send.outcome is not Outcome.DONE:
            continue
        isolation = UNCOMMITTED
        if send.transaction is None or history.transactions[send.transaction].outcome is Outcome.DONE:
            isolation = COMMITTED
        if send.value in log.offsets[isolation]:
            continue
        log_start = history.log_starts.get(send.place, 0)
        if log_start > 0 and send.offset < log_start:
            continue
        if send.place[0] in history.compacted and newest.get((send.place, send.key), -1) > send.offset:
            continue
        yield Anomaly(
            "lost write",
            f"{send.client} was told that {send.value!r} is at {_at(send.place, send.offset)}, but no {isolation} "
            f"read of the partition at the end has it (transaction {send.transaction})",
        )


def _newest_of_keys(history: History, log: _Log) -> dict[tuple[Place, str | None], int]:
    newest: dict[tuple[Place, str | None], int] = {}
    for value, (place, offset) in log.offsets[COMMITTED].items():
        send = log.sends.get(value)
        if send is not None and place[0] in history.compacted:
            newest[place, send.key] = max(offset, newest.get((place, send.key), -1))
    return newest


def _all_reads(history: History) -> Iterator[tuple[str, Read]]:
    """Everything that anybody has read, with the reader's name."""
    for each in (*history.polls(), *history.snapshots, *history.finals):
        for read in each.reads:
            yield each.client, read


def _duplicates(history: History, log: _Log) -> Iterator[Anomaly]:
    places: dict[str, dict[tuple[Place, int], str]] = defaultdict(dict)
    for client, read in _all_reads(history):
        places[read.value].setdefault((read.place, read.offset), client)
    for value, found in places.items():
        if len(found) > 1:
            where = " and ".join(f"{_at(*at)} (read by {client})" for at, client in sorted(found.items()))
            yield Anomaly("duplicate", f"{value!r}, which was sent once, is at {where}")
        if value not in log.sends:
            where = _at(*next(iter(found)))
            yield Anomaly("unknown value", f"{value!r} at {where} was sent by nobody")


def _inconsistent_offsets(history: History, log: _Log) -> Iterator[Anomaly]:
    seen: dict[tuple[Place, int], tuple[str, str]] = {}
    told = (
        (each.client, Read(each.place, each.offset, each.value))
        for each in history.sends
        if each.outcome is Outcome.DONE and each.offset >= 0
    )
    reported = set()
    for client, read in (*_all_reads(history), *told):
        at = (read.place, read.offset)
        first_client, first_value = seen.setdefault(at, (client, read.value))
        if first_value != read.value and at not in reported:
            reported.add(at)
            yield Anomaly(
                "inconsistent offset",
                f"{_at(*at)} was {first_value!r} for {first_client} and {read.value!r} for {client}",
            )
    for send in history.sends:
        found = log.offsets[UNCOMMITTED].get(send.value)
        if found is not None and send.offset >= 0 and found != (send.place, send.offset):
            yield Anomaly(
                "inconsistent offset",
                f"{send.client} was told that {send.value!r} is at {_at(send.place, send.offset)}; "
                f"it is at {_at(*found)}",
            )


def _non_monotonic_sends(history: History, log: _Log) -> Iterator[Anomaly]:
    latest: dict[tuple[str, Place], tuple[int, str]] = {}
    for send in history.sends:
        found = log.offsets[UNCOMMITTED].get(send.value)
        if found is None or found[0] != send.place:
            continue
        offset, value = latest.get((send.client, send.place), (-1, ""))
        if found[1] < offset:
            yield Anomaly(
                "non-monotonic send",
                f"{send.client} sent {value!r} before {send.value!r} to {send.place[0]}-{send.place[1]}; they are at "
                f"offsets {offset} and {found[1]}",
            )
        latest[send.client, send.place] = (found[1], send.value)


def _different_reads(history: History, log: _Log) -> Iterator[Anomaly]:
    firsts: dict[tuple[Place, str], FinalRead] = {}
    for final in history.finals:
        first = firsts.setdefault((final.place, final.isolation), final)
        if first.reads == final.reads:
            continue
        only = set(first.reads) ^ set(final.reads)
        read = min(only, key=lambda each: each.offset) if only else final.reads[0]
        yield Anomaly(
            "different reads",
            f"{_at(read.place, read.offset)} {read.value!r} is in one of two {final.isolation} reads at the end alone, "
            f"by {first.client} and {final.client} ({len(only)} such records)",
        )
    for place, committed in log.values[COMMITTED].items():
        for offset, value in committed.items():
            if log.values[UNCOMMITTED].get(place, {}).get(offset) != value:
                yield Anomaly(
                    "different reads", f"{_at(place, offset)} {value!r} is read with {COMMITTED}, but not without"
                )


# What consumers were given


def _polls(history: History, log: _Log) -> Iterator[Anomaly]:
    ordered = {
        isolation: {place: sorted(found) for place, found in places.items()} for isolation, places in log.values.items()
    }
    positions: dict[tuple[str, Place], int] = {}
    for each in history.observations:
        if isinstance(each, Reset):
            for place in each.places:
                positions.pop((each.client, place), None)
            continue
        inside: set[Place] = set()
        for read in each.reads:
            previous = positions.get((each.client, read.place))
            if previous is not None:
                where = "internal" if read.place in inside else "external"
                yield from _step(each, previous, read, where, ordered[each.isolation].get(read.place, []), log)
            inside.add(read.place)
            positions[each.client, read.place] = read.offset


def _step(poll: Poll, previous: int, read: Read, where: str, offsets: Sequence[int], log: _Log) -> Iterator[Anomaly]:
    if read.offset <= previous:
        yield Anomaly(
            "non-monotonic poll", f"{where}: {poll.client} got {_at(read.place, read.offset)} after offset {previous}"
        )
        return
    at = bisect_right(offsets, previous)
    if at < len(offsets) and offsets[at] < read.offset:
        skipped = log.values[poll.isolation][read.place][offsets[at]]
        yield Anomaly(
            "poll skip",
            f"{where}: {poll.client} ({poll.isolation}) got {_at(read.place, read.offset)} after offset {previous}, "
            f"and not {skipped!r} at {offsets[at]}",
        )


def _committed_reads(history: History) -> Iterator[tuple[str, int | None, Read]]:
    """What was read as committed: by whom, when, what."""
    for poll in history.polls():
        if poll.isolation == COMMITTED:
            for read in poll.reads:
                yield poll.client, poll.done_ns, read
    for snapshot in history.snapshots:
        for read in snapshot.reads:
            yield snapshot.client, snapshot.done_ns, read
    for final in history.finals:
        if final.isolation == COMMITTED:
            for read in final.reads:
                yield final.client, None, read


def _aborted_reads(history: History, log: _Log) -> Iterator[Anomaly]:
    for client, read in _all_reads(history):
        send = log.sends.get(read.value)
        if send is not None and send.transaction is None and send.outcome is Outcome.FAILED:
            yield Anomaly(
                "aborted read",
                f"{client} read {read.value!r}, whose send had failed, at {_at(read.place, read.offset)}",
            )
    for client, done_ns, read in _committed_reads(history):
        send = log.sends.get(read.value)
        if send is None or send.transaction is None:
            continue
        transaction = history.transactions[send.transaction]
        what = f"{client} read {read.value!r} of transaction {transaction.name} at {_at(read.place, read.offset)}"
        if transaction.outcome is Outcome.FAILED:
            why = "aborted" if transaction.commit_ns else "never committed by its producer"
            yield Anomaly("aborted read", f"{what}, which was {why}")
        elif done_ns is not None and transaction.commit_ns is not None and done_ns < transaction.commit_ns:
            early_ms = (transaction.commit_ns - done_ns) / 1e6
            yield Anomaly("intermediate read", f"{what}, {early_ms:.1f} ms before its commit was asked for")


def _unseen(history: History, log: _Log) -> Iterator[Anomaly]:
    seen: dict[str, set[tuple[Place, int]]] = defaultdict(set)
    for poll in history.polls():
        if poll.group is not None:
            seen[poll.group].update((read.place, read.offset) for read in poll.reads)
    for group, topics in history.subscriptions.items():
        for value, (place, offset) in log.offsets[COMMITTED].items():
            if place[0] in topics and (place, offset) not in seen[group]:
                yield Anomaly("unseen", f"no member of group {group} was ever given {value!r} at {_at(place, offset)}")


# Transactions


def _torn_transactions(history: History, log: _Log) -> Iterator[Anomaly]:
    sends = _sends_of_transactions(history)
    for name, of_transaction in sends.items():
        if history.transactions[name].outcome is Outcome.FAILED:
            continue  # what is visible of it is an aborted read
        kept = [each for each in of_transaction if each.place[0] not in history.compacted]
        visible = [each for each in kept if log.is_visible(each.value)]
        missing = [each for each in kept if not log.is_visible(each.value) and each.outcome is not Outcome.FAILED]
        if visible and missing:
            yield Anomaly(
                "torn transaction",
                f"of {name} {visible[0].value!r} in {visible[0].place} is visible at the end, and "
                f"{missing[0].value!r} in {missing[0].place} is not",
            )
    yield from _torn_snapshots(history, log, sends)


def _sends_of_transactions(history: History) -> dict[str, list[Send]]:
    sends: dict[str, list[Send]] = defaultdict(list)
    for send in history.sends:
        if send.transaction is not None:
            sends[send.transaction].append(send)
    return sends


def _torn_snapshots(history: History, log: _Log, sends: Mapping[str, list[Send]]) -> Iterator[Anomaly]:
    """A snapshot that has a part of a transaction has all of it, but for what lies above another open transaction."""
    seen: dict[str, set[str]] = defaultdict(set)
    for snapshot in history.snapshots:
        of_client = seen[snapshot.client]
        of_client.update(read.value for read in snapshot.reads)
        touched = {
            send.transaction
            for read in snapshot.reads
            if (send := log.sends.get(read.value)) is not None and send.transaction is not None
        }
        for name in touched:
            for send in sends[name]:
                found = log.offsets[COMMITTED].get(send.value)
                if found is None or found[0] not in snapshot.ends or send.value in of_client:
                    continue
                place, offset = found
                end_offset = snapshot.ends[place]
                holder = log.values[UNCOMMITTED][place].get(end_offset)
                is_held = offset >= end_offset and (holder is None or log.sends[holder].transaction != name)
                if not is_held:
                    yield Anomaly(
                        "torn transaction",
                        f"{snapshot.client} saw a part of {name}, but not {send.value!r} at {_at(place, offset)}, "
                        f"with the last stable offset {end_offset}",
                    )


def _copies(history: History, log: _Log) -> Iterator[Anomaly]:
    copied: dict[str, list[str]] = defaultdict(list)
    for value in log.offsets[COMMITTED]:
        send = log.sends.get(value)
        if send is not None and send.source is not None:
            copied[send.source].append(value)
    for source, values in copied.items():
        if len(values) > 1:
            yield Anomaly(
                "doubled copy", f"{source!r} was copied as {values[0]!r} and as {values[1]!r}, both committed"
            )
        if not log.is_visible(source):
            yield Anomaly("aborted read", f"{values[0]!r} is a committed copy of {source!r}, which is not committed")
    for source, (place, offset) in log.offsets[COMMITTED].items():
        if place[0] in history.copies and source not in copied:
            yield Anomaly("lost copy", f"{source!r} at {_at(place, offset)} has no committed copy")


def _cycles(history: History, log: _Log) -> Iterator[Anomaly]:
    committed = {name for name, each in history.transactions.items() if each.outcome is not Outcome.FAILED}
    reads: dict[str, dict[str, str]] = defaultdict(dict)
    writes: dict[str, dict[str, str]] = defaultdict(dict)
    for poll in history.polls():
        for read in poll.reads:
            send = log.sends.get(read.value)
            writer = send.transaction if send is not None else None
            if poll.transaction in committed and writer in committed and writer != poll.transaction:
                reads[writer].setdefault(poll.transaction, f"read {read.value!r} of")
    for place, values in log.values[COMMITTED].items():
        writers = [
            (offset, transaction)
            for offset, value in sorted(values.items())
            if value in log.sends and (transaction := log.sends[value].transaction) is not None
        ]
        for (before, first), (after, second) in pairwise(writers):
            if first != second:
                writes[first].setdefault(second, f"wrote {place[0]}-{place[1]} {after}, behind {before} of")
    for kind, edges in (("G1c", reads), ("G0", writes)):
        cycle = _shortest_cycle(edges)
        if cycle:
            steps = "; ".join(f"{after} {edges[before][after]} {before}" for before, after in pairwise(cycle))
            yield Anomaly(kind, steps)


def _shortest_cycle(edges: Mapping[str, Mapping[str, str]]) -> list[str]:
    """A cycle that begins and ends with the same node and is as short as any through that node; [] without one."""
    for start in _on_cycles(edges):
        previous: dict[str, str] = {}
        waiting = deque([start])
        while waiting:
            node = waiting.popleft()
            for following in edges.get(node, ()):
                if following == start:
                    path = [start, node]
                    while path[-1] != start:
                        path.append(previous[path[-1]])
                    return path[::-1]
                if following not in previous:
                    previous[following] = node
                    waiting.append(following)
    return []


def _on_cycles(edges: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Nodes that are left when those without a predecessor are taken away again and again: a cycle leads to each."""
    into = Counter(following for each in edges.values() for following in each)
    waiting = deque(node for node in edges if not into[node])
    gone = set(waiting)
    while waiting:
        for following in edges.get(waiting.popleft(), ()):
            into[following] -= 1
            if not into[following]:
                gone.add(following)
                waiting.append(following)
    return [node for node in edges if node not in gone]


_CHECKS: Final[tuple[Callable[[History, _Log], Iterator[Anomaly]], ...]] = (
    _lost_writes,
    _duplicates,
    _inconsistent_offsets,
    _non_monotonic_sends,
    _different_reads,
    _polls,
    _aborted_reads,
    _unseen,
    _torn_transactions,
    _copies,
    _cycles,
)
