"""What the Java on this machine makes of regular expressions, in one run of it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

PROGRAM = Path(__file__).parents[1] / "data" / "JavaRegex.java"


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
