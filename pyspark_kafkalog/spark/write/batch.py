"""The batch writer: tasks stage records, and the driver commits all staged files at once.

With the options txnAppId and txnVersion a write is idempotent: a version that is already committed is not written
again, and planning a write with an id fences all writers that planned one with that id before.

A crash before the commit leaves staged files that nothing refers to; clean-up removes them by age.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyspark_kafkalog.spark.options.parse import WriteOptions
from pyspark_kafkalog.spark.write.task import WritePlan, remove_staged, staged_in_order

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.root.write_transaction import WriteTransaction


class KafkalogBatchWriter(DataSourceArrowWriter):
    """Writes rows to one topic, or each row to the topic it names. `is_done`: the version is already committed."""

    def __init__(self, plan: WritePlan, transaction: WriteTransaction | None = None, *, is_done: bool = False) -> None:
        self.plan = plan
        self._transaction = transaction
        self._is_done = is_done

    @classmethod
    def make(cls, options: WriteOptions) -> KafkalogBatchWriter:
        """On the driver: plan the write, and begin an incarnation of the transactional id if one is given."""
        from pyspark_kafkalog.root.write_transaction import WriteTransaction
        from pyspark_kafkalog.security.open import open_root

        plan = WritePlan.make(options)
        if options.txn_app_id is None or options.txn_version is None:
            return cls(plan)
        transaction = WriteTransaction(options.txn_app_id, options.txn_version, plan.write_id)
        root = open_root(plan.root, principal=options.principal, identity=plan.identity)
        is_done = root.has_committed(transaction)
        if not is_done:
            root.init_transaction(transaction.transactional_id, transaction.incarnation)
        return cls(plan, transaction, is_done=is_done)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: stage the rows of one task."""
        return self.plan.stage(iter(()) if self._is_done else iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: commit the files of all tasks at once. Without rows, only a given txnVersion is committed.

        Raises LogDirError when the path has a root other than the planned one, or none.
        """
        from pyspark_kafkalog.security.open import open_root

        staged = staged_in_order(messages)
        if staged or (self._transaction is not None and not self._is_done):
            plan = self.plan
            root = open_root(plan.root, principal=plan.options.principal, identity=plan.identity)
            root.commit_staged(staged, transaction=self._transaction, flush=plan.options.flush)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: remove the staged files."""
        remove_staged(self.plan.root, [self.plan.write_id])
