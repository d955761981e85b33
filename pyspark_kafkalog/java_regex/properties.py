"""The characters of topic names in Java's predefined classes and `\\p{...}`.

A topic name contains only ASCII letters, digits, `.`, `_` and `-` (org.apache.kafka.common.internals.Topic), so a
character class is represented by its subset of these 65. The names are those of java.util.regex.CharPredicates.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Final, TypeAlias

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
