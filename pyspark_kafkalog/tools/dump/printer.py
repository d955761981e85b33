"""The items of a dump, independent of the output form: text like kafka-dump-log's, or JSON lines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from pyspark_kafkalog.storage.artefacts.producer_snapshot import ProducerStateEntry
from pyspark_kafkalog.tools.dump.records import DumpRecord
from pyspark_kafkalog.tools.dump.walk import DumpedBatch

#: Key and payload of a record as decoded, None if missing: bytes are text in UTF-8, a string is a message of the
#: decoder itself, a mapping is a JSON tree.
Contents = tuple[object | None, object | None]
RecordDecoder = Callable[[DumpRecord], Contents]


@dataclass(frozen=True, slots=True)
class AbortedTxnEntry:
    """One entry of a transaction index; `version` is its first byte, as Kafka's tool shows it."""

    version: int
    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class Printer(Protocol):
    """Receives the items of the dump, in the order of the files."""

    def file(self, path: str) -> None:
        """The next file begins."""

    def log_start(self, offset: int) -> None:
        """The file is a segment's log with this base offset."""

    def staged_start(self) -> None:
        """The file contains staged batches, whose offsets start at 0."""

    def snapshot_start(self, end_offset: int, epoch: int) -> None:
        """The file is a KRaft snapshot."""

    def bootstrap_start(self) -> None:
        """The file is KRaft's bootstrap snapshot."""

    def batch(self, batch: DumpedBatch) -> None:
        """One record batch."""

    def record(self, batch: DumpedBatch, record: DumpRecord) -> None:
        """One record of the preceding batch."""

    def invalid_tail(self, file_name: str, size_bytes: int) -> None:
        """Bytes at the end of a log that are not a complete batch."""

    def empty_index(self, path: str) -> None:
        """The offset index has no entry."""

    def sane_index(self, path: str) -> None:
        """The index passed its sanity check."""

    def offset_index_entry(self, offset: int, position: int) -> None:
        """One entry of an offset index."""

    def time_index_entry(self, timestamp_ms: int, offset: int) -> None:
        """One entry of a time index."""

    def aborted_txn(self, entry: AbortedTxnEntry) -> None:
        """One entry of a transaction index."""

    def producer_state(self, entry: ProducerStateEntry) -> None:
        """One entry of a producer snapshot."""
