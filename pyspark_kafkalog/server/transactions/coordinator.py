"""The transaction coordinator of one server: it makes units of requests, and sweeps.

    transact    decide about an id in a commit, and once more if another server's commit came in between
    sweep       every transaction.abort.timed.out.transaction.cleanup.interval.ms: transactions over their timeout are
                aborted, and their producers fenced; those that a broker decided and did not complete are completed.
                Every transaction.remove.expired.transaction.cleanup.interval.ms: ids that were not used for
                transactional.id.expiration.ms are removed, and those of Spark's and the library's writers that were
                not used for writer.id.expiration.ms

Any server could do all of it for any id. So that timeouts and load have one place, requests for ids whose partition
`Cluster.coordinator` gives to another server are answered NOT_COORDINATOR, and each server sweeps its own partitions.

A server that dies leaves whole commits. Transactions that it had open are ended by their producers, or at the timeout
by the server that coordinates their ids then.

Source of the rules: kafka.coordinator.transaction.TransactionCoordinator and TransactionStateManager.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias, TypeVar

from pyspark_kafkalog.errors import CommitConflictError, KafkalogError, ProducerFencedError
from pyspark_kafkalog.metadata.image import MetadataImage
from pyspark_kafkalog.metadata.messages.metadata_records import MetadataRecord, ProducerIdsRecord
from pyspark_kafkalog.root.commit.changes import AppendedRange, CommitUnit
from pyspark_kafkalog.root.internal_topic import ensure_internal_topic
from pyspark_kafkalog.root.native import NativeRoot
from pyspark_kafkalog.root.transactions.end_transaction import MarkerFloor
from pyspark_kafkalog.root.transactions.metadata import TransactionMetadata
from pyspark_kafkalog.root.transactions.state_log import StateLog, removals
from pyspark_kafkalog.root.transactions.states import TRANSACTION_STATE_TOPIC, producers_of
from pyspark_kafkalog.server.committer import Committer
from pyspark_kafkalog.server.context import ServerContext
from pyspark_kafkalog.server.metadata import partition_of_transactional_id
from pyspark_kafkalog.server.transactions.decisions import Decision, NeedsProducerIdError, sweep
from pyspark_kafkalog.server.transactions.units import DecideAt, StateLogs, TransactionUnit
from pyspark_kafkalog.storage.names import TopicPartition

_LOG: Final = logging.getLogger(__name__)
_TRIES_MAX: Final = 20
#: Producer ids in one block, as many as a broker's.
_ID_BLOCK: Final = 1000
T = TypeVar("T")
#: Ids that one round of the sweep puts into commits at a time.
_SWEPT_TOGETHER: Final = 100


#: As DecideAt, with a new producer id before the time, None if none was taken.
DecideWithId: TypeAlias = Callable[[TransactionMetadata | None, int | None, int], Decision]


class TransactionCoordinator:
    """The transactions of one server. All methods are called in the event loop's thread."""

    def __init__(self, context: ServerContext, root: NativeRoot) -> None:
        """`root` is that of `context`. Where a server only reads it, transactions are described, and not swept."""
        self.context = context
        self.root = root
        self.logs = StateLogs(self.root, context.clock)
        self.producer_ids = ProducerIds(context.committer, lambda: root.follows is not None)
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    async def start(self) -> None:
        """Begin to sweep."""
        self._tasks = (asyncio.create_task(self._sweep_forever()), asyncio.create_task(self._expire_forever()))

    async def stop(self) -> None:
        """Sweep no more. Transactions stay open, for the server that coordinates them next."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = ()

    # Ids

    def is_coordinator(self, transactional_id: str) -> bool:
        """Whether this server names itself as the coordinator of the id."""
        partition = partition_of_transactional_id(self.context, transactional_id)
        return self.context.coordinates(TRANSACTION_STATE_TOPIC, partition)

    async def ensure_topic(self) -> None:
        """Create `__transaction_state`, with Kafka's settings for it, if it does not exist."""
        if TRANSACTION_STATE_TOPIC not in self.context.image().topics:
            await self.context.run(self._create_topic)

    def _create_topic(self) -> None:
        config = self.root.broker_config()
        ensure_internal_topic(
            self.root,
            TRANSACTION_STATE_TOPIC,
            config.transaction_state_log_num_partitions,
            compression="uncompressed",
            segment_bytes=config.transaction_state_log_segment_bytes,
        )

    async def find(self, transactional_id: str) -> TransactionMetadata | None:
        """The id in the newest image."""
        return await self.context.run(lambda: self._in_newest(lambda image: self.logs.find(image, transactional_id)))

    async def coordinated(
        self, is_wanted: Callable[[TransactionMetadata], bool], *, only_unfinished: bool = False
    ) -> list[TransactionMetadata]:
        """The wanted ids in the newest image whose partitions this server coordinates.

        There may be any number of them, so a thread looks for them; of transactions that are unfinished, without
        passing through the other ids.
        """
        read = StateLog.unfinished if only_unfinished else StateLog.all
        return await self.context.run(lambda: self._in_newest(lambda image: self._coordinated(image, read, is_wanted)))

    def _in_newest(self, look: Callable[[MetadataImage], T]) -> T:
        """What `look` finds in the newest image; once more if another thread has followed a newer one meanwhile."""
        for _ in range(_TRIES_MAX - 1):
            with contextlib.suppress(CommitConflictError):
                return look(self.root.store.refresh())
        return look(self.root.store.refresh())

    def _coordinated(
        self,
        image: MetadataImage,
        read: Callable[[StateLog, MetadataImage], Iterable[TransactionMetadata]],
        is_wanted: Callable[[TransactionMetadata], bool],
    ) -> list[TransactionMetadata]:
        logs = self._coordinated_logs(image)
        return [found for log in logs for found in read(log, image) if is_wanted(found)]

    def _coordinated_logs(self, image: MetadataImage) -> Iterator[StateLog]:
        topic = image.topics.get(TRANSACTION_STATE_TOPIC)
        for each in () if topic is None else topic.partitions:
            if each.high_watermark > 0 and self.context.coordinates(TRANSACTION_STATE_TOPIC, each.partition):
                yield self.logs.log(each.partition)

    # Deciding

    async def transact(self, transactional_id: str, decide: DecideAt, *, is_joining: bool = False) -> Decision:
        """Commit what `decide` makes of the id. Raises as `commit`, and NeedsProducerIdError."""
        return await self.commit(
            TransactionUnit(logs=self.logs, transactional_id=transactional_id, decide=decide, is_joining=is_joining)
        )

    async def commit(self, unit: TransactionUnit) -> Decision:
        """Commit the unit; its decision, which may tell an error and yet be committed.

        Raises RequestError for an error without a commit, and what Committer.commit raises.
        """
        # What the commit would have to read of the log, it reads with the root locked: read all but the newest before.
        with contextlib.suppress(CommitConflictError):
            await self.context.run(lambda: self.logs.find(self.root.store.image, unit.transactional_id))
        for remaining in reversed(range(_TRIES_MAX)):
            try:
                await self._submit(unit)
                break
            except CommitConflictError:
                if not remaining:
                    raise
            except ProducerFencedError:
                if unit.floors or not unit.decision.markers:
                    raise
                unit.floors = await self.context.run(functools.partial(self._floors, unit.decision))
        return unit.decision

    def _floors(self, decision: Decision) -> dict[tuple[TopicPartition, int], MarkerFloor]:
        """The last epochs of the decision's producers in its partitions."""
        self.root.refresh()
        expiration_ms = self.root.broker_config().producer_id_expiration_ms
        floors = {}
        for markers in decision.markers:
            for each in markers.partitions:
                if self.root.store.image.find(each.topic, each.partition) is None:
                    continue
                snapshot = self.root.partition(each.topic, each.partition)
                for producer in producers_of(snapshot, expiration_ms=expiration_ms, now_ms=self.context.clock()):
                    if producer.producer_id == markers.producer_id:
                        floor = MarkerFloor(producer.producer_epoch, producer.coordinator_epoch)
                        floors[each, producer.producer_id] = floor
        return floors

    async def _submit(self, unit: TransactionUnit) -> None:
        committed = self.context.committer.submit(unit.commit_unit())
        appended: tuple[AppendedRange, ...] | None = None
        try:
            appended = await asyncio.shield(committed)
        finally:
            if committed.done():
                unit.settled(appended)
            else:  # no client waits any more, because the connection has ended: the commit continues
                committed.add_done_callback(lambda done: unit.settled(_ranges(done)))

    async def transact_with_id(self, transactional_id: str, decide: DecideWithId) -> Decision:
        """As `transact`, for a decision that may need a new producer id, which is only taken if it does."""
        new_id: int | None = None
        with contextlib.suppress(NeedsProducerIdError):
            return await self.transact(transactional_id, lambda found, now_ms: decide(found, None, now_ms))
        new_id = await self.producer_ids.take()
        return await self.transact(transactional_id, lambda found, now_ms: decide(found, new_id, now_ms))

    # Sweeping

    async def _sweep_forever(self) -> None:
        while True:
            interval_ms = self.context.broker_config().transaction_abort_timed_out_transaction_cleanup_interval_ms
            await asyncio.sleep(interval_ms / 1000)
            with _logged("aborting transactions over their timeout"):
                await self.abort_timed_out()

    async def abort_timed_out(self) -> None:
        """Abort the transactions over their timeout, and complete those that were decided and not completed."""
        now_ms = self.context.clock()
        due = await self.coordinated(lambda each: each.is_timed_out(now_ms) or each.is_prepared, only_unfinished=True)
        for some in _in_chunks(due):
            await asyncio.gather(*(self._abort(each) for each in some))

    async def _abort(self, metadata: TransactionMetadata) -> None:
        name = metadata.transactional_id
        with _logged(f"ending the transaction of transactional id {name!r}"):
            decision = await self.transact(name, lambda found, now_ms: sweep(found, now_ms=now_ms))
            if decision.steps:
                _LOG.info("ended the transaction of transactional id %r, open since %d", name, metadata.start_ms)

    async def _expire_forever(self) -> None:
        while True:
            interval_ms = self.context.broker_config().transaction_remove_expired_transaction_cleanup_interval_ms
            await asyncio.sleep(interval_ms / 1000)
            with _logged("removing expired transactional ids"):
                await self.remove_expired()

    async def remove_expired(self) -> None:
        """Remove the clients' ids that are due, and those of writers without a server."""
        now_ms = self.context.clock()
        expired = await self.context.run(lambda: self._in_newest(lambda image: self._expired(image, now_ms)))
        expiration_ms = self.context.broker_config().transactional_id_expiration_ms
        for log, names in expired:
            units = removals(log, names, now_ms=now_ms, expiration_ms=expiration_ms, is_in_use=self._is_planned)
            for unit in units:
                # A conflict means that others use the log. The next round removes what is still expired.
                with _logged("removing expired transactional ids"), contextlib.suppress(CommitConflictError):
                    await self.context.committer.commit(unit)
        await self.context.run(self.root.expire_transactional_ids)

    def _expired(self, image: MetadataImage, now_ms: int) -> list[tuple[StateLog, Sequence[str]]]:
        expiration_ms = self.context.broker_config().transactional_id_expiration_ms
        found = ((log, log.expired(image, now_ms, expiration_ms)) for log in self._coordinated_logs(image))
        return [(log, names) for log, names in found if names]

    def _is_planned(self, image: MetadataImage, transactional_id: str) -> bool:
        return self.logs.planned.before(image, transactional_id, None) is not None


