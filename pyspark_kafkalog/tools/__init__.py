"""The `kafkalog` command line: one module per command, or per group of commands.

In reading order:

- main: selects the subcommand, and imports only its module
- command, output, running: common options, what commands print, and what they do while they run
- topics, configs, client_configs, acls: topics, configurations, quotas and credentials of clients, access control
- get_offsets, transactions: offsets of partitions, transactions and producers
- migration: `adopt` and `export`
- serve: the server for Kafka's clients
- set_up: completion in shells, compilation of the kernels
- groups, console, dump, inspection, jobs, perf, replicas: commands that take several modules each
"""
