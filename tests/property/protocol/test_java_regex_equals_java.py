"""Expressions for topic names match the same names as the real java.util.regex."""

from __future__ import annotations

import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest
from repository import DATA

from pyspark_kafkalog.java_regex.patterns import TopicPattern, compile_topic_pattern

PROGRAM = DATA / "JavaRegex.java"


def java_answers(patterns: Sequence[str], names: Sequence[str], scratch: Path) -> list[str]:
    """See JavaRegex.java: `invalid ...`, or a letter for each name."""
    java = shutil.which("java")
    assert java is not None
    (scratch / "names").write_text("".join(f"{name}\n" for name in names))
    (scratch / "patterns").write_text("".join(f"{each.encode('utf-16-be').hex()}\n" for each in patterns))
    subprocess.run(
        [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xss4m", str(PROGRAM)]
        + [str(scratch / each) for each in ("names", "patterns", "answers")],
        check=True,
        timeout=300,
    )
    answers = (scratch / "answers").read_text().splitlines()
    assert len(answers) == len(patterns)
    return answers


CHARS = "abcABC12._-"
_ATOMS = r"""
    a b c A B C 1 2 _ - . \. \- \d \D \w \W \s \S \h \H \v \V \R \X ^ $ \A \z \Z \G \b \B \b{g} \x61 \x{62} \u0041 \0101
    \07 \cA \t \e \Q.\E \Qab \Qa-b\E \Q[\E \E ] } { {2} & é \é \uD83D\uDE00 \1 \2 \12 \k<n> \N{DIGIT_ONE} # \_ \y \8
    (?i) (?-i)
"""
_FOLDED = "\u017f \u212a \u0130 \u0131"
_PROPERTIES = """
    Lower Upper Alpha Digit Alnum Punct Graph Print Blank Cntrl XDigit Space ASCII L Lu Ll Lt LC LD L1 N Nd P Pc Pd Po
    S Z C all javaLowerCase javaUpperCase javaTitleCase javaAlphabetic javaLetterOrDigit javaJavaIdentifierStart
    javaJavaIdentifierPart javaUnicodeIdentifierStart javaUnicodeIdentifierPart javaMirrored javaDefined
    IsAlphabetic IsLetter IsLatin IsCommon IsPunctuation IsWord IsUppercase IsLowercase IsHex_Digit IsDigit
    IsWhite_Space IsL IsLu InBasic_Latin InBasicLatin IsGreek InGreek script=Latin sc=Latn block=BasicLatin
    general_category=Lu gc=Nd alpha lower Nonsense IsAssigned IsTitlecase IsLower
"""
_CLASS_MEMBERS = r"""
    a b c A B C 1 2 . _ - & ^ a-c A-C 1-2 a-C A-c +-z - --a a- \d \w \W \S \h \v \v-c \. \- \Qa-c\E \Q]\E \Q^\E \] \x61
    \x61-\x63 && && [ \b \R é a-é \p \0101 a-\d !-& [:alpha:]
"""
_QUANTIFIERS = "? * + {2} {1,2} {0,1} {2,} {0} {0,2} {300} {1,300} {2,1} {,2} {a} {1"
_GROUPS = """
    ( ( ( (?: (?: (?<n> (?<m> (?P<n> (?= (?! (?<= (?<! (?> (?i: (?-i: (?u: (?iu: (?U: (?iU: (?s: (?m: (?d: (?x: (?c:
    (?i-i: (? (?z:
"""


class Patterns:
    """Draws expressions with `random`."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._atoms = [*_ATOMS.split(), *_FOLDED.split(), " "]
        self._properties = _PROPERTIES.split()
        self._members = [*_CLASS_MEMBERS.split(), *_FOLDED.split()]
        self._quantifiers = _QUANTIFIERS.split()
        self._groups = _GROUPS.split()

    def draw(self) -> str:
        text = self._alternatives(self._random.randint(1, 3))
        for _ in range(self._random.choice((0, 0, 0, 0, 0, 0, 1, 2))):
            at = self._random.randint(0, len(text))
            text = (
                text[:at]
                + self._random.choice((*"()[]{}\\&|^$?*+-a1Q:<=!", ""))
                + text[at + self._random.randint(0, 1) :]
            )
        return text

    def _alternatives(self, depth: int) -> str:
        return "|".join(self._sequence(depth) for _ in range(self._random.choice((1, 1, 1, 2, 3))))

    def _sequence(self, depth: int) -> str:
        return "".join(self._piece(depth) for _ in range(self._random.choice((0, 1, 1, 2, 2, 3))))

    def _piece(self, depth: int) -> str:
        kind = self._random.random()
        if depth > 0 and kind < 0.35:
            piece = self._random.choice(self._groups) + self._alternatives(depth - 1) + ")"
        elif kind < 0.5:
            piece = self._class(2)
        elif kind < 0.57:
            piece = self._property()
        elif kind < 0.8:
            piece = self._random.choice("abcAB1")
        else:
            piece = self._random.choice(self._atoms)
        if self._random.random() < 0.3:
            piece += self._random.choice(self._quantifiers[:5] if self._random.random() < 0.8 else self._quantifiers)
            piece += self._random.choice(("", "", "", "?", "+"))
        return piece

    def _property(self) -> str:
        name = self._random.choice(self._properties)
        sign = self._random.choice("ppP")
        return f"\\{sign}{name}" if len(name) == 1 and self._random.random() < 0.5 else f"\\{sign}{{{name}}}"

    def _class(self, depth: int) -> str:
        parts = [self._random.choice(("", "", "^", "]"))]
        for _ in range(self._random.randint(1, 4)):
            kind = self._random.random()
            if depth > 0 and kind < 0.15:
                parts.append(self._class(depth - 1))
            elif depth > 0 and kind < 0.25:
                parts.append("&&" + self._random.choice((self._class(depth - 1), "a-b", "^a", "\\w")))
            elif kind < 0.35:
                parts.append(self._property())
            else:
                parts.append(self._random.choice(self._members))
        return f"[{''.join(parts)}]"


def draw_name(random: Random) -> str:
    """A topic's name, mostly short."""
    return "".join(random.choice(CHARS) for _ in range(random.choice((1, 1, 2, 2, 3, 3, 4, 5, 8, 12))))


PATTERNS = 4000
NAMES = 40


def compiled_or_error(pattern: str) -> TopicPattern | str:
    try:
        return compile_topic_pattern(pattern)
    except ValueError as error:
        return str(error)


def outcome(pattern: TopicPattern, name: str) -> str:
    is_found, matches = pattern.is_found_in(name), pattern.matches(name)
    return {(True, True): "m", (True, False): "f", (False, False): "-"}.get((is_found, matches), "!")


@pytest.mark.full
def test_random_expressions_match_names_that_java_matches_or_are_refused(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    source = random.Random(seed)
    drawn = Patterns(source)
    patterns = [drawn.draw() for _ in range(PATTERNS)]
    names = sorted({draw_name(source) for _ in range(NAMES)})
    counts = {"same": 0, "telling": 0, "refused": 0}
    for pattern, java in zip(patterns, java_answers(patterns, names, tmp_path), strict=True):
        where = f"seed {seed}, {pattern!r}: Java says {java!r}"
        compiled = compiled_or_error(pattern)
        if isinstance(compiled, str):
            if not java.startswith("invalid"):
                assert "is not supported: " in compiled, f"{where}, here {compiled}"
                counts["refused"] += 1
            continue
        ours = "".join(outcome(compiled, name) for name in names)
        assert ours == java, f"{where}, here {ours!r} for {names}"
        counts["same"] += 1
        counts["telling"] += len(set(ours)) > 1
    assert counts["same"] > PATTERNS / 4, counts
    assert counts["telling"] > PATTERNS / 10, counts
    assert counts["refused"] < counts["same"] / 4, counts
