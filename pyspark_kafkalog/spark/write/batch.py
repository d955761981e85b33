"""The batch writer: tasks stage records, and the driver commits all staged files at once.

    planning worker    opens the root; creates root and topic; with a transaction, begins an incarnation
    tasks              stage records
    committing worker  gets the pickled writer; opens the root, checks that it is the planned one, commits

With the options txnAppId and txnVersion a write is idempotent: a version that is already committed is not written
again, and planning a write with an id fences all writers that planned one with that id before.

A crash before the commit leaves staged files that nothing refers to; clean-up removes them by age.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from pyspark_kafkalog.spark.options.parse import WriteOptions
from pyspark_kafkalog.spark.worker_memory import freeze_imports
from pyspark_kafkalog.spark.write.plan import WritePlan, plan_batch
from pyspark_kafkalog.spark.write.task import remove_staged, stage, staged_in_order

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_kafkalog.root.write_transaction import WriteTransaction


class KafkalogBatchWriter(DataSourceArrowWriter):
    """Writes rows to one topic, or each row to the topic it names.

    `is_committed`: the transaction's version has been committed already, so there is nothing to write.
    """

    def __init__(
        self, plan: WritePlan, transaction: WriteTransaction | None = None, *, is_committed: bool = False
    ) -> None:
        self.plan = plan
        self._transaction = transaction
        self._is_committed = is_committed

    @classmethod
    def make(cls, options: WriteOptions) -> KafkalogBatchWriter:
        """On the driver: plan the write, and begin an incarnation of the transactional id if one is given."""
        from pyspark_kafkalog.root.write_transaction import WriteTransaction

        plan, root = plan_batch(options)
        freeze_imports()
        if options.txn_app_id is None or options.txn_version is None:
            return cls(plan)
        transaction = WriteTransaction(options.txn_app_id, options.txn_version, plan.write_id)
        is_committed = root.has_committed(transaction)
        if not is_committed:
            root.init_transaction(transaction.transactional_id, transaction.incarnation)
        return cls(plan, transaction, is_committed=is_committed)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """On an executor: stage the rows of one task."""
        return stage(self.plan, iter(()) if self._is_committed else iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: commit the files of all tasks at once. Without rows, only a given txnVersion is committed.

        Raises LogDirError when the path has a root other than the planned one, or none.
        """
        staged = staged_in_order(messages)
        if staged or (self._transaction is not None and not self._is_committed):
            root = self.plan.open_root()
            root.commit_staged(staged, transaction=self._transaction, flush=self.plan.options.flush)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """On the driver: remove the staged files."""
        remove_staged(self.plan.path, [self.plan.write_id])
