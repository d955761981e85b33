"""Write a topic into a Delta table, every record once: append records, or keep the latest value of each key.

    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/topic_to_delta.py --path /data/log --topic orders \
        --table /data/orders --checkpoint /data/checkpoints/orders --schema 'id LONG, amount DOUBLE'

`python jobs/topic_to_delta.py` fetches Delta's jars by itself.
"""

import sys

from pyspark_kafkalog.delta.topic_to_delta import main

if __name__ == "__main__":
    sys.exit(main())
