"""Transactions of producers with transactional ids: their state in a log directory, and how they end.

In reading order:

- states: the records of `__transaction_state` as they are in the log; transactions that are open, by partition
- metadata: one transactional id with its transitions, and the record that holds it
- end_transaction: the end of a transaction, as states to write and markers; an operator ends one that was left open
- state_log: the ids of one partition of `__transaction_state`, and the removal of expired ones
"""
