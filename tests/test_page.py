"""Pages stand alone, are well formed, and what they show cannot become markup."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser

import pytest

from tightrope.page import Cell, Code, Figure, Fold, Section, Table, Text, render

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><rect width="9"/></svg>'
VOID = {"meta", "img", "source", "link", "br"}


class Reader(HTMLParser):
    """Checks that tags nest; keeps the text of each tag, and every attribute that loads a thing."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.loads += [v for k, v in attrs if k in ("src", "srcset", "data") or (k, tag) == ("href", "link")]  # noqa: E501  # fmt: skip
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if data.strip():
            self.texts.append((self.open[-1], data))


def read(html):
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


EVIL = "<script>alert('&')</script>"
PAGE = render(
    EVIL,
    [
        Section("A & B", [
            Table((EVIL, "share"), [[Cell(EVIL, "bad", note=EVIL, link="A & B"), 0.5]], EVIL),
            Figure(SVG, EVIL, f'"{EVIL}', dark=SVG),
        ]),
        Section("C", [Text(EVIL), Code(EVIL), Fold(EVIL, [Fold("inner", [Code("deep")])])]),
    ],
    lead=EVIL, facts={EVIL: EVIL},
)  # fmt: skip


def test_what_is_shown_is_text_and_never_markup():
    reader = read(PAGE)
    tags = [tag for tag, text in reader.texts if text == EVIL]
    for tag in (
        "h1",
        "title",
        "dt",
        "dd",
        "th",
        "a",
        "small",
        "caption",
        "figcaption",
        "p",
        "code",
    ):
        assert tag in tags, tag
    assert "<script" not in PAGE
    assert ("code", "deep") in reader.texts


def test_the_page_loads_nothing():
    loads = read(PAGE).loads
    assert len(loads) == 2
    assert all(base64.b64decode(a.removeprefix("data:image/svg+xml;base64,")) == SVG.encode() for a in loads)  # noqa: E501  # fmt: skip
    assert not re.search(r"https?:|@import|url\(", PAGE)


def test_links_inside_the_page_lead_somewhere():
    targets = set(re.findall(r'href="#([^"]+)"', PAGE))
    assert targets == {"a-b"}
    assert targets <= set(re.findall(r'id="([^"]+)"', PAGE))


def test_light_and_dark_differ_and_both_are_readable():
    """Contrast of every colour of text with its paper by WCAG 2's formula: 4.5 is its level AA."""
    light, dark = (
        dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", part))
        for part in re.search(
            r"<style>(.*?)@media \(prefers.*?dark\)(.*?)\} \}", PAGE, re.S
        ).groups()
    )
    assert light.keys() == dark.keys()
    for colours in (light, dark):
        for name in set(colours) - {"paper", "band", "line"}:
            for ground in ("paper", "band"):
                assert contrast(colours[name], colours[ground]) >= 4.5, (name, ground)


def contrast(one, other):
    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_numbers_are_set_right_and_words_are_not():
    html = render("t", [Section("s", [Table(("a", "b", "c"), [["1", "-2.5e-08", "ok 3"]])])])
    assert re.findall(r'<t[dh][^>]*class="([^"]*)"', html) == [" number", " number", ""]


def test_bad_pieces_are_refused():
    with pytest.raises(ValueError, match="kind: expected one of good"):
        Cell("x", "red")
    with pytest.raises(ValueError, match="expected 2 cells, got 1"):
        Table(("a", "b"), [["x"]])
