"""Delete old segments: `spark-submit jobs/retention.py --path ROOT`; see `kafkalog retention`."""

from __future__ import annotations

import sys

from pyspark_kafkalog import main

if __name__ == "__main__":
    sys.exit(main(["retention", *sys.argv[1:]]))
