"""Settings on a command line, `--property NAME=VALUE`, and in Java properties files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from pyspark_kafkalog.storage.artefacts.marker_files import read_properties_file
from pyspark_kafkalog.tools.command import UsageError


def parse_properties_options(texts: Iterable[str], file: Path | None = None) -> dict[str, str]:
    """Each text's NAME=VALUE, which overrides the properties file if one is given. Raises UsageError."""
    properties = {} if file is None else read_properties_file(file)
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"Invalid command line properties: {text}: expected NAME=VALUE")
        properties[name] = value
    return properties


def is_true(properties: Mapping[str, str], name: str, *, default: bool = False) -> bool:
    """Whether the property is `true`, in upper or lower case; anything else is false, as in Kafka's console tools."""
    return properties[name].strip().lower() == "true" if name in properties else default
