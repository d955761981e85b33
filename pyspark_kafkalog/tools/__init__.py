"""The `kafkalog` command line, one module a command."""
