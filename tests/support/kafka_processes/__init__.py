"""Real Kafka, servers of object stores, clients and commands as processes, and comparisons with them."""
