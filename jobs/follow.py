"""Follow a leader with tasks of Spark, for a large back-fill; see `kafkalog follow --spark`.

    spark-submit jobs/follow.py --from broker1:9092 --path /data/copy --once

Executors see the log directory of --path under the same path, and reach the leader.
"""

from __future__ import annotations

import sys

from pyspark_kafkalog import main

if __name__ == "__main__":
    sys.exit(main(["follow", "--spark", *sys.argv[1:]]))
