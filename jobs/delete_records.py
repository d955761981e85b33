"""Delete records below offsets: `spark-submit jobs/delete_records.py --path ROOT`; see `kafkalog delete-records`."""

from __future__ import annotations

import sys

from pyspark_kafkalog import main

if __name__ == "__main__":
    sys.exit(main(["delete-records", *sys.argv[1:]]))
