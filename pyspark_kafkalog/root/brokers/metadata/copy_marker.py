"""The mark of a directory that is a copy of a cluster's metadata log: it has no partitions of topics.

    __cluster_metadata-0/kafkalog-observer     "version=1\\n"

Its topics are those of the metadata log, wherever their partitions are; and all of its records are committed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pyspark_kafkalog.metadata.root_format import METADATA_DIR

COPY_MARKER: Final = "kafkalog-observer"


def is_metadata_copy(root: Path) -> bool:
    """Whether `root` is a copy of a metadata log."""
    return (root / METADATA_DIR / COPY_MARKER).is_file()
