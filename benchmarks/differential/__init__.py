"""The differential test: Spark's Kafka source and sink beside kafkalog, over the files of one broker."""
