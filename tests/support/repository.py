"""Where files of the repository are that tests read."""

from __future__ import annotations

from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
TESTS: Final = REPOSITORY / "tests"
DATA: Final = TESTS / "data"
#: Directories that real brokers left.
FIXTURES: Final = DATA / "fixtures"
