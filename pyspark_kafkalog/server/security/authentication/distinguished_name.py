"""The subject of a TLS client's certificate, written as Kafka's broker writes it.

A subject is a sequence of relative names, each a set of attributes (X.501), in DER. As text (RFC 2253) the last one
comes first, and attributes are `NAME=value`; what has no name in RFC 2253, or no text, is `OID=#DER in hex`:

    CN=app,OU=data,O=Example\\\\, Inc.,C=DE

Principals are compared as text, so each character matters: access control entries were written for a broker. As in
Java, text of any type is read as UTF-8. Text that is not, for which Java makes up characters, is refused: different
names must not become one principal.

Source of the form: javax.security.auth.x500.X500Principal.getName, which Kafka's DefaultKafkaPrincipalBuilder calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.errors import InvalidRecordError

_NAMES: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.25": "DC",
    "0.9.2342.19200300.100.1.1": "UID",
}
_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_OBJECT_IDENTIFIER: Final = 0x06
_VERSION: Final = 0xA0
#: Tags of text: UTF8String, PrintableString, T61String, IA5String, GeneralString, UniversalString, BMPString.
_TEXTS: Final = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1C, 0x1E})
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_SPACES: Final = " \r"


@dataclass(frozen=True, slots=True)
class _Element:
    """One DER element: its tag, its content, and all its bytes."""

    tag: int
    content: bytes
    encoded: bytes


def subject_name(certificate: bytes) -> str:
    """The subject of a certificate in DER, as in RFC 2253. Raises InvalidRecordError for one that cannot be read."""
    whole = _only(certificate, _SEQUENCE)
    signed = next(_elements(whole.content))
    fields = [each for each in _elements(signed.content) if each.tag != _VERSION]
    if len(fields) < 5:
        raise InvalidRecordError(f"a certificate with {len(fields)} fields, expected at least 5")
    # Serial number, algorithm, issuer, validity, subject.
    return ",".join(_relative_name(each) for each in reversed(list(_elements(fields[4].content))))


def _relative_name(relative: _Element) -> str:
    if relative.tag != _SET:
        raise InvalidRecordError(f"a certificate's subject holds an element with the tag {relative.tag:#x}")
    return "+".join(_attribute(each) for each in _elements(relative.content))


def _attribute(attribute: _Element) -> str:
    parts = list(_elements(attribute.content))
    if len(parts) != 2 or parts[0].tag != _OBJECT_IDENTIFIER:
        raise InvalidRecordError("an attribute of a certificate's subject is no pair of type and value")
    oid, value = _object_identifier(parts[0].content), parts[1]
    name = _NAMES.get(oid)
    if name is None or value.tag not in _TEXTS:
        return f"{name or oid}=#{value.encoded.hex()}"
    try:
        return f"{name}={_escaped(value.content.decode())}"
    except UnicodeDecodeError as error:
        raise InvalidRecordError(f"{name} of a certificate's subject is not UTF-8: {error}") from None


def _escaped(text: str) -> str:
    first = len(text) - len(text.lstrip(_SPACES))
    last = len(text.rstrip(_SPACES)) - 1
    return "".join(
        "\\00" if char == "\0" else "\\" + char if char in _ESCAPED or not first <= at <= last else char
        for at, char in enumerate(text)
    )


def _object_identifier(content: bytes) -> str:
    numbers, number = [], 0
    for byte in content:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    if not numbers:
        raise InvalidRecordError("a certificate's subject holds an empty object identifier")
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _only(data: bytes, tag: int) -> _Element:
    found = list(_elements(data))
    if len(found) != 1 or found[0].tag != tag:
        raise InvalidRecordError("these bytes are no certificate in DER")
    return found[0]


def _elements(data: bytes) -> Iterator[_Element]:
    """The DER elements that follow each other in `data`. Raises InvalidRecordError."""
    at = 0
    while at < len(data):
        start, length_at = at, at + 1
        length = data[length_at] if length_at < len(data) else -1
        at = length_at + 1
        if length & 0x80 and length > 0:
            size = length & 0x7F
            length = int.from_bytes(data[at : at + size], "big")
            at += size
        if length < 0 or at + length > len(data):
            raise InvalidRecordError(f"a certificate's element at byte {start} is longer than what holds it")
        yield _Element(data[start], data[at : at + length], data[start : at + length])
        at += length
