"""Running maintenance over all partitions, in this process or as Spark tasks, and reporting on it.

runner          a job, its runs, and its division into tasks
tasks           functions as tasks: in threads, or on Spark; stopping them; the limit on their bytes per second
report          the outcome for one partition: counters, time and error
sinks           where reports go: JSON, text, progress bar, Delta table
session         Spark sessions, with Delta if needed
partition_lock  one run at a time works on a partition
"""
