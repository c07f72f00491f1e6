#!/usr/bin/env python3
"""Draw the pictures of docs/concepts as SVG files.

    python tools/make_pictures.py [FOLDER]

Each picture has a background and colors of its own, for light and for dark screens, so that it is readable on a page of
either kind.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "docs" / "concepts"
STYLE = """
  .ground { fill: #ffffff; stroke: #d0d7de }
  text { fill: #1f2328; font: 14px system-ui, sans-serif }
  .small { font-size: 12px }
  .middle { text-anchor: middle }
  .end { text-anchor: end }
  .low { fill: #cfe8cf; stroke: #2e7d32 }
  .high { fill: #d6e4f7; stroke: #1f5fa8 }
  .cast { fill: #fdebc8; stroke: #b26a00 }
  .line { stroke: #59636e; fill: none }
  .arrow { fill: #59636e }
  .dashed { stroke-dasharray: 4 3 }
  .covering { stroke: #ffffff; stroke-width: 4px; paint-order: stroke }
  @media (prefers-color-scheme: dark) {
    .ground { fill: #161b22; stroke: #3d444d }
    text { fill: #e6edf3 }
    .low { fill: #1d3a22; stroke: #6cc070 }
    .high { fill: #1b2f4a; stroke: #79b0f2 }
    .cast { fill: #46320f; stroke: #e0a84c }
    .line { stroke: #9198a1 }
    .arrow { fill: #9198a1 }
    .covering { stroke: #161b22 }
  }
"""


class Picture:
    """An SVG picture that grows shape by shape; sizes and places are in pixels from the upper left corner."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.shapes: list[str] = []

    def box(self, x: float, y: float, width: float, height: float, kind: str, lines: Sequence[str]) -> None:
        """Draw a box of the class ``kind`` with centered lines of text: the first large, the others small."""
        self.shapes.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" class="{kind}"/>')
        first = y + height / 2 + 5 - 8 * (len(lines) - 1)
        for number, line in enumerate(lines):
            self.text(x + width / 2, first + 16 * number, line, "middle" if number == 0 else "small middle")

    def text(self, x: float, y: float, text: str, kind: str = "") -> None:
        self.shapes.append(f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(text)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "line") -> None:
        self.shapes.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" class="{kind}"/>')

    def arrow(self, x1: float, x2: float, y: float) -> None:
        """Draw an arrow to the right."""
        self.line(x1, y, x2 - 6, y)
        self.shapes.append(f'<path d="M{x2 - 7:g} {y - 4:g} L{x2:g} {y:g} L{x2 - 7:g} {y + 4:g} z" class="arrow"/>')

    def row(self, x: float, y: float, items: Sequence[tuple[str, Sequence[str]]]) -> None:
        """Draw boxes from left to right with arrows between them; a Cast is a narrow box."""
        for number, (kind, lines) in enumerate(items):
            width = 44 if kind == "cast" else 96
            if number:
                self.arrow(x, x + 18, y + 26)
                x += 18
            self.box(x, y, width, 52, kind, lines)
            x += width

    def svg(self) -> str:
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
                f"<title>{escape(self.title)}</title>",
                f"<style>{STYLE}</style>",
                f'<rect x="0.5" y="0.5" width="{self.width - 1}" height="{self.height - 1}" rx="8" class="ground"/>',
                *self.shapes,
                "</svg>\n",
            ]
        )


def draw_lists() -> Picture:
    """Draw how the three lists decide the nodes of an attention."""
    picture = Picture(860, 190, "Three lists decide the precision of five nodes")
    names = [
        ("low", ["MatMul", "white"]),
        ("low", ["Add", "gray: follows"]),
        ("cast", ["Cast"]),
        ("high", ["Softmax", "black"]),
        ("high", ["Mul", "gray: follows"]),
        ("cast", ["Cast"]),
        ("low", ["MatMul", "white"]),
    ]
    picture.text(
        20, 30, "Each node takes its precision from its list. A gray node follows the node that computes its input."
    )
    picture.arrow(20, 48, 86)
    picture.text(20, 76, "x", "small")
    picture.row(48, 60, names)
    picture.box(48, 146, 20, 16, "low", [])
    picture.text(76, 159, "float16", "small")
    picture.box(160, 146, 20, 16, "high", [])
    picture.text(188, 159, "float32, as in the model", "small")
    picture.box(360, 146, 20, 16, "cast", [])
    picture.text(388, 159, "inserted by mixlist: converts between the two types", "small")
    return picture


def draw_casts() -> Picture:
    """Draw what one black node between two low-precision nodes costs, with activations of 8 MB in float32."""
    picture = Picture(860, 330, "A black node between two white nodes needs two Casts")
    picture.text(20, 30, "All three nodes in float16: every arrow moves 4 MB")
    picture.row(20, 44, [("low", ["MatMul", "float16"]), ("low", ["Gelu", "float16"]), ("low", ["MatMul", "float16"])])
    picture.text(20, 132, "Gelu on the black list: two Casts, and the arrows at Gelu move 8 MB")
    picture.row(
        20,
        146,
        [
            ("low", ["MatMul", "float16"]),
            ("cast", ["Cast"]),
            ("high", ["Gelu", "float32"]),
            ("cast", ["Cast"]),
            ("low", ["MatMul", "float16"]),
        ],
    )
    picture.text(20, 234, "Memory traffic between the first and the last MatMul, all writes and reads:")
    bars = [("low", 16, "all in float16"), ("high", 32, "all in float32"), ("cast", 48, "Gelu in float32: two Casts")]
    for number, (kind, megabytes, title) in enumerate(bars):
        y = 246 + 24 * number
        picture.box(20, y, 6 * megabytes, 16, kind, [])
        picture.text(30 + 6 * megabytes, y + 13, f"{megabytes} MB: {title}", "small")
    return picture


def draw_ranges() -> Picture:
    """Draw the magnitudes that each type holds on a logarithmic axis, with typical values of networks."""
    picture = Picture(860, 324, "The ranges of float32, bfloat16 and float16")
    left, right, lowest, highest = 110, 840, -46, 40

    def place(magnitude: float) -> float:
        return left + (math.log10(magnitude) - lowest) / (highest - lowest) * (right - left)

    types = [
        ("float32", "high", 1.4e-45, 1.18e-38, 3.4e38, "24 bits: about 7 digits"),
        ("bfloat16", "cast", 9.2e-41, 1.18e-38, 3.39e38, "8 bits: 2 digits"),
        ("float16", "low", 6e-8, 6.1e-5, 65504, "11 bits: 3 digits"),
    ]
    picture.text(
        20, 30, "Magnitudes that a type can hold (logarithmic). Outside: 0 on the left, infinity on the right."
    )
    for number, (name, kind, smallest, normal, largest, digits) in enumerate(types):
        y = 50 + 52 * number
        picture.text(20, y + 23, name)
        start, middle, end = place(smallest), place(normal), place(largest)
        # Subnormal numbers lose digits toward zero.
        picture.box(start, y, middle - start, 36, f"{kind} dashed", [])
        picture.box(middle, y, end - middle, 36, kind, [])
        picture.text(middle + 16, y + 23, digits if end - middle > 150 else "")
    # The label of a value is in one of two lines, at its dashed line or left of it.
    values = [
        (1e-12, "epsilon 1e-12", 236, "small end"),
        (1e-2, "weights", 252, "small end"),
        (1e6, "sum of squares", 252, "small"),
        (1e9, "mask -1e9", 236, "small"),
        (3.4e38, "mask of the lowest float32", 236, "small end"),
    ]
    for magnitude, name, y, kind in values:
        x = place(magnitude)
        picture.line(x, 50, x, y + 2, "line dashed")
        picture.text(x - 4 if kind.endswith("end") else x + 4, y, name, kind)
    # After the dashed lines, which these texts cover.
    picture.text(place(6e-8) - 10, 177, "subnormal from 6e-8", "small end covering")
    picture.text(place(65504) + 10, 177, "up to 65504, 11 bits: 3 digits", "small covering")
    for exponent in range(-40, 41, 10):
        picture.line(place(10.0**exponent), 266, place(10.0**exponent), 272)
        picture.text(place(10.0**exponent), 288, f"1e{exponent}", "small middle")
    picture.line(left, 266, right, 266)
    picture.text(20, 312, "Dashed: subnormal numbers. They have fewer digits the smaller they are.", "small")
    return picture


PICTURES = {"lists.svg": draw_lists, "casts.svg": draw_casts, "ranges.svg": draw_ranges}

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for name, draw in PICTURES.items():
        (folder / name).write_text(draw().svg(), "utf-8")
