"""Fetch sessions: the partitions that a client fetches, kept between its requests (KIP-227).

A client that begins a session names all of its partitions once. From then on its requests name those that were added,
have another offset, or are forgotten, and the responses those that have news. So a Fetch costs what has changed, and
not what is read.

    full request, epoch 0         a session with the partitions of the request, if there is room for it
    incremental request           the id of the session and its next epoch: 1, 2, ..., after 2^31 - 1 again 1
    full request, epoch -1        no session; one that the request names is closed

Sessions are in the memory of one server. A client whose session is not there, since another server answers or it was
evicted, gets FETCH_SESSION_ID_NOT_FOUND, and begins with a full request. If there is no room, the session id is 0,
and the client sends full requests. So `FetchSessions` may drop what it likes:

- at most `slots` sessions. One that was not used for two minutes makes room for any other, one that is two minutes old
  for one of more partitions
- at most `PARTITIONS_MAX` partitions in all sessions together, and `SESSION_PARTITIONS_MAX` in one

Ids are random, and any connection of the principal that began a session may continue it. Kafka does not compare the
principal; here a guessed id does not show which topics another client reads. What the client may read
is checked with each request.

Source of the rules: kafka.server.FetchSession, FetchSessionCacheShard, CachedPartition.maybeUpdateResponseData.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import FetchPartition, PartitionData
from pyspark_kafkalog.root.snapshot import PartitionSnapshot
from pyspark_kafkalog.storage.names import TopicPartition
from pyspark_kafkalog.units import INT32_MAX, MINUTE_MS

#: Kafka's default of max.incremental.fetch.session.cache.slots.
SLOTS: Final = 1000
#: Kafka's KafkaBroker.MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS.
EVICTION_MS: Final = 2 * MINUTE_MS
#: About 100 MB.
PARTITIONS_MAX: Final = 200_000
#: A request that continues a session is short, whatever it asks for: so this bounds what it costs.
SESSION_PARTITIONS_MAX: Final = 10_000
#: The session id of a response without a session.
NO_SESSION: Final = 0
INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
#: No topic has a longer name, and a session keeps none.
_NAME_MAX_CHARS: Final = 249
_UNKNOWN: Final = -1

#: A partition as the requests of one session name it: by the name of its topic or by its id.
PartitionKey: TypeAlias = "tuple[str, int]"


@dataclass(slots=True, eq=False)
class SessionPartition:
    """One partition of a session: what the client asks for, and what it was told last.

    `topic` is None until the id is known. `quiet_at` is the state of the partition that was found to have nothing for
    the client; None if it has to be looked at.
    """

    key: PartitionKey
    wanted: FetchPartition
    topic_id: str
    topic: str | None
    high_watermark: int = _UNKNOWN
    log_start_offset: int = _UNKNOWN
    quiet_at: PartitionSnapshot | None = None

    def ask(self, wanted: FetchPartition) -> None:
        """The client asks for something else."""
        self.wanted, self.quiet_at = wanted, None

    def tell(self, data: PartitionData, *, has_records: bool) -> bool:
        """Whether the response must have the partition; note what it tells the client."""
        has_changed = self.high_watermark != data.high_watermark or self.log_start_offset != data.log_start_offset
        # After an error the response repeats the partition, also if it is as it was before the error.
        self.high_watermark = _UNKNOWN if data.error_code else data.high_watermark
        self.log_start_offset = data.log_start_offset
        return (
            has_records
            or has_changed
            or data.error_code != ErrorCode.NONE
            or data.preferred_read_replica != _UNKNOWN
            or data.diverging_epoch.epoch != _UNKNOWN
        )


@dataclass(slots=True, eq=False)
class FetchSession:
    """The partitions of one client, in the order in which they are read: those that gave records last come last.

    `epoch` is that of the next request. `is_committed`: the isolation level for which partitions were found quiet.
    """

    session_id: int
    principal: str
    uses_topic_ids: bool
    is_committed: bool
    partitions: dict[PartitionKey, SessionPartition]
    created_ms: int
    used_ms: int
    epoch: int
    _names: frozenset[TopicPartition] | None = None

    def update(
        self, wanted: Mapping[PartitionKey, SessionPartition], forgotten: Iterable[PartitionKey], *, is_committed: bool
    ) -> None:
        """Take over what a request asks for, and advance the epoch."""
        for key, each in wanted.items():
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = each
                self._names = None
            else:
                known.ask(each.wanted)
        for key in forgotten:
            if self.partitions.pop(key, None) is not None:
                self._names = None
        if is_committed != self.is_committed:
            self.is_committed = is_committed
            for each in self.partitions.values():
                each.quiet_at = None
        self.epoch = next_epoch(self.epoch)

    def resolve(self, partition: SessionPartition, topic: str) -> None:
        """The name of the partition's topic is known now. It stays, as in Kafka, whatever becomes of the topic."""
        partition.topic = topic
        self._names = None

    def move_to_end(self, partition: SessionPartition) -> None:
        """The partition has given records: all others come first next time."""
        if self.partitions.pop(partition.key, None) is not None:
            self.partitions[partition.key] = partition

    def names(self) -> frozenset[TopicPartition]:
        """The partitions whose topics are known."""
        if self._names is None:
            self._names = frozenset(
                TopicPartition(each.topic, each.wanted.partition)
                for each in self.partitions.values()
                if each.topic is not None
            )
        return self._names


