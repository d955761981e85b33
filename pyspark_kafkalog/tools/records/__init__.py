"""Commands that write and read records.

commands        console-consumer, console-producer, perf-test and their options
console         console-consumer, console-producer, and the consumer that follows partitions
record_format   records as text: formatters, deserializers, lines of input
perf_test       perf-test
"""
