"""Scripts for the requests about topics and their records: Produce, Fetch, ListOffsets, epochs, Metadata."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kafka_processes.scripted_calls import Batch, Call, Name, Saved, Script, TopicId
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.api import APIS, ApiKey
from pyspark_kafkalog.record.codecs.codec import CompressionType

#: The timestamps of records: near the clocks of the servers, which refuse those that lie an hour ahead.
NOW_MS: Final = int(time.time() * 1000)
UNKNOWN_ID: Final = "AAAAAAAAAAAAAAAAAAAAAg"
#: Of a batch of one record, as if it had two.
_TWO: Final = {"records_count": 2, "last_offset_delta": 1}
_BEFORE_1970: Final = {"base_timestamp_ms": -5000, "max_timestamp_ms": -4999}
_DAY_MS: Final = 24 * 3600 * 1000
_MIB: Final = 1 << 20


def batch(**fields: Any) -> Batch:
    return Batch(timestamp_ms=fields.pop("timestamp_ms", NOW_MS), **fields)


def produce(
    name: str,
    /,
    *records: Any,
    topic: str = "t",
    acks: int = -1,
    transactional_id: Any = None,
    connection: str = "a",
    client_id: str = "tests",
    **named: Any,
) -> Call:
    """Records for the partitions 0, 1, … of a topic of the script, unless another name or id is given."""
    partitions = named.pop("partitions", None) or [{"index": at, "records": each} for at, each in enumerate(records)]
    data = {"name": Name(topic), "topic_id": TopicId(topic), "partition_data": partitions, **named}
    fields = {"transactional_id": transactional_id, "acks": acks, "timeout_ms": 10_000, "topic_data": [data]}
    return Call(name=name, key=ApiKey.PRODUCE, fields=fields, connection=connection, client_id=client_id)


def fetch(
    name: str, *offsets: int, topic: str = "t", partition: Mapping[str, Any] | None = None, **fields: Any
) -> Call:
    """The partitions 0, 1, … of a topic of the script from these offsets on. `partition` are fields of each."""
    common = {"partition_max_bytes": _MIB, **(partition or {})}
    asked = [{"partition": at, "fetch_offset": each, **common} for at, each in enumerate(offsets)]
    topics = [{"topic": Name(topic), "topic_id": TopicId(topic), "partitions": asked}]
    request = {"max_wait_ms": 100, "min_bytes": 0, "max_bytes": 10 * _MIB, "topics": topics, "session_epoch": -1}
    return Call(name=name, key=ApiKey.FETCH, fields={**request, **fields})


def listed(name: str, *timestamps: int, topic: Any = None, partition: int = 0, **fields: Any) -> Call:
    """Offsets of one partition by each of the timestamps, one request with one topic each being Kafka's rule."""
    topic = Name("t") if topic is None else topic
    partitions = [
        {"partition_index": partition, "timestamp": each, "current_leader_epoch": fields.get("epoch", -1)}
        for each in timestamps
    ]
    request = {
        "replica_id": fields.get("replica_id", -1),
        "isolation_level": fields.get("isolation_level", 0),
        "topics": [{"name": topic, "partitions": partitions}],
        "timeout_ms": 5000,
    }
    return Call(name=name, key=ApiKey.LIST_OFFSETS, fields=request)


def epochs(name: str, *asked: tuple[int, int, int], topic: Any = None, replica_id: int = -1) -> Call:
    """(partition, current leader epoch, leader epoch)."""
    partitions = [{"partition": at, "current_leader_epoch": now, "leader_epoch": epoch} for at, now, epoch in asked]
    topics = [{"topic": Name("t") if topic is None else topic, "partitions": partitions}]
    fields = {"replica_id": replica_id, "topics": topics}
    return Call(name=name, key=ApiKey.OFFSET_FOR_LEADER_EPOCH, fields=fields)


def metadata(name: str, *topics: Any, **fields: Any) -> Call:
    asked = [each if isinstance(each, dict) else {"name": each} for each in topics]
    return Call(name=name, key=ApiKey.METADATA, fields={"topics": asked, "allow_auto_topic_creation": False, **fields})


