"""The one line that a table job prints is the error itself, not what Spark says of Python's part."""

from __future__ import annotations

from pyspark_kafkalog.tools.maintenance.delta import error_text

FAILED = """[STREAM_FAILED] Query [id = 1, runId = 2] failed: An exception was raised by the Python Proxy. \
Return Message: Traceback (most recent call last):
  File "clientserver.py", line 641, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
pyspark.errors.exceptions.captured.UnsupportedOperationException: first of two

During handling of the above exception, another exception occurred:

  File "delta_target.py", line 1, in append
pyspark_kafkalog.errors.LowerVersionError: batch 3 of query 1 has been written; use a new checkpoint
 SQLSTATE: XXKST
"""


def test_error_in_foreach_batch_is_the_innermost_one() -> None:
    assert error_text(RuntimeError(FAILED)) == "batch 3 of query 1 has been written; use a new checkpoint"


def test_error_of_spark_is_its_first_line_without_wrappings() -> None:
    assert error_text(RuntimeError("[A_B] it failed SQLSTATE: 42000\n  at scala")) == "it failed"
