"""The parts of `kafkalog dump-log`."""
