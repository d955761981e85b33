"""Where the answers of a server differ from those of a broker for good: each difference with its reason.

A test fails at a difference that no entry covers, and at an entry whose difference is gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from kafka_processes.scripted_calls import Difference


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAnswer:
    """`calls` and `fields` are patterns of the names of calls and of the paths of fields, with * for any text."""

    name: str
    reason: str
    script: str
    calls: tuple[str, ...]
    fields: tuple[str, ...] = ("*",)

    def covers(self, found: Difference) -> bool:
        return (
            found.script == self.script
            and any(fnmatchcase(found.call, each) for each in self.calls)
            and all(any(fnmatchcase(path, each) for each in self.fields) for path, _, _ in found.fields)
        )


_DAMAGE: Final = "a header that no batch can have is damage, whatever check of a broker stumbles over it first"
_FAILURE: Final = "a broker fails with UNKNOWN_SERVER_ERROR at what no client sends; a server answers what it can"
_DUPLICATE: Final = "a broker tells a timestamp of the earlier batch as append time, also without LogAppendTime"

_EPOCHS: Final = "a broker of Kafka 4.4 begins groups with another epoch; members see that epochs rise, not by how much"

_TOKENS: Final = "there are no delegation tokens: users have SCRAM credentials or certificates"
_SHARE: Final = "there are no share groups (KIP-932)"
_STREAMS: Final = "there are no streams groups (KIP-1071)"
_SHARE_STATE: Final = "the state of share groups is kept by their coordinators, for other brokers"
_VOTERS: Final = "the metadata log has no voters: every server commits to it"
#: The APIs of a broker that a server does not offer. Of all others it offers exactly a broker's versions.
NOT_ADVERTISED: Final = {
    "CREATE_DELEGATION_TOKEN": _TOKENS,
    "RENEW_DELEGATION_TOKEN": _TOKENS,
    "EXPIRE_DELEGATION_TOKEN": _TOKENS,
    "DESCRIBE_DELEGATION_TOKEN": _TOKENS,
    "STREAMS_GROUP_HEARTBEAT": _STREAMS,
    "STREAMS_GROUP_DESCRIBE": _STREAMS,
    "API 93": _STREAMS,
    "API 94": _VOTERS,
    "UNREGISTER_BROKER": "a server that has ended is forgotten after some seconds, by itself",
    "ADD_RAFT_VOTER": _VOTERS,
    "REMOVE_RAFT_VOTER": _VOTERS,
    "SHARE_GROUP_HEARTBEAT": _SHARE,
    "SHARE_GROUP_DESCRIBE": _SHARE,
    "SHARE_FETCH": _SHARE,
    "SHARE_ACKNOWLEDGE": _SHARE,
    "DESCRIBE_SHARE_GROUP_OFFSETS": _SHARE,
    "ALTER_SHARE_GROUP_OFFSETS": _SHARE,
    "DELETE_SHARE_GROUP_OFFSETS": _SHARE,
    "INITIALIZE_SHARE_GROUP_STATE": _SHARE_STATE,
    "READ_SHARE_GROUP_STATE": _SHARE_STATE,
    "WRITE_SHARE_GROUP_STATE": _SHARE_STATE,
    "DELETE_SHARE_GROUP_STATE": _SHARE_STATE,
    "READ_SHARE_GROUP_STATE_SUMMARY": _SHARE_STATE,
}
#: The features whose levels differ.
OTHER_FEATURES: Final = {
    "eligible.leader.replicas.version": "there are no replicas that could be eligible",
    "metadata.version": "log directories have the records of Kafka 4.1",
    "share.version": _SHARE,
    "streams.version": _STREAMS,
}

KNOWN: Final = (
    KnownAnswer(
        name="partitions that move",
        reason="a broker of Kafka 4.4 shows partitions that a member has to give up as the member's until it has",
        script="consumer protocol",
        calls=("while partitions move",),
        fields=("*epoch", "*.assignment.topic_partitions*"),
    ),
    *(
        KnownAnswer(name=f"epochs, {script}", reason=_EPOCHS, script=script, calls=("*",), fields=("*epoch",))
        for script in ("consumer protocol", "static members of the consumer protocol")
    ),
    KnownAnswer(
        name="epochs, back to the classic protocol",
        reason=_EPOCHS,
        script="back to the classic protocol",
        calls=("*",),
        fields=("*epoch", "*generation_id"),
    ),
    KnownAnswer(
        name="topic without partitions",
        reason="a topic that a Produce names without partitions is answered without partitions",
        script="produce",
        calls=("no partition",),
        fields=("responses",),
    ),
    KnownAnswer(
        name="damaged batches",
        reason=_DAMAGE,
        script="produce refused",
        calls=("count is negative", "base offset is negative", "codec *", "size is too small", "garbage"),
        fields=("*.error_code", "*.log_start_offset"),
    ),
    KnownAnswer(
        name="duplicate of an idempotent producer",
        reason=_DUPLICATE,
        script="idempotent",
        calls=("first batch again", "first batch after the second"),
        fields=("*.log_append_time_ms",),
    ),
    KnownAnswer(name="negative limits", reason=_FAILURE, script="fetch", calls=("negative * limit",)),
    KnownAnswer(name="isolation of a fetch", reason=_FAILURE, script="fetch", calls=("unknown isolation",)),
    KnownAnswer(
        name="leader for replicas",
        reason="there is no replication: a follower is not told another leader",
        script="replicas",
        calls=("unknown replica", "own id"),
        fields=("*.current_leader.*",),
    ),
    KnownAnswer(name="isolation of a list", reason=_FAILURE, script="list offsets", calls=("unknown isolation",)),
    KnownAnswer(name="topic without name and id", reason=_FAILURE, script="metadata", calls=("by neither",)),
    KnownAnswer(
        name="negative offsets",
        reason="a negative offset stands for none: it is not listed among the committed ones",
        script="group of one member",
        calls=("all of the group",),
        fields=("groups[[]0[]].topics", "topics"),
    ),
    KnownAnswer(
        name="metadata of no consumer",
        reason=_FAILURE,
        script="both protocols",
        calls=("metadata that are none",),
        fields=("error_code", "member_id"),
    ),
    KnownAnswer(
        name="duplicate of a transactional producer",
        reason=_DUPLICATE,
        script="transactions",
        calls=("again the same", "again the aborted"),
        fields=("*.log_append_time_ms",),
    ),
    KnownAnswer(
        name="duplicate of a transactional producer beside a new batch",
        reason=_DUPLICATE,
        script="transactions refused",
        calls=("to a partition that was not added",),
        fields=("*.log_append_time_ms",),
    ),
    KnownAnswer(
        name="log start for fenced producers",
        reason="a broker asks the coordinator first, and then does not look at the log",
        script="transactions refused",
        calls=("fenced", "of the newest", "to a partition that was not added"),
        fields=("*.log_start_offset",),
    ),
    KnownAnswer(
        name="APIs that a server does not offer",
        reason="NOT_ADVERTISED says why, for each",
        script="handshake",
        calls=("APIs and features", "name with a space", "empty name", "version with a slash"),
        fields=(*(f"api_keys.{each}" for each in NOT_ADVERTISED), *(f"*_features.{each}" for each in OTHER_FEATURES)),
    ),
)
