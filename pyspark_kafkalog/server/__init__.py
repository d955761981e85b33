"""A server for Kafka's protocol over a root: unmodified Kafka clients read and write a log directory.

In reading order:

- config: the settings of one server process
- run: starts and stops a server; `serve` runs one inside of another process
- context: what a handler gets: the request, the root, the committer, the cluster of servers
- event_loop: what all requests share: loops that yield, coroutines without tasks, the time that requests take
- request_errors: which error code and text says what went wrong
- committer: group commit
- waiters: wakes requests that wait for records
- sending: responses as memory and slices of files
- roles: whether a server writes or only reads, and the change while it runs

Packages. `process` uses `connections`; both use the handlers, which are all below `connections`:

- process: one server process: its parts, its metrics, and the other processes on the same machine
- connections: from the bytes of a client to the handler of its request, and back
- metadata: ApiVersions, Metadata, FindCoordinator
- writes: Produce
- reads: Fetch, ListOffsets, OffsetForLeaderEpoch
- groups: the classic and the consumer protocol, committed offsets
- transactions: producer ids, transactions, and offsets in them
- admin: topics, partitions, configurations, log directories, the cluster
- security: TLS, SASL, access control entries, quotas, limits of connections
- cluster: the live servers over one root
"""
