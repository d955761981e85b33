"""Regular expressions of names: Java's, translated to Python's `re`, and those of clients, matched by RE2.

*Java's.* Spark's Kafka source and Kafka's tools compile expressions for topic names with java.util.regex.Pattern, which
differs from Python's `re` in many places. The translation relies on the form of topic names: at most 249 of 65 ASCII
characters. Each character, class and property becomes the set of those characters that it matches; anchors, boundaries
and groups have counterparts. An expression that cannot be translated exactly raises ValueError with the position: no
expression matches other topics than in Java. As in Java, nested repetition can take exponential time, such as `(a+)+b`
on a name of many `a`.

*RE2's.* Kafka's brokers match the expressions that clients send by RE2J, which has RE2's syntax: subscriptions of the
consumer protocol (KIP-848) and patterns of transactional ids (KIP-1152). An engine that goes back and tries again, as
Python's `re` and java.util.regex do, would let one expression of a client stop the server. RE2 takes linear time, and
lets other threads run meanwhile. What an expression may take is bounded: its length, and the memory of its automaton;
the package's own cache keeps at most 128 of them. The package google-re2 is part of the extra `server`. Without it
every expression is refused.

Source of the rules of the latter: org.apache.kafka.coordinator.group.Utils,
kafka.coordinator.transaction.TransactionStateManager.
"""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from pyspark_kafkalog.errors import missing_package
from pyspark_kafkalog.java_regex.characters import (
    NOTHING,
    TOPIC_CHARS,
    CharSet,
    Flags,
    Tokens,
    read_class,
    read_escape,
    single,
)
from pyspark_kafkalog.units import INT32_MAX, MIB
from pyspark_kafkalog.values import dataclass

_NAME_CHARS_MAX: Final = 249
_NESTED_MAX: Final = 50
_ASCII_DIGITS: Final = "0123456789"
_ASCII_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
_ANCHORS: Final = {"A": r"\A", "G": r"\A", "Z": r"\Z", "z": r"\Z", "b": r"\b", "B": r"\B"}
_NEVER: Final = r"[^\x00-\U0010ffff]"

#: A record of a subscription cannot hold a longer expression.
_RE2_CHARS_MAX: Final = 32_767
_AUTOMATON_BYTES_MAX: Final = MIB
_RE2_MISSING: Final = str(missing_package("re2", "subscriptions of clients by regular expression need"))


@dataclass(frozen=True, slots=True)
class TopicPattern:
    """A compiled expression; `text` is the original one."""

    text: str
    _found: re.Pattern[str]
    _whole: re.Pattern[str]

    def is_found_in(self, topic: str) -> bool:
        """Whether it matches a part of the name, as in Matcher.find."""
        return self._found.search(topic) is not None

    def matches(self, topic: str) -> bool:
        """Whether it matches the whole name, as in Matcher.matches."""
        return self._whole.match(topic) is not None


@functools.lru_cache(maxsize=64)
def compile_topic_pattern(text: str) -> TopicPattern:
    """Compile `text`. Raises ValueError for an invalid or unsupported expression, with the position."""
    translated = _Translator(text).translate()
    try:
        return TopicPattern(text, _compiled(translated), _compiled(rf"(?:{translated})\Z"))
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"the Java regular expression {text!r} is not supported: {error}") from error


