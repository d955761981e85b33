"""Merge small closed segments: `spark-submit jobs/merge_segments.py --path ROOT`; see `kafkalog merge-segments`."""

from __future__ import annotations

import sys

from pyspark_kafkalog import main

if __name__ == "__main__":
    sys.exit(main(["merge-segments", *sys.argv[1:]]))
