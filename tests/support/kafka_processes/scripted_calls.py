"""Scripts of requests that go to a real broker and to a server of this package, whose answers are compared.

A script is a table of calls. Their fields are dicts by the names of the messages' attributes, and may hold values that
only the run knows: `Name`, `TopicId`, `Saved`, `Batch`, `Subscription`, `Assigned`. Fields that a version lacks are
left out of its requests, so one script serves all versions. Round n of a script asks each API in the n-th newest of its
versions, or in its oldest.
A script that makes sense in some versions of an API alone says which (`Script.versions`). compared_answers.py says what
of the answers must be equal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from kafka_processes.compared_answers import ComparableAnswers, asked_until_equal, different
from pyspark_kafkalog.errors import NetworkError
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.internal_records import (
    ConsumerProtocolAssignment,
    ConsumerProtocolAssignmentTopicPartition,
    ConsumerProtocolSubscription,
    ConsumerProtocolSubscriptionTopicPartition,
)
from pyspark_kafkalog.metadata.messages.schema import FieldSpec
from pyspark_kafkalog.protocol.api import APIS, Api, ApiKey
from pyspark_kafkalog.protocol.client import WireClient
from pyspark_kafkalog.protocol.messages.cluster import MetadataRequest, MetadataRequestTopic, MetadataResponse
from pyspark_kafkalog.protocol.messages.records import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from pyspark_kafkalog.protocol.messages.topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from pyspark_kafkalog.record.codecs.codec import CompressionType
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, parse_header
from pyspark_kafkalog.record.reference import Record, encode_batch, seal
from pyspark_kafkalog.storage.names import encode_uuid

TIMEOUT_S: Final = 20.0
CLOSED: Final = "the server closed the connection"
_READY_SECONDS_MAX: Final = 20
#: LEADER_NOT_AVAILABLE, COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, CONCURRENT_TRANSACTIONS.
_TRANSIENT: Final = frozenset({5, 14, 15, 51})
_NOT_COORDINATOR: Final = 16
_NO_TOPIC: Final = encode_uuid(b"no topic has it.")


@dataclass(frozen=True, slots=True)
class Name:
    """A name that no other run of a script has."""

    name: str


@dataclass(frozen=True, slots=True)
class TopicId:
    """The id of a topic of the script; one that no topic has for any other name."""

    topic: str


def named_and_known_by_id(topic: Name | str) -> dict[str, Any]:
    """The fields by which a request names a topic, of which a version has one: its name and its id."""
    return {"name": topic, "topic_id": TopicId(topic.name if isinstance(topic, Name) else topic)}


@dataclass(frozen=True, slots=True)
class Saved:
    """What an earlier call has saved, and a number to add to it."""

    name: str
    plus: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A record batch. `header` replaces fields of its header, `wrong_crc` spoils it, `times` repeats it."""

    values: Sequence[bytes | None] = (b"one", b"two")
    key: bytes | None = b"key"
    timestamp_ms: int
    producer_id: Any = -1
    producer_epoch: Any = -1
    base_sequence: int = -1
    is_transactional: bool = False
    compression: CompressionType = CompressionType.NONE
    header: Mapping[str, int] = field(default_factory=dict)
    wrong_crc: bool = False
    times: int = 1

    def encoded(self, side: Side) -> bytes:
        records = [
            Record(offset=at, timestamp_ms=self.timestamp_ms + at, key=self.key, value=each)
            for at, each in enumerate(self.values)
        ]
        data = encode_batch(
            records,
            producer_id=side.value(self.producer_id),
            producer_epoch=side.value(self.producer_epoch),
            base_sequence=self.base_sequence,
            is_transactional=self.is_transactional,
            compression=self.compression,
        )
        header = replace(parse_header(data, 0, file="<script>", file_position=0), **self.header)
        data = seal(header, data[RECORD_BATCH_OVERHEAD_BYTES:])
        return (data[:-1] + bytes([data[-1] ^ 1]) if self.wrong_crc else data) * self.times


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """What a consumer says in the classic protocol: the topics that it wants, and the partitions that it has."""

    topics: Sequence[Any] = (Name("t"),)
    owned: Sequence[int] = ()
    version: int = 1

    def encoded(self, side: Side) -> bytes:
        topics = tuple(map(side.value, self.topics))
        owned = ConsumerProtocolSubscriptionTopicPartition(topic=topics[0], partitions=tuple(self.owned))
        message = ConsumerProtocolSubscription(topics=topics, owned_partitions=(owned,) if self.owned else ())
        return self.version.to_bytes(2, "big") + message.encode(self.version)


