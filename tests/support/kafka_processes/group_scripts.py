"""Scripts for the requests about groups: the classic protocol, the one of KIP-848, offsets, descriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kafka_processes.record_scripts import UNKNOWN_ID
from kafka_processes.scripted_calls import (
    Answer,
    Assigned,
    Call,
    Name,
    Saved,
    Script,
    Subscription,
    TopicId,
    named_and_known_by_id,
)
from pyspark_kafkalog.protocol.api import APIS, ApiKey

_G: Final = Name("g")
_SAVED: Final = Saved("m")


def _since(key: ApiKey, version: int) -> range:
    return range(version, APIS[key].versions.stop)


#: The versions of the classic protocol whose requests can name an instance.
_WITH_INSTANCES: Final = {
    ApiKey.JOIN_GROUP: _since(ApiKey.JOIN_GROUP, 5),
    ApiKey.SYNC_GROUP: _since(ApiKey.SYNC_GROUP, 3),
    ApiKey.HEARTBEAT: _since(ApiKey.HEARTBEAT, 3),
    ApiKey.LEAVE_GROUP: _since(ApiKey.LEAVE_GROUP, 3),
    ApiKey.OFFSET_COMMIT: _since(ApiKey.OFFSET_COMMIT, 7),
}
#: The versions in which a member that joins without an id gets one first (KIP-394), and those in which it is a member.
_ID_FIRST: Final = {ApiKey.JOIN_GROUP: _since(ApiKey.JOIN_GROUP, 4)}
_MEMBER_AT_ONCE: Final = {ApiKey.JOIN_GROUP: range(4)}


def join(
    name: str,
    member: Any = "",
    *,
    save: str = "m",
    instance: str | None = None,
    protocols: Sequence[tuple[str, bytes]] = (("range", b"one"), ("roundrobin", b"two")),
    connection: str = "a",
    late: bool = False,
    **fields: Any,
) -> Call:
    request = {
        "group_id": _G,
        "session_timeout_ms": 30_000,
        "rebalance_timeout_ms": 30_000,
        "member_id": member,
        "group_instance_id": instance,
        "protocol_type": "consumer",
        "protocols": [{"name": each, "metadata": data} for each, data in protocols],
        "reason": "why",
    }
    kept = {} if late or not save else {save: "member_id", f"{save} generation": "generation_id"}
    return Call(
        name=name, key=ApiKey.JOIN_GROUP, fields={**request, **fields}, save=kept, connection=connection, late=late
    )


def sync(
    name: str,
    member: Any = _SAVED,
    *assignments: tuple[Any, bytes],
    generation: Any = None,
    instance: str | None = None,
    connection: str = "a",
    late: bool = False,
    **fields: Any,
) -> Call:
    request = {
        "group_id": _G,
        "generation_id": Saved("m generation") if generation is None else generation,
        "member_id": member,
        "group_instance_id": instance,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": each, "assignment": data} for each, data in assignments],
    }
    return Call(name=name, key=ApiKey.SYNC_GROUP, fields={**request, **fields}, connection=connection, late=late)


def heartbeat(
    name: str, member: Any = _SAVED, generation: Any = None, instance: str | None = None, group: Any = _G
) -> Call:
    fields = {
        "group_id": group,
        "generation_id": Saved("m generation") if generation is None else generation,
        "member_id": member,
        "group_instance_id": instance,
    }
    return Call(name=name, key=ApiKey.HEARTBEAT, fields=fields)


def leave(name: str, *members: tuple[Any, str | None], group: Any = _G) -> Call:
    listed = [{"member_id": each, "group_instance_id": instance, "reason": "bye"} for each, instance in members]
    member = members[0][0] if members else ""
    return Call(name=name, key=ApiKey.LEAVE_GROUP, fields={"group_id": group, "member_id": member, "members": listed})


def commit(
    name: str,
    *offsets: int,
    group: Any = _G,
    member: Any = "",
    generation: Any = -1,
    instance: str | None = None,
    topic: Any = None,
    metadata: str | None = "note",
) -> Call:
    """Offsets of the partitions 0, 1, …"""
    partitions = [
        {"partition_index": at, "committed_offset": each, "committed_leader_epoch": 0, "committed_metadata": metadata}
        for at, each in enumerate(offsets)
    ]
    fields = {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member,
        "group_instance_id": instance,
        "retention_time_ms": -1,
        "topics": [{**named_and_known_by_id(Name("t") if topic is None else topic), "partitions": partitions}],
    }
    return Call(name=name, key=ApiKey.OFFSET_COMMIT, fields=fields)


_ALL: Final = ((Name("t"), (0, 1, 7)),)


def committed(
    name: str, group: Any = _G, topics: Sequence[tuple[Any, Sequence[int]]] | None = _ALL, **member: Any
) -> Call:
    """All offsets of the group if there are no `topics`."""
    listed = None if topics is None else [{"name": each, "partition_indexes": at} for each, at in topics]
    of_group = None
    if topics is not None:
        of_group = [{**named_and_known_by_id(each), "partition_indexes": at} for each, at in topics]
    groups = [{"group_id": group, "member_id": None, "member_epoch": -1, **member, "topics": of_group}]
    fields = {"group_id": group, "topics": listed, "groups": groups, "require_stable": False}
    return Call(name=name, key=ApiKey.OFFSET_FETCH, fields=fields)


def offsets_deleted(name: str, *topics: tuple[Any, int], group: Any = _G) -> Call:
    listed = [{"name": each, "partitions": [{"partition_index": at}]} for each, at in topics]
    return Call(name=name, key=ApiKey.OFFSET_DELETE, fields={"group_id": group, "topics": listed})


def described(name: str, *groups: Any, operations: bool = False) -> Call:
    fields = {"groups": groups or (_G,), "include_authorized_operations": operations}
    return Call(name=name, key=ApiKey.DESCRIBE_GROUPS, fields=fields)


def groups_deleted(name: str, *groups: Any) -> Call:
    return Call(name=name, key=ApiKey.DELETE_GROUPS, fields={"groups_names": groups})


_ONE_MEMBER: Final = Script(
    name="group of one member",
    topics={"t": {}},
    partitions=2,
    steps=(
        heartbeat("to an unknown group", "m", 1),
        sync("in an unknown group", "m", generation=1),
        leave("an unknown group", ("m", None)),
        commit("offsets of a member of an unknown group", 5, member="m", generation=1),
        described("an unknown group"),
        join("an unknown member of an unknown group", "m", save=""),
        join("first time"),
        join("with the id", _SAVED),
        described("before the leader has assigned"),
        heartbeat("before the leader has assigned"),
        commit("before the leader has assigned", 4, member=_SAVED, generation=Saved("m generation")),
        sync("later generation", _SAVED, generation=Saved("m generation", 1)),
        sync("another protocol", _SAVED, protocol_name="sticky"),
        sync("another protocol type", _SAVED, protocol_type="connect"),
        sync("unknown member", "m"),
        sync("no protocol", _SAVED, protocol_name=None),
        sync("no protocol type", _SAVED, protocol_type=None),
        sync("assignment", _SAVED, (_SAVED, b"all")),
        sync("assignment again", _SAVED),
        heartbeat("of the member"),
        heartbeat("later generation", generation=Saved("m generation", 1)),
        heartbeat("earlier generation", generation=Saved("m generation", -1)),
        heartbeat("unknown member", "m"),
        heartbeat("empty member", ""),
        heartbeat("empty group", group=""),
        heartbeat("unknown instance", instance="i"),
        commit("of the member", 3, 4, member=_SAVED, generation=Saved("m generation")),
        commit("later generation", 5, member=_SAVED, generation=Saved("m generation", 1)),
        commit("unknown member", 5, member="m", generation=Saved("m generation")),
        commit("no member of a live group", 5),
        commit("no member, but a generation", 5, generation=1),
        commit("unknown topic", 5, topic="nope", member=_SAVED, generation=Saved("m generation")),
        commit("unknown partition", 5, 6, 7, member=_SAVED, generation=Saved("m generation")),
        commit("long metadata", 5, member=_SAVED, generation=Saved("m generation"), metadata="x" * 5000),
        commit("null metadata", 6, member=_SAVED, generation=Saved("m generation"), metadata=None),
        commit("negative offset", -1, -5, member=_SAVED, generation=Saved("m generation")),
        commit("no partitions", member=_SAVED, generation=Saved("m generation")),
        committed("of the group"),
        committed("all of the group", topics=None),
        committed("unknown member", member_id="m", member_epoch=1),
        offsets_deleted("of a live group", (Name("t"), 0)),
        groups_deleted("a live group", _G),
        described("stable"),
        described("operations", operations=True),
        join("another protocol type", protocol_type="connect", save=""),
        join("no common protocol", protocols=(("sticky", b""),), save=""),
        join("no protocols", protocols=(), save=""),
        join("no protocol type", protocol_type="", save=""),
        join("short session", session_timeout_ms=10, save=""),
        join("long session", session_timeout_ms=10_000_000, save=""),
        join("unknown member", "m", save=""),
        join("empty group", group_id="", save=""),
        join("again, without a change", _SAVED),
        sync("again", _SAVED, (_SAVED, b"all again")),
        join("again, with a change", _SAVED, protocols=(("range", b"new"),)),
        sync("after the change", _SAVED, (_SAVED, b"more"), ("stranger", b"none")),
        described("after the change"),
        leave("an unknown member", ("m", None)),
        leave("nobody"),
        leave("the member", (_SAVED, None)),
        heartbeat("after it has left"),
        described("empty"),
        commit("no member of an empty group", 8),
        commit("a member of an empty group", 8, member=_SAVED, generation=Saved("m generation")),
        offsets_deleted("of an empty group", (Name("t"), 0), ("nope", 0)),
        offsets_deleted("unknown partition", (Name("t"), 9)),
        committed("after the deletion"),
        groups_deleted("an empty group, an unknown one", _G, Name("unknown")),
        described("a deleted group"),
        committed("of a deleted group"),
    ),
)

_TWO_INSTANCES: Final = Script(
    name="group of two members with instances",
    versions=_WITH_INSTANCES,
    steps=(
        join("first", instance="one"),
        sync("first alone", _SAVED, (_SAVED, b"all"), instance="one"),
        join("second", instance="two", connection="b", late=True),
        heartbeat("first learns of the second", instance="one"),
        described("while members join"),
        sync("first while members join", instance="one"),
        join("first again", _SAVED, instance="one"),
        Answer(name="second", connection="b", save={"n": "member_id", "n generation": "generation_id"}),
        sync("second", Saved("n"), instance="two", connection="b", late=True),
        sync("both", _SAVED, (_SAVED, b"first"), (Saved("n"), b"second"), instance="one"),
        Answer(name="second", connection="b"),
        described("of two"),
        heartbeat("second", Saved("n"), instance="two"),
        heartbeat("second as the first", Saved("n"), instance="one"),
        leave("both and another", (_SAVED, "one"), (Saved("n"), "two"), ("o", "three")),
        described("nobody is left"),
    ),
)

_TWO: Final = (
    heartbeat("first learns of the second"),
    described("while members join"),
    sync("first while members join"),
    join("first again", _SAVED),
    Answer(name="second", connection="b", save={"n": "member_id", "n generation": "generation_id"}),
    sync("second", Saved("n"), connection="b", late=True),
    sync("both", _SAVED, (_SAVED, b"first"), (Saved("n"), b"second")),
    Answer(name="second", connection="b"),
    described("of two"),
    heartbeat("second", Saved("n")),
    leave("second", (Saved("n"), None)),
    heartbeat("first learns that it is alone"),
    join("first alone again", _SAVED),
    leave("first", (_SAVED, None)),
    described("nobody is left"),
)

_TWO_WITH_IDS_FIRST: Final = Script(
    name="group of two members",
    versions=_ID_FIRST,
    steps=(
        join("first gets an id"),
        join("first", _SAVED),
        sync("first alone", _SAVED, (_SAVED, b"all")),
        join("second gets an id", save="n", connection="b"),
        join("second", Saved("n"), connection="b", late=True),
        *_TWO,
    ),
)

_TWO_AT_ONCE: Final = Script(
    name="group of two members that join without an id",
    versions=_MEMBER_AT_ONCE,
    steps=(
        join("first"),
        sync("first alone", _SAVED, (_SAVED, b"all")),
        join("second", connection="b", late=True),
        *_TWO,
    ),
)

_STATIC: Final = Script(
    name="static members",
    topics={"t": {}},
    versions=_WITH_INSTANCES,
    steps=(
        join("first", instance="i"),
        sync("first", _SAVED, (_SAVED, b"all"), instance="i"),
        heartbeat("with the instance", instance="i"),
        heartbeat("with another instance", instance="j"),
        join("unknown id of a known instance", "m", instance="i", save=""),
        join("same instance again", instance="i", save="n"),
        heartbeat("the old id is fenced", instance="i"),
        commit("by the old id", 3, member=_SAVED, generation=Saved("m generation"), instance="i"),
        sync("by the old id", _SAVED, instance="i"),
        heartbeat("the new id", Saved("n"), instance="i"),
        leave("by the old id", (_SAVED, "i")),
        described("static"),
        leave("by the instance", ("", "i")),
        described("gone"),
        join("bad instance", instance="a b", save=""),
    ),
)

_SIMPLE: Final = Script(
    name="offsets without members",
    topics={"t": {}},
    partitions=2,
    steps=(
        committed("of an unknown group"),
        committed("all of an unknown group", topics=None),
        commit("first", 1, 2),
        committed("found"),
        committed("all", topics=None),
        committed("unknown topic", topics=(("nope", (0,)),)),
        committed("no topics", topics=()),
        committed("empty group", group=""),
        committed("a member that there is not", member_id="m", member_epoch=3),
        commit("unknown topic", 1, topic="nope"),
        commit("no topic", 1, topic=""),
        commit("empty group", 1, group=""),
        described("without members"),
        heartbeat("to a group without members", "m", 1),
        offsets_deleted("one", (Name("t"), 0)),
        offsets_deleted("unknown group", (Name("t"), 0), group=Name("unknown")),
        offsets_deleted("empty group", (Name("t"), 0), group=""),
        committed("what is left", topics=None),
        groups_deleted("it", _G),
        groups_deleted("twice, and an empty name", _G, _G, ""),
        described("several", Name("x"), Name("y"), ""),
    ),
)


def beat(
    name: str,
    epoch: Any,
    member: Any = "memberone",
    *,
    subscribed: Sequence[Any] | None = None,
    owned: Sequence[Mapping[str, Any]] | None = None,
    rebalance_timeout_ms: int = -1,
    save: str = "",
    save_epoch: str = "",
    **fields: Any,
) -> Call:
    request = {
        "group_id": _G,
        "member_id": member,
        "member_epoch": epoch,
        "rebalance_timeout_ms": rebalance_timeout_ms,
        "subscribed_topic_names": subscribed,
        "topic_partitions": owned,
        "instance_id": None,
    }
    kept = {save: "member_id"} if save else {}
    if save_epoch:
        kept[save_epoch] = "member_epoch"
    return Call(name=name, key=ApiKey.CONSUMER_GROUP_HEARTBEAT, fields={**request, **fields}, save=kept)


def consumers(name: str, *groups: Any, operations: bool = False) -> Call:
    fields = {"group_ids": groups or (_G,), "include_authorized_operations": operations}
    return Call(name=name, key=ApiKey.CONSUMER_GROUP_DESCRIBE, fields=fields)


def _joined(name: str, member: str = "memberone", **fields: Any) -> Call:
    return beat(name, 0, member, subscribed=(Name("t"),), owned=(), rebalance_timeout_ms=30_000, **fields)


_OWNED: Final = ({"topic_id": TopicId("t"), "partitions": (0, 1, 2, 3)},)

#: That of the first member: a broker of Kafka 4.4 begins groups with another one than earlier ones.
_EPOCH: Final = Saved("epoch")

_CONSUMER: Final = Script(
    name="consumer protocol",
    topics={"t": {}},
    partitions=4,
    steps=(
        consumers("an unknown group"),
        beat("unknown group", 3),
        beat("to leave an unknown group", -1),
        _joined("empty member", "", save="e"),
        beat("the one that got an id leaves", -1, Saved("e")),
        _joined("empty group", group_id=""),
        beat("no subscription", 0, owned=(), rebalance_timeout_ms=30_000),
        beat("no timeout", 0, subscribed=(Name("t"),), owned=()),
        beat(
            "partitions are owned at the start", 0, subscribed=(Name("t"),), owned=_OWNED, rebalance_timeout_ms=30_000
        ),
        beat("null partitions at the start", 0, subscribed=(Name("t"),), rebalance_timeout_ms=30_000),
        _joined("unknown assignor", server_assignor="nope"),
        _joined("empty rack", rack_id=""),
        beat("epoch -3", -3),
        beat("epoch -2 without an instance", -2),
        _joined("first member", save_epoch="epoch"),
        beat("owns its partitions", _EPOCH, owned=_OWNED),
        beat("nothing new", _EPOCH),
        beat("later epoch", 7),
        beat("earlier epoch", 0, owned=()),
        consumers("of one"),
        consumers("operations", operations=True),
        described("by the classic request"),
        heartbeat("by the classic protocol", "memberone", _EPOCH),
        commit("of the member", 5, member="memberone", generation=_EPOCH),
        commit("unknown member", 5, member="nobody", generation=_EPOCH),
        commit("wrong epoch", 5, member="memberone", generation=9),
        commit("no member of a live group", 5),
        committed("of the group"),
        committed("by the member", member_id="memberone", member_epoch=_EPOCH),
        committed("by the member, wrong epoch", member_id="memberone", member_epoch=9),
        committed("by nobody", member_id="nobody", member_epoch=_EPOCH),
        groups_deleted("a live group", _G),
        offsets_deleted("of a live group", (Name("t"), 0)),
        _joined("second member", "membertwo"),
        beat("first has to give up partitions", _EPOCH, owned=_OWNED),
        consumers("while partitions move"),
        beat("to leave", -1, "membertwo"),
        beat("to leave again", -1, "membertwo"),
        beat("unknown member", _EPOCH, "nobody"),
        beat("first leaves", -1),
        consumers("empty"),
        committed("of the empty group"),
        groups_deleted("an empty group", _G),
        consumers("deleted, and an empty name", _G, ""),
    ),
)

_CONSUMER_STATIC: Final = Script(
    name="static members of the consumer protocol",
    topics={"t": {}},
    partitions=2,
    steps=(
        _joined("first", instance_id="i"),
        _joined("another member with the instance", "membertwo", instance_id="i"),
        beat("leaves for a while", -2, instance_id="i"),
        _joined("replaces it", "membertwo", instance_id="i"),
        beat("the old one is fenced", 1, instance_id="i"),
        beat("wrong instance", 1, "membertwo", instance_id="j"),
        _joined("empty instance", "memberthree", instance_id=""),
        consumers("static"),
        beat("unknown topic", 0, "memberfour", subscribed=("nope",), owned=(), rebalance_timeout_ms=30_000),
        beat("bad expression", 0, "memberfive", subscribed_topic_regex="a(", owned=(), rebalance_timeout_ms=30_000),
        beat("unknown id is owned", 1, "memberfour", owned=({"topic_id": UNKNOWN_ID, "partitions": (0,)},)),
        beat("leaves for good", -1, "membertwo", instance_id="i"),
    ),
)


_RANGE: Final = (("range", Subscription()), ("roundrobin", Subscription()))


def _rejoin(name: str, member: Any = _SAVED, **fields: Any) -> Call:
    return join(name, member, **{"protocols": _RANGE, **fields})


#: The consumer protocol in the version in which members make their ids.
_OWN_IDS: Final = {ApiKey.CONSUMER_GROUP_HEARTBEAT: _since(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1), **_WITH_INSTANCES}

_BOTH_PROTOCOLS: Final = Script(
    name="both protocols",
    topics={"t": {}, "u": {}},
    partitions=6,
    versions=_OWN_IDS,
    steps=(
        _rejoin("classic member gets an id", ""),
        _rejoin("classic member"),
        sync("it assigns", _SAVED, (_SAVED, Assigned((0, 1, 2, 3, 4, 5)))),
        commit("of the classic member", 3, member=_SAVED, generation=Saved("m generation")),
        _joined("a consumer joins", server_assignor="range"),
        consumers("upgraded"),
        described("by the classic request"),
        heartbeat("the classic member learns of it"),
        commit("of the classic member of the upgraded group", 4, member=_SAVED, generation=Saved("m generation")),
        sync("before it has joined", _SAVED),
        beat("the consumer has to wait", 2, owned=()),
        _rejoin("the classic member joins again"),
        consumers("after the join"),
        sync("another protocol", _SAVED, protocol_name="roundrobin"),
        sync("another protocol type", _SAVED, protocol_type="connect"),
        sync("earlier generation", _SAVED, generation=Saved("m generation", -1)),
        sync("by the consumer", "memberone"),
        sync("its part", _SAVED),
        heartbeat("nothing to do"),
        heartbeat("earlier generation", generation=Saved("m generation", -1)),
        heartbeat("by the consumer", "memberone"),
        heartbeat("unknown member", "nobody"),
        heartbeat("unknown instance", instance="i"),
        beat("the consumer gets its part", 2),
        commit("earlier generation", 5, member=_SAVED, generation=Saved("m generation", -1)),
        commit("of the classic member in its generation", 6, member=_SAVED, generation=Saved("m generation")),
        committed("by the classic member", member_id=_SAVED, member_epoch=Saved("m generation")),
        join("another protocol type", protocol_type="connect", save=""),
        join("no common protocol", protocols=(("sticky", b""),), save=""),
        join("no protocols", protocols=(), save=""),
        join("metadata that are none, without an id", protocols=(("range", b"one"),), save=""),
        join("metadata that are none", _SAVED, protocols=(("range", b"one"),), save=""),
        join("an unknown id", "stranger", protocols=_RANGE, save=""),
        leave("the one with the unknown id", ("stranger", None)),
        _rejoin("a static classic member", "", instance="i", save="n"),
        sync("before partitions are given up", Saved("n"), generation=Saved("n generation"), instance="i"),
        heartbeat("the static member has to wait", Saved("n"), Saved("n generation"), instance="i"),
        heartbeat("the first has to join"),
        _rejoin("the first gives up partitions"),
        sync("what is left to the first", _SAVED),
        consumers("of three"),
        beat("the consumer gives up partitions", 2, owned=()),
        heartbeat("the static member may join", Saved("n"), Saved("n generation"), instance="i"),
        _rejoin("the static member joins again", Saved("n"), instance="i", save="n"),
        sync("its partitions", Saved("n"), generation=Saved("n generation"), instance="i"),
        _rejoin("the static member is started again", "", instance="i", save="o"),
        heartbeat("the old id is fenced", Saved("n"), Saved("n generation"), instance="i"),
        sync("the partitions of the new one", Saved("o"), generation=Saved("o generation"), instance="i"),
        _rejoin("wants another topic", protocols=(("range", Subscription(topics=(Name("u"),))),)),
        consumers("of two topics"),
        leave("the consumer by the classic request", ("memberone", None)),
        leave("an unknown one", ("nobody", None)),
        consumers("without the consumer"),
        described("a classic group again"),
    ),
)

#: Comes before all ids that servers make.
_FIRST: Final = "!first"

_DOWNGRADE: Final = Script(
    name="back to the classic protocol",
    topics={"t": {}},
    partitions=4,
    versions=_OWN_IDS,
    steps=(
        _joined("a consumer", _FIRST, server_assignor="range", save_epoch="epoch"),
        beat("owns everything", _EPOCH, _FIRST, owned=_OWNED),
        _rejoin("a classic member gets an id", ""),
        _rejoin("a classic member"),
        sync("has to wait", _SAVED),
        beat(
            "the consumer gives up partitions",
            _EPOCH,
            _FIRST,
            owned=({"topic_id": TopicId("t"), "partitions": (0, 1)},),
        ),
        heartbeat("the classic member may join"),
        _rejoin("the classic member joins again"),
        sync("its part", _SAVED),
        beat("the consumer leaves", -1, _FIRST),
        consumers("downgraded"),
        heartbeat("the classic member learns of it"),
        _rejoin("joins again"),
        sync("assigns all", _SAVED, (_SAVED, Assigned((0, 1, 2, 3)))),
        described("classic"),
        heartbeat("of the classic group"),
        commit("of the classic group", 9, member=_SAVED, generation=Saved("m generation")),
        _joined("upgraded again", "membertwo", instance_id="i"),
        _rejoin("the static member goes back", "", instance="i", save="n"),
        described("downgraded by a static member"),
        sync("what the static member had", Saved("n"), generation=Saved("n generation"), instance="i"),
        leave("the static member", ("", "i")),
        heartbeat("the other one learns of it"),
        leave("the other one", (_SAVED, None)),
        join("metadata that are none", protocols=(("range", b"one"),)),
        join("they are kept", _SAVED, protocols=(("range", b"one"),)),
        _joined("which cannot be upgraded"),
        join("connectors", protocol_type="connect", group_id=Name("c"), protocols=(("x", b"one"),), save="c"),
        join("connectors with an id", Saved("c"), protocol_type="connect", group_id=Name("c"), protocols=(("x", b""),)),
        _joined("a consumer in their group", group_id=Name("c")),
    ),
)


def _coordinators(name: str, *keys: Any, key_type: int = 0) -> Call:
    fields = {"key": keys[0] if keys else "", "key_type": key_type, "coordinator_keys": keys}
    return Call(name=name, key=ApiKey.FIND_COORDINATOR, fields=fields)


_COORDINATORS: Final = Script(
    name="coordinators",
    steps=(
        _coordinators("of a group", "g"),
        _coordinators("of two groups", "g", "h"),
        _coordinators("of a group twice", "g", "g"),
        _coordinators("of no group"),
        _coordinators("of an empty group", ""),
        _coordinators("of a transaction", "x", key_type=1),
        _coordinators("of an empty transaction", "", key_type=1),
        _coordinators("unknown type", "g", key_type=9),
        _coordinators("negative type", "g", key_type=-1),
    ),
)


def _groups(name: str, states: Sequence[str] = (), types: Sequence[str] = ()) -> Call:
    return Call(name=name, key=ApiKey.LIST_GROUPS, fields={"states_filter": states, "types_filter": types})


#: Other groups are there, too: filters that match none of them, or errors.
_LISTS: Final = Script(
    name="lists of groups",
    steps=(
        _groups("unknown state", ("nope",)),
        _groups("state of nobody", ("PreparingRebalance",)),
        _groups("unknown type", types=("nope",)),
        _groups("share groups", types=("share",)),
        _groups("dead", ("Dead",)),
    ),
)

SCRIPTS: Final[Sequence[Script]] = (
    _ONE_MEMBER,
    _TWO_INSTANCES,
    _TWO_WITH_IDS_FIRST,
    _TWO_AT_ONCE,
    _STATIC,
    _SIMPLE,
    _CONSUMER,
    _CONSUMER_STATIC,
    _BOTH_PROTOCOLS,
    _DOWNGRADE,
    _COORDINATORS,
    _LISTS,
)
