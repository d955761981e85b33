"""`python -m pyspark_kafkalog`: the `kafkalog` command, for an interpreter whose scripts are not on the PATH."""

from __future__ import annotations

import sys

from pyspark_kafkalog.tools.main import main

if __name__ == "__main__":
    sys.exit(main())
