"""Java's regular expressions for topic names, as in Spark's Kafka source and Kafka's tools.

characters       the characters of an expression and the sets that they denote
topic_pattern    the translation to Python's `re`
"""