_PRODUCE_GOOD: Final = Script(
    name="produce",
    topics={"t": {}},
    partitions=2,
    steps=(
        produce("one batch", batch()),
        produce("two partitions", batch(), batch(values=(b"x",))),
        produce("acks 1", batch(), acks=1),
        produce("acks 0", batch(), acks=0),
        produce("after acks 0", batch()),
        *(produce(f"compression {each.name}", batch(compression=each)) for each in CompressionType if each),
        produce("value null and key null", batch(values=(None,), key=None)),
        produce("base offset is not 0", batch(header={"base_offset": 77})),
        produce("leader epoch of a client", batch(header={"leader_epoch": 7})),
        produce("one partition is good, one is not", batch(), batch(wrong_crc=True)),
        produce("no partition", partitions=[]),
        fetch("what there is", 0, 0),
        produce("acks 0 and a wrong CRC", batch(wrong_crc=True), acks=0),
        metadata("after a failure with acks 0", Name("t")),
        produce("acks 0 and an unknown partition", partitions=[{"index": 9, "records": batch()}], acks=0),
        metadata("after an unknown partition with acks 0", Name("t")),
    ),
)

_PRODUCE_REFUSED: Final = Script(
    name="produce refused",
    topics={"t": {}},
    steps=(
        produce("wrong CRC", batch(wrong_crc=True)),
        produce("more records than counted", batch(header={"records_count": 1})),
        produce("fewer records than counted", batch(header={"records_count": 3})),
        produce("last offset is too large", batch(header={"last_offset_delta": 5})),
        produce("last offset is too small", batch(header={"last_offset_delta": 0})),
        produce("no records counted", batch(header={"records_count": 0})),
        produce("count is negative", batch(header={"records_count": -1})),
        produce("base offset is negative", batch(header={"base_offset": -1})),
        produce("control batch", batch(header={"attributes": 0x20})),
        produce("delete horizon", batch(header={"attributes": 0x40})),
        produce("codec 5", batch(header={"attributes": 5})),
        produce("codec that the records do not have", batch(header={"attributes": 1})),
        produce("timestamps of the server", batch(header={"attributes": 8})),
        produce("largest timestamp is wrong", batch(header={"max_timestamp_ms": NOW_MS + 50})),
        produce("base sequence without producer", batch(header={"base_sequence": 4})),
        produce("producer without sequence", batch(header={"producer_id": 5, "producer_epoch": 0})),
        produce("producer without epoch", batch(header={"producer_id": 5, "base_sequence": 0})),
        produce("two batches", batch(times=2)),
        produce("magic 1", batch(header={"magic": 1})),
        produce("magic 0", batch(header={"magic": 0})),
        produce("magic 3", batch(header={"magic": 3})),
        produce("size is too large", batch(header={"size_bytes": 500})),
        produce("size is too small", batch(header={"size_bytes": 70})),
        produce("size is negative", batch(header={"size_bytes": -5})),
        produce("no bytes", b""),
        produce("few bytes", b"abc"),
        produce("garbage", b"\xff" * 100),
        produce("zeros", bytes(100)),
        produce("unknown topic", batch(), name="nope", topic_id=UNKNOWN_ID),
        produce("no topic", batch(), name="", topic_id=ZERO_UUID),
        produce("invalid topic", batch(), name="a b", topic_id=UNKNOWN_ID),
        produce("unknown partition", partitions=[{"index": 1, "records": batch()}]),
        produce("negative partition", partitions=[{"index": -1, "records": batch()}]),
        produce("acks 2", batch(), acks=2),
        produce("acks -2", batch(), acks=-2),
        produce("after it", batch()),
        produce("timestamp a day ahead", batch(timestamp_ms=NOW_MS + _DAY_MS)),
        produce("timestamp a day ago", batch(timestamp_ms=NOW_MS - _DAY_MS)),
        produce(
            "transactional without id", batch(producer_id=3, producer_epoch=0, base_sequence=0, is_transactional=True)
        ),
        produce("record that its batch does not hold", batch(values=(b"a",), header=_TWO)),
        fetch("nothing but the good", 0),
    ),
)

