"""Write a Delta table's changes to a topic as keyed records, every change once.

    spark-submit --packages io.delta:delta-spark_4.2_2.13:4.4.0 jobs/delta_to_topic.py --table /data/customers \
        --path /data/log --topic customers --key id --checkpoint /data/checkpoints/customers

`python jobs/delta_to_topic.py` fetches Delta's jars by itself.
"""

import sys

from pyspark_kafkalog.delta.delta_to_topic import main

if __name__ == "__main__":
    sys.exit(main())
