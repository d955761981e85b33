"""Copy closed segments to remote storage: `spark-submit jobs/tier.py --path ROOT`; see `kafkalog tier`."""

from __future__ import annotations

import sys

from pyspark_kafkalog import main

if __name__ == "__main__":
    sys.exit(main(["tier", *sys.argv[1:]]))
