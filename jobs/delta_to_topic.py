"""Write a Delta table's changes to a topic as keyed records, every change once.

    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/delta_to_topic.py --table /data/customers \
        --path /data/log --topic customers --key id --checkpoint /data/checkpoints/customers

`kafkalog delta-to-topic` does the same, and downloads Delta's jars automatically.
"""

from __future__ import annotations

import sys

from pyspark_kafkalog import main

if __name__ == "__main__":
    sys.exit(main(["delta-to-topic", *sys.argv[1:]]))
