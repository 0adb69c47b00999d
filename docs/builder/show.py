"""Values and drawings as HTML, and code as Markdown."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import escape
from itertools import count
from typing import Any
from xml.etree import ElementTree

import numpy as np
from matplotlib.figure import Figure

from docs.builder.plots import COLOURS, styled

ROWS = 8
"""So many rows of a result are shown unless a block says otherwise."""
LEAST = 0.72
"""To this part of their width drawings may shrink."""
_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_NUMBERS = ("INT", "FLOAT", "DOUBLE", "HALF", "DECIMAL")
_figures = count(1)

ElementTree.register_namespace("", _SVG)


class Html(str):
    """What a block of Python gives to be shown as it is."""

    __slots__ = ()


class Markdown(str):
    """Text that is part of the chapter's Markdown."""

    __slots__ = ()


class Table:
    """Rows that a block of Python gives.

    Args:
        header: What stands above the columns.
        rows: Numbers and texts, a row for each.
    """

    def __init__(self, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.header = header
        self.rows = rows


def code(text: str, language: str) -> Markdown:
    """A fenced block."""
    return Markdown(f"{_fence(text)}{language}\n{text.rstrip()}\n{_fence(text)}\n")


def raw(html: str) -> Markdown:
    """HTML that Sphinx copies into the page."""
    return Markdown(f"{_fence(html)}{{raw}} html\n{html}\n{_fence(html)}\n") if html else Markdown()


def _fence(text: str) -> str:
    """Backticks, more of them than the text has in a row."""
    return "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))


def output(text: str, kind: str = "output") -> str:
    """What was printed."""
    return f'<pre class="{kind}"><samp>{escape(text.rstrip())}</samp></pre>'


def figure(inner: str, caption: str = "", kind: str = "") -> str:
    """A drawing that scrolls by itself where it is too wide."""
    below = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<figure class="{kind}"><div class="scroll">{inner}</div>{below}</figure>'


# ---- tables


def table(header: Sequence[str], types: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows with their columns' names and types; numbers stand to the right."""
    right = [any(n in t.upper() for n in _NUMBERS) for t in types]
    if not any(types):
        right = [
            all(_is_number(row[n]) for row in rows if row[n] != "") for n in range(len(header))
        ]
    marks = [' class="number"' if r else "" for r in right]
    head = "".join(
        f'<th scope="col"{m}>{escape(h)}{f"<small>{escape(t)}</small>" if t else ""}</th>'
        for h, t, m in zip(header, types, marks, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{m}>{_lowered(escape(cell(v, t)), t)}</td>"
            for v, t, m in zip(row, types, marks, strict=True)
        )
        + "</tr>\n"
        for row in rows
    )
    return (
        '<div class="scroll"><table class="result">'
        f"<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>"
    )


def _lowered(text: str, kind: str) -> str:
    """Subscripts of laws and labels, in what is no column of SQL's."""
    if kind:
        return text
    text = re.sub(r"_\{([^}]*)\}", r"<sub>\1</sub>", text)
    return re.sub(r"(?<![\w>])(\w|[^\w\s>])_(\w)\b", r"\1<sub>\2</sub>", text)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) or (
        isinstance(value, str)
        and re.fullmatch(r"[-−+]?[\d,.]+\s?[%×a-zA-Zµ²/]*", value) is not None
    )


def cell(value: object, kind: str = "") -> str:
    """A value as it is written, with the digits that its type has."""
    if value is None:
        return "NULL"
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, float | np.floating):
        if kind.upper() in ("FLOAT", "REAL", "HALF", "BFLOAT16"):
            value = np.float32(value)
        return str(value)
    if isinstance(value, int | np.integer) and abs(int(value)) > 9999:
        return f"{value:,}"
    return str(value)


# ---- drawings


def plot(made: Figure, title: str) -> str:
    """A figure of matplotlib as SVG in the page's own colours and letters."""
    with styled():
        file = io.StringIO()
        made.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    return drawing(file.getvalue(), title)


def drawing(svg: str, title: str = "") -> str:
    """An SVG document as part of a page: names of its own, no links, the page's colours."""
    root = ElementTree.fromstring(svg)
    name = f"f{next(_figures)}"
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("style", "metadata"):
                parent.remove(child)
    for element in root.iter():
        if element.tag == f"{{{_SVG}}}a":  # the operations of a plan, which are no links here
            element.tag = f"{{{_SVG}}}g"
            element.attrib.pop("href", None)
        _rename(element, name)
    if title:
        root.set("role", "img")
        root.set("aria-label", title)
    for size in ("width", "height"):
        if (given := root.get(size, "")).endswith("pt"):  # of which 72 are as long as 96 pixels
            root.set(size, f"{float(given[:-2]) * 4 / 3:.0f}")
    # Narrower windows show it smaller, but no smaller than can be read: there it scrolls.
    root.set("style", f"min-width:{float(root.get('width', '0')) * LEAST:.0f}px")
    return _shorter(ElementTree.tostring(root, encoding="unicode"))


def _rename(element: ElementTree.Element, name: str) -> None:
    link = element.attrib.pop(f"{{{_XLINK}}}href", None)
    if link is not None:
        element.set("href", link)
    for key, value in list(element.attrib.items()):
        if key == "id":
            element.set(key, f"{name}-{value}")
        elif key == "href" and value.startswith("#"):
            element.set(key, f"#{name}-{value[1:]}")
        elif "url(#" in value:
            element.set(key, value.replace("url(#", f"url(#{name}-"))
        elif key == "aria-label" and element.tag == f"{{{_SVG}}}g":
            del element.attrib[key]  # its title says the same
    if element.tag == f"{{{_SVG}}}text":
        style = re.sub(r"font-family: [^;]*;? ?", "", element.get("style", ""))
        element.set("style", style.strip().removesuffix(";"))


def _shorter(svg: str) -> str:
    """The same without what nobody refers to, with fewer digits, and colours by their names."""
    used = {*re.findall(r'href="#([^"]*)"', svg), *re.findall(r"url\(#([^)]*)\)", svg)}
    svg = re.sub(r' id="([^"]*)"', lambda m: m[0] if m[1] in used else "", svg)
    svg = re.sub(r' data-[a-z]+="[^"]*"', "", svg)
    svg = re.sub(r"(\d+\.\d\d)\d+", r"\1", svg)
    svg = re.sub(r'd="([^"]*)"', lambda m: f'd="{" ".join(m[1].split())}"', svg)
    svg = re.sub(r'base64,\s+([^"]*)"', lambda m: f'base64,{"".join(m[1].split())}"', svg)
    svg = re.sub(r' style=""', "", svg)
    for colour, variable in COLOURS.items():
        svg = svg.replace(colour, f"var(--{variable})")
    return re.sub(r">\s*\n\s*<", ">\n<", svg)
