"""docs/OPTIONS.md is what the tables in the code say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "make_options_reference.py"


def test_the_reference_of_options_is_out_of_date() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], check=False)
    assert done.returncode == 0, "run python scripts/make_options_reference.py"
