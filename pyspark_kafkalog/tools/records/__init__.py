"""Commands that write and read records.

commands        console-consumer, console-producer, perf-test and their options
consumer        console-consumer, and the consumer that follows partitions
producer        console-producer
record_format   records as text: formatters, deserializers, lines of input
perf_test       perf-test
"""
