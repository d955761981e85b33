"""The `kafkalog` command line: one module per command."""
