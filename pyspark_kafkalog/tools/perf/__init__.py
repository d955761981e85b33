"""The command perf-test.

perf_test   options
measure     writes and reads, rates and latencies
"""
