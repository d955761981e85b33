"""Java's regular expressions for topic names, as in Spark's Kafka source and Kafka's tools."""
