"""The `kafkalog` command line: one module per command, or per group of commands.

In reading order:

- main: selects the subcommand, and imports only its module
- output, process_log: what commands print, and the log of those that keep running
- metadata_copy: what a copy of a cluster's metadata log answers
- topics, configs, client_configs, acls: topics, configurations, quotas and credentials of clients, access control
- get_offsets, transactions: offsets of partitions, transactions and producers
- migration: `adopt` and `export`
- serve: the server for Kafka's clients
- set_up: completion in shells, compilation of the kernels
- groups, console, dump, inspection, jobs, perf, replicas: commands that take several modules each
"""