_PRODUCE_SETTINGS: Final = Script(
    name="produce settings",
    topics={
        "small": {"max.message.bytes": "120"},
        "compacted": {"cleanup.policy": "compact"},
        "appended": {"message.timestamp.type": "LogAppendTime"},
        "late": {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "1000"},
        "gzip": {"compression.type": "gzip"},
        "plain": {"compression.type": "uncompressed"},
    },
    steps=(
        produce("too large", batch(values=(b"x" * 300,)), topic="small"),
        produce("not too large", batch(values=(b"x",)), topic="small"),
        produce("no key", batch(key=None), topic="compacted"),
        produce("a key", batch(), topic="compacted"),
        produce("time of the server", batch(timestamp_ms=5), topic="appended"),
        produce("time of the server, compressed", batch(compression=CompressionType.GZIP), topic="appended"),
        produce("too early", batch(timestamp_ms=NOW_MS - _DAY_MS), topic="late"),
        produce("too late", batch(timestamp_ms=NOW_MS + _DAY_MS), topic="late"),
        produce("no time", batch(header={"base_timestamp_ms": -1, "max_timestamp_ms": -1}), topic="late"),
        produce("before 1970, too early", batch(header=_BEFORE_1970), topic="late"),
        produce("before 1970", batch(header=_BEFORE_1970), topic="small"),
        produce(
            "before 1970 with another largest time", batch(header=_BEFORE_1970 | {"max_timestamp_ms": 7}), topic="small"
        ),
        *(
            produce(f"{each.name} to {topic}", batch(compression=each, values=(b"v" * 100,) * 3), topic=topic)
            for topic in ("gzip", "plain")
            for each in (CompressionType.NONE, CompressionType.GZIP, CompressionType.LZ4)
        ),
        *(fetch(f"of {each}", 0, topic=each) for each in ("small", "compacted", "appended", "late", "gzip", "plain")),
    ),
)


