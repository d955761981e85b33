"""The console commands: print the records of topics, write lines of text to a topic.

follow          Consumer: reads partitions as records arrive
consumer        the command console-consumer
record_format   formats records as text, as Kafka's formatters and deserializers do
producer        the command console-producer
line_format     parses lines of text as records
"""
