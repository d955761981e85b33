"""ssl.principal.mapping.rules: which principal the subject of a client certificate is.

    RULE:^CN=(.*?),OU=Services.*$/$1/L,RULE:^UID=(.*?),.*$/$1@example/,DEFAULT

The first rule whose expression matches the whole subject decides: each place in which the expression is found becomes
the replacement, then L or U changes the case. DEFAULT is the subject as it is. A client to whose subject no rule
applies is refused.

Expressions are Java's. Those that mean the same in Python's `re`, or can be rewritten so that they do, are taken: text,
`.`, classes without classes in them, groups, lookahead, lazy and greedy repetition, ^ and $. Others are refused when
the server starts, because a rule that means something else would make another principal. As in Java, nested repetition
can take exponential time.

Source of the rules: org.apache.kafka.common.security.ssl.SslPrincipalMapper.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.errors import InvalidOptionError, InvalidRecordError

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
