"""The transaction coordinator: transactional ids, transactions over partitions and groups, and their timeouts.

The records of `__transaction_state` are the only lasting state, as Kafka's coordinator writes them; any server decides
about any id, and the order of commits counts. An id with its transitions, the end of a transaction, and the log of a
partition's ids are in root/transactions. In reading order:

- decisions: what each request does to an id, and the markers that follow: pure functions
- units: a decision as one unit of a commit; the batches of transactional producers
- coordinator: the service: units for requests, producer ids, and the sweep of timed-out transactions and expired ids
- producing: the handlers of a producer's requests, also of a group's offsets in its transaction
- describing: the handlers of tools: list, describe, markers
"""
