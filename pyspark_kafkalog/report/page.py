"""The report as one HTML file that contains its style, script and data, and loads nothing.

    assets/page.html   the frame, with {{names}} to fill in
    assets/page.css    all style
    assets/*.js        all script, in the order of _SCRIPTS
    <script type="application/json">   the data, drawn by the script as text and never as markup

Names, keys and configuration values are untrusted. In the data `<`, `>` and `&` are written as JSON escapes, so that no
value can end the script element. The content security policy of the page allows only this style and this script, by
their hashes, and no requests.
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

#: The largest size of a page in bytes; tables are shortened until it fits.
PAGE_BYTES_MAX: Final = 5_000_000
_SCRIPTS: Final = ("base.js", "tables.js", "charts.js", "timeline.js", "sections.js")
_PACKAGE: Final = "pyspark_kafkalog.report"
_HOLE = re.compile(r"\{\{(\w+)\}\}")


def render(root: RootFacts, *, bytes_max: int = PAGE_BYTES_MAX) -> str:
    """The page of `root`, of about `bytes_max` bytes at most."""
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
    """JSON that is safe inside a script element, whatever strings it contains."""
    text = json.dumps(tree, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _asset(name: str) -> str:
    return (resources.files(_PACKAGE) / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """The source expression that allows exactly this inline text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
