"""Log directories as a whole: native ones and brokers', their topics, partitions and writes."""
