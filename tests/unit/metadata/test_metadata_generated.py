"""The dataclasses of messages are generated from the schemas and up to date."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pyspark_kafkalog.metadata.messages.metadata_records import METADATA_RECORDS
from pyspark_kafkalog.metadata.messages.schema import load_schema_file

SCRIPT = Path(__file__).parents[3] / "scripts" / "make_messages.py"


def test_generated_modules_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], check=False)
    assert done.returncode == 0, "run python scripts/make_messages.py"


def test_every_metadata_record_of_the_schemas_has_a_dataclass() -> None:
    names = [*load_schema_file("cluster_metadata"), *load_schema_file("kafkalog")]
    assert [each.__name__ for each in METADATA_RECORDS] == names
