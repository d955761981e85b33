"""Running maintenance over all partitions, in this process or as Spark tasks, and reporting on it.

runner     a job, its runs, and its division into tasks
tasks      functions as tasks: in threads, or on Spark; Spark sessions; stopping; the limit on bytes per second
partition  one partition during a run: the lock that keeps other runs away, time and error, the report
sinks      where reports go: JSON, text, progress bar, Delta table
"""
