"""The scripts of streaming queries: changes of the topics, and the runs of the queries after each.

Each step changes the broker once and then runs both queries, which keep their checkpoints from step to step. Each
script has its own topics.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from .broker_topics import FIRST_MS, STEP_MS

_EARLIEST: Final = {"startingOffsets": "earliest"}
_TOLERANT: Final = {"failOnDataLoss": "false"}


@dataclass(frozen=True, slots=True)
class Send:
    """Records to one partition, numbered on from those sent there before."""

    topic: str
    partition: int
    count: int


@dataclass(frozen=True, slots=True)
class Transaction:
    """Records to each of the first partitions; `end` is commit, abort or open. An open one is ended by `EndOpen`."""

    topic: str
    partitions: int
    count: int
    end: str


@dataclass(frozen=True, slots=True)
class EndOpen:
    end: str


@dataclass(frozen=True, slots=True)
class Create:
    topic: str
    partitions: int = 1


@dataclass(frozen=True, slots=True)
class AddPartitions:
    topic: str
    total: int


@dataclass(frozen=True, slots=True)
class DeleteRecords:
    topic: str
    partition: int
    before_offset: int


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    topic: str


Action = Send | Transaction | EndOpen | Create | AddPartitions | DeleteRecords | DeleteTopic


@dataclass(frozen=True, slots=True)
class Step:
    """`run`: now (Trigger.AvailableNow from the checkpoint), once, or live (the query goes on until the next step that
    is not live; it is waited for until it has read all there is). `is_by_batch`: rows are compared by micro-batch.
    """

    name: str
    actions: tuple[Action, ...] = ()
    run: str = "now"
    options: Mapping[str, str] = field(default_factory=dict)
    is_by_batch: bool = False


@dataclass(frozen=True, slots=True)
class Script:
    """`options` hold for all steps; those of a step for it and the later ones."""

    name: str
    options: Mapping[str, str]
    steps: tuple[Step, ...]


def stream_scripts() -> list[Script]:
    """All of them; the names of steps are unique within a script."""
    return [
        *_APPENDS,
        *_SUBSCRIPTIONS,
        *_TRANSACTIONS,
        *_LIMITS,
        *_LOSSES,
        *_starts(),
        *_bad_options(),
    ]


_APPENDS: Final = (
    Script(
        "from earliest",
        {"subscribe": "appends", **_EARLIEST, "includeHeaders": "true"},
        (
            Step("start", (Create("appends", 2), Send("appends", 0, 10), Send("appends", 1, 4)), "live"),
            Step("append to one partition", (Send("appends", 0, 5),), "live"),
            Step("append to the other", (Send("appends", 1, 5),), "live"),
            Step("nothing new", (), "live"),
            Step("partitions added", (AddPartitions("appends", 4), Send("appends", 3, 7)), "live"),
            Step("append to all", tuple(Send("appends", at, 3) for at in range(4)), "live"),
            Step("restart with nothing new"),
            Step("restart after an append", (Send("appends", 2, 6),)),
            Step("partitions added while stopped", (AddPartitions("appends", 5), Send("appends", 4, 6))),
            Step("once", (Send("appends", 0, 6),), "once"),
            Step("live again", (Send("appends", 0, 6), Send("appends", 4, 1)), "live"),
        ),
    ),
    Script(
        "from latest",
        {"subscribe": "latest"},
        (
            Step("start behind records", (Create("latest", 2), Send("latest", 0, 10)), "live"),
            Step("append", (Send("latest", 0, 5), Send("latest", 1, 2)), "live"),
            Step("partition added", (AddPartitions("latest", 3), Send("latest", 2, 4)), "live"),
            Step("restart after an append", (Send("latest", 1, 3),)),
            Step("startingOffsets changed", (Send("latest", 1, 3),), options={"startingOffsets": "earliest"}),
        ),
    ),
    Script(
        "from the latest of empty partitions",
        {"subscribe": "unfilled"},
        (
            Step("start", (Create("unfilled", 2),)),
            Step("append", (Send("unfilled", 0, 5),)),
            Step("append to both", (Send("unfilled", 0, 5), Send("unfilled", 1, 5))),
        ),
    ),
)

_SUBSCRIPTIONS: Final = (
    Script(
        "pattern",
        {"subscribePattern": "^pattern-[a-m]$", **_EARLIEST, **_TOLERANT},
        (
            Step("start", (Create("pattern-a"), Send("pattern-a", 0, 5)), "live"),
            Step("topic created that matches", (Create("pattern-b", 2), Send("pattern-b", 1, 5)), "live"),
            Step("topic created that does not match", (Create("pattern-z"), Send("pattern-z", 0, 5)), "live"),
            Step("append to all", (Send("pattern-a", 0, 2), Send("pattern-b", 0, 2), Send("pattern-z", 0, 2)), "live"),
            Step("topic created while stopped", (Create("pattern-c"), Send("pattern-c", 0, 3))),
            Step("topic deleted while stopped", (DeleteTopic("pattern-b"), Send("pattern-a", 0, 2))),
            Step("append after the deletion", (Send("pattern-a", 0, 2), Send("pattern-c", 0, 2))),
        ),
    ),
    Script(
        "assign",
        {"assign": '{"assigned":[0,2]}', **_EARLIEST},
        (
            Step("start", (Create("assigned", 3), *(Send("assigned", at, 4) for at in range(3)))),
            Step("append", tuple(Send("assigned", at, 2) for at in range(3))),
            Step("one more partition assigned", options={"assign": '{"assigned":[0,1,2]}'}),
            Step("append to all", tuple(Send("assigned", at, 2) for at in range(3))),
        ),
    ),
    Script(
        "topics added to subscribe",
        {"subscribe": "first", **_EARLIEST},
        (
            Step("start", (Create("first"), Create("second"), Send("first", 0, 4), Send("second", 0, 4))),
            Step("a topic more", (Send("first", 0, 1),), options={"subscribe": "first,second"}),
            Step("append to both", (Send("first", 0, 2), Send("second", 0, 2))),
            Step("a topic less", (Send("second", 0, 2),), options={"subscribe": "second", **_TOLERANT}),
        ),
    ),
)

_TRANSACTIONS: Final = (
    Script(
        "read committed",
        {"subscribe": "committed", "kafka.isolation.level": "read_committed", **_EARLIEST},
        (
            Step("start", (Create("committed", 2), Transaction("committed", 2, 5, "commit")), "live"),
            Step("aborted", (Transaction("committed", 2, 5, "abort"),), "live"),
            Step("open", (Transaction("committed", 2, 5, "open"),), "live"),
            Step("append behind the open one", (Send("committed", 0, 5),), "live"),
            Step("the open one is committed", (EndOpen("commit"),), "live"),
            Step(
                "committed, then open",
                (Transaction("committed", 1, 3, "commit"), Transaction("committed", 2, 2, "open")),
            ),
            Step("the open one is aborted", (EndOpen("abort"),)),
            Step("append", (Send("committed", 1, 5),)),
        ),
    ),
    Script(
        "read uncommitted",
        {"subscribe": "uncommitted", **_EARLIEST},
        (
            Step("start", (Create("uncommitted"), Transaction("uncommitted", 1, 5, "abort"))),
            Step("open", (Transaction("uncommitted", 1, 5, "open"),)),
            Step("the open one is aborted", (EndOpen("abort"),)),
            Step("append", (Send("uncommitted", 0, 5),)),
        ),
    ),
)

_LIMITS: Final = (
    Script(
        "maxOffsetsPerTrigger",
        {"subscribe": "limited", **_EARLIEST, "maxOffsetsPerTrigger": "20"},
        (
            Step(
                "start",
                (Create("limited", 3), Send("limited", 0, 50), Send("limited", 1, 20), Send("limited", 2, 3)),
                is_by_batch=True,
            ),
            Step("append", (Send("limited", 0, 30), Send("limited", 2, 30)), is_by_batch=True),
            Step("less than the limit", (Send("limited", 1, 7),), is_by_batch=True),
            Step("once reads past the limit", (Send("limited", 1, 45),), "once", is_by_batch=True),
            Step("another limit", (Send("limited", 1, 10),), options={"maxOffsetsPerTrigger": "3"}, is_by_batch=True),
            Step("live", (Send("limited", 0, 10),), "live"),
        ),
    ),
    Script(
        "minOffsetsPerTrigger",
        {"subscribe": "held", **_EARLIEST, "minOffsetsPerTrigger": "30", "maxTriggerDelay": "1h"},
        (
            Step("start below the limit", (Create("held", 2), Send("held", 0, 10)), "live"),
            Step("still below", (Send("held", 1, 15),), "live"),
            Step("reached", (Send("held", 0, 30),), "live"),
            Step("available now does not wait", (Send("held", 1, 3),)),
        ),
    ),
    Script(
        "minPartitions and maxRecordsPerPartition",
        {"subscribe": "cut", **_EARLIEST, "minPartitions": "5"},
        (
            Step("minPartitions", (Create("cut", 2), Send("cut", 0, 50), Send("cut", 1, 5)), is_by_batch=True),
            Step("maxRecordsPerPartition", (Send("cut", 1, 50),), options={"maxRecordsPerPartition": "7"}),
        ),
    ),
)

_LOSSES: Final = (
    Script(
        "records deleted, failOnDataLoss false",
        {"subscribe": "deleted", **_EARLIEST, **_TOLERANT},
        (
            Step(
                "start behind deleted records",
                (Create("deleted"), Send("deleted", 0, 20), DeleteRecords("deleted", 0, 5)),
            ),
            Step("records deleted that were read", (Send("deleted", 0, 5), DeleteRecords("deleted", 0, 15))),
            Step("records deleted that were not read", (Send("deleted", 0, 20), DeleteRecords("deleted", 0, 35))),
            Step("all deleted", (Send("deleted", 0, 5), DeleteRecords("deleted", 0, 50))),
            Step("append", (Send("deleted", 0, 5),)),
        ),
    ),
    Script(
        "records deleted, failOnDataLoss true",
        {"subscribe": "lost", **_EARLIEST},
        (
            Step("start behind deleted records", (Create("lost"), Send("lost", 0, 20), DeleteRecords("lost", 0, 5))),
            Step("records deleted that were read", (Send("lost", 0, 5), DeleteRecords("lost", 0, 15))),
            Step("records deleted that were not read", (Send("lost", 0, 20), DeleteRecords("lost", 0, 35))),
            Step("again, failOnDataLoss false", options=_TOLERANT),
            Step("append", (Send("lost", 0, 5),)),
        ),
    ),
    Script(
        "topic deleted, failOnDataLoss true",
        {"subscribePattern": "^gone-.$", **_EARLIEST},
        (
            Step("start", (Create("gone-a"), Create("gone-b"), Send("gone-a", 0, 5), Send("gone-b", 0, 5))),
            Step("topic deleted", (DeleteTopic("gone-b"), Send("gone-a", 0, 5))),
        ),
    ),
    Script(
        "topic re-created, failOnDataLoss false",
        {"subscribe": "again", **_EARLIEST, **_TOLERANT},
        (
            Step("start", (Create("again"), Send("again", 0, 20))),
            Step("re-created with less", (DeleteTopic("again"), Create("again"), Send("again", 0, 5))),
            Step("append", (Send("again", 0, 5),)),
            Step("append beyond what was read", (Send("again", 0, 25),)),
        ),
    ),
    Script(
        "topic re-created with less, failOnDataLoss true",
        {"subscribe": "replaced", **_EARLIEST},
        (
            Step("start", (Create("replaced"), Send("replaced", 0, 20))),
            Step("re-created", (DeleteTopic("replaced"), Create("replaced"), Send("replaced", 0, 5))),
        ),
    ),
)


def _starts() -> list[Script]:
    """Each way to start, then an append that a restart reads."""
    ten = FIRST_MS + 10 * STEP_MS
    late = ten + 3_600_000
    variants: dict[str, dict[str, str]] = {
        "offsets": {"startingOffsets": '{"T":{"0":5,"1":7}}'},
        "offsets -2 and -1": {"startingOffsets": '{"T":{"0":-2,"1":-1}}'},
        "offsets at the ends": {"startingOffsets": '{"T":{"0":20,"1":12}}'},
        "offset above the end": {"startingOffsets": '{"T":{"0":25,"1":12}}', **_TOLERANT},
        "timestamp": {"startingTimestamp": str(ten)},
        "timestamp after all, strategy latest": {
            "startingTimestamp": str(late),
            "startingOffsetsByTimestampStrategy": "latest",
        },
        "timestamps": {"startingOffsetsByTimestamp": json.dumps({"T": {"0": ten, "1": FIRST_MS}})},
        "timestamps over offsets": {
            "startingOffsetsByTimestamp": json.dumps({"T": {"0": ten, "1": FIRST_MS}}),
            "startingOffsets": "earliest",
        },
    }
    scripts = []
    for at, (name, options) in enumerate(variants.items()):
        topic = f"start-{at}"
        named = {option: value.replace('"T"', f'"{topic}"') for option, value in options.items()}
        create = (Create(topic, 2), Send(topic, 0, 20), Send(topic, 1, 12))
        steps = (Step("start", create), Step("append", (Send(topic, 0, 3), Send(topic, 1, 3))))
        scripts.append(Script(f"start at {name}", {"subscribe": topic, **named}, steps))
    return scripts


def _bad_options() -> list[Script]:
    """Queries that cannot start."""
    variants = {
        "endingOffsets": {"endingOffsets": "latest"},
        "endingTimestamp": {"endingTimestamp": str(FIRST_MS)},
        "a partition not named": {"startingOffsets": '{"bad":{"0":5}}'},
        "a partition too many": {"startingOffsets": '{"bad":{"0":5,"1":5,"2":5}}'},
        "a missing topic": {"subscribe": "missing"},
        "a timestamp after all": {"startingTimestamp": str(FIRST_MS + 10**9)},
        "maxOffsetsPerTrigger x": {"maxOffsetsPerTrigger": "x"},
        "min above max": {"minOffsetsPerTrigger": "10", "maxOffsetsPerTrigger": "5"},
        "maxTriggerDelay x": {"minOffsetsPerTrigger": "10", "maxTriggerDelay": "x"},
    }
    first = Step("as it should be", (Create("bad", 2), Send("bad", 0, 10)), options=_EARLIEST)
    scripts = [Script("good options", {"subscribe": "bad"}, (first,))]
    for name, options in variants.items():
        scripts.append(Script(f"bad options: {name}", {"subscribe": "bad", **options}, (Step("start"),)))
    return scripts
