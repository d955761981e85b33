"""The page: one HTML file with its style, its script and its data inside, which asks for nothing from anywhere.

    assets/page.html   the frame, with {{names}} to fill in
    assets/page.css    all style
    assets/*.js        all script, in the order of _SCRIPTS
    <script type="application/json">   the data, drawn by the script as text and never as markup

Names, keys and configuration values are other people's. In the data `<`, `>` and `&` are written as JSON escapes, so
that nothing in it can end the script element; a content security policy in the page allows just this style and script,
by their hashes, and no request.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from importlib import resources
from typing import Any, Final

from pyspark_kafkalog.report.facts import RootFacts
from pyspark_kafkalog.report.page_data import Limits, page_data

#: What a page may take, in bytes; with more to tell, tables get shorter until it fits.
PAGE_BYTES_MAX: Final = 5_000_000
_SCRIPTS: Final = ("base.js", "tables.js", "charts.js", "timeline.js", "sections.js")
_PACKAGE: Final = "pyspark_kafkalog.report"
_HOLE = re.compile(r"\{\{(\w+)\}\}")


def render(root: RootFacts, *, bytes_max: int = PAGE_BYTES_MAX) -> str:
    """The page of `root`, of at most about `bytes_max` bytes."""
    limits = Limits()
    while True:
        page = _page(page_data(root, limits))
        if len(page.encode()) <= bytes_max or limits.partitions == 1:
            return page
        limits = limits.halved()


def _page(data: dict[str, Any]) -> str:
    style = _asset("page.css")
    script = '"use strict";\n(() => {\n' + "\n".join(map(_asset, _SCRIPTS)) + "})();\n"
    holes = {
        "title": html.escape(f"{data['root']['path']} · kafkalog report").encode(errors="replace").decode(),
        "policy": f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; base-uri 'none'",
        "style": style,
        "script": script,
        "data": json_for_script(data),
    }
    return _HOLE.sub(lambda hole: holes[hole[1]], _asset("page.html"))


def json_for_script(tree: Any) -> str:
    """JSON that can stand inside a script element whatever the strings in it."""
    text = json.dumps(tree, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (resources.files(_PACKAGE) / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The source expression that allows exactly this inline text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