def _compiled(translated: str) -> re.Pattern[str]:
    return re.compile(translated, re.ASCII | re.DOTALL)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A part of the translation. `width`: the number of characters that it matches, None if that varies.

    `is_atom`: a quantifier can follow it directly. `groups`: the numbers of the groups in it, as Java counts them.
    """

    text: str
    width: int | None
    is_atom: bool = False
    groups: frozenset[int] = frozenset()


class _Translator:
    """Parses an expression as java.util.regex.Pattern does, from left to right, and writes Python's form of it."""

    def __init__(self, text: str) -> None:
        self._tokens = Tokens(text)
        self._flags = Flags()
        self._groups_count = 0
        self._closed: set[int] = set()  # groups to which references can be translated
        self._names: dict[str, int] = {}
        self._atomic_count = 0
        self._depth = 0
        self._lookbehinds = 0

    def translate(self) -> str:
        translated = _joined(self._alternatives())
        if not self._tokens.is_at_end:
            self._tokens.invalid("a closing parenthesis without an opening one", self._tokens.at)
        return translated.text

    def _alternatives(self) -> list[_Piece]:
        alternatives = [self._sequence()]
        while self._tokens.skip_if("|"):
            alternatives.append(self._sequence())
        return alternatives

    def _sequence(self) -> _Piece:
        tokens = self._tokens
        pieces: list[_Piece] = []
        while not tokens.is_at_end and tokens.peek() not in ("|", ")"):
            at, char = tokens.at, tokens.peek()
            if char in ("*", "+", "?"):
                tokens.invalid(f"{char} with nothing to repeat", at)
            if char == "{":
                tokens.refuse("a repetition of nothing; write \\{ for the character", at)
            piece = self._group() if char == "(" else self._atom()
            if piece is not None:
                pieces.append(self._repeated(piece))
        widths = [piece.width for piece in pieces]
        return _Piece(
            "".join(piece.text for piece in pieces),
            None if None in widths else sum(width for width in widths if width is not None),
            groups=frozenset[int]().union(*(piece.groups for piece in pieces)),
        )

    # Single characters, anchors, references

    def _atom(self) -> _Piece:
        tokens = self._tokens
        token = tokens.next("a character")
        if not token.is_quoted:
            if token.char == "[":
                return _one_of(read_class(tokens, self._flags))
            if token.char == ".":
                return _one_of(TOPIC_CHARS)
            if token.char in "^$":
                return _Piece(r"\A" if token.char == "^" else r"\Z", 0)
            if token.char == "\\":
                return self._escape(token.at)
            if token.char == "\0":
                tokens.refuse("a zero character", token.at)
        return _one_of(single(ord(token.char), self._flags))

    def _escape(self, at: int) -> _Piece:
        tokens = self._tokens
        char = tokens.peek()
        if char in _ANCHORS and char:
            tokens.skip()
            if char == "b" and tokens.peek() == "{" and tokens.peek(1) == "g":
                tokens.refuse("boundaries of grapheme clusters", at)
            return _Piece(_ANCHORS[char], 0)
        if char in ("R", "X"):
            self._refuse_in_lookbehind(at)
            tokens.skip()
            return _one_of(NOTHING if char == "R" else TOPIC_CHARS)
        if char == "k" or (char in _ASCII_DIGITS and char not in ("", "0")):
            return self._reference(at)
        found = read_escape(tokens, self._flags)
        return _one_of(found if isinstance(found, frozenset) else single(found, self._flags))

    def _reference(self, at: int) -> _Piece:
        tokens = self._tokens
        self._refuse_in_lookbehind(at)
        if tokens.skip_if("k"):
            if not tokens.skip_if("<"):
                tokens.invalid("\\k is not followed by <", at)
            name = self._group_name()
            if name not in self._names:
                tokens.invalid(f"there is no group {name} before this reference", at)
            number = self._names[name]
        else:
            number = int(tokens.next("a digit").char)
            while tokens.peek() and tokens.peek() in _ASCII_DIGITS:
                longer = number * 10 + int(tokens.peek())
                if longer > self._groups_count:
                    break
                number = longer
                tokens.skip()
        if number not in self._closed:
            tokens.refuse(
                "a reference to a group that does not end before it, or that is repeated or in a lookaround", at
            )
        text = f"(?P=g{number})"
        return _Piece(f"(?i:{text})" if self._flags.ignores_case else text, None)

    # Repetition

    def _repeated(self, piece: _Piece) -> _Piece:
        tokens = self._tokens
        at = tokens.at
        counts = self._counts(at)
        if counts is None:
            return piece
        least, most = counts
        is_possessive = is_lazy = False
        if tokens.skip_if("?"):
            is_lazy = True
        elif tokens.skip_if("+"):
            is_possessive = True
        if self._lookbehinds and (least != most or is_possessive or not piece.is_atom):
            tokens.refuse("in a lookbehind, a repetition other than a character a fixed number of times", at)
        self._closed -= piece.groups
        body = piece.text if piece.is_atom else f"(?:{piece.text})"
        if is_possessive:  # Java never backtracks into one repetition, not even while it tries the next.
            body = body if piece.is_atom else self._atomic(body)
        bounds = f"{{{least},{'' if most is None else most}}}"
        text = f"{body}{bounds}{'?' if is_lazy else ''}"
        width = None if most is None or least != most or piece.width is None else piece.width * most
        return _Piece(self._atomic(text) if is_possessive else f"(?:{text})", width, groups=piece.groups)

    def _counts(self, at: int) -> tuple[int, int | None] | None:
        """Minimum and maximum (None: no limit) of the next quantifier; None if the next token is no quantifier."""
        tokens = self._tokens
        for char, counts in (("?", (0, 1)), ("*", (0, None)), ("+", (1, None))):
            if tokens.skip_if(char):
                return counts
        if not tokens.skip_if("{"):
            return None
        least = self._count(at)
        most: int | None = least
        if tokens.skip_if(","):
            most = None if tokens.peek() == "}" else self._count(at)
        if not tokens.skip_if("}"):
            tokens.invalid("a repetition is not closed", at)
        if most is not None and most < least:
            tokens.invalid("a repetition with its bounds in the wrong order", at)
        if least > _NAME_CHARS_MAX:
            tokens.refuse(f"more than {_NAME_CHARS_MAX} repetitions, while no topic's name is longer than that", at)
        return least, None if most is not None and most >= _NAME_CHARS_MAX else most

    def _count(self, at: int) -> int:
        digits = self._tokens.digits(_ASCII_DIGITS, 32)
        if not digits or int(digits) > INT32_MAX:
            self._tokens.invalid("a repetition needs numbers; write \\{ for the character", at)
        return int(digits)

    def _atomic(self, text: str) -> str:
        """An atomic group of `text`: `(?>...)`, also for Python 3.10, as nothing backtracks into a lookahead."""
        self._atomic_count += 1
        return f"(?:(?=(?P<a{self._atomic_count}>{text}))(?P=a{self._atomic_count}))"

    # Groups

    def _group(self) -> _Piece | None:
        """A group, or None for flags that apply from here to the end of the enclosing group."""
        tokens = self._tokens
        at = tokens.at
        self._depth += 1
        if self._depth > _NESTED_MAX:
            tokens.refuse(f"groups nested more than {_NESTED_MAX} deep", at)
        tokens.skip()
        flags = self._flags
        piece: _Piece | None
        if not tokens.skip_if("?"):
            piece = self._capturing(None, at)
        elif tokens.skip_if(":"):
            piece = self._closing(at)
        elif tokens.peek() in ("=", "!"):
            piece = self._lookahead(at)
        elif tokens.skip_if(">"):
            self._refuse_in_lookbehind(at)
            inner = self._closing(at)
            piece = _Piece(self._atomic(inner.text), None, groups=inner.groups)
        elif tokens.skip_if("<"):
            is_lookbehind = tokens.peek() in ("=", "!")
            piece = self._lookbehind(at) if is_lookbehind else self._capturing(self._group_name(), at)
        else:
            self._read_flags()
            if tokens.skip_if(")"):
                self._depth -= 1
                return None
            if not tokens.skip_if(":"):
                tokens.invalid("unknown flags of a group", at)
            piece = self._closing(at)
        self._flags = flags
        self._depth -= 1
        return piece

    def _capturing(self, name: str | None, at: int) -> _Piece:
        self._groups_count += 1
        number = self._groups_count
        if name is not None:
            if name in self._names:
                self._tokens.invalid(f"a second group {name}", at)
            self._names[name] = number
        inner = self._inside(at)
        self._closed.add(number)
        return _Piece(f"(?P<g{number}>{inner.text})", inner.width, groups=inner.groups | {number})

    def _closing(self, at: int) -> _Piece:
        inner = self._inside(at)
        return _Piece(f"(?:{inner.text})", inner.width, groups=inner.groups)

    def _inside(self, at: int) -> _Piece:
        """The rest of the group that began at `at`."""
        inner = _joined(self._alternatives())
        if not self._tokens.skip_if(")"):
            self._tokens.invalid("a group is not closed", at)
        return inner

    def _lookahead(self, at: int) -> _Piece:
        sign = self._tokens.next("the sign of a lookahead").char
        inner = self._inside(at)
        if sign == "!":
            self._closed -= inner.groups
        return _Piece(f"(?{sign}{inner.text})", 0, groups=inner.groups)

    def _lookbehind(self, at: int) -> _Piece:
        """A lookbehind. Python requires a fixed width, so each alternative becomes a separate lookbehind."""
        sign = self._tokens.next("the sign of a lookbehind").char
        self._lookbehinds += 1
        alternatives = self._alternatives()
        if not self._tokens.skip_if(")"):
            self._tokens.invalid("a group is not closed", at)
        self._lookbehinds -= 1
        if any(each.width is None for each in alternatives):
            self._tokens.refuse("in a lookbehind, nested alternatives of different lengths", at)
        groups = _joined(alternatives).groups
        self._closed -= groups
        texts = [f"(?<{sign}{each.text})" for each in alternatives]
        return _Piece(f"(?:{'|'.join(texts)})" if sign == "=" else "".join(texts), 0, groups=groups)

    def _read_flags(self) -> None:
        """Read flags. Java's d, m and s have no effect on a name without line ends; x and c are refused."""
        tokens = self._tokens
        is_set = True
        while True:
            at = tokens.at
            if is_set and tokens.skip_if("-"):
                is_set = False
            elif tokens.skip_if("i"):
                self._flags = replace(self._flags, ignores_case=is_set)
            elif tokens.skip_if("u"):
                self._flags = replace(self._flags, unicode_case=is_set)
            elif tokens.skip_if("U"):
                self._flags = replace(self._flags, unicode_case=is_set, unicode_class=is_set)
            elif tokens.peek() in ("x", "c"):
                if is_set:
                    tokens.refuse(f"the flag {tokens.peek()}", at)
                tokens.skip()
            elif tokens.peek() in ("d", "m", "s"):
                tokens.skip()
            else:
                return

    def _group_name(self) -> str:
        at = self._tokens.at
        name = ""
        while (char := self._tokens.next("the > of a group's name").char) != ">":
            if char not in _ASCII_LETTERS and not (name and char in _ASCII_DIGITS):
                self._tokens.invalid("a group's name is made of Latin letters and, after the first, digits", at)
            name += char
        if not name:
            self._tokens.invalid("a group's name is empty", at)
        return name

    def _refuse_in_lookbehind(self, at: int) -> None:
        if self._lookbehinds:
            self._tokens.refuse("in a lookbehind, what may vary in length, or is kept to", at)


