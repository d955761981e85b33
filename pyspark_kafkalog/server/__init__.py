"""A server for Kafka's protocol over a root: unmodified Kafka clients read and write a log directory.

In reading order:

- config: the settings of one server process
- run: puts a server together, starts and stops it; `serve` runs one inside of another process
- context: what a handler gets: the request, the root, the committer, the cluster of servers
- event_loop: what all requests share: loops that yield, coroutines without tasks, the time that requests take
- request_errors: which error code and text says what went wrong
- committer: group commit; wakes requests that wait for records
- sending: responses as memory and slices of files
- cluster: the live servers over one root
- roles: whether a server writes or only reads, the change while it runs, and which function handles which request
- metadata: ApiVersions, Metadata, FindCoordinator, and the topics as requests name them
- produce: Produce, and the checks of its batches
- metrics: what the server has done, and its HTTP end point
- workers: several server processes on one machine

Packages. `run` uses `connections`; both use the handlers, which are all below `connections`:

- connections: from the bytes of a client to the handler of its request, and back
- straight: the usual requests of producers and consumers, read at fixed places
- host: one process that commits the batches of all workers of a host
- reads: Fetch, ListOffsets, OffsetForLeaderEpoch
- groups: the classic and the consumer protocol, committed offsets
- transactions: producer ids, transactions, and offsets in them
- admin: topics, partitions, configurations, log directories, the cluster
- security: TLS, SASL, access control entries, quotas, limits of connections
"""
