"""What must be equal of the answers of a broker and of a server, and how long a broker may take to agree.

Not compared are addresses, times of a server's clock, positions of the metadata log, ids of directories and clusters,
the texts of errors and of documentation, the order of entries, and configurations that the broker's version lacks. Ids
that a server makes are compared by the order of their appearance. `min.insync.replicas` is left out: a broker with
eligible leader replicas sets it for all brokers.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from kafka_processes.oracle import KAFKA_VERSION
from pyspark_kafkalog.config.group import GROUP_CONFIGS
from pyspark_kafkalog.config.topic import TOPIC_CONFIGS
from pyspark_kafkalog.metadata.messages.codec import Message
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.messages.cluster import ApiVersionsResponse, DescribeQuorumResponsePartitionData
from pyspark_kafkalog.protocol.messages.topics import CreatableTopicResult
from pyspark_kafkalog.record.header import RECORD_BATCH_OVERHEAD_BYTES, TimestampType, parse_header
from pyspark_kafkalog.record.reference import decode_batch
from pyspark_kafkalog.server.reads.fetch_sessions import NO_SESSION

_SETTLE_SECONDS_MAX: Final = 3.0
_NOT_COMPARED: Final = frozenset(
    {
        "unknown_tags",
        "error_message",
        "batch_index_error_message",
        "documentation",
        "cluster_id",
        "host",
        "port",
        "log_dir",
        "total_bytes",
        "usable_bytes",
        "log_end_offset",
        "last_fetch_timestamp",
        "last_caught_up_timestamp",
        "replica_directory_id",
        "throttle_time_ms",
        "finalized_features_epoch",
    }
)
#: Configurations of topics and groups that the broker does not have.
_LATER: Final = frozenset(
    each.name
    for each in (*GROUP_CONFIGS.values(), *(config.definition for config in TOPIC_CONFIGS.values()))
    if each.since > KAFKA_VERSION or each.is_own
)
#: Fields that are not compared in one kind of message.
_NOT_COMPARED_OF: Final[Mapping[type[Message], frozenset[str]]] = {
    DescribeQuorumResponsePartitionData: frozenset({"leader_epoch", "high_watermark"}),
    # A broker gives one even to a topic that it only validates.
    CreatableTopicResult: frozenset({"topic_id"}),
}
_IDS: Final = frozenset({"member_id", "leader", "topic_id", "producer_id", "session_id"})
_PRODUCERS: Final = frozenset({"active_producers"})
_UNNUMBERED: Final = ("", ZERO_UUID, -1, None)
_TIMES: Final = frozenset({"log_append_time_ms", "transaction_start_time_ms", "last_timestamp"})
_IN_ORDER: Final = frozenset({"aborted_transactions"})
#: The APIs of a broker that this package has no messages for.
_OTHER_APIS: Final[Mapping[int, str]] = {
    38: "CREATE_DELEGATION_TOKEN",
    39: "RENEW_DELEGATION_TOKEN",
    40: "EXPIRE_DELEGATION_TOKEN",
    41: "DESCRIBE_DELEGATION_TOKEN",
    64: "UNREGISTER_BROKER",
    71: "GET_TELEMETRY_SUBSCRIPTIONS",
    72: "PUSH_TELEMETRY",
    76: "SHARE_GROUP_HEARTBEAT",
    77: "SHARE_GROUP_DESCRIBE",
    78: "SHARE_FETCH",
    79: "SHARE_ACKNOWLEDGE",
    80: "ADD_RAFT_VOTER",
    81: "REMOVE_RAFT_VOTER",
    83: "INITIALIZE_SHARE_GROUP_STATE",
    84: "READ_SHARE_GROUP_STATE",
    85: "WRITE_SHARE_GROUP_STATE",
    86: "DELETE_SHARE_GROUP_STATE",
    87: "READ_SHARE_GROUP_STATE_SUMMARY",
    88: "STREAMS_GROUP_HEARTBEAT",
    89: "STREAMS_GROUP_DESCRIBE",
    90: "DESCRIBE_SHARE_GROUP_OFFSETS",
    91: "ALTER_SHARE_GROUP_OFFSETS",
    92: "DELETE_SHARE_GROUP_OFFSETS",
}
#: What may be asked again: a broker may answer for some milliseconds as if a change had not been made.
_REPEATABLE: Final = frozenset(
    {
        ApiKey.METADATA,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_FETCH,
        ApiKey.HEARTBEAT,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DELETE_RECORDS,
        ApiKey.DESCRIBE_CLUSTER,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
        ApiKey.ELECT_LEADERS,
        ApiKey.LIST_CONFIG_RESOURCES,
    }
)


def without_later_configs(text: str) -> str:
    """A description by kafka-configs without the configurations that the broker does not have, a line each."""
    return re.sub(rf"(?m)^  ({'|'.join(map(re.escape, sorted(_LATER)))})=.*\n", "", text) if _LATER else text


def asked_until_equal(key: ApiKey, ask_both: Callable[[], tuple[Any, Any]]) -> tuple[Any, Any]:
    """The answers of the broker and of the server. They are asked again while they differ, if `key` allows it."""
    answers = ask_both()
    deadline = time.monotonic() + _SETTLE_SECONDS_MAX
    while answers[0] != answers[1] and key in _REPEATABLE and time.monotonic() < deadline:
        time.sleep(0.05)
        answers = ask_both()
    return answers


def different(broker: Any, own: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The fields in which two comparable answers differ: their paths, and both values."""
    if isinstance(broker, dict) and isinstance(own, dict):
        for name in sorted(broker.keys() | own.keys()):
            yield from different(broker.get(name), own.get(name), f"{path}.{name}" if path else name)
    elif isinstance(broker, list) and isinstance(own, list) and len(broker) == len(own):
        for at, (left, right) in enumerate(zip(broker, own, strict=True)):
            yield from different(left, right, f"{path}[{at}]")
    elif broker != own:
        yield path, broker, own


