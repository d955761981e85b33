"""The JSON form of messages, and JSON text as Kafka's tools print it.

Fields have their declared order; a Uuid is its text, bytes are base64, null is null. Fields that the version lacks, and
tagged fields with their default, are omitted.

Source: the *JsonConverter classes of Kafka 4.1; for the text, Jackson's ObjectNode.toString: no blanks; only control
characters, quotes and backslashes are escaped; doubles as Java prints them.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Mapping
from typing import Any

from pyspark_kafkalog.metadata.messages.schema import FieldSpec, is_default


def struct_to_json(fields: tuple[FieldSpec, ...], version: int, values: Mapping[str, Any]) -> dict[str, Any]:
    """A struct's values as a JSON object. Names missing in `values` have their defaults."""
    node: dict[str, Any] = {}
    for field in fields:
        if version not in field.versions:
            continue
        value = values.get(field.name, field.default)
        if field.tag is None or not is_default(field, value):
            node[field.name] = _field_to_json(field, version, value)
    return node


def _field_to_json(field: FieldSpec, version: int, value: Any) -> Any:
    if value is None:
        return None
    if field.is_array:
        return [_value_to_json(field, version, element) for element in value]
    return _value_to_json(field, version, value)


def _value_to_json(field: FieldSpec, version: int, value: Any) -> Any:
    if field.struct is not None:
        return struct_to_json(field.struct, version, value)
    if field.element == "bytes":
        return base64.b64encode(value).decode("ascii")
    if field.element == "records":
        return ""  # Kafka prints records as an empty binary node
    return value


def json_text(node: Any) -> str:
    """`node` (dict, list, str, int, float, bool, None) as Jackson prints it."""
    if isinstance(node, dict):
        return "{" + ",".join(f"{_string_text(name)}:{json_text(value)}" for name, value in node.items()) + "}"
    if isinstance(node, (list, tuple)):
        return "[" + ",".join(json_text(value) for value in node) + "]"
    if isinstance(node, str):
        return _string_text(node)
    if isinstance(node, float):
        return _double_text(node)
    return json.dumps(node)


_ESCAPES = {code: f"\\u{code:04X}" for code in range(0x20)} | {
    ord('"'): '\\"',
    ord("\\"): "\\\\",
    ord("\b"): "\\b",
    ord("\f"): "\\f",
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
}


def _string_text(text: str) -> str:
    return f'"{text.translate(_ESCAPES)}"'


def _double_text(value: float) -> str:
    """Java's Double.toString: plain from 10^-3 to 10^7, else d.dddE±x; NaN and infinities are quoted."""
    if math.isnan(value):
        return '"NaN"'
    if math.isinf(value):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign = "-" if value < 0 else ""
    mantissa, _, exponent = f"{abs(value)!r}".partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0") or "0"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{point - 1}"
