"""HTML and SVG for notebooks: few shapes, one style for light and dark, and all external text escaped.

Names of topics, keys and values are untrusted text: all text is passed through `escaped`, and attributes contain only
numbers. The style follows the theme of Jupyter or VS Code if that is known, else the preference of the reader's system.
"""

from __future__ import annotations

from html import escape
from typing import Final

WIDTH: Final = 760
_CHARACTER_WIDTH: Final = 6.2  # slightly above the average of the 11 px sans-serif of labels

_LIGHT: Final = (
    "--fg:#1f2328;--soft:#59636e;--line:#c3cad1;--bg:#ffffff;--remote:#b9a6dd;--clean:#3d8bd4;--dirty:#e08a1e;--closed:#8a96a3;"
    "--active:#2f9e62;--pick:#c2255c;--weak:#eceff2;"
)
_DARK: Final = (
    "--fg:#e6edf3;--soft:#9da7b1;--line:#474f58;--bg:#14181d;--remote:#8f7cc0;--clean:#4f9fe6;--dirty:#e29a3b;--closed:#77828d;"
    "--active:#3fb477;--pick:#f0668f;--weak:#252b32;"
)
_STYLE: Final = (
    f".kafkalog{{{_LIGHT}color:var(--fg);background:var(--bg);font:13px/1.45 system-ui,sans-serif;padding:10px 12px;"
    "border-radius:6px;max-width:800px;overflow-x:auto}"
    f"@media (prefers-color-scheme:dark){{.kafkalog{{{_DARK}}}}}"
    f"body[data-jp-theme-light=true] .kafkalog,body.vscode-light .kafkalog{{{_LIGHT}}}"
    f"body[data-jp-theme-light=false] .kafkalog,body.vscode-dark .kafkalog{{{_DARK}}}"
    ".kafkalog b.name{font-size:15px;overflow-wrap:anywhere}.kafkalog .soft{color:var(--soft)}"
    ".kafkalog table{border-collapse:collapse;margin:8px 0;color:var(--fg);font-size:13px}"
    ".kafkalog th,.kafkalog td{text-align:right;padding:2px 10px 2px 0;border:0;background:none;color:var(--fg)}"
    ".kafkalog th{color:var(--soft);font-weight:normal;border-bottom:1px solid var(--line)}"
    ".kafkalog th:first-child,.kafkalog td:first-child{text-align:left;overflow-wrap:anywhere}"
    ".kafkalog ol{margin:6px 0 2px;padding-left:22px}.kafkalog svg{display:block;margin:8px 0 2px;max-width:100%}"
    ".kafkalog svg text{fill:var(--soft);font:11px system-ui,sans-serif}.kafkalog svg text.strong{fill:var(--fg)}"
    ".kafkalog svg text.pick{fill:var(--pick);font-weight:600}.kafkalog .clean{fill:var(--clean)}"
    ".kafkalog .remote{fill:var(--remote)}"
    ".kafkalog .dirty{fill:var(--dirty)}.kafkalog .closed{fill:var(--closed)}.kafkalog .active{fill:var(--active)}"
    ".kafkalog .weak{fill:var(--weak);stroke:var(--line)}.kafkalog .pick{fill:var(--pick)}"
    ".kafkalog .zoom{fill:var(--weak);fill-opacity:.75}.kafkalog .seen{fill:var(--pick);fill-opacity:.4}"
    ".kafkalog line{stroke:var(--line)}"
    ".kafkalog line.pick{stroke:var(--pick);stroke-width:1.6}.kafkalog line.mark{stroke:var(--fg);stroke-width:1.4}"
)


def escaped(text: object) -> str:
    """`text` as HTML text; control characters, which no document may contain, become U+FFFD."""
    shown = "".join(each if each.isprintable() or each == " " else "\ufffd" for each in str(text))
    return escape(shown, quote=True)


def view(*parts: str) -> str:
    """The parts, which are HTML, together with the style."""
    return f'<div class="kafkalog"><style>{_STYLE}</style>{"".join(parts)}</div>'


def heading(name: str, facts: str) -> str:
    """A name and, in a muted colour, facts about it; both plain text."""
    return f'<div><b class="name">{escaped(name)}</b> <span class="soft">{escaped(facts)}</span></div>'


def note(text: str) -> str:
    """A line in a muted colour; plain text."""
    return f'<div class="soft">{escaped(text)}</div>'


def table(columns: list[str], rows: list[list[object]]) -> str:
    """A table; plain text."""
    head = "".join(f"<th>{escaped(each)}</th>" for each in columns)
    body = "".join("<tr>" + "".join(f"<td>{escaped(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def drawing(height: float, label: str, *parts: str) -> str:
    """An SVG of WIDTH by `height`; `label` is the text for screen readers."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" height="{height:.0f}" role="img" '
        f'aria-label="{escaped(label)}">{"".join(parts)}</svg>'
    )


def rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> str:
    """A rectangle; `kind` is one of the style's classes, `title` is shown on hover."""
    tip = f"<title>{escaped(title)}</title>" if title else ""
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" class="{kind}">{tip}</rect>'
    )


def line(x: float, y: float, to_x: float, to_y: float, kind: str = "") -> str:
    """A straight line."""
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" class="{kind}"/>'


def polygon(points: list[tuple[float, float]], kind: str) -> str:
    """A filled polygon."""
    text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polygon points="{text}" class="{kind}"/>'


def label(x: float, y: float, text: object, kind: str = "", anchor: str = "start") -> str:
    """A piece of text; kept inside the drawing if it is anchored in its middle."""
    if anchor == "middle":
        half = text_width(text) / 2
        x = min(max(x, half), WIDTH - half)
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escaped(text)}</text>'


def text_width(text: object) -> float:
    """The approximate width of a label."""
    return len(str(text)) * _CHARACTER_WIDTH
