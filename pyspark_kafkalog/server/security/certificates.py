"""The principal of a TLS client: the subject of its certificate, and ssl.principal.mapping.rules.

`subject_name` writes the subject as Kafka's broker writes it. A subject is a sequence of relative names, each a set of
attributes (X.501), in DER. As text (RFC 2253) the last one comes first, and attributes are `NAME=value`; what has no
name in RFC 2253, or no text, is `OID=#DER in hex`:

    CN=app,OU=data,O=Example\\, Inc.,C=DE

Principals are compared as text, so each character matters: access control entries were written for a broker. As in
Java, text of any type is read as UTF-8. Text that is not, for which Java makes up characters, is refused: different
names must not become one principal.

`PrincipalMapping` says by rules which principal a subject is:

    RULE:^CN=(.*?),OU=Services.*$/$1/L,RULE:^UID=(.*?),.*$/$1@example/,DEFAULT

The first rule whose expression matches the whole subject decides: each place in which the expression is found becomes
the replacement, then L or U changes the case. DEFAULT is the subject as it is. A client to whose subject no rule
applies is refused.

Expressions are Java's. Those that mean the same in Python's `re`, or can be rewritten so that they do, are taken: text,
`.`, classes without classes in them, groups, lookahead, lazy and greedy repetition, ^ and $. Others are refused when
the server starts, because a rule that means something else would make another principal. As in Java, nested repetition
can take exponential time.

Source of the form: javax.security.auth.x500.X500Principal.getName, which Kafka's DefaultKafkaPrincipalBuilder calls; of
the rules: org.apache.kafka.common.security.ssl.SslPrincipalMapper.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.errors import InvalidOptionError, InvalidRecordError

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


#: The rules of a broker that has none.
DEFAULT_RULES: Final = "DEFAULT"
_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))"
    r"\s*(?:,|\Z)",
    re.DOTALL,
)
#: The characters of an expression that Python's `re` takes as Java does, and those to rewrite, with what they become.
_PIECE: Final = re.compile(
    r"""
      (?P<dot>\.)
    | (?P<start>\^) | (?P<end>\$)
    | (?P<class>\[\^?(?:\\[^\w\s]|\\[dDsSwWnrtf\\]|[^\[\]\\&])+\])
    | (?P<group>\((?:\?[:=!])?) | (?P<close>\)) | (?P<either>\|)
    | (?P<escape>\\(?:[^\w\s]|[dDsSwWnrtf]))
    | (?P<repetition>(?:[*+?]|\{\d{1,4}(?:,\d{0,4})?\})\??(?!\+))
    | (?P<text>[^\\\[\](){}*+?.^$|])
    """,
    re.VERBOSE | re.DOTALL,
)
_REWRITTEN: Final = {"dot": "[^\\n\\r\\u0085\\u2028\\u2029]", "start": r"\A", "end": r"\Z"}
_REPLACEMENT: Final = re.compile(r"\$(?P<number>\d+)|\\(?P<escaped>.)|(?P<text>[^\\$]+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Rule:
    """`pieces` of the replacement: texts, and numbers of groups. Without `pattern` the rule is DEFAULT."""

    pattern: re.Pattern[str] | None = None
    pieces: tuple[str | int, ...] = ()
    case: str = ""

    def apply(self, subject: str) -> str | None:
        if self.pattern is None:
            return subject
        if self.pattern.fullmatch(subject) is None:
            return None
        name = self.pattern.sub(self._replaced, subject)
        return name.lower() if self.case == "L" else name.upper() if self.case == "U" else name

    def _replaced(self, found: re.Match[str]) -> str:
        return "".join(each if isinstance(each, str) else found[each] or "" for each in self.pieces)


@dataclass(frozen=True, slots=True)
class PrincipalMapping:
    """The rules of a listener."""

    text: str
    _rules: tuple[_Rule, ...]

    @staticmethod
    def parse(text: str) -> PrincipalMapping:
        """The rules of `text`, separated by commas. Raises InvalidOptionError."""
        rules: list[_Rule] = []
        at = 0
        while at < len(text) or not rules:
            found = _RULE.match(text, at)
            if found is None:
                raise InvalidOptionError(
                    f"{text[at:]!r} is no rule for principals: expected DEFAULT or RULE:pattern/replacement/[L|U], "
                    "several of them separated by commas"
                )
            rules.append(_Rule() if found["default"] else _parsed(found))
            at = found.end()
        return PrincipalMapping(text, tuple(rules))

    def principal(self, subject: str) -> str:
        """The principal of a subject. Raises InvalidRecordError if no rule applies to it."""
        for each in self._rules:
            name = each.apply(subject)
            if name is not None:
                return f"User:{name}"
        raise InvalidRecordError(f"no rule applies to the subject {subject!r} of a certificate; rules: {self.text}")


def _parsed(found: re.Match[str]) -> _Rule:
    text = found["pattern"]
    try:
        pattern = re.compile(_translated(text), re.ASCII | re.DOTALL)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidOptionError(f"the expression {text!r} of a rule is not supported: {error}") from None
    return _Rule(pattern, _pieces(found["replacement"], pattern.groups), found["case"])


def _translated(text: str) -> str:
    translated, at = [], 0
    while at < len(text):
        found = _PIECE.match(text, at)
        if found is None:
            raise InvalidOptionError(
                f"the expression {text!r} of a rule is not supported from {text[at : at + 10]!r} on"
            )
        translated.append(_REWRITTEN.get(found.lastgroup or "", found[0]))
        at = found.end()
    return "".join(translated)


def _pieces(text: str, groups: int) -> tuple[str | int, ...]:
    """The replacement. As in Java, a reference has as many digits as there are groups for."""
    pieces: list[str | int] = []
    at = 0
    while at < len(text):
        found = _REPLACEMENT.match(text, at)
        digits = None if found is None else found["number"]
        if found is None or (digits is not None and int(digits[0]) > groups):
            raise InvalidOptionError(
                f"the replacement {text!r} of a rule refers to no group at {text[at : at + 10]!r}: "
                f"there are {groups}; write \\$ for a dollar sign"
            )
        if digits is None:
            pieces.append(found["escaped"] or found["text"])
        else:
            length = max(each for each in range(1, len(digits) + 1) if int(digits[:each]) <= groups)
            pieces += [int(digits[:length]), digits[length:]]
        at = found.end()
    return tuple(pieces)
