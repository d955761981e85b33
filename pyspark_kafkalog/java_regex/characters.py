"""The characters of a Java regular expression: a cursor over them, and the sets of characters that they denote.

    Tokens            the characters, each with its position and whether `\\Q...\\E` makes it literal
    property_chars    predefined classes and `\\p{...}`
    read_escape       escapes that denote a character or a set of characters
    read_class        bracketed classes

Java removes quotes before it parses (java.util.regex.Pattern.RemoveQEQuoting). They may begin and end anywhere, also
in a class; an unterminated quote extends to the end of the expression.

A topic name contains only ASCII letters, digits, `.`, `_` and `-` (org.apache.kafka.common.internals.Topic), so a
character class is represented by its subset of these 65. The names of properties are those of
java.util.regex.CharPredicates. The rules for bracketed classes are those of java.util.regex.Pattern.clazz: a class is
the union of its members and nested classes; `&&` intersects it with everything that follows; `^` at the start
complements the result.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Final, NoReturn, TypeAlias

from pyspark_kafkalog.values import dataclass

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


CharSet: TypeAlias = frozenset[str]

_UPPER: Final = frozenset(string.ascii_uppercase)
_LOWER: Final = frozenset(string.ascii_lowercase)
_LETTERS: Final = _UPPER | _LOWER
DIGITS: Final = frozenset(string.digits)
_ALNUM: Final = _LETTERS | DIGITS
_PUNCT: Final = frozenset("._-")
WORD: Final = _ALNUM | {"_"}
NOTHING: Final[CharSet] = frozenset()
TOPIC_CHARS: Final = _ALNUM | _PUNCT

_WITHOUT_TOPIC_CHARS: Final = [
    "Lm",
    "Lo",
    "Mn",
    "Me",
    "Mc",
    "Nl",
    "No",
    "Zs",
    "Zl",
    "Zp",
    "Cc",
    "Cf",
    "Co",
    "Cs",
    "Cn",
    "Ps",
    "Pe",
    "Sm",
    "Sc",
    "Sk",
    "So",
    "Pi",
    "Pf",
    "M",
    "Z",
    "C",
    "S",
    "Blank",
    "Cntrl",
    "Space",
    "javaIdeographic",
    "javaIdentifierIgnorable",
    "javaSpaceChar",
    "javaWhitespace",
    "javaISOControl",
    "javaMirrored",
]

#: CharPredicates.forProperty: categories, POSIX names, methods of java.lang.Character. Case matters.
_PROPERTIES: Final[Mapping[str, CharSet]] = {
    **dict.fromkeys(_WITHOUT_TOPIC_CHARS, NOTHING),
    **dict.fromkeys(("L", "LC", "Alpha", "javaAlphabetic", "javaLetter", "javaUnicodeIdentifierStart"), _LETTERS),
    **dict.fromkeys(("Lu", "Upper", "javaUpperCase"), _UPPER),
    **dict.fromkeys(("Ll", "Lower", "javaLowerCase"), _LOWER),
    **dict.fromkeys(("Lt", "javaTitleCase"), NOTHING),
    **dict.fromkeys(("N", "Nd", "Digit", "javaDigit"), DIGITS),
    **dict.fromkeys(("LD", "Alnum", "javaLetterOrDigit"), _ALNUM),
    **dict.fromkeys(("P", "Punct"), _PUNCT),
    "Pc": frozenset("_"),
    "Pd": frozenset("-"),
    "Po": frozenset("."),
    "XDigit": frozenset(string.hexdigits),
    "javaJavaIdentifierStart": _LETTERS | {"_"},
    **dict.fromkeys(("javaJavaIdentifierPart", "javaUnicodeIdentifierPart"), WORD),
    **dict.fromkeys(("L1", "all", "ASCII", "Graph", "Print", "javaDefined"), TOPIC_CHARS),
}

#: CharPredicates.getPosixPredicate: after \p{Is...}, and anywhere under the flag U. In any case.
_POSIX: Final[Mapping[str, CharSet]] = {
    **{name.upper(): _PROPERTIES[name] for name in ("Alpha", "Lower", "Upper", "Space", "Punct", "XDigit", "Alnum")},
    **{name.upper(): _PROPERTIES[name] for name in ("Cntrl", "Digit", "Blank", "Graph", "Print")},
}

#: CharPredicates.getUnicodePredicate, but the emoji, which depend on the version of Java. In any case.
_UNICODE: Final[Mapping[str, CharSet]] = {
    "ALPHABETIC": _LETTERS,
    "ASSIGNED": TOPIC_CHARS,
    "CONTROL": NOTHING,
    "HEXDIGIT": _PROPERTIES["XDigit"],
    "HEX_DIGIT": _PROPERTIES["XDigit"],
    "IDEOGRAPHIC": NOTHING,
    "JOINCONTROL": NOTHING,
    "JOIN_CONTROL": NOTHING,
    "LETTER": _LETTERS,
    "LOWERCASE": _LOWER,
    "NONCHARACTERCODEPOINT": NOTHING,
    "NONCHARACTER_CODE_POINT": NOTHING,
    "TITLECASE": NOTHING,
    "PUNCTUATION": _PUNCT,
    "UPPERCASE": _UPPER,
    "WHITESPACE": NOTHING,
    "WHITE_SPACE": NOTHING,
    "WORD": WORD,
}

_SCRIPTS: Final[Mapping[str, CharSet]] = {
    **dict.fromkeys(("LATIN", "LATN"), _LETTERS),
    **dict.fromkeys(("COMMON", "ZYYY"), DIGITS | _PUNCT),
}
_BLOCKS: Final[Mapping[str, CharSet]] = dict.fromkeys(("BASIC_LATIN", "BASIC LATIN", "BASICLATIN"), TOPIC_CHARS)

#: Under the flag i these contain letters of both cases.
_CASED: Final = frozenset(
    {"Lu", "Ll", "Lt", "Lower", "Upper", "javaLowerCase", "javaUpperCase", "javaTitleCase"}
    | {"LOWER", "UPPER", "LOWERCASE", "UPPERCASE", "TITLECASE"}
)


def property_chars(name: str, *, ignores_case: bool, is_unicode: bool) -> CharSet | None:
    """The characters in `\\p{name}` under the flags i and U; None for an unknown name."""
    key, equals, value = name.partition("=")
    if equals:
        key = key.lower()
        if key in ("sc", "script"):
            return _SCRIPTS.get(value.upper())
        if key in ("blk", "block"):
            return _BLOCKS.get(value.upper())
        return _named(_PROPERTIES, value, ignores_case) if key in ("gc", "general_category") else None
    if name.startswith("In"):
        return _BLOCKS.get(name[2:].upper())
    if name.startswith("Is"):
        short = name[2:]
        for names, asked in ((_UNICODE, short.upper()), (_POSIX, short.upper()), (_PROPERTIES, short)):
            found = _named(names, asked, ignores_case)
            if found is not None:
                return found
        return _SCRIPTS.get(short.upper())
    found = _named(_POSIX, name.upper(), ignores_case) if is_unicode else None
    return _named(_PROPERTIES, name, ignores_case) if found is None else found


def _named(names: Mapping[str, CharSet], name: str, ignores_case: bool) -> CharSet | None:
    return _LETTERS if ignores_case and name in _CASED and name in names else names.get(name)


_SETS: Final = {"d": DIGITS, "w": WORD, "s": NOTHING, "h": NOTHING, "v": NOTHING}
_CONTROLS: Final = {"a": 0x07, "e": 0x1B, "f": 0x0C, "n": 0x0A, "r": 0x0D, "t": 0x09}
_VERTICAL_TAB: Final = 0x0B
_CODE_POINT_MAX: Final = 0x10FFFF
_OCTAL: Final = "01234567"

#: Characters beyond ASCII whose lower case, of their upper case, is an ASCII letter: the flags i and u together.
_FOLDED: Final = {"\u017f": "s", "\u212a": "k", "\u0130": "i", "\u0131": "i"}


@dataclass(frozen=True, slots=True)
class Flags:
    """The Java flags that affect topic names: i, u and U."""

    ignores_case: bool = False
    unicode_case: bool = False
    unicode_class: bool = False


def single(code: int, flags: Flags) -> CharSet:
    """The characters of a topic name that the character `code` of an expression matches."""
    char = chr(code)
    if flags.ignores_case:
        if flags.unicode_case:
            char = _FOLDED.get(char, char)
        if char.isascii():
            return frozenset((char.lower(), char.upper())) & TOPIC_CHARS
    return frozenset(char) & TOPIC_CHARS


def read_escape(tokens: Tokens, flags: Flags, *, is_in_range: bool = False) -> int | CharSet:
    """The meaning of the escape whose backslash has been read: a character's code, or a set.

    `is_in_range`: it begins or ends a range in a class, where `\\v` is one character (a vertical tab). Raises
    ValueError, also for escapes that are neither, such as boundaries and references to groups.
    """
    at = tokens.at - 1
    token = tokens.next("what follows the backslash")
    char = token.char
    if token.is_quoted:
        tokens.refuse("a backslash before a quotation", at)
    if char == "v" and is_in_range:
        return _VERTICAL_TAB
    if char in _CONTROLS:
        return _CONTROLS[char]
    if char.lower() in _SETS and char.isascii():
        return _SETS[char] if char.islower() else TOPIC_CHARS - _SETS[char.lower()]
    if char in "pP" and not is_in_range:
        found = _family(tokens, flags, at)
        return found if char == "p" else TOPIC_CHARS - found
    if char == "0":
        return _octal(tokens, at)
    if char == "x":
        return _hexadecimal(tokens, at)
    if char == "u":
        return _utf16(tokens, at)
    if char == "c":
        controlled = tokens.next("the character of \\c")
        if controlled.is_quoted:
            tokens.refuse("\\c before a quotation", at)
        return ord(controlled.char) ^ 64
    if char == "N":
        tokens.refuse("a character by its Unicode name; write the character, or \\x{...} with its code", at)
    if char.isascii() and char.isalnum():
        tokens.invalid(f"\\{char} means nothing here", at)
    return ord(char)


def read_class(tokens: Tokens, flags: Flags, *, is_bracketed: bool = True) -> CharSet:
    """A class whose opening bracket has been read; `is_bracketed` is false for the right-hand side of `&&`.

    In that case the class ends before a closing bracket, which is not consumed.
    """
    start = tokens.at - 1
    is_complement = is_bracketed and tokens.skip_if("^")
    found: CharSet | None = None
    was_intersected = False
    while True:
        char = tokens.peek()
        if tokens.is_at_end:
            tokens.invalid("a character class is not closed", start)
        if char == "]" and found is not None:
            if is_bracketed:
                tokens.skip()
            return TOPIC_CHARS - found if is_complement else found
        if char == "&" and tokens.peek(1) == "&":
            right = _right_of_intersection(tokens, flags, start)
            found = right if found is None else found & right
            was_intersected = True
            continue
        if was_intersected:
            tokens.refuse("in a character class, a member after the nested class of an intersection", tokens.at)
        if char == "[":
            tokens.skip()
            member = read_class(tokens, flags)
        else:
            member = _member(tokens, flags)
        found = member if found is None else found | member


def _right_of_intersection(tokens: Tokens, flags: Flags, start: int) -> CharSet:
    at = tokens.at
    tokens.skip(2)
    right: CharSet | None = None
    while tokens.peek() not in ("]", "&"):
        if tokens.is_at_end:
            tokens.invalid("a character class is not closed", start)
        is_bracketed = tokens.skip_if("[")
        member = read_class(tokens, flags, is_bracketed=is_bracketed)
        right = member if right is None else right | member
    if right is None:
        tokens.refuse("in a character class, && with nothing on its right", at)
    return right


def _member(tokens: Tokens, flags: Flags) -> CharSet:
    """One character, a range, or a predefined class."""
    at = tokens.at
    low = _end_of_range(tokens, flags, is_in_range=tokens.peek(2) == "-")
    if isinstance(low, frozenset):
        return low
    if tokens.peek() != "-" or tokens.peek(1) in ("[", "]"):
        return single(low, flags)
    tokens.skip()
    high = _end_of_range(tokens, flags, is_in_range=True)
    if isinstance(high, frozenset) or high < low:
        tokens.invalid("a range in a character class does not end at a later character", at)
    if not flags.ignores_case:
        return frozenset(char for char in TOPIC_CHARS if low <= ord(char) <= high)
    return frozenset(
        char for char in TOPIC_CHARS if any(low <= ord(each) <= high for each in (char, char.upper(), char.lower()))
    )


def _end_of_range(tokens: Tokens, flags: Flags, *, is_in_range: bool) -> int | CharSet:
    if tokens.peek() != "\\":
        return ord(tokens.next("the end of a character class").char)
    tokens.skip()
    return read_escape(tokens, flags, is_in_range=is_in_range)


def _family(tokens: Tokens, flags: Flags, at: int) -> CharSet:
    if tokens.skip_if("{"):
        name = ""
        while (char := tokens.next("the } of \\p{...}").char) != "}":
            name += char
    else:
        name = tokens.next("the name of a property").char
    found = property_chars(name, ignores_case=flags.ignores_case, is_unicode=flags.unicode_class)
    if found is None:
        tokens.refuse(f"the property {name!r} of characters is not known", at)
    return found


def _octal(tokens: Tokens, at: int) -> int:
    """One to three digits, up to 377."""
    digits = tokens.digits(_OCTAL, 2)
    if not digits:
        tokens.invalid("\\0 needs an octal number", at)
    if len(digits) == 2 and digits[0] <= "3":
        digits += tokens.digits(_OCTAL, 1)
    return int(digits, 8)


def _hexadecimal(tokens: Tokens, at: int) -> int:
    if tokens.skip_if("{"):
        digits = tokens.digits(string.hexdigits, 64)
        if not digits or not tokens.skip_if("}") or int(digits, 16) > _CODE_POINT_MAX:
            tokens.invalid("\\x{...} needs a hexadecimal number up to 10FFFF", at)
        return int(digits, 16)
    digits = tokens.digits(string.hexdigits, 2)
    if len(digits) < 2:
        tokens.invalid("\\x needs two hexadecimal digits", at)
    return int(digits, 16)


def _utf16(tokens: Tokens, at: int) -> int:
    """A code unit; two that make a surrogate pair are one character."""
    digits = tokens.digits(string.hexdigits, 4)
    if len(digits) < 4:
        tokens.invalid("\\u needs four hexadecimal digits", at)
    code = int(digits, 16)
    if 0xD800 <= code < 0xDC00 and tokens.peek() == "\\" and tokens.peek(1) == "u":
        low_digits = "".join(tokens.peek(each) for each in range(2, 6))
        if len(low_digits) == 4 and all(each in string.hexdigits for each in low_digits):
            low = int(low_digits, 16)
            if 0xDC00 <= low < 0xE000:
                tokens.skip(6)
                return 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
    return code
