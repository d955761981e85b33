"""Builds the site of the documentation, build/docs/html/index.html, from the pages and the docstrings.

    python scripts/make_site.py

The site has the layout of the repository, so links between pages are the same on a code host. `docs/site/mkdocs.yml`
has the navigation, `docs/site/reference/` the pages of the API reference: the modules that they name are the public
surface; all others may change from one version to the next.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).resolve().parents[1]
SITE: Final = REPOSITORY / "docs" / "site"
BUILD: Final = REPOSITORY / "build" / "docs"
#: The files of the site, as patterns from the root of the repository.
PATTERNS: Final = ("*.md", "docs/*.md", "docs/site/*.css", "docs/site/reference/*.md", "notebooks/*.ipynb")

_MODULE: Final = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)
_FENCE: Final = re.compile(r" *```")
_LINE: Final = re.compile(r"( *)((?:[-*]|\d+\.) +)?(.*)")
_INDENT: Final = 4


def sources() -> list[Path]:
    """The files that the site is made of, relative to the repository."""
    return [path.relative_to(REPOSITORY) for pattern in PATTERNS for path in sorted(REPOSITORY.glob(pattern))]


def public_modules() -> list[str]:
    """The modules that the API reference describes."""
    pages = sorted((SITE / "reference").glob("*.md"))
    return [name for page in pages for name in _MODULE.findall(page.read_text(encoding="utf-8"))]


def write_pages(directory: Path) -> None:
    """Copy the files of the site into the directory."""
    for source in sources():
        text = (REPOSITORY / source).read_text(encoding="utf-8")
        target = directory / source
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(for_mkdocs(text) if source.suffix == ".md" else text, encoding="utf-8")


def for_mkdocs(text: str) -> str:
    """The page with what is inside of list items indented by four spaces, which Python-Markdown demands."""
    return "".join(f"{line}\n" for line in _indented(text.splitlines()))


def _indented(lines: list[str]) -> Iterator[str]:
    columns: list[int] = []  # where the text of each open list item begins
    fence_shift: int | None = None
    for line in lines:
        indent, marker, rest = _LINE.fullmatch(line).groups(default="")  # type: ignore[union-attr]
        if fence_shift is None and line.strip():
            while columns and len(indent) < columns[-1]:
                columns.pop()
        shift = _INDENT * len(columns) - (columns[-1] if columns else 0) if fence_shift is None else fence_shift
        if _FENCE.match(line):
            fence_shift = shift if fence_shift is None else None
        yield " " * (len(indent) + shift) + marker + rest if line.strip() else ""
        if marker and fence_shift is None:
            columns.append(len(indent) + len(marker))


def main() -> int:
    shutil.rmtree(BUILD, ignore_errors=True)
    write_pages(BUILD / "pages")
    shutil.copy(SITE / "mkdocs.yml", BUILD)
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict"], cwd=BUILD, check=False)
    if done.returncode == 0:
        html = BUILD / "html"
        print(f"{html / 'index.html'}; to search it: python -m http.server --bind 127.0.0.1 --directory {html}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
