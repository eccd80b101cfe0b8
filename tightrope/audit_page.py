"""One self-contained HTML page of an audit, made from its JSON alone."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from tightrope import page as pages
from tightrope.audit_pictures import Picture, check, svg
from tightrope.audit_tables import Result, Table, tables

__all__ = ["check", "page"]

TITLES = {
    "rope": "How far rotary tables carry",
    "attention": "What each precision costs in attention",
    "pope": "How far polar angles and magnitudes carry",
    "device": "How this device computes",
}


def page(found: Result) -> str:
    """The page as text. Raises ImportError without matplotlib."""
    view = import_module(f"tightrope.audit_{found['audit']}_view")
    figures = [_figure(picture, caption) for picture, caption in _pictures(found)]
    sections = [pages.Section(title, blocks) for title, blocks in _sections(found, figures)]
    return pages.render(TITLES[found["audit"]], sections, lead=view.LEAD, facts=_facts(found))


def files(found: Result) -> dict[str, str]:
    """File name -> SVG, each picture for light and for dark. Raises ImportError as `page`."""
    return {
        f"{found['audit']}-{pages.anchor(picture.title)}-{theme}.svg": svg(picture, theme)
        for picture, _ in _pictures(found)
        for theme in ("light", "dark")
    }


def _pictures(found: Result) -> list[tuple[Picture, str]]:
    view = import_module(f"tightrope.audit_{found['audit']}_view")
    drawn: Callable[[Result], list[tuple[Picture, str]]] = view.pictures
    return [(picture, caption) for picture, caption in drawn(found) if picture.series]


def _sections(found: Result, figures: list[pages.Figure]) -> list[tuple[str, list[Any]]]:
    made: list[tuple[str, list[Any]]] = [("Pictures", list(figures))] if figures else []
    return made + [(table.title, _blocks(table)) for table in tables(found)]


def _blocks(table: Table) -> list[Any]:
    blocks: list[Any] = [pages.Table(table.columns, table.rows)]
    return [*blocks, pages.Text(table.note)] if table.note else blocks


def _figure(picture: Picture, caption: str) -> pages.Figure:
    light, dark = (svg(picture, theme) for theme in ("light", "dark"))
    return pages.Figure(light, caption=caption, alt=picture.alt or picture.title, dark=dark)


def _facts(found: Result) -> dict[str, Any]:
    around = found.get("environment", found)
    packages = around.get("packages", {})
    device = found.get("device", around.get("device", {})).get("name", around.get("platform", ""))
    return {
        "date": found["date"], "machine": device, "python": around.get("python", ""),
        **{name: v for name, v in packages.items() if v and name in SHOWN},
        **({"record": found["id"]} if "id" in found else {}),
    }  # fmt: skip


SHOWN = ("tightrope", "torch", "triton", "numpy", "python-flint")
