"""What clients of a log did and saw, as they noted it themselves: the input of the checker in simulations/anomalies.py.

Each process of clients appends JSON lines to a file of its own, a line before it asks for something and one after the
answer, so a process that is killed leaves what it knew. Times are of the machine's monotonic clock, in nanoseconds.
Every value is sent once: a client that tries again sends another value.

    {"op": "send", "client": C, "txn": T or null, "topic", "partition", "key", "value", "source": V or null}
    {"op": "sent", "value": V, "offset": O}         it was acknowledged; -1 is an offset that the client was not told
    {"op": "failed", "value": V}                    it was certainly not written; without a line nobody knows
    {"op": "commit", "txn": T, "t": NS}             the commit is asked for; before that it cannot be committed
    {"op": "ended", "txn": T, "committed": B}       the answer; without one after `commit` nobody knows
    {"op": "poll", "client": C, "group": G or null, "isolation", "txn", "t": NS,
     "records": [[topic, partition, offset, value]]}
    {"op": "reset", "client": C, "partitions": [[topic, partition]]}    the client goes on at another position
    {"op": "snapshot", "client": C, "t": NS, "partitions": [[topic, partition, end_offset, [[offset, value]]]]}
    {"op": "final", "client": C, "topic", "partition", "isolation", "records": [[offset, value]]}

`source` is the value of which a send is the copy. A snapshot is a read_committed read of several partitions as of one
moment; it holds what is new since the client's last one, below the last stable offset `end_offset`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, Final

COMMITTED: Final = "read_committed"
UNCOMMITTED: Final = "read_uncommitted"

#: Lines for whoever looks for the cause of a finding.
_REMARKS: Final = ("error", "finished", "broken", "maintained")

#: Topic and partition.
Place = tuple[str, int]


class Outcome(Enum):
    """What is known of a send or of a transaction."""

    DONE = "done"  # acknowledged; committed
    FAILED = "failed"  # certainly not written; aborted, or its commit was never asked for
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Send:
    """One record that a producer was given. `order` counts the sends of the history's files."""

    order: int
    client: str
    place: Place
    value: str
    key: str | None = None
    transaction: str | None = None
    source: str | None = None
    outcome: Outcome = Outcome.UNKNOWN
    offset: int = -1


@dataclass(frozen=True, slots=True)
class Transaction:
    """Its commit was asked for at `commit_ns`, if ever."""

    name: str
    outcome: Outcome = Outcome.FAILED
    commit_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """A record as a client got it."""

    place: Place
    offset: int
    value: str


