"""docs/OPTIONS.md is generated from the tables in the code and up to date."""

from __future__ import annotations

import subprocess
import sys

from repository import REPOSITORY

SCRIPT = REPOSITORY / "scripts" / "make_options_reference.py"


def test_reference_of_options_is_up_to_date() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], check=False)
    assert done.returncode == 0, "run python scripts/make_options_reference.py"
