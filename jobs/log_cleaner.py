"""Clean compacted topics: `spark-submit jobs/log_cleaner.py --path ROOT`; see `kafkalog log-cleaner`."""

from __future__ import annotations

import sys

from pyspark_kafkalog import main

if __name__ == "__main__":
    sys.exit(main(["log-cleaner", *sys.argv[1:]]))