@dataclass(frozen=True, slots=True)
class Poll:
    """What a consumer was given at once, in this order."""

    client: str
    isolation: str
    done_ns: int
    reads: tuple[Read, ...]
    group: str | None = None
    transaction: str | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """The client's position in these partitions is a new one: assigned, taken away or sought."""

    client: str
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Several partitions as of one moment."""

    client: str
    done_ns: int
    ends: Mapping[Place, int]
    reads: tuple[Read, ...]


@dataclass(frozen=True, slots=True)
class FinalRead:
    """A partition from its start to its end, when nobody wrote any more."""

    client: str
    place: Place
    isolation: str
    reads: tuple[Read, ...]


@dataclass(frozen=True, slots=True)
class History:
    """Everything that was noted, and what the topics are for.

    compacted: topics that may lose a record for which there is a later one of its key
    copies: topics of which each committed record is copied once, to another topic
    subscriptions: the topics that each group reads to their ends
    log_starts: where partitions begin whose older records were deleted
    """

    sends: tuple[Send, ...] = ()
    transactions: Mapping[str, Transaction] = field(default_factory=dict)
    observations: tuple[Poll | Reset, ...] = ()
    snapshots: tuple[Snapshot, ...] = ()
    finals: tuple[FinalRead, ...] = ()
    compacted: frozenset[str] = frozenset()
    copies: Mapping[str, str] = field(default_factory=dict)
    subscriptions: Mapping[str, frozenset[str]] = field(default_factory=dict)
    log_starts: Mapping[Place, int] = field(default_factory=dict)

    def polls(self) -> Iterator[Poll]:
        for each in self.observations:
            if isinstance(each, Poll):
                yield each

    def counts(self) -> dict[str, int]:
        """How much of everything there is, for the summary of a run."""
        sends = Counter(f"sends {each.outcome.value}" for each in self.sends)
        ends = Counter(f"transactions {each.outcome.value}" for each in self.transactions.values())
        polls = list(self.polls())
        return {
            **sends,
            **ends,
            "polls": len(polls),
            "records polled": sum(len(each.reads) for each in polls),
            "snapshots": len(self.snapshots),
        }


def load(files: Iterable[Path]) -> History:
    """The history of the processes that wrote `files`. A last line without its end is one that a kill cut off."""
    building = _Building()
    for file in files:
        for line in file.read_text().split("\n")[:-1]:
            building.add(json.loads(line))
    return History(
        tuple(building.sends.values()),
        building.transactions,
        tuple(building.observations),
        tuple(building.snapshots),
        tuple(building.finals),
    )


class _Building:
    def __init__(self) -> None:
        self.sends: dict[str, Send] = {}
        self.transactions: dict[str, Transaction] = {}
        self.observations: list[Poll | Reset] = []
        self.snapshots: list[Snapshot] = []
        self.finals: list[FinalRead] = []

    def add(self, line: dict[str, Any]) -> None:
        op = line["op"]
        if op in ("send", "sent", "failed"):
            self._add_send(op, line)
        elif op in ("commit", "ended"):
            self._add_end(op, line)
        else:
            self._add_read(op, line)

    def _add_send(self, op: str, line: dict[str, Any]) -> None:
        value, transaction = line["value"], line.get("txn")
        if op != "send":
            outcome = Outcome.DONE if op == "sent" else Outcome.FAILED
            self.sends[value] = replace(self.sends[value], outcome=outcome, offset=line.get("offset", -1))
            return
        if value in self.sends:
            raise ValueError(f"{value!r} was sent twice by the clients themselves")
        if transaction is not None:
            self.transactions.setdefault(transaction, Transaction(transaction))
        self.sends[value] = Send(
            len(self.sends),
            line["client"],
            (line["topic"], line["partition"]),
            value,
            line.get("key"),
            transaction,
            line.get("source"),
        )

    def _add_end(self, op: str, line: dict[str, Any]) -> None:
        name = line["txn"]
        known = self.transactions.get(name, Transaction(name))
        if op == "commit":
            known = replace(known, outcome=Outcome.UNKNOWN, commit_ns=line["t"])
        else:
            known = replace(known, outcome=Outcome.DONE if line["committed"] else Outcome.FAILED)
        self.transactions[name] = known

    def _add_read(self, op: str, line: dict[str, Any]) -> None:
        client = line["client"]
        if op == "poll":
            reads = tuple(Read((topic, at), offset, value) for topic, at, offset, value in line["records"])
            poll = Poll(client, line["isolation"], line["t"], reads, line.get("group"), line.get("txn"))
            self.observations.append(poll)
        elif op == "reset":
            self.observations.append(Reset(client, tuple((topic, at) for topic, at in line["partitions"])))
        elif op == "snapshot":
            parts = line["partitions"]
            ends = {(topic, at): end for topic, at, end, _ in parts}
            seen = tuple(Read((topic, at), offset, value) for topic, at, _, rows in parts for offset, value in rows)
            self.snapshots.append(Snapshot(client, line["t"], ends, seen))
        elif op == "final":
            place = (line["topic"], line["partition"])
            found = tuple(Read(place, offset, value) for offset, value in line["records"])
            self.finals.append(FinalRead(client, place, line["isolation"], found))
        elif op not in _REMARKS:
            raise ValueError(f"unknown operation {op!r}")
