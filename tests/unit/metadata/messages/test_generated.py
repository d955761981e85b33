"""The dataclasses of messages are generated from the schemas and up to date."""

from __future__ import annotations

import subprocess
import sys

from repository import REPOSITORY

from pyspark_kafkalog.metadata.messages.metadata_records import METADATA_RECORDS, RegisterBrokerRecord
from pyspark_kafkalog.metadata.messages.records import decode_record, encode_record
from pyspark_kafkalog.metadata.messages.schema import load_schema_file

SCRIPT = REPOSITORY / "scripts" / "make_messages.py"


def test_generated_modules_are_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], check=False)
    assert done.returncode == 0, "run python scripts/make_messages.py"


def test_every_metadata_record_of_the_schemas_has_a_dataclass() -> None:
    names = [*load_schema_file("cluster_metadata"), *load_schema_file("kafkalog")]
    assert [each.__name__ for each in METADATA_RECORDS] == names


def test_records_are_written_in_the_versions_that_metadata_version_27_allows() -> None:
    """Version 4 came with Kafka 4.3: a root that states the level of 4.1 must not have it."""
    record = RegisterBrokerRecord(broker_id=1, cordoned_log_dirs=("WgvVndiuRt-sTrtFRCNrWA",))
    assert encode_record(record.replace(cordoned_log_dirs=None))[:3] == bytes([1, 0, 3])
    newer = encode_record(record, version=4)
    assert decode_record(newer) == record
