"""Decides whether a leader may store a producer's batches: duplicates, sequence numbers, epochs, transactions.

A batch that repeats one of the producer's last five, with the same epoch and sequences, is a duplicate: its sender has
not seen the answer. Any other batch has the sequence after the last one, or is the first of a new epoch with sequence
0. A producer that the log does not know, or has forgotten, may begin with any sequence, but with 0 alone in a
transaction of version 2 (KIP-890): there an earlier batch that is missing has been refused, or is late. The marker of
such a transaction has a newer epoch than its batches (KIP-1228), so a marker of the epoch that is there ends nothing.

Nothing here changes the log's producer state. A `ProducerView` holds the state as it will be after batches that are to
be appended, so that many appends of one commit can be checked before the first of them is stored.

Source of the rules: ProducerAppendInfo and UnifiedLog.analyzeAndValidateProducerState of
org.apache.kafka.storage.internals.log. Kafka does not check the sequences within an append of an unknown producer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark_kafkalog.errors import OutOfOrderSequenceError, ProducerFencedError
from pyspark_kafkalog.record.header import NO_PRODUCER_EPOCH, NO_SEQUENCE, next_sequence
from pyspark_kafkalog.storage.artefacts.producer_snapshot import NO_OFFSET
from pyspark_kafkalog.storage.log.producers import (
    BATCHES_TO_RETAIN,
    BatchMetadata,
    ProducerAppend,
    ProducerBatch,
    ProducerState,
)
from pyspark_kafkalog.units import INT16_MAX


class ProducerView:
    """The producers of a log, `known`, with the changes of batches that are about to be appended.

    `known` may be another view's changes over the log's own producers: see `child` and `absorb`. `recalled` gives a
    producer's state with the batches before the ones that `known` has; it is asked before such a batch is refused.
    """

    def __init__(
        self,
        known: Mapping[int, ProducerState],
        parent: ProducerView | None = None,
        recalled: Callable[[int], ProducerState | None] = lambda producer_id: None,
    ) -> None:
        self._known = known
        self._parent = parent
        self._recalled = recalled
        self._changed: dict[int, ProducerState] = {}

    @property
    def changed(self) -> Mapping[int, ProducerState]:
        """The states of the producers whose batches were added."""
        return self._changed

    def get(self, producer_id: int) -> ProducerState | None:
        """The state of a producer; None if it is unknown."""
        view: ProducerView | None = self
        while view is not None:
            state = view._changed.get(producer_id)
            if state is not None:
                return state
            view = view._parent
        return self._known.get(producer_id)

    def child(self) -> ProducerView:
        """A view on this one, whose changes `absorb` may take over."""
        return ProducerView(self._known, self, self._recalled)

    def absorb(self, child: ProducerView) -> None:
        """Take over the changes of `child`."""
        self._changed.update(child._changed)

    def add(
        self, batches: Sequence[ProducerBatch], *, is_client: bool = True, is_transaction_v2: bool = False
    ) -> BatchMetadata | None:
        """Count in the batches of one append; if one is a duplicate, change nothing and return the batch it repeats.

        Only the batches of clients have their sequences checked. `is_transaction_v2`: a producer without batches must
        begin with sequence 0, and markers have a newer epoch. Raises OutOfOrderSequenceError, ProducerFencedError,
        InvalidTransactionStateError; then nothing has changed.
        """
        appends: dict[int, ProducerAppend] = {}
        for batch in batches:
            known = self.get(batch.producer_id)
            if is_client and known is not None:
                duplicate = find_duplicate(known, batch) or self._find_earlier(known, batch)
                if duplicate is not None:
                    return duplicate
            append = appends.get(batch.producer_id)
            if append is None:
                append = ProducerAppend(known or ProducerState(batch.producer_id), is_fencing=True)
                appends[batch.producer_id] = append
            if is_client:
                if is_transaction_v2 and batch.base_sequence and (known is None or not known.batches):
                    raise OutOfOrderSequenceError(
                        f"producer {batch.producer_id} has no batches here and begins a transaction "
                        f"with sequence {batch.base_sequence}, expected 0"
                    )
                _check_sequence(known, append.updated, batch)
            if is_transaction_v2 and batch.marker is not None:
                _check_marker_epoch(append.updated, batch)
            append.append(batch)
        for producer_id, append in appends.items():
            known = self.get(producer_id)
            self._changed[producer_id] = append.updated if known is None else known.merged(append.updated)
        return None

    def _find_earlier(self, known: ProducerState, batch: ProducerBatch) -> BatchMetadata | None:
        """The batch that this one repeats, if it is one of the last five and not in `known`."""
        missing = BATCHES_TO_RETAIN - len(known.batches)
        follows = not known.batches or batch.base_sequence == next_sequence(known.last_sequence, 1)
        if missing <= 0 or follows or batch.producer_epoch != known.producer_epoch:
            return None
        recalled = self._recalled(batch.producer_id)
        return None if recalled is None else find_duplicate(recalled, batch)


def find_duplicate(producer: ProducerState, batch: ProducerBatch) -> BatchMetadata | None:
    """The remembered batch with the same epoch and sequences; None if no batch has them."""
    if batch.producer_epoch != producer.producer_epoch:
        return None
    last_sequence = batch.last_sequence
    for known in producer.batches:
        if known.last_sequence == last_sequence and known.first_sequence == batch.base_sequence:
            return known
    return None


def _check_marker_epoch(updated: ProducerState, batch: ProducerBatch) -> None:
    """Check the epoch of a marker of a transaction of version 2; a marker that is repeated has the epoch of the first.

    The last epoch of all cannot rise.
    """
    is_open = updated.current_txn_first_offset != NO_OFFSET
    may_repeat = not is_open or batch.producer_epoch == INT16_MAX
    if batch.producer_epoch == updated.producer_epoch and not may_repeat:
        raise ProducerFencedError(
            f"the marker of producer {batch.producer_id} has epoch {batch.producer_epoch}, expected a newer one: its "
            "transaction of version 2 was written with that epoch"
        )


def _check_sequence(known: ProducerState | None, updated: ProducerState, batch: ProducerBatch) -> None:
    """Check the sequence of a batch that follows `updated`, which began as `known`. An older epoch is fenced later."""
    first, epoch = batch.base_sequence, updated.producer_epoch
    if batch.producer_epoch < epoch:
        return
    if batch.producer_epoch > epoch:
        if first != 0 and epoch != NO_PRODUCER_EPOCH:
            raise OutOfOrderSequenceError(
                f"producer {batch.producer_id} begins its epoch {batch.producer_epoch} "
                f"with sequence {first}, expected 0"
            )
        return
    last = updated.last_sequence
    if not updated.batches and known is not None and known.producer_epoch == epoch:
        last = known.last_sequence
    expected = 0 if last == NO_SEQUENCE else next_sequence(last, 1)
    if first != expected:
        raise OutOfOrderSequenceError(f"producer {batch.producer_id} sent sequence {first}, expected {expected}")
