"""Scripts for transactions, and for the requests that belong to no other script: SaslHandshake, versions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kafka_processes.record_scripts import batch, fetch, listed, produce
from kafka_processes.scripted_calls import Call, Name, Saved, Script, named_and_known_by_id
from pyspark_kafkalog.protocol.api import ApiKey

_X: Final = Name("x")
_P: Final = Saved("p")
_E: Final = Saved("p epoch")
#: Neither a broker nor a server gives such an id; a small one may have written to the same log with a later epoch.
_UNKNOWN_PRODUCER_ID: Final = 1 << 50


def init(
    name: str, transactional_id: Any = _X, producer_id: Any = -1, epoch: Any = -1, *, save: str = "p", **fields: Any
) -> Call:
    request = {
        "transactional_id": transactional_id,
        "transaction_timeout_ms": 60_000,
        "producer_id": producer_id,
        "producer_epoch": epoch,
    }
    kept = {save: "producer_id", f"{save} epoch": "producer_epoch"} if save else {}
    return Call(name=name, key=ApiKey.INIT_PRODUCER_ID, fields={**request, **fields}, save=kept)


def add(name: str, *partitions: int, topic: Any = None, producer_id: Any = _P, epoch: Any = _E, who: Any = _X) -> Call:
    """From version 4 on, requests of this kind are those of brokers."""
    topics = [{"name": Name("t") if topic is None else topic, "partitions": partitions}]
    one = {
        "transactional_id": who,
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "verify_only": False,
        "topics": topics,
    }
    fields = {
        "transactions": [one],
        "v3_and_below_transactional_id": who,
        "v3_and_below_producer_id": producer_id,
        "v3_and_below_producer_epoch": epoch,
        "v3_and_below_topics": topics,
    }
    return Call(name=name, key=ApiKey.ADD_PARTITIONS_TO_TXN, fields=fields)


def add_offsets(name: str, group: Any, *, producer_id: Any = _P, epoch: Any = _E, who: Any = _X) -> Call:
    fields = {"transactional_id": who, "producer_id": producer_id, "producer_epoch": epoch, "group_id": group}
    return Call(name=name, key=ApiKey.ADD_OFFSETS_TO_TXN, fields=fields)


def offsets(name: str, offset: int, *, who: Any = _X, producer_id: Any = _P, epoch: Any = _E, **fields: Any) -> Call:
    partition = {"committed_leader_epoch": 0, "committed_metadata": "note"}
    request = {
        "transactional_id": who,
        "group_id": Name("g"),
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [
            {
                **named_and_known_by_id(Name("t")),
                "partitions": [{"partition_index": 0, "committed_offset": offset, **partition}],
            }
        ],
    }
    return Call(name=name, key=ApiKey.TXN_OFFSET_COMMIT, fields={**request, **fields})


def committed_offsets(name: str, *, require_stable: bool = False) -> Call:
    topics = [{"name": Name("t"), "partition_indexes": (0,)}]
    of_group = [{**named_and_known_by_id(Name("t")), "partition_indexes": (0,)}]
    group = {"group_id": Name("g"), "member_id": None, "member_epoch": -1, "topics": of_group}
    fields = {"group_id": Name("g"), "topics": topics, "groups": [group], "require_stable": require_stable}
    return Call(name=name, key=ApiKey.OFFSET_FETCH, fields=fields)


def end(
    name: str, *, committed: bool, producer_id: Any = _P, epoch: Any = _E, who: Any = _X, save: bool = True
) -> Call:
    fields = {"transactional_id": who, "producer_id": producer_id, "producer_epoch": epoch, "committed": committed}
    return Call(name=name, key=ApiKey.END_TXN, fields=fields, save={"p ended": "producer_epoch"} if save else {})


def sent(name: str, *sequences: int, who: Any = _X, epoch: Any = _E, producer_id: Any = _P) -> Call:
    """A transactional batch of two records for the partitions 0, 1, …"""
    known = [
        batch(producer_id=producer_id, producer_epoch=epoch, base_sequence=each, is_transactional=True)
        for each in sequences
    ]
    return produce(name, *known, transactional_id=who)


def described(name: str, *transactional_ids: Any) -> Call:
    return Call(name=name, key=ApiKey.DESCRIBE_TRANSACTIONS, fields={"transactional_ids": transactional_ids or (_X,)})


def producers(name: str) -> Call:
    topics = [{"name": Name("t"), "partition_indexes": (0, 1, 9)}, {"name": "nope", "partition_indexes": (0,)}]
    return Call(name=name, key=ApiKey.DESCRIBE_PRODUCERS, fields={"topics": topics})


def transactions(name: str, **fields: Any) -> Call:
    """Other transactional ids are there, too: a filter has to choose."""
    request = {
        "state_filters": (),
        "producer_id_filters": (_P,),
        "duration_filter": -1,
        "transactional_id_pattern": None,
    }
    return Call(name=name, key=ApiKey.LIST_TRANSACTIONS, fields={**request, **fields})


_COMMITTED: Final = Script(
    name="transactions",
    topics={"t": {}, "u": {}},
    partitions=2,
    steps=(
        init("first"),
        described("before it begins"),
        end("nothing to commit", committed=True, save=False),
        init("again"),
        add("partitions", 0, 1),
        add("the same partitions", 0, 1),
        add("unknown partition", 0, 9),
        add("unknown topic", 0, topic="nope"),
        sent("batches", 0, 0),
        described("in the middle"),
        producers("in the middle"),
        transactions("in the middle"),
        fetch("uncommitted", 0, 0),
        fetch("committed, in the middle", 0, 0, isolation_level=1),
        listed("end of what is committed", -1, isolation_level=1),
        listed("end of all", -1),
        sent("gap", 10),
        sent("again the same", 0),
        add_offsets("offsets", Name("g")),
        add_offsets("offsets of an empty group", ""),
        offsets("of the transaction", 5),
        offsets("of a member that there is not", 5, member_id="m", generation_id_or_member_epoch=3),
        offsets("of no producer", 5, producer_id=-1, epoch=-1),
        offsets("of a negative producer", 5, producer_id=-5, epoch=-1),
        committed_offsets("in the middle"),
        committed_offsets("stable ones, in the middle", require_stable=True),
        end("commit", committed=True),
        described("after the commit"),
        fetch("committed", 0, 0, isolation_level=1),
        listed("end of what is committed, after the commit", -1, isolation_level=1),
        committed_offsets("after the commit", require_stable=True),
        producers("after the commit"),
        init("for another one"),
        add("for another one", 0),
        sent("to be aborted", 0),
        end("abort", committed=False),
        fetch("all after an abort", 0, 0),
        fetch("committed after an abort", 0, 0, isolation_level=1),
        fetch("committed from within the aborted", 3, 0, isolation_level=1),
        described("after the abort"),
        transactions("after the abort"),
        add("after the abort", 0),
        sent("again the aborted", 0),
        fetch("all, of which nothing is new", 0, 0),
    ),
)

_REFUSED: Final = Script(
    name="transactions refused",
    topics={"t": {}},
    partitions=2,
    steps=(
        init("timeout 0", transaction_timeout_ms=0, save=""),
        init("negative timeout", transaction_timeout_ms=-1, save=""),
        init("long timeout", transaction_timeout_ms=10**9, save=""),
        init("epoch without id", epoch=3, save=""),
        init("id without epoch", producer_id=_UNKNOWN_PRODUCER_ID, save=""),
        init("id of an unknown transaction", producer_id=_UNKNOWN_PRODUCER_ID, epoch=3, save=""),
        add("unknown transactional id", 0, who=Name("unknown"), producer_id=_UNKNOWN_PRODUCER_ID, epoch=0),
        add_offsets(
            "unknown transactional id for offsets",
            Name("g"),
            who=Name("unknown"),
            producer_id=_UNKNOWN_PRODUCER_ID,
            epoch=0,
        ),
        end(
            "unknown transactional id",
            committed=True,
            who=Name("unknown"),
            producer_id=_UNKNOWN_PRODUCER_ID,
            epoch=0,
            save=False,
        ),
        offsets(
            "unknown transactional id of offsets", 5, who=Name("unknown"), producer_id=_UNKNOWN_PRODUCER_ID, epoch=0
        ),
        described("unknown, empty", Name("unknown"), ""),
        init("first"),
        sent("not in a transaction", 0),
        add("other producer id", 0, producer_id=Saved("p", 1000)),
        add("later epoch", 0, epoch=Saved("p epoch", 5)),
        add("empty id", 0, who=""),
        end("other producer id", committed=True, producer_id=Saved("p", 1000), save=False),
        end("later epoch", committed=True, epoch=Saved("p epoch", 5), save=False),
        end("empty id", committed=True, who="", save=False),
        add_offsets("later epoch", Name("g"), epoch=Saved("p epoch", 5)),
        init("second fences the first", save="q"),
        add("fenced", 0),
        add_offsets("fenced", Name("g")),
        end("fenced", committed=True, save=False),
        offsets("fenced", 5),
        sent("fenced", 0),
        init("fenced", producer_id=_P, epoch=_E, save=""),
        init("bump by its own id", producer_id=Saved("q"), epoch=Saved("q epoch"), save="r"),
        init("bump that is repeated", producer_id=Saved("q"), epoch=Saved("q epoch"), save=""),
        init("bump from a later epoch", producer_id=Saved("q"), epoch=Saved("q epoch", 9), save=""),
        init("bump of another id", producer_id=Saved("q", 1000), epoch=0, save=""),
        add("of the newest", 0, producer_id=Saved("r"), epoch=Saved("r epoch")),
        sent("of the newest", 0, producer_id=Saved("r"), epoch=Saved("r epoch")),
        sent("to a partition that was not added", 0, 0, producer_id=Saved("r"), epoch=Saved("r epoch")),
        init("aborts what is open", save="s"),
        fetch("of all", 0, 0),
        fetch("of what is committed", 0, 0, isolation_level=1),
        end("after an abort", committed=True, producer_id=Saved("r"), epoch=Saved("r epoch"), save=False),
        sent("transactional without an id", 0, who=None, producer_id=Saved("s"), epoch=Saved("s epoch")),
        produce(
            "transactional id without a transactional batch",
            batch(producer_id=Saved("s"), producer_epoch=Saved("s epoch"), base_sequence=0),
            transactional_id=_X,
        ),
    ),
)


def _markers(
    name: str, epoch: int, *, committed: bool, producer_id: Any = 4321, topic: Any = None, coordinator_epoch: int = 3
) -> Call:
    marker = {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": committed,
        "topics": [{"name": Name("t") if topic is None else topic, "partition_indexes": (0, 7)}],
        "coordinator_epoch": coordinator_epoch,
    }
    return Call(name=name, key=ApiKey.WRITE_TXN_MARKERS, fields={"markers": [marker]})


_MARKERS: Final = Script(
    name="markers of an operator",
    topics={"t": {}},
    steps=(
        _markers("unknown producer", 0, committed=False),
        _markers("later epoch", 3, committed=True),
        _markers("earlier epoch", 1, committed=False),
        _markers("unknown topic", 4, committed=True, topic="nope"),
        _markers("no producer", -1, committed=True, producer_id=-1),
        _markers("no epoch", -1, committed=True),
        _markers("negative epoch", -3, committed=True),
        _markers("earlier coordinator", 5, committed=True, coordinator_epoch=1),
        Call(name="no markers", key=ApiKey.WRITE_TXN_MARKERS, fields={"markers": []}),
        fetch("of them", 0),
        fetch("of them, committed", 0, isolation_level=1),
        producers("of them"),
    ),
)

_LISTS: Final = Script(
    name="lists of transactions",
    steps=(
        init("one"),
        transactions("by producer"),
        transactions("by state", state_filters=("Empty",)),
        transactions("by another state", state_filters=("Ongoing",)),
        transactions("by an unknown state", state_filters=("nope", "Empty")),
        transactions("by duration", duration_filter=1),
        transactions("by pattern", transactional_id_pattern="lists-.*"),
        transactions("by another pattern", transactional_id_pattern="nope"),
        transactions("by an invalid pattern", transactional_id_pattern="("),
        transactions("by an empty pattern", transactional_id_pattern=""),
    ),
)

_OTHER: Final = Script(
    name="handshake",
    steps=(
        Call(name="without SASL", key=ApiKey.SASL_HANDSHAKE, fields={"mechanism": "PLAIN"}),
        Call(
            name="on the same connection", key=ApiKey.FIND_COORDINATOR, fields={"key": "g", "coordinator_keys": ("g",)}
        ),
        Call(
            name="APIs and features",
            key=ApiKey.API_VERSIONS,
            fields={"client_software_name": "a", "client_software_version": "1"},
        ),
        Call(
            name="name with a space",
            key=ApiKey.API_VERSIONS,
            fields={"client_software_name": "a b", "client_software_version": "1"},
        ),
        Call(
            name="empty name",
            key=ApiKey.API_VERSIONS,
            fields={"client_software_name": "", "client_software_version": "1"},
        ),
        Call(
            name="version with a slash",
            key=ApiKey.API_VERSIONS,
            fields={"client_software_name": "a", "client_software_version": "1/2"},
        ),
    ),
)

SCRIPTS: Final[Sequence[Script]] = (_COMMITTED, _REFUSED, _MARKERS, _LISTS, _OTHER)
