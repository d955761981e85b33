"""The data source `format("kafkalog")`: options, offset ranges, readers and writers for batch and streaming."""
