"""The characters of a Java regular expression, each with its position and whether `\\Q...\\E` makes it literal.

Java removes quotes before it parses (java.util.regex.Pattern.RemoveQEQuoting). They may begin and end anywhere, also
in a class; an unterminated quote extends to the end of the expression.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NoReturn

_SHOWN_CHARS: Final = 20


@dataclass(frozen=True, slots=True)
class Token:
    """One character, at index `at` of the expression."""

    char: str
    at: int
    is_quoted: bool


class Tokens:
    """A cursor over the characters of `text`."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _without_quotes(text)
        self._cursor = 0

    @property
    def at(self) -> int:
        """The index of the next character."""
        return len(self._text) if self.is_at_end else self._tokens[self._cursor].at

    @property
    def is_at_end(self) -> bool:
        return self._cursor == len(self._tokens)

    def peek(self, ahead: int = 0) -> str:
        """The next character, or one further ahead, if it may be syntax; empty for a quoted one and at the end."""
        at = self._cursor + ahead
        return "" if at >= len(self._tokens) or self._tokens[at].is_quoted else self._tokens[at].char

    def skip(self, count: int = 1) -> None:
        self._cursor += count

    def next(self, expected: str) -> Token:
        """The next character. Raises ValueError at the end, where `expected` is missing."""
        if self.is_at_end:
            self.invalid(f"{expected} is missing at its end", len(self._text))
        self._cursor += 1
        return self._tokens[self._cursor - 1]

    def skip_if(self, char: str) -> bool:
        """Whether `char` is the next character; then it is skipped."""
        if self.peek() != char:
            return False
        self._cursor += 1
        return True

    def digits(self, allowed: str, at_most: int) -> str:
        """The next characters while they are among `allowed`."""
        found = ""
        while len(found) < at_most and self.peek() and self.peek() in allowed:
            found += self.peek()
            self._cursor += 1
        return found

    def invalid(self, what: str, at: int) -> NoReturn:
        """Raise ValueError for an expression that Java rejects too."""
        raise ValueError(f"{self._text!r} is not a Java regular expression: {what}{self._place(at)}")

    def refuse(self, what: str, at: int) -> NoReturn:
        """Raise ValueError for an expression that Java accepts, but that cannot be translated."""
        raise ValueError(f"the Java regular expression {self._text!r} is not supported: {what}{self._place(at)}")

    def _place(self, at: int) -> str:
        rest = self._text[at:]
        shown = rest if len(rest) <= _SHOWN_CHARS else f"{rest[:_SHOWN_CHARS]}..."
        return f", at position {at} ({shown!r})" if rest else ""


def _without_quotes(text: str) -> list[Token]:
    tokens: list[Token] = []
    at, is_quoting = 0, False
    while at < len(text):
        pair = text[at : at + 2]
        if pair == ("\\E" if is_quoting else "\\Q"):
            is_quoting = not is_quoting
            at += 2
            continue
        length = 2 if pair[0] == "\\" and not is_quoting else 1  # A backslash belongs to the next character.
        tokens.extend(Token(text[each], each, is_quoting) for each in range(at, min(at + length, len(text))))
        at += length
    return tokens
