"""Decides which transactional batches and markers a cleaning may drop, while it reads a log in order.

Data of an aborted transaction is dropped at once. A marker is dropped once no batch of its transaction remains before
it; until then the aborted transaction stays in the transaction index of the cleaned segment. Source of the rules:
org.apache.kafka.storage.internals.log.CleanedTransactionMetadata.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from pyspark_kafkalog.maintenance.cleaner.kernels_offset_map import EMPTY_BATCH
from pyspark_kafkalog.record.control import ControlRecordType
from pyspark_kafkalog.record.header import CONTROL_MASK, TRANSACTIONAL_MASK
from pyspark_kafkalog.storage.artefacts.transaction_index import AbortedTxn


@dataclass(slots=True)
class _Aborted:
    """An aborted transaction whose marker has not been reached; `has_data`: a batch of it has been read."""

    transaction: AbortedTxn
    has_data: bool = False


@dataclass(slots=True)
class CleanedTransactions:
    """The state between two batches. `aborted` are all aborted transactions that may occur.

    `retained` collects those whose data was read before their marker: the index of the cleaned segment needs them.
    """

    aborted: list[AbortedTxn]
    retained: list[AbortedTxn] = field(default_factory=list)
    _next: int = 0
    _open_aborted: dict[int, _Aborted] = field(default_factory=dict)
    _open_committed: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, aborted: Iterable[AbortedTxn]) -> CleanedTransactions:
        return cls(sorted(set(aborted), key=lambda each: each.first_offset))

    def copy(self) -> CleanedTransactions:
        """The current state with nothing retained, for a task that starts at this point."""
        state = CleanedTransactions(self.aborted)
        state._next = self._next
        state._open_aborted = {each: replace(aborted) for each, aborted in self._open_aborted.items()}
        state._open_committed = set(self._open_committed)
        return state

    def take_retained(self) -> list[AbortedTxn]:
        """Return and clear the transactions for the index of the segment whose batches have been judged since."""
        taken, self.retained = self.retained, []
        return taken

    def may_go(self, batches: NDArray[np.void], control_types: NDArray[np.int16]) -> NDArray[np.bool_]:
        """For each batch (BATCH_DTYPE, in order) whether its transaction allows it to be dropped.

        True for data of aborted transactions and for markers of transactions of which nothing else remains.
        """
        result = np.zeros(len(batches), np.bool_)
        rows = np.flatnonzero(batches["attributes"] & (TRANSACTIONAL_MASK | CONTROL_MASK))
        if not len(rows):
            return result
        chosen = batches[rows]
        is_control = (chosen["attributes"] & CONTROL_MASK) != 0
        for row, last_offset, producer_id, control, control_type in zip(
            rows.tolist(),
            chosen["last_offset"].tolist(),
            chosen["producer_id"].tolist(),
            is_control.tolist(),
            control_types[rows].tolist(),
            strict=True,
        ):
            self._open_up_to(last_offset)
            result[row] = self._marker(producer_id, control_type) if control else self._data(producer_id)
        return result

    def _open_up_to(self, offset: int) -> None:
        while self._next < len(self.aborted) and self.aborted[self._next].first_offset <= offset:
            transaction = self.aborted[self._next]
            self._open_aborted.setdefault(transaction.producer_id, _Aborted(transaction))
            self._next += 1

    def _data(self, producer_id: int) -> bool:
        aborted = self._open_aborted.get(producer_id)
        if aborted is None:
            self._open_committed.add(producer_id)
            return False
        aborted.has_data = True
        return True

    def _marker(self, producer_id: int, control_type: int) -> bool:
        if control_type == EMPTY_BATCH:
            return True
        if control_type == ControlRecordType.ABORT:
            aborted = self._open_aborted.pop(producer_id, None)
            if aborted is None or not aborted.has_data:
                return True
            self.retained.append(aborted.transaction)
            return False
        if control_type == ControlRecordType.COMMIT:
            had_data = producer_id in self._open_committed
            self._open_committed.discard(producer_id)
            return not had_data
        return False