def _joined(alternatives: list[_Piece]) -> _Piece:
    widths = {each.width for each in alternatives}
    return _Piece(
        "|".join(each.text for each in alternatives),
        widths.pop() if len(widths) == 1 else None,
        groups=frozenset[int]().union(*(each.groups for each in alternatives)),
    )


def _one_of(chars: CharSet) -> _Piece:
    """One character of a set."""
    if len(chars) == len(TOPIC_CHARS):
        text = "."
    elif len(chars) == 1:
        text = re.escape(next(iter(chars)))
    else:
        text = f"[{''.join(sorted(chars)).replace('-', chr(92) + '-')}]" if chars else _NEVER
    return _Piece(text, 1, is_atom=True)


def why_no_re2_patterns() -> str | None:
    """Why every expression is refused; None if RE2 is installed."""
    return _RE2_MISSING if importlib.util.find_spec("re2") is None else None


def compile_re2_pattern(text: str) -> Callable[[str], bool]:
    """Whether a name as a whole matches `text`. Raises ValueError if it is invalid, too large, or RE2 is missing."""
    if len(text) > _RE2_CHARS_MAX:
        raise ValueError(
            f"a regular expression of {len(text)} characters is too long: at most {_RE2_CHARS_MAX} are allowed"
        )
    try:
        import re2
    except ModuleNotFoundError:
        raise ValueError(_RE2_MISSING) from None
    options = re2.Options()
    options.max_mem = _AUTOMATON_BYTES_MAX
    options.never_capture = True
    options.log_errors = False
    try:
        compiled = re2.compile(text, options)
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        reason = reason.decode(errors="replace") if isinstance(reason, bytes) else reason
        raise ValueError(f"the regular expression {text[:100]!r} is invalid: {reason}") from None
    return lambda name: compiled.fullmatch(name) is not None
