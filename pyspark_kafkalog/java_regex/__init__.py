"""Regular expressions for names: Java's, as in Spark's Kafka source and Kafka's tools, and RE2's, as in brokers.

characters  the characters of an expression and the sets that they denote
patterns    the translation of Java's to Python's `re`; those that clients send, matched by RE2 in linear time
"""
