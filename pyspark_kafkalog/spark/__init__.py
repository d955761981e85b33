"""The Spark data source `kafkalog`.

- data_source: the entry point that Spark calls; columns of reads and writes
- options: the table of options, and what the user's options mean
- read: planning and tasks of batch reads, which streaming reads share
- stream: planning of micro-batches
- write: batch and streaming writes
"""

from __future__ import annotations

from pyspark_kafkalog.threads import bound_address_space

bound_address_space()  # in Spark's Python workers before pyarrow is loaded
