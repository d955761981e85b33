"""Commands for maintenance, which run in this process or on Spark.

commands    the commands and their options
jobs        log-cleaner, retention, merge-segments, tier, reindex, verify, delete-records: where they run, exit status
migration   adopt, export
report      report
delta       topic-to-delta, delta-to-topic
"""
