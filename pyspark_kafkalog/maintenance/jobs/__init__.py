"""Running maintenance over all partitions, in this process or as Spark tasks, and reporting on it."""