def next_epoch(epoch: int) -> int:
    """Source: FetchMetadata.nextEpoch."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == INT32_MAX else epoch + 1


class FetchSessions:
    """The sessions of one server. Used in the event loop's thread; the counts are read by others too.

    `new_id` gives random ids of 1 to 2^31 - 1, `monotonic_ms` the time.
    """

    def __init__(self, new_id: Callable[[], int], monotonic_ms: Callable[[], int], *, slots: int = SLOTS) -> None:
        self._new_id = new_id
        self._monotonic_ms = monotonic_ms
        self._slots = slots
        self._sessions: dict[int, FetchSession] = {}  # the one that was used last at the end
        self._sizes: dict[int, int] = {}
        self.partitions_count = 0
        self.evictions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        partitions: Mapping[PartitionKey, SessionPartition],
        *,
        principal: str,
        uses_topic_ids: bool,
        is_committed: bool,
    ) -> int:
        """The id of a new session, whose first request was answered; `NO_SESSION` if there is no room for it."""
        now_ms = self._monotonic_ms()
        if not _can_keep(partitions.values()) or not self._make_room(len(partitions), now_ms):
            return NO_SESSION
        session_id = self._new_id()
        while session_id in self._sessions or session_id == NO_SESSION:
            session_id = self._new_id()
        self._sessions[session_id] = session = FetchSession(
            session_id=session_id,
            principal=principal,
            uses_topic_ids=uses_topic_ids,
            is_committed=is_committed,
            partitions=dict(partitions),
            created_ms=now_ms,
            used_ms=now_ms,
            epoch=next_epoch(INITIAL_EPOCH),
        )
        self._note_size(session)
        return session_id

    def advance(
        self,
        session_id: int,
        epoch: int,
        wanted: Mapping[PartitionKey, SessionPartition],
        forgotten: Iterable[PartitionKey],
        *,
        principal: str,
        uses_topic_ids: bool,
        is_committed: bool,
    ) -> FetchSession | ErrorCode | None:
        """The session, with what an incremental request of `epoch` changes; why not; None if no partition is left.

        A session without partitions is closed, and so is one that has too many.
        """
        session = self._sessions.get(session_id)
        if session is None or session.principal != principal:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids is not uses_topic_ids:
            return ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
        session.update(wanted, forgotten, is_committed=is_committed)
        if not session.partitions:
            self._remove(session)
            return None
        self._touch(session)
        if not _can_keep(wanted.values()) or not self._has_room_for(session):
            self._evict(session)
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        return session

    def close(self, session_id: int, principal: str) -> None:
        """End the session, if there is one with this id that the principal began."""
        session = self._sessions.get(session_id)
        if session is not None and session.principal == principal:
            self._remove(session)

    def _has_room_for(self, session: FetchSession) -> bool:
        return len(session.partitions) <= SESSION_PARTITIONS_MAX and self.partitions_count <= PARTITIONS_MAX

    def _make_room(self, size: int, now_ms: int) -> bool:
        """Whether there is room for a session of so many partitions; sessions are evicted for it."""
        if size > SESSION_PARTITIONS_MAX:
            return False
        while len(self._sessions) >= self._slots or self.partitions_count + size > PARTITIONS_MAX:
            evictable = self._stale(now_ms)
            if evictable is None and self.partitions_count + size <= PARTITIONS_MAX:
                evictable = self._smaller(size)
            if evictable is None:
                return False
            self._evict(evictable)
        return True

    def _stale(self, now_ms: int) -> FetchSession | None:
        oldest = next(iter(self._sessions.values()), None)
        return oldest if oldest is not None and now_ms - oldest.used_ms > EVICTION_MS else None

    def _smaller(self, size: int) -> FetchSession | None:
        """The smallest session of fewer partitions that was used for long enough."""
        settled = (each for each in self._sessions.values() if each.used_ms - each.created_ms > EVICTION_MS)
        smallest = min(settled, key=lambda each: (len(each.partitions), each.session_id), default=None)
        return smallest if smallest is not None and len(smallest.partitions) < size else None

    def _touch(self, session: FetchSession) -> None:
        session.used_ms = self._monotonic_ms()
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        self._note_size(session)

    def _note_size(self, session: FetchSession) -> None:
        size = len(session.partitions)
        self.partitions_count += size - self._sizes.get(session.session_id, 0)
        self._sizes[session.session_id] = size

    def _evict(self, session: FetchSession) -> None:
        self._remove(session)
        self.evictions += 1

    def _remove(self, session: FetchSession) -> None:
        del self._sessions[session.session_id]
        self.partitions_count -= self._sizes.pop(session.session_id)


def _can_keep(partitions: Collection[SessionPartition]) -> bool:
    """Whether all names are those of topics that may exist: longer ones would take memory that is not counted."""
    return all(each.topic is None or len(each.topic) <= _NAME_MAX_CHARS for each in partitions)
