"""A server for Kafka's protocol over a root: unmodified Kafka clients read and write a log directory.

In reading order:

- context: what a handler gets: the request, the root, the committer, the cluster of servers
- turns: loops over many elements of a request, in turns with other requests
- config: the settings of one server process
- run: starts and stops a server; `serve` runs one inside of another process
- assembly: puts the parts of a server together
- roles: whether a server writes or only reads, and the change while it runs
- workers: several server processes on one machine
- connection: reads requests ahead, answers in order
- eager: coroutines that begin at once, without a task
- request_bytes: bounds the bytes of requests in memory
- dispatch: from the frame of a request to the pieces of its response
- sending: responses as memory and slices of files
- committer: group commit
- waiters: wakes requests that wait for records
- error_codes: which error code says what went wrong
- metrics: what the server has done, under Kafka's names
- status_page: metrics and health over HTTP
- authorized_operations: what a principal may do, as a bit field

Packages:

- metadata: ApiVersions, Metadata, FindCoordinator
- writes: Produce
- reads: Fetch, ListOffsets, OffsetForLeaderEpoch
- groups: the classic and the consumer protocol, committed offsets
- transactions: producer ids, transactions, and offsets in them
- admin: topics, partitions, configurations, log directories, the cluster
- security: TLS, SASL, access control entries, quotas, limits of connections
- cluster: the live servers over one root
"""
