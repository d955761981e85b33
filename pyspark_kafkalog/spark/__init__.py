"""The `kafkalog` data source: options, offset ranges, splits, readers, writers."""
