"""Makes the reference of the Python API, build/docs/index.html, from the docstrings, with pdoc.

    python scripts/make_api_reference.py [DIRECTORY]

`PUBLIC_MODULES` is the public surface: what is in no module of the list may change from one version to the next.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

PACKAGE: Final = "pyspark_kafkalog"
PUBLIC_MODULES: Final = (
    "pyspark_kafkalog",
    "pyspark_kafkalog.security.access_control",
    "pyspark_kafkalog.delta.delta_to_topic",
    "pyspark_kafkalog.delta.topic_to_delta",
    "pyspark_kafkalog.errors",
    "pyspark_kafkalog.groups.group",
    "pyspark_kafkalog.groups.group_state",
    "pyspark_kafkalog.groups.resets",
    "pyspark_kafkalog.log_dir",
    "pyspark_kafkalog.root.protocol",
    "pyspark_kafkalog.maintenance.cleaner.clean",
    "pyspark_kafkalog.maintenance.retention.delete_records",
    "pyspark_kafkalog.maintenance.export.export",
    "pyspark_kafkalog.maintenance.merge",
    "pyspark_kafkalog.maintenance.metrics",
    "pyspark_kafkalog.maintenance.reindex",
    "pyspark_kafkalog.maintenance.repair",
    "pyspark_kafkalog.maintenance.jobs.partition",
    "pyspark_kafkalog.maintenance.retention.delete",
    "pyspark_kafkalog.maintenance.jobs.tasks",
    "pyspark_kafkalog.maintenance.verify.verify",
    "pyspark_kafkalog.metadata.acl",
    "pyspark_kafkalog.root.adopt.adopt",
    "pyspark_kafkalog.metadata.history",
    "pyspark_kafkalog.root.writes",
    "pyspark_kafkalog.notebook",
    "pyspark_kafkalog.notebook.logs",
    "pyspark_kafkalog.notebook.spark_helpers",
    "pyspark_kafkalog.spark.data_source",
    "pyspark_kafkalog.root.snapshot",
    "pyspark_kafkalog.server.config",
    "pyspark_kafkalog.server.run",
    "pyspark_kafkalog.storage.log.reader",
)
BUILD_DIRECTORY: Final = Path(__file__).resolve().parents[1] / "build" / "docs"


def main(arguments: Sequence[str]) -> None:
    """Make the reference in the directory named, or in build/docs."""
    directory = Path(arguments[0]) if arguments else BUILD_DIRECTORY
    make_reference(directory)
    print(directory / "index.html")


def make_reference(directory: Path) -> None:
    """Write a page for each public module, and an index, into the directory."""
    import pdoc

    package = importlib.import_module(PACKAGE)
    for name in package.__all__:  # they load on first use, and pdoc lists what is there
        setattr(package, name, getattr(package, name))
    pdoc.render.configure(docformat="markdown", show_source=False, search=True)
    pdoc.pdoc(*_specifications(), output_directory=directory)


def _specifications() -> list[str]:
    """What tells pdoc to take these modules: each, and none of its submodules that do not come later in the list."""
    return [specification for name in PUBLIC_MODULES for specification in (name, rf"!{name}\.")]


if __name__ == "__main__":
    main(sys.argv[1:])
