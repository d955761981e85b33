"""Verify a log directory: `spark-submit jobs/verify.py --path ROOT`; see `kafkalog verify`."""

from __future__ import annotations

import sys

from pyspark_kafkalog import main

if __name__ == "__main__":
    sys.exit(main(["verify", *sys.argv[1:]]))
