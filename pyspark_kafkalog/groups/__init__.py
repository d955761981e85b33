"""Consumer groups: the offsets that readers have come to, in Kafka's topic `__consumer_offsets`."""
