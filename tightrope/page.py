"""One self-contained HTML page: title, facts, sections of tables, figures, text and code.

No network, no script: style and pictures are inside, light and dark follow the reader's system.
Everything is escaped but SVG, which becomes a data: image and cannot reach the page.

    render("Audit of rope", [Section("Positions", [Table(("base", "error"), rows), Figure(svg)])])
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jinja2 import Environment

KINDS = ("", "good", "bad", "warn", "dim")


@dataclass(frozen=True)
class Cell:
    """Text of a table's cell. kind: one of KINDS. note: shown under the text, smaller.

    link: title of a section of the same page. Raises ValueError for an unknown kind.
    """

    text: str
    kind: str = ""
    note: str = ""
    link: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind: expected one of {', '.join(KINDS[1:])}, got {self.kind!r}")


@dataclass(frozen=True)
class Table:
    """columns: headings. rows: Cells, or whatever str() makes text of; numbers are set right.

    The first column holds the rows' headings. Raises ValueError for rows of another length.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""
    template: str = field(default="table", init=False)

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"row: expected {len(self.columns)} cells, got {len(row)}")


@dataclass(frozen=True)
class Figure:
    """svg: a whole SVG document, for a light background; dark: the same for a dark one.

    alt: what it shows, in words.
    """

    svg: str
    caption: str = ""
    alt: str = ""
    dark: str = ""
    template: str = field(default="figure", init=False)


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    template: str = field(default="text", init=False)


@dataclass(frozen=True)
class Code:
    """Lines as they are: a command, a case, a budget."""

    text: str
    template: str = field(default="code", init=False)


@dataclass(frozen=True)
class Fold:
    """Blocks behind a line that opens them."""

    summary: str
    blocks: Sequence[Any]
    template: str = field(default="fold", init=False)


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it: Table, Figure, Text, Code or Fold."""

    title: str
    blocks: Sequence[Any]


def render(
    title: str, sections: Sequence[Section], *, lead: str = "",
    facts: Mapping[str, Any] | None = None,
) -> str:  # fmt: skip
    """The page as text. lead: one sentence under the title. facts: versions, device, date."""
    template = environment().get_template("page.html.jinja")
    return template.render(title=title, lead=lead, facts=facts or {}, sections=sections)


@cache
def environment() -> Environment:
    """jinja2 with this package's templates; HTML ones escape, a missing name is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    made = Environment(
        loader=PackageLoader("tightrope"), undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, keep_trailing_newline=True,
        autoescape=select_autoescape(("html.jinja",)),
    )  # fmt: skip
    made.filters.update(anchor=anchor, image=image, cell=cell, line=line, fence=fence)
    made.tests["number"] = lambda value: bool(NUMBER.fullmatch(value))
    return made


NUMBER = re.compile(r"[-+−]?[\d.,]+(e[-+]?\d+)?\s*[%x]?")


def cell(value: Any) -> Cell:
    return value if isinstance(value, Cell) else Cell(str(value))


def anchor(title: str) -> str:
    """A section's id."""
    return re.sub(r"\W+", "-", title.lower()).strip("-")


def image(svg: str) -> str:
    """An SVG document as a data: address."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def line(text: Any) -> str:
    """One line of Markdown, also inside a table, that shows the text as it is."""
    flat = " ".join(str(text).split())
    return re.sub(r"([\\`*_\[\]<>|&#~])", r"\\\1", flat)


def fence(text: str) -> str:
    """A fence of Markdown that nothing in the text closes."""
    return "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
