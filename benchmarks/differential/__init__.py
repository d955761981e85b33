"""The differential test: Spark's Kafka source and sink compared with kafkalog, on the files of one broker."""
