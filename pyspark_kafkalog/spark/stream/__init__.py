"""Streaming reads.

- reader: the reader that Spark calls; progress written to a consumer group
- plan: the partitions of the subscription as of one moment; the end of a micro-batch, its limits and its ranges;
  offsets as stored in the checkpoint
"""
