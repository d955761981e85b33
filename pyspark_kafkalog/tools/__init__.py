"""The `kafkalog` command line: one module per command, or per group of commands.

In reading order:

- main: selects the subcommand, and imports only its module
- command, output, terminal, running: common options, what commands print, also for people, what they do while they run
- topics, configs, acls: topics, configurations with quotas and credentials of clients, access control
- get_offsets, transactions: offsets of partitions, transactions and producers
- consumer_groups, offset_resets: groups, and resets of their offsets
- disk_usage, metadata_log: sizes of files and partitions, the commits and the state of the metadata log
- set_up: completion in shells, compilation of the kernels
- records, dump, maintenance, processes: commands that take several modules each
"""