def _init(name: str, *, save: str, **fields: Any) -> Call:
    request = {"transactional_id": None, "transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
    kept = {save: "producer_id", f"{save} epoch": "producer_epoch"}
    return Call(name=name, key=ApiKey.INIT_PRODUCER_ID, fields={**request, **fields}, save=kept)


def _idempotent(name: str, sequence: int, *, epoch: int = 0, count: int = 2) -> Call:
    values = tuple(b"%d" % each for each in range(count))
    known = batch(values=values, producer_id=Saved("p"), producer_epoch=epoch, base_sequence=sequence)
    return produce(name, known)


_IDEMPOTENT: Final = Script(
    name="idempotent",
    topics={"t": {}},
    steps=(
        _init("new producer", save="p"),
        _idempotent("first batch does not begin at 0", 5),
        _idempotent("first batch", 7),
        _idempotent("first batch again", 7),
        _idempotent("second batch", 9),
        _idempotent("first batch after the second", 7),
        _idempotent("gap", 20),
        _idempotent("part of a batch", 9, count=1),
        *(_idempotent(f"batch {at}", 11 + 2 * at) for at in range(6)),
        _idempotent("a batch too old to be known", 7),
        _idempotent("newer epoch that does not begin at 0", 5, epoch=1),
        _idempotent("newer epoch", 0, epoch=1),
        _idempotent("older epoch", 23, epoch=0),
        _idempotent("epoch skipped", 0, epoch=9),
        produce("sequences wrap", batch(producer_id=12345, producer_epoch=0, base_sequence=2**31 - 2)),
        produce("after the wrap", batch(producer_id=12345, producer_epoch=0, base_sequence=0)),
        fetch("what there is", 0),
        Call(
            name="producers",
            key=ApiKey.DESCRIBE_PRODUCERS,
            fields={
                "topics": [{"name": Name("t"), "partition_indexes": [0, 1]}, {"name": "nope", "partition_indexes": [0]}]
            },
        ),
        _init("producer id that comes without a transactional id", save="q", producer_id=5, producer_epoch=0),
        _init("empty transactional id", save="q", transactional_id=""),
        _init("producer id alone", save="q", producer_id=5),
        _init("epoch alone", save="q", producer_epoch=5),
    ),
)

_INTERNAL: Final = Script(
    name="internal topics",
    steps=(
        *(
            Call(
                name=f"{topic} by {client_id}",
                key=ApiKey.PRODUCE,
                client_id=client_id,
                fields={
                    "acks": -1,
                    "timeout_ms": 5000,
                    "transactional_id": None,
                    "topic_data": [
                        {
                            "name": topic,
                            "topic_id": UNKNOWN_ID,
                            "partition_data": [{"index": index, "records": batch()}],
                        }
                    ],
                },
            )
            for topic in ("__consumer_offsets", "__transaction_state")
            for client_id, index in (("tests", 0), ("__admin_client", 99))
        ),
        metadata("of internal topics", "__consumer_offsets", "__transaction_state"),
        listed("of an internal topic", -2, topic="__consumer_offsets"),
    ),
)

_FETCH: Final = Script(
    name="fetch",
    topics={"t": {}, "empty": {}},
    partitions=2,
    steps=(
        *(produce(f"batch {at}", batch(values=(b"v" * 100,) * 3), batch(values=(b"w" * 100,))) for at in range(3)),
        fetch("all", 0, 0),
        fetch("inside of a batch", 1, 1),
        fetch("at the end", 9, 3),
        fetch("behind the end", 10, 4),
        fetch("far behind the end", 10_000_000),
        fetch("negative offset", -1),
        fetch("very negative offset", -2),
        fetch("partition limit of a batch and a half", 0, 0, partition={"partition_max_bytes": 500}),
        fetch("partition limit below a batch", 0, 0, partition={"partition_max_bytes": 10}),
        fetch("partition limit 0", 0, 0, partition={"partition_max_bytes": 0}),
        fetch("negative partition limit", 0, 0, partition={"partition_max_bytes": -1}),
        fetch("response limit below a batch", 0, 0, max_bytes=10),
        fetch("response limit of a batch", 0, 0, max_bytes=400),
        fetch("response limit 0", 0, 0, max_bytes=0),
        fetch("negative response limit", 0, 0, max_bytes=-1),
        fetch("more bytes wanted than there are", 0, min_bytes=100_000),
        fetch("negative bytes wanted", 9, min_bytes=-1),
        fetch("first partition is at its end", 9, 0, max_bytes=10),
        fetch("nothing there", 0, 0, topic="empty"),
        fetch("behind the end of nothing", 1, topic="empty"),
        fetch("committed", 0, 0, isolation_level=1),
        fetch("unknown isolation", 0, isolation_level=2),
        fetch("current epoch", 0, partition={"current_leader_epoch": 0}),
        fetch("later epoch", 0, partition={"current_leader_epoch": 5}),
        fetch("epoch of the last record", 3, partition={"last_fetched_epoch": 0}),
        fetch(
            "epoch of the last record, current one", 3, partition={"last_fetched_epoch": 0, "current_leader_epoch": 0}
        ),
        fetch("later epoch of the last record", 3, partition={"last_fetched_epoch": 3, "current_leader_epoch": 0}),
        fetch("epoch of the last record, behind the end", 30, partition={"last_fetched_epoch": 0}),
        fetch("unknown partition", 0, 0, 0),
        fetch(
            "unknown topic",
            0,
            topics=[
                {"topic": "nope", "topic_id": UNKNOWN_ID, "partitions": [{"partition": 0, "partition_max_bytes": 99}]}
            ],
        ),
        fetch(
            "no topic name",
            0,
            topics=[{"topic": "", "topic_id": ZERO_UUID, "partitions": [{"partition": 0, "partition_max_bytes": 99}]}],
        ),
        fetch(
            "good and unknown topics",
            topics=[
                {"topic": "nope", "topic_id": UNKNOWN_ID, "partitions": [{"partition": 0, "partition_max_bytes": 99}]},
                {
                    "topic": Name("t"),
                    "topic_id": TopicId("t"),
                    "partitions": [{"partition": 0, "partition_max_bytes": 99}],
                },
            ],
        ),
        fetch(
            "the same partition twice",
            topics=[
                {
                    "topic": Name("t"),
                    "topic_id": TopicId("t"),
                    "partitions": [
                        {"partition": 0, "partition_max_bytes": _MIB},
                        {"partition": 0, "fetch_offset": 3, "partition_max_bytes": _MIB},
                    ],
                }
            ],
        ),
        fetch("no partitions"),
        fetch("no topics", topics=[]),
        fetch("unknown session", 0, session_id=12345, session_epoch=3),
        fetch("session without id", 0, session_id=0, session_epoch=3),
        fetch("end of an unknown session", 0, session_id=12345, session_epoch=-1),
        fetch("any consumer for debugging", 0, replica_id=-2, replica_state={"replica_id": -2}),
        fetch("log start of a client", 0, partition={"log_start_offset": 5}),
        fetch("rack", 0, rack_id="zone"),
        fetch("cluster id", 0, cluster_id="another"),
        fetch(
            "forgotten", 0, forgotten_topics_data=[{"topic": Name("t"), "topic_id": TopicId("t"), "partitions": [0]}]
        ),
    ),
)


def _begun(name: str, *offsets: int, save: str, topic: str = "t", **fields: Any) -> Call:
    """A full Fetch that begins a session, whose id is saved."""
    return replace(fetch(name, *offsets, topic=topic, session_epoch=0, **fields), save={save: "session_id"})


def _continued(
    name: str,
    epoch: int,
    changed: Mapping[int, int] | None = None,
    *,
    session: str = "s",
    forgotten: Sequence[int] = (),
    topic: str = "t",
    partition: Mapping[str, Any] | None = None,
    connection: str = "a",
    **fields: Any,
) -> Call:
    """The next Fetch of a session: partitions whose offsets change or that are added, and those that are forgotten."""
    names = {"topic": Name(topic), "topic_id": TopicId(topic)}
    asked = [
        {"partition": each, "fetch_offset": at, "partition_max_bytes": _MIB, **(partition or {})}
        for each, at in (changed or {}).items()
    ]
    topics = [{**names, "partitions": asked}] if asked else []
    forgets = [{**names, "partitions": forgotten}] if forgotten else []
    common = {"session_id": Saved(session), "session_epoch": epoch, "topics": topics, "forgotten_topics_data": forgets}
    return replace(fetch(name, **{**common, **fields}), connection=connection)


_UNKNOWN_TOPIC: Final = [
    {"topic": "nope", "topic_id": UNKNOWN_ID, "partitions": [{"partition": 0, "partition_max_bytes": 99}]}
]
_FETCH_SESSION: Final = Script(
    name="fetch sessions",
    topics={"t": {}, "deleted": {}},
    partitions=3,
    versions={ApiKey.METADATA: range(4, APIS[ApiKey.METADATA].versions.stop)},  # earlier ones create the topic again
    steps=(
        produce("batch", batch()),
        _begun("a session is begun", 0, 0, 0, save="s"),
        _continued("the records were taken", 1, {0: 2}),
        _continued("nothing is new", 2),
        produce("batches", partitions=[{"index": 1, "records": batch()}]),
        _continued("one partition has records", 3),
        _continued("they are not taken", 4),
        _continued("they are taken", 5, {1: 2}),
        _continued("the same epoch again", 5),
        _continued("an epoch is left out", 7),
        _continued("behind the end", 6, {2: 77}),
        _continued("behind the end still", 7),
        _continued("not behind the end", 8, {2: 0}),
        _continued("quiet again", 9),
        _continued("a partition that does not exist", 10, {9: 0}),
        _continued("it does not exist still", 11),
        _continued("it is forgotten", 12, forgotten=[9, 5]),
        _continued("asked for and forgotten at once", 13, {0: 0}, forgotten=[0]),
        _continued("of two partitions", 14),
        Call(
            name="delete records",
            key=ApiKey.DELETE_RECORDS,
            fields={
                "topics": [{"name": Name("t"), "partitions": [{"partition_index": 1, "offset": 1}]}],
                "timeout_ms": 5000,
            },
        ),
        _continued("the log start has moved", 15),
        _continued("another isolation level", 16, isolation_level=1),
        _continued("the log diverges", 17, {1: 30}, partition={"last_fetched_epoch": 0}),
        _continued("the log diverges still", 18),
        _continued("back at its end", 19, {1: 2}),
        _continued("a topic that does not exist", 20, topics=_UNKNOWN_TOPIC),
        _continued("it is not there still", 21),
        _continued("by another connection", 22, connection="b"),
        _continued("other partitions are forgotten", 23, forgotten=[1, 2]),
        _continued(
            "all are forgotten",
            24,
            forgotten_topics_data=[{"topic": "nope", "topic_id": UNKNOWN_ID, "partitions": [0]}],
        ),
        _continued("there is no session any more", 25),
        produce("batch in another partition", partitions=[{"index": 2, "records": batch()}]),
        _begun("a session of few bytes", 0, 1, 0, save="few", max_bytes=1),
        *(_continued(f"the partitions take turns {each}", each, session="few", max_bytes=1) for each in (1, 2, 3, 4)),
        fetch("the session ends", 2, session_id=Saved("few"), session_epoch=-1),
        _continued("it has ended", 5, session="few"),
        _begun("another session", 2, 2, save="first"),
        _begun("a session in its place", 2, 2, save="second", session_id=Saved("first")),
        _continued("the one that was replaced", 1, session="first"),
        _continued("the one in its place", 1, session="second"),
        _begun("a session of no partitions", save="none", topics=[]),
        _continued("a partition is added to it", 1, {0: 0}, session="none"),
        _begun("a session of a topic that will be deleted", 0, topic="deleted", save="deleted"),
        Call(
            name="delete the topic",
            key=ApiKey.DELETE_TOPICS,
            fields={
                "topics": [{"name": Name("deleted"), "topic_id": ZERO_UUID}],
                "topic_names": [Name("deleted")],
                "timeout_ms": 5000,
            },
        ),
        metadata("the topic is gone", Name("deleted")),
        _continued("its topic is gone", 1, session="deleted"),
        _continued("its topic is gone still", 2, session="deleted"),
    ),
)

_REPLICA: Final = Script(
    name="replicas",
    topics={"t": {}},
    steps=(
        produce("batch", batch()),
        fetch("unknown replica", 0, replica_id=7, replica_state={"replica_id": 7, "replica_epoch": -1}),
        fetch("own id", 0, replica_id=1, replica_state={"replica_id": 1, "replica_epoch": -1}),
        listed("unknown replica lists", -1, replica_id=7),
        listed("debugging", -1, replica_id=-2),
        epochs("unknown replica asks epochs", (0, -1, 0), replica_id=7),
        epochs("debugging epochs", (0, -1, 0), replica_id=-2),
    ),
)

_LIST_OFFSETS: Final = Script(
    name="list offsets",
    topics={"t": {}, "empty": {}},
    steps=(
        *(produce(f"batch {at}", batch(timestamp_ms=NOW_MS + 100 * at, values=(b"v",) * 3)) for at in (0, 5, 2)),
        *(
            listed(name, timestamp)
            for name, timestamp in (
                ("earliest", -2),
                ("latest", -1),
                ("largest timestamp", -3),
                ("earliest local", -4),
                ("latest tiered", -5),
                ("earliest pending upload", -6),
                ("unknown special", -7),
                ("zero", 0),
                ("first", NOW_MS),
                ("inside of a batch", NOW_MS + 1),
                ("between batches", NOW_MS + 50),
                ("out of order", NOW_MS + 201),
                ("last", NOW_MS + 502),
                ("behind the last", NOW_MS + 503),
            )
        ),
        *(listed(f"nothing there, {each}", each, topic=Name("empty")) for each in (-1, -2, -3, -4, -5, 0)),
        listed("committed", -1, isolation_level=1),
        listed("unknown isolation", -1, isolation_level=3),
        listed("current epoch", -1, epoch=0),
        listed("later epoch", -1, epoch=4),
        listed("unknown partition", -1, partition=3),
        listed("unknown topic", -1, topic="nope"),
        listed("the same partition twice", -1, -2),
        Call(name="no topics", key=ApiKey.LIST_OFFSETS, fields={"replica_id": -1, "topics": [], "isolation_level": 0}),
    ),
)

_EPOCHS: Final = Script(
    name="leader epochs",
    topics={"t": {}, "empty": {}},
    steps=(
        produce("batch", batch()),
        epochs("epoch 0", (0, -1, 0)),
        epochs("epoch 1", (0, -1, 1)),
        epochs("epoch -1", (0, -1, -1)),
        epochs("current epoch", (0, 0, 0)),
        epochs("later current epoch", (0, 3, 0)),
        epochs("unknown partition", (0, -1, 0), (1, -1, 0)),
        epochs("unknown topic", (0, -1, 0), topic="nope"),
        epochs("nothing there", (0, -1, 0), topic=Name("empty")),
        epochs("later epoch of nothing", (0, -1, 5), topic=Name("empty")),
        epochs("no partitions"),
    ),
)

_METADATA: Final = Script(
    name="metadata",
    topics={"t": {}, "u": {}},
    partitions=3,
    steps=(
        metadata("one", Name("t")),
        metadata("two", Name("t"), Name("u")),
        metadata("twice the same", Name("t"), Name("t")),
        metadata("none"),
        metadata("unknown", "nope"),
        metadata("good and unknown", Name("t"), "nope"),
        metadata("space in the name", "a b"),
        metadata("empty name", ""),
        metadata("dot", "."),
        metadata("long name", "x" * 250),
        metadata("name with a dot", "no.pe"),
        metadata("invalid and to be created", "a b", allow_auto_topic_creation=True),
        metadata("empty and to be created", "", allow_auto_topic_creation=True),
        metadata("to be created", Name("made"), allow_auto_topic_creation=True),
        metadata("what was created", Name("made")),
        metadata("collides", Name("coll.ides"), allow_auto_topic_creation=True),
        metadata("by id", {"name": None, "topic_id": TopicId("t")}),
        metadata("by unknown id", {"name": None, "topic_id": UNKNOWN_ID}),
        metadata(
            "by good and unknown ids", {"name": None, "topic_id": TopicId("t")}, {"name": None, "topic_id": UNKNOWN_ID}
        ),
        metadata("by id and name", {"name": Name("t"), "topic_id": TopicId("t")}),
        metadata("by id and another name", {"name": Name("u"), "topic_id": TopicId("t")}),
        metadata("by id and by name", {"name": None, "topic_id": TopicId("t")}, {"name": Name("u")}),
        metadata("by neither", {"name": None, "topic_id": ZERO_UUID}),
        metadata("operations of a topic", Name("t"), include_topic_authorized_operations=True),
        metadata("operations of an unknown topic", "nope", include_topic_authorized_operations=True),
        metadata("operations of the cluster", Name("t"), include_cluster_authorized_operations=True),
    ),
)

SCRIPTS: Final[Sequence[Script]] = (
    _PRODUCE_GOOD,
    _PRODUCE_REFUSED,
    _PRODUCE_SETTINGS,
    _IDEMPOTENT,
    _INTERNAL,
    _FETCH,
    _FETCH_SESSION,
    _REPLICA,
    _LIST_OFFSETS,
    _EPOCHS,
    _METADATA,
)
