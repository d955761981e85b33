"""Write a topic into a Delta table, every record once: append records, or keep the latest value of each key.

    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/topic_to_delta.py --path /data/log --topic orders \
        --table /data/orders --checkpoint /data/checkpoints/orders --schema 'id LONG, amount DOUBLE'

`kafkalog topic-to-delta` does the same, and downloads Delta's jars automatically.
"""

from __future__ import annotations

import sys

from pyspark_kafkalog import main

if __name__ == "__main__":
    sys.exit(main(["topic-to-delta", *sys.argv[1:]]))
