"""One partition's log: append, recover, read."""
