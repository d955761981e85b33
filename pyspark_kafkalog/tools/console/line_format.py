"""Parses lines of text as records, like kafka-console-producer, into Arrow columns, many lines at a time.

    value
    key<key.separator>value                                         parse.key=true
    name:value,name:value<headers.delimiter>key<key.separator>value parse.headers=true as well

Source of the rules: org.apache.kafka.tools.LineMessageReader. A line's bytes are kept unchanged, where Kafka replaces
invalid UTF-8 by U+FFFD.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_kafkalog.record.arrow import KAFKA_SCHEMA
from pyspark_kafkalog.tools.arguments import is_true
from pyspark_kafkalog.tools.command import UsageError

#: Separators of headers that, as regular expressions, match only themselves.
_PLAIN_SEPARATORS: Final = frozenset(",;:#&/ \t")
_HEADERS_TYPE: Final = KAFKA_SCHEMA.field("headers").type


class LineError(UsageError):
    """A line lacks a required part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineFormat:
    """The format of a line; names and defaults are those of Kafka's properties (key.separator, ...)."""

    parse_key: bool = False
    key_separator: str = "\t"
    parse_headers: bool = False
    headers_delimiter: str = "\t"
    headers_separator: str = ","
    headers_key_separator: str = ":"
    ignore_error: bool = False
    null_marker: str | None = None

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> LineFormat:
        """The format set by `--property`. Raises UsageError for separators that are empty or not distinguishable."""
        given = {
            name: properties[name.replace("_", ".")]
            for name in (
                "key_separator",
                "headers_delimiter",
                "headers_separator",
                "headers_key_separator",
                "null_marker",
            )
            if name.replace("_", ".") in properties
        }
        line_format = cls(
            parse_key=is_true(properties, "parse.key"),
            parse_headers=is_true(properties, "parse.headers"),
            ignore_error=is_true(properties, "ignore.error"),
            **given,
        )
        line_format._check()
        return line_format

    def _check(self) -> None:
        separators = {
            "headers.delimiter": self.headers_delimiter,
            "headers.separator": self.headers_separator,
            "headers.key.separator": self.headers_key_separator,
        }
        pairs = [*combinations(separators.items(), 2)]
        if self.null_marker is not None:
            marker = ("null.marker", self.null_marker)
            pairs += [(marker, each) for each in (("key.separator", self.key_separator), *separators.items())]
        for (name, text), (other, other_text) in pairs:
            if text == other_text:
                raise UsageError(f"{name} and {other} may not be equal")
        for name, text in {"key.separator": self.key_separator, **separators}.items():
            if not text:
                raise UsageError(f"{name} may not be empty")
        try:
            separator = re.compile(self.headers_separator)
            pc.match_substring_regex(pa.array([""]), pattern=self.headers_separator)  # Arrow supports less than Python
        except (re.error, pa.ArrowInvalid) as error:
            raise UsageError(f"headers.separator is an invalid regex: {error}") from error
        if separator.search("") or not all(match[0] for match in separator.finditer("a,")):
            raise UsageError(
                f"headers.separator is a regex, and {self.headers_separator} matches the empty text: put \\ "
                "before a special character that stands for itself"
            )

    def parse(self, lines: pa.Array, line_number: int) -> tuple[pa.RecordBatch, LineError | None]:
        """The records of `lines` (binary), the first of which is number `line_number`: key, value and headers.

        If a line cannot be parsed, returns the records before it and the error.
        """
        error: LineError | None = None
        columns: dict[str, pa.Array] = {}
        rest = lines
        if self.parse_headers:
            texts, rest, error = self._cut(rest, self.headers_delimiter, "headers delimiter", lines, line_number)
            columns["headers"], headers_error = self._headers(texts, line_number)
            error = headers_error or error
        if self.parse_key:
            rest = rest[: len(columns["headers"])] if self.parse_headers else rest
            keys, rest, key_error = self._cut(rest, self.key_separator, "key separator", lines, line_number)
            columns["key"] = self._nulled(keys)
            error = key_error or error
        columns["value"] = self._nulled(rest)
        count = min(map(len, columns.values()))
        batch = pa.RecordBatch.from_pydict({name: column[:count] for name, column in columns.items()})
        return batch, error

    def _cut(
        self, texts: pa.Array, separator: str, name: str, lines: pa.Array, line_number: int
    ) -> tuple[pa.Array, pa.Array, LineError | None]:
        """The text before the first `separator` and the text after it; without one, null and all, or the error."""
        parts = pc.split_pattern(texts, pattern=separator, max_splits=1)
        has_both = pc.list_value_length(parts).to_numpy(zero_copy_only=False) == 2
        error = None
        if not self.ignore_error and not has_both.all():
            bad = int(np.argmin(has_both))
            line = lines[bad].as_py().decode("utf-8", "replace")
            error = LineError(f"No {name} found on line number {line_number + bad}: '{line}'")
            parts, has_both = parts[:bad], has_both[:bad]
        values, first = parts.values, parts.offsets.to_numpy()[:-1]
        before = values.take(pa.array(first, mask=~has_both))
        return before, values.take(pa.array(first + has_both)), error

    def _nulled(self, texts: pa.Array) -> pa.Array:
        """`texts` with null in place of the null marker."""
        if self.null_marker is None:
            return texts
        is_null = pc.equal(texts, pa.scalar(self.null_marker.encode(), pa.binary()))
        return pc.if_else(is_null, pa.scalar(None, pa.binary()), texts)

    def _headers(self, texts: pa.Array, line_number: int) -> tuple[pa.Array, LineError | None]:
        """The headers that each text lists; none for null."""
        texts = self._nulled(texts)
        try:
            pairs = self._pairs(texts)
            keys, values, has_both = self._split_pairs(pairs.values)
            if not has_both.all() and not self.ignore_error:
                bad = int(np.argmin(has_both))
                raise LineError(f"No header key separator found in pair '{_text(pairs.values[bad])}'")
            if self.null_marker is not None:
                is_marker = pc.equal(keys, self.null_marker)
                if pc.any(is_marker).as_py():
                    raise LineError(f"Header keys should not be equal to the null marker '{self.null_marker}'")
        except LineError as error:
            if len(texts) == 1:
                return _no_headers(0), LineError(f"{error} on line number {line_number}")
            return self._headers_until_error(texts, line_number)
        headers = pa.StructArray.from_arrays([keys, self._nulled(values)], fields=list(_HEADERS_TYPE.value_type))
        return pa.ListArray.from_arrays(pairs.offsets, headers, type=_HEADERS_TYPE), None

    def _headers_until_error(self, texts: pa.Array, line_number: int) -> tuple[pa.Array, LineError | None]:
        """Parse by bisection until the text with the error is found."""
        middle = len(texts) // 2
        first, error = self._headers(texts[:middle], line_number)
        if error is not None:
            return first, error
        second, error = self._headers(texts[middle:], line_number + middle)
        return pa.concat_arrays([first, second]), error

    def _pairs(self, texts: pa.Array) -> pa.ListArray:
        """The parts between the separators; empty parts at the end are dropped, as by Java's split."""
        if self.headers_separator in _PLAIN_SEPARATORS:
            lists = pc.split_pattern(texts, pattern=self.headers_separator)
        else:
            lists = pc.split_pattern_regex(texts, pattern=self.headers_separator)
        if not pc.any(pc.equal(pc.binary_length(lists.values), 0)).as_py():
            return pa.ListArray.from_arrays(_dense_offsets(lists), lists.flatten())
        kept = [None if each is None else _without_empty_end(each) for each in lists.to_pylist()]
        lists = pa.array(kept, pa.list_(pa.binary()))
        return pa.ListArray.from_arrays(_dense_offsets(lists), lists.flatten())

    def _split_pairs(self, pairs: pa.Array) -> tuple[pa.Array, pa.Array, Any]:
        """Header keys (text), values (null without a separator), and whether there is a separator."""
        parts = pc.split_pattern(pairs, pattern=self.headers_key_separator, max_splits=1)
        has_both = pc.list_value_length(parts).to_numpy(zero_copy_only=False) == 2
        first = parts.offsets.to_numpy()[:-1]
        values = parts.values.take(pa.array(first + 1, mask=~has_both))
        return _as_text(parts.values.take(pa.array(first))), values, has_both


def _dense_offsets(lists: pa.ListArray) -> pa.Array:
    """Offsets of the lists in `lists.flatten()`, which omits null lists."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False)
    return pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))


def _without_empty_end(pairs: list[bytes]) -> list[bytes]:
    if len(pairs) == 1:
        return pairs
    while pairs and not pairs[-1]:
        pairs.pop()
    return pairs


def _as_text(keys: pa.Array) -> pa.Array:
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([each.decode("utf-8", "replace") for each in keys.to_pylist()], pa.string())


def _text(value: pa.Scalar) -> str:
    return str(value.as_py().decode("utf-8", "replace"))


def _no_headers(count: int) -> pa.Array:
    return pa.array([None] * count, _HEADERS_TYPE)