@dataclass(frozen=True, slots=True)
class Assigned:
    """The partitions that the leader of a classic group gives to a member."""

    partitions: Sequence[int]
    topic: Any = Name("t")

    def encoded(self, side: Side) -> bytes:
        part = ConsumerProtocolAssignmentTopicPartition(topic=side.value(self.topic), partitions=tuple(self.partitions))
        return bytes(2) + ConsumerProtocolAssignment(assigned_partitions=(part,)).encode(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One request. `save` names fields of the answer to keep. `late`: an Answer reads the response."""

    name: str
    key: ApiKey
    fields: Mapping[str, Any]
    save: Mapping[str, str] = field(default_factory=dict)
    connection: str = "a"
    late: bool = False
    client_id: str = "tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The response to the late call of that name."""

    name: str
    connection: str
    save: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """Calls in their order, over new topics of one or, if `partitions` says so, more partitions."""

    name: str
    steps: Sequence[Call | Answer]
    topics: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    partitions: int = 1
    versions: Mapping[ApiKey, range] = field(default_factory=dict)

    def versions_of(self, key: ApiKey) -> range:
        """The versions in which the script asks the API."""
        return self.versions.get(key, APIS[key].versions)

    @property
    def rounds(self) -> range:
        return range(max(len(self.versions_of(each.key)) for each in self.steps if isinstance(each, Call)))


@dataclass(frozen=True, slots=True)
class Difference:
    """Where one answer of a run differs: fields by their paths, with both values."""

    script: str
    call: str
    version: int
    fields: tuple[tuple[str, Any, Any], ...]

    def __str__(self) -> str:
        lines = (f"    {path}: broker {broker!r}, server {own!r}" for path, broker, own in self.fields)
        return "\n".join((f"{self.script}: {self.call} v{self.version}", *lines))


class Side:
    """One of the two servers in one run of a script: connections, saved values, ids in the order of appearance."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        host, port = bootstrap.split(":")
        self._address = host, int(port)
        self._prefix = prefix
        self._clients: dict[tuple[str, str], WireClient] = {}
        self._saved: dict[str, Any] = {}
        self._answers = ComparableAnswers()
        self._topic_ids: dict[str, str] = {}
        self._asked: dict[str, tuple[Api, int, str]] = {}

    def close(self) -> None:
        for each in self._clients.values():
            each.close()

    def client(self, connection: str, client_id: str = "tests") -> WireClient:
        key = connection, client_id
        if key not in self._clients:
            self._clients[key] = WireClient.connect(*self._address, client_id=client_id, timeout_s=TIMEOUT_S)
            self._clients[key].negotiate()
        return self._clients[key]

    def create_topics(self, topics: Mapping[str, Mapping[str, str]], partitions: int) -> None:
        """Create them, and wait until the server tells their leaders and answers for all partitions."""
        if not topics:
            return
        names = {name: f"{self._prefix}-{name}" for name in topics}
        made = tuple(
            CreatableTopic(
                name=names[name],
                num_partitions=partitions,
                replication_factor=1,
                configs=tuple(CreatableTopicConfig(name=each, value=value) for each, value in configs.items()),
            )
            for name, configs in topics.items()
        )
        created = self.client("setup").call(CreateTopicsRequest(topics=made, timeout_ms=10_000), CreateTopicsResponse)
        assert not any(each.error_code for each in created.topics), created
        asked = MetadataRequest(topics=tuple(MetadataRequestTopic(name=each) for each in names.values()))
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while True:
            found = self.client("setup").call(asked, MetadataResponse).topics
            if all(not each.error_code and all(not one.error_code for one in each.partitions) for each in found):
                break
            assert time.monotonic() < deadline, found
            time.sleep(0.02)
        every = tuple(ListOffsetsPartition(partition_index=each, timestamp=-1) for each in range(partitions))
        listed = ListOffsetsRequest(
            topics=tuple(ListOffsetsTopic(name=each, partitions=every) for each in names.values())
        )
        while any(
            one.error_code
            for each in self.client("setup").call(listed, ListOffsetsResponse).topics
            for one in each.partitions
        ):
            assert time.monotonic() < deadline, names
            time.sleep(0.02)
        ids = {each.name: each.topic_id for each in found}
        self._topic_ids = {name: ids[full] for name, full in names.items()}
        for each in self._topic_ids.values():
            self._answers.number(each, "topic_id")

    def ask(self, call: Call, version: int) -> Any:
        """What is compared of the answer; None if it comes later or not at all."""
        deadline = time.monotonic() + _READY_SECONDS_MAX
        while True:
            response = self.response(call, version)
            if not _has_error(response, _TRANSIENT) or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        self._save(response, call.save)
        return self._answers.comparable(response)

    def response(self, call: Call, version: int) -> Any:
        """The answer as it came, CLOSED, or None if it comes later or not at all."""
        api = APIS[call.key]
        request = api.request(**self._fields(api.request.schema().spec.fields, api.request, call.fields, version))
        try:
            client = self.client(call.connection, call.client_id)
            client.send(request, version=version)
            self._asked[call.name] = api, version, call.client_id
            if call.late or (call.key is ApiKey.PRODUCE and not call.fields["acks"]):
                return None
            return client.receive(api.response)
        except NetworkError as error:
            return self._closed(call.connection, call.client_id, error)

    def answer(self, step: Answer) -> tuple[int, Any]:
        """The version of a late response, and what is compared of it."""
        api, version, client_id = self._asked[step.name]
        try:
            response: Any = self.client(step.connection, client_id).receive(api.response)
        except NetworkError as error:
            response = self._closed(step.connection, client_id, error)
        self._save(response, step.save)
        return version, self._answers.comparable(response)

    def _closed(self, connection: str, client_id: str, error: NetworkError) -> str:
        if isinstance(error.__cause__, TimeoutError):
            return f"no answer in {TIMEOUT_S} s"
        self._clients.pop((connection, client_id)).close()
        return CLOSED

    def _save(self, response: Any, wanted: Mapping[str, str]) -> None:
        for name, attribute in wanted.items():
            if isinstance(response, Message):
                self._saved[name] = getattr(response, attribute)

    def value(self, value: Any) -> Any:
        """What a value of a script stands for here."""
        if isinstance(value, Name):
            return f"{self._prefix}-{value.name}"
        if isinstance(value, TopicId):
            return self._topic_ids.get(value.topic, _NO_TOPIC)
        if isinstance(value, Saved):
            saved = self._saved[value.name]
            return saved + value.plus if isinstance(saved, int) else saved
        if isinstance(value, (Batch, Subscription, Assigned)):
            return value.encoded(self)
        return value

    def _fields(
        self, specs: Sequence[FieldSpec], owner: type[Message], fields: Mapping[str, Any], version: int
    ) -> dict[str, Any]:
        known = {each.attribute: each for each in specs}
        unknown = set(fields) - set(known)
        assert not unknown, (owner, unknown)
        found = {}
        for name, given in fields.items():
            spec = known[name]
            if version not in spec.versions:
                continue
            value = self.value(given)
            if value is None and version not in spec.nullable:
                continue
            if spec.struct is not None and value is not None:
                of = owner.structs()[name]
                if spec.is_array:
                    value = tuple(of(**self._fields(spec.struct, of, each, version)) for each in value)
                else:
                    value = of(**self._fields(spec.struct, of, value, version))
            elif spec.is_array and value is not None:
                value = tuple(map(self.value, value))
            found[name] = value
        return found


def _has_error(value: Any, codes: frozenset[int]) -> bool:
    """Whether a response holds one of these errors, which pass by themselves."""
    if isinstance(value, Message):
        names = [each for each in type(value).FIELDS if each != "unknown_tags"]
        return any(
            (each.endswith("error_code") and getattr(value, each) in codes) or _has_error(getattr(value, each), codes)
            for each in names
        )
    return isinstance(value, tuple) and any(_has_error(each, codes) for each in value)


def wait_for_coordinators(bootstrap: str) -> None:
    """Have a server create the topics of its coordinators, and wait until it coordinates."""
    side = Side(bootstrap, "warm-up")
    calls = [
        Call(name="find", key=ApiKey.FIND_COORDINATOR, fields={"key_type": key_type, "coordinator_keys": ("warm-up",)})
        for key_type in (0, 1)
    ]
    init = {"transactional_id": "warm-up", "transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
    calls.append(Call(name="group", key=ApiKey.DELETE_GROUPS, fields={"groups_names": ("warm-up",)}))
    calls.append(Call(name="transaction", key=ApiKey.INIT_PRODUCER_ID, fields=init))
    deadline = time.monotonic() + _READY_SECONDS_MAX
    try:
        for call in calls:
            while _has_error(side.response(call, APIS[call.key].versions[-1]), _TRANSIENT | {_NOT_COORDINATOR}):
                assert time.monotonic() < deadline, call.name
                time.sleep(0.05)
    finally:
        side.close()


def run(script: Script, number: int, bootstraps: tuple[str, str]) -> Iterator[Difference]:
    """Round `number` of a script at a broker and at a server: where their answers differ."""
    prefix = f"{script.name.replace(' ', '-')}-{number}"
    with ExitStack() as closing:
        broker, own = sides = [Side(each, prefix) for each in bootstraps]
        for each in sides:
            closing.callback(each.close)
            each.create_topics(script.topics, script.partitions)
        for step in script.steps:
            if isinstance(step, Answer):
                version, expected = broker.answer(step)
                found = own.answer(step)[1]
            else:
                versions = script.versions_of(step.key)
                version = versions[max(len(versions) - 1 - number, 0)]
                ask_both = partial(_ask_both, sides, step, version)
                expected, found = asked_until_equal(step.key, ask_both) if _is_repeatable(step) else ask_both()
            if expected != found:
                yield Difference(script.name, step.name, version, tuple(different(expected, found)))


def _is_repeatable(call: Call) -> bool:
    """Whether the same request may have the same answer again: not if it continues a fetch session."""
    return bool(call.fields.get("session_epoch", 0) <= 0)


def _ask_both(sides: Sequence[Side], call: Call, version: int) -> tuple[Any, Any]:
    broker, own = (each.ask(call, version) for each in sides)
    return broker, own
