"""Java's regular expressions of topic names, as Spark's Kafka source and Kafka's tools take them."""
