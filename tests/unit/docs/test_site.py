"""The site of `make docs` has every page, and its pages keep their lists.

`make docs` itself installs packages, so no test runs it.
"""

from __future__ import annotations

import re
from pathlib import Path

from documented import PAGES
from make_site import SITE, for_mkdocs, sources, write_pages
from repository import REPOSITORY

IN_NAVIGATION = re.compile(r"^ +- [^:]+: (\S+\.md)$", re.MULTILINE)


def test_every_page_is_in_the_navigation_once() -> None:
    pages = [*PAGES, *(SITE / "reference").glob("*.md")]
    listed = IN_NAVIGATION.findall((SITE / "mkdocs.yml").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(page.relative_to(REPOSITORY).as_posix() for page in pages)


def test_site_has_the_layout_of_the_repository(tmp_path: Path) -> None:
    write_pages(tmp_path)
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert written == set(sources())
    assert {Path("README.md"), Path("docs/SPARK.md"), Path("notebooks/1_quickstart.ipynb")} < written


def test_contents_of_list_items_are_indented_by_four_spaces() -> None:
    page = """\
- An item
  that continues:

  ```sh
  - no item
  ```

  - an inner item

    | a table |

10. Another list

    its paragraph

A paragraph
"""
    assert (
        for_mkdocs(page)
        == """\
- An item
    that continues:

    ```sh
    - no item
    ```

    - an inner item

        | a table |

10. Another list

    its paragraph

A paragraph
"""
    )


def test_blocks_of_code_outside_of_lists_stay_as_they_are() -> None:
    page = "```text\n- a drawing\n    of a tree\n```\n\n- an item\n"
    assert for_mkdocs(page) == page
