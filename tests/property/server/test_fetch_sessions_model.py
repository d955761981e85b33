"""A client of fetch sessions knows what one knows that sends full requests, whatever happens to the partitions.

The model is a client that keeps what responses say, as Kafka's does: what it knows of a partition is what it was told
last. After each response it is compared with the response to a full request, which holds everything.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, cast

from builders.tiered_roots import append_rounds
from fakes.server_calls import ReadServer
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from tiers import examples

from pyspark_kafkalog.log_dir import LogDir
from pyspark_kafkalog.maintenance.retention.delete_records import delete_records
from pyspark_kafkalog.metadata.acl import AclOperation
from pyspark_kafkalog.metadata.messages.schema import ZERO_UUID
from pyspark_kafkalog.protocol.api import ApiKey
from pyspark_kafkalog.protocol.error_codes import ErrorCode
from pyspark_kafkalog.protocol.messages.records import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from pyspark_kafkalog.storage.names import TopicPartition

TOPICS = ("a", "b")
BY_NAME, BY_ID = 12, 17
RECORDS = 3

#: Errors of a topic that was replaced: a session keeps its name, by which a partition may not be found either; a full
#: request does not find its id.
_OF_GONE = (ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.INCONSISTENT_TOPIC_ID, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
_OF_GONE_IN_SESSION = (*_OF_GONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)

topics = st.sampled_from(TOPICS)
numbers = st.integers(0, 3)


class Sessions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.home = Path(tempfile.mkdtemp())
        self.log_dir = LogDir.create(self.home / "log")
        for topic in TOPICS:
            self.log_dir.create_topic(topic, partitions=3)
        self.server = ReadServer(self.log_dir)
        for topic in TOPICS:
            append_rounds(self.log_dir, 1, partition=1, records=RECORDS, topic=topic)
        self.begin(by_id=False)

    def teardown(self) -> None:
        self.server.__exit__(None, None, None)
        shutil.rmtree(self.home)

    def forget_session(self) -> None:
        self.session_id, self.epoch = 0, 0
        self.wanted: dict[tuple[str, int], FetchPartition] = {}
        self.changed: set[tuple[str, int]] = set()
        self.forgotten: set[tuple[str, int]] = set()
        self.known: dict[tuple[str, int], PartitionData] = {}

    def name(self, topic: str) -> str:
        """How the client names a topic, whether it still exists or not."""
        if self.version == BY_NAME:
            return topic
        return self.log_dir.topic(topic).topic_id or "" if topic in self.log_dir.topics() else ZERO_UUID

    def ask(self, topic: str, number: int, offset: int, last_epoch: int) -> None:
        key = self.name(topic), number
        if key[0] == ZERO_UUID:
            return
        self.wanted[key] = FetchPartition(
            partition=number, fetch_offset=offset, last_fetched_epoch=last_epoch, partition_max_bytes=1 << 20
        )
        self.changed.add(key)
        self.forgotten.discard(key)

    @rule(data=st.data())
    def forget(self, data: Any) -> None:
        if self.wanted:
            key = data.draw(st.sampled_from(sorted(self.wanted)))
            del self.wanted[key]
            self.known.pop(key, None)
            self.changed.discard(key)
            self.forgotten.add(key)

    @rule(topic=topics, number=st.integers(0, 2))
    def append(self, topic: str, number: int) -> None:
        append_rounds(self.log_dir, 1, partition=number, records=RECORDS, topic=topic)

    @rule(topic=topics, number=st.integers(0, 2), what=st.integers(0, 5))
    def disturb(self, topic: str, number: int, what: int) -> None:
        """What happens less often than a Fetch."""
        if what == 0:
            self.delete_records(topic, number)
        elif what == 1:
            self.replace_topic(topic)
        elif what == 2:
            self.server.rights.denied ^= {(AclOperation.READ, topic)}
        elif what == 3:
            # Another server answers from now on, or the session was evicted.
            self.server.sessions.close(self.session_id, "User:ANONYMOUS")
        else:
            self.begin(by_id=what == 4)

    def delete_records(self, topic: str, number: int) -> None:
        end = self.log_dir.partition(topic, number).high_watermark
        delete_records(self.log_dir.root, {TopicPartition(topic, number): end})

    def replace_topic(self, topic: str) -> None:
        self.log_dir.delete_topic(topic)
        self.log_dir.create_topic(topic, partitions=3)

    def begin(self, *, by_id: bool) -> None:
        """A client that starts, and has all partitions to read."""
        self.version = BY_ID if by_id else BY_NAME
        self.forget_session()
        for topic in TOPICS:
            for number in range(3):
                self.ask(topic, number, RECORDS, -1)

    @rule(topic=topics, number=numbers, offset=st.integers(0, 8), last_epoch=st.sampled_from([-1, -1, 0]))
    def move(self, topic: str, number: int, offset: int, last_epoch: int) -> None:
        """The client is told what there is, and asks for another place."""
        self.fetch(0)
        self.ask(topic, number, offset, last_epoch)
        self.fetch(0)

    @rule(isolation=st.integers(0, 1))
    def fetch(self, isolation: int) -> None:
        is_full = self.epoch == 0
        asked = self.wanted if is_full else {key: self.wanted[key] for key in sorted(self.changed)}
        request = FetchRequest(
            session_id=self.session_id,
            session_epoch=self.epoch,
            isolation_level=isolation,
            topics=self._topics(asked),
            forgotten_topics_data=tuple(
                ForgottenTopic(**self._names(name), partitions=(number,)) for name, number in sorted(self.forgotten)
            ),
        )
        response = self._call(request)
        if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            assert not is_full
            self.session_id, self.epoch = 0, 0
            return
        assert response.error_code == ErrorCode.NONE
        told = _partitions(response)
        assert told.keys() == self.wanted.keys() if is_full else told.keys() <= self.wanted.keys()
        self.session_id = response.session_id
        self.epoch = self.epoch + 1 if response.session_id else 0
        assert response.session_id or not self.wanted
        self.changed.clear()
        self.forgotten.clear()
        self.known |= told
        self._compare(
            told,
            _partitions(
                self._call(
                    request.replace(
                        topics=self._topics(self.wanted), session_id=0, session_epoch=-1, forgotten_topics_data=()
                    )
                )
            ),
        )

    def _compare(
        self, told: dict[tuple[str, int], PartitionData], everything: dict[tuple[str, int], PartitionData]
    ) -> None:
        """`told` are the partitions of the response, `everything` those of a full one at the same time."""
        for key, full in everything.items():
            known = self.known[key]
            if full.error_code or len(cast(bytes, full.records)) or full.diverging_epoch.epoch >= 0:
                assert key in told, key
            if key in told and known.error_code in _OF_GONE_IN_SESSION and full.error_code in _OF_GONE:
                continue
            assert _facts(known, is_told=key in told) == _facts(full, is_told=key in told)

    def _topics(self, wanted: dict[tuple[str, int], FetchPartition]) -> tuple[FetchTopic, ...]:
        return tuple(FetchTopic(**self._names(name), partitions=(each,)) for (name, _), each in wanted.items())

    def _names(self, name: str) -> dict[str, str]:
        return {"topic": name} if self.version == BY_NAME else {"topic_id": name}

    def _call(self, request: FetchRequest) -> FetchResponse:
        return self.server.call(ApiKey.FETCH, self.version, request, FetchResponse)


def _partitions(response: FetchResponse) -> dict[tuple[str, int], PartitionData]:
    return {
        (topic.topic or topic.topic_id, each.partition_index): each
        for topic in response.responses
        for each in topic.partitions
    }


def _facts(data: PartitionData, *, is_told: bool) -> tuple[Any, ...]:
    """What must be the same: all of what is told now, and of what was told before what a client keeps."""
    kept = data.error_code, data.high_watermark, data.log_start_offset
    if not is_told:
        return kept
    records = bytes(data.records or b"")  # type: ignore[arg-type]
    return (*kept, data.diverging_epoch, records, data.last_stable_offset, data.aborted_transactions)


Sessions.TestCase.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
TestSessions = Sessions.TestCase