class ProducerIds:
    """Producer ids for clients, in blocks that a commit allocates; ids that were not given out are never used.

    Writers of this package (root/writes.py) allocate theirs from the same counter, so no two producers get
    the same id. A transactional id of a client and one of a Spark writer that have the same name are two: one is a
    state in `__transaction_state`, the other in the commit log, and neither fences the other.

    `follows`: whether the root follows a leader, whose counter gives out the ids then.

    Source of the rules: org.apache.kafka.coordinator.transaction.RPCProducerIdManager.
    """

    def __init__(self, committer: Committer, follows: Callable[[], bool]) -> None:
        self._committer = committer
        self._follows = follows
        self._lock = asyncio.Lock()
        self._next = self._end = 0

    async def take(self) -> int:
        """An id that no other producer gets. Raises as Committer.commit does."""
        async with self._lock:
            if self._next == self._end or self._follows():  # then the commit is refused
                self._next = await self._allocate()
                self._end = self._next + _ID_BLOCK
            self._next += 1
            return self._next - 1

    async def _allocate(self) -> int:
        first = -1

        def records(image: MetadataImage, appended: Sequence[AppendedRange]) -> Sequence[MetadataRecord]:
            nonlocal first
            first = image.next_producer_id
            node = image.node
            return (
                ProducerIdsRecord(
                    broker_id=node.broker_id, broker_epoch=node.broker_epoch, next_producer_id=first + _ID_BLOCK
                ),
            )

        await self._committer.commit(CommitUnit(appends=lambda image: (), records=records))
        return first


def _ranges(done: asyncio.Future[tuple[AppendedRange, ...]]) -> tuple[AppendedRange, ...] | None:
    return None if done.cancelled() or done.exception() is not None else done.result()


def _in_chunks(found: Sequence[TransactionMetadata]) -> Iterator[Sequence[TransactionMetadata]]:
    for start in range(0, len(found), _SWEPT_TOGETHER):
        yield found[start : start + _SWEPT_TOGETHER]


@contextlib.contextmanager
def _logged(what: str) -> Iterator[None]:
    """Log an error in the block: the next round tries again."""
    try:
        yield
    except (KafkalogError, OSError) as error:
        _LOG.warning("%s failed: %s", what, error)
    except Exception:  # a defect must not end the sweep
        _LOG.exception("%s failed", what)
