"""Escapes of a Java regular expression that denote a character or a set of characters, and bracketed classes.

The rules for classes are those of java.util.regex.Pattern.clazz: a class is the union of its members and nested
classes; `&&` intersects it with everything that follows; `^` at the start complements the result.
"""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Final

from pyspark_kafkalog.java_regex.properties import DIGITS, NOTHING, TOPIC_CHARS, WORD, CharSet, property_chars
from pyspark_kafkalog.java_regex.tokens import Tokens

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
