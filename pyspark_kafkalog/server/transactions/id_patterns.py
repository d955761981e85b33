"""Patterns of transactional ids in ListTransactions: the part of Java's regular expressions that cannot take long.

Python's `re` goes back and tries again, as Java's does, and holds the interpreter meanwhile: one pattern of a client
could stop the server. Patterns are therefore limited to characters, sets, groups, at most four alternatives and two
repetitions, none of them of a group; what is left means the same in Java. Others are refused as invalid, and ids of
more than 1024 characters match none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

_ID_CHARS_MAX: Final = 1024
_PATTERN_CHARS_MAX: Final = 1000
_REPETITIONS_MAX: Final = 2
_ALTERNATIVES_MAX: Final = 3

_TOKEN: Final = re.compile(
    r"""(?P<repetition>[*+?])
    | (?P<alternative>\|)
    | \((?!\?) | \)
    | \[\^?[A-Za-z0-9_.\- ]+\]
    | \\[^A-Za-z0-9\s]
    | [A-Za-z0-9_.\-/:@#%,;=~<>&!"' ]
    """,
    re.VERBOSE,
)


def compile_id_pattern(text: str) -> Callable[[str], bool]:
    """Whether an id matches the whole pattern. Raises ValueError for a pattern that is invalid, or not supported."""
    if len(text) > _PATTERN_CHARS_MAX:
        raise ValueError(f"a pattern of {len(text)} characters is too long")
    _check(text)
    try:
        compiled = re.compile(text)
    except re.error as error:
        raise ValueError(f"the pattern {text!r} is invalid: {error}") from error
    return lambda name: len(name) <= _ID_CHARS_MAX and compiled.fullmatch(name) is not None


def _check(text: str) -> None:
    repetitions = alternatives = at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None or (token["repetition"] and text[at - 1 : at] in (")", "*", "+", "?")):
            raise ValueError(f"the pattern {text!r} is not supported at character {at}")
        repetitions += token["repetition"] is not None
        alternatives += token["alternative"] is not None
        at = token.end()
    if repetitions > _REPETITIONS_MAX or alternatives > _ALTERNATIVES_MAX:
        raise ValueError(
            f"the pattern {text!r} has {repetitions} repetitions and {alternatives + 1} alternatives: "
            f"at most {_REPETITIONS_MAX} and {_ALTERNATIVES_MAX + 1} are supported"
        )
