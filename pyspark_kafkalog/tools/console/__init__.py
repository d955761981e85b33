"""The console commands: print the records of topics, write lines of text to a topic.

follow          Consumer: reads partitions as records arrive
consumer        the command console-consumer
record_format   records as text, as Kafka's formatters and deserializers write them; lines of text as records
producer        the command console-producer
"""