class ComparableAnswers:
    """Makes the answers of one of the two servers comparable. It remembers the ids that have appeared."""

    def __init__(self) -> None:
        self._numbers: dict[Any, str] = {}

    def number(self, value: Any, name: str) -> Any:
        """What stands for an id: the same for the first one that appears on each side, and so on."""
        if value in _UNNUMBERED or (name == "session_id" and value == NO_SESSION):
            return value
        return self._numbers.setdefault(value, f"{name} {len(self._numbers)}")

    def comparable(self, value: Any, name: str = "") -> Any:
        """What must be equal of a response, or of a field called `name`."""
        if isinstance(value, ApiVersionsResponse):
            return {**self._fields(value), **_offered(value)}
        if isinstance(value, Message):
            return self._fields(value)
        if isinstance(value, tuple):
            # Producer ids rise on both sides, but a broker lists them as its hash table has them.
            listed = sorted(value, key=lambda each: getattr(each, "producer_id", 0)) if name in _PRODUCERS else value
            found = [self.comparable(each) for each in listed]
            left_out = {"min.insync.replicas", *_LATER}
            found = [each for each in found if not isinstance(each, dict) or each.get("name") not in left_out]
            is_sorted = found and isinstance(found[0], dict) and name not in _IN_ORDER
            return sorted(found, key=repr) if is_sorted or (found and isinstance(found[0], int)) else found
        if name == "records":
            return None if value is None else [self._batch(each) for each in _batches(value)]
        if isinstance(value, memoryview):
            return bytes(value)
        if name in _IDS:
            return self.number(value, name)
        return value >= 0 if name in _TIMES else value

    def _fields(self, message: Message) -> dict[str, Any]:
        left_out = _NOT_COMPARED | _NOT_COMPARED_OF.get(type(message), frozenset())
        names = [each for each in type(message).__annotations__ if each not in left_out]
        return {each: self.comparable(getattr(message, each), each) for each in names}

    def _batch(self, batch: Any) -> Any:
        header = batch.header
        is_appended = header.timestamp_type is TimestampType.LOG_APPEND_TIME or header.is_control
        return {
            "base_offset": header.base_offset,
            "last_offset": header.last_offset,
            "leader_epoch": header.leader_epoch,
            "attributes": header.attributes,
            "producer_id": self.number(header.producer_id, "producer_id"),
            "producer_epoch": header.producer_epoch,
            "base_sequence": header.base_sequence,
            "records": [
                (each.offset, each.key, each.value, each.headers, is_appended or each.timestamp_ms)
                for each in batch.records
            ],
        }


def _offered(answer: ApiVersionsResponse) -> dict[str, Any]:
    """The APIs and features with their versions, by name."""
    known = {each.value: each.name for each in ApiKey}
    return {
        "api_keys": {
            known.get(each.api_key) or _OTHER_APIS.get(each.api_key, f"API {each.api_key}"): (
                each.min_version,
                each.max_version,
            )
            for each in answer.api_keys
        },
        "supported_features": {each.name: (each.min_version, each.max_version) for each in answer.supported_features},
        "finalized_features": {
            each.name: (each.min_version_level, each.max_version_level) for each in answer.finalized_features
        },
    }


def _batches(data: memoryview) -> Iterator[Any]:
    at = 0
    while at < len(data):
        # A broker cuts the last batch at the limit; clients pass over the rest.
        if at + RECORD_BATCH_OVERHEAD_BYTES > len(data):
            return
        size_bytes = parse_header(data, at, file="<fetch>", file_position=at).size_bytes
        if at + size_bytes > len(data):
            return
        yield decode_batch(data, at, file="<fetch>", file_position=at)
        at += size_bytes
