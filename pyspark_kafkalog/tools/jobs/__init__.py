"""Commands for jobs, which run in this process or on Spark.

job           options of maintenance jobs, where they run, exit status
maintenance   log-cleaner, retention, merge-segments, tier, reindex, verify, delete-records
delta         topic-to-delta, delta-to-topic
"""
