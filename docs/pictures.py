"""Draws the pictures of a job's tree and of a decoding step, in docs/assets/.

    sharegen plan self-consistency --json | python docs/pictures.py

The tree's numbers are the plan's. The other pictures there, curve.svg among them, are the report's
own, and docs/study.py writes them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

ASSETS = Path(__file__).parent / "assets"
STYLE = """
text { font-family: system-ui, sans-serif; font-size: 14px; fill: #1f2933; }
.b { font-weight: 600; } .s { font-size: 13px; fill: #52606d; } .m { text-anchor: middle; }
.card { fill: #ffffff; } .root { fill: #bcd9f5; stroke: #3b78b5; }
.node { fill: #cdeccf; stroke: #3f8f4a; } .own { fill: #fbdcb4; stroke: #b9771f; }
.line { stroke: #7b8794; stroke-width: 1.2; fill: none; }
@media (prefers-color-scheme: dark) {
text { fill: #e4e9ee; } .s { fill: #aab7c4; } .card { fill: #16191d; }
.root { fill: #1d3f61; stroke: #6ea8e0; } .node { fill: #1e4526; stroke: #74c07f; }
.own { fill: #5a3d13; stroke: #e0a95a; } .line { stroke: #8fa3b4; }
}
"""


def svg(width: int, height: int, label: str, shapes: list[str]) -> str:
    """A whole picture, on a card of its own in light and dark."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(label)}">'
    )
    card = f'<rect class="card" width="{width}" height="{height}" rx="8"/>'
    return "\n".join([head, f"<style>{STYLE}</style>", card, *shapes, "</svg>"]) + "\n"


def box(kind: str, x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="4"/>'


def text(kind: str, x: float, y: float, words: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{escape(words)}</text>'


def tree(plan: dict[str, Any]) -> str:
    """The tree of a plan: what all share, below it problems, below these their samples."""
    (root,) = plan["branches"]
    per_problem = root["samples"] // root["problems"]
    shapes = [
        box("root", 16, 16, 648, 58),
        text("b m", 340, 40, f"worked examples, the same for all: {root['tokens']:,} tokens"),
        text(
            "s m", 340, 61, f"computed once, stored once, read once a step for all "
            f"{root['samples']:,} samples",
        ),
    ]  # fmt: skip
    gap, width = 8.0, (648 - 3 * 8) / 4
    for column, node in enumerate(root["children"]):
        x = 16 + column * (width + gap)
        several = node["problem"] is None
        name = f"{node['repeat']} more" if several else f"problem {node['problem']}"
        shapes += [box("node", x, 90, width, 46)]
        shapes += [text("b m", x + width / 2, 109, name)]
        shapes += [text("s m", x + width / 2, 127, f"{node['tokens']:,} tokens")]
        shapes += samples(x, width, per_problem)
        shapes += [text("s m", x + width / 2, 216, f"{per_problem} samples{' each' * several}")]
    ratio = plan["asked"] / plan["computed"]
    unshared, shared = plan["kv_unshared_bytes"] / 2**30, plan["kv_shared_bytes"] / 2**20
    asked = f"prompt tokens: {plan['asked']:,} asked, {plan['computed']:,} computed"
    shapes += [
        text("b", 16, 250, f"{asked} ({ratio:.0f} times fewer)"),
        text(
            "b", 16, 272, f"their keys and values: {shared:.1f} MiB instead of {unshared:.1f} GiB"
        ),
    ]
    label = f"{asked}: examples that all share, problems below them, samples below each problem"
    return svg(680, 290, label, shapes)


def samples(x: float, width: float, count: int) -> Iterator[str]:
    """The samples of a node as strips, which differ in length as samples do."""
    step = width / count
    for index in range(count):
        length = 22 + (index * index * 5 + index * 11) % 29
        yield box("own", round(x + index * step, 1), 144, round(step - 2, 1), length)


def step() -> str:
    """A decoding step: shared nodes once for all queries, own tokens each, and the merge."""
    shapes = [
        text("b m", 340, 30, "one decoding step of one layer"),
        box("root", 16, 46, 320, 104),
        text("b m", 176, 70, "shared phase"),
        text("s m", 176, 94, "all queries under a node, as one matrix,"),
        text("s m", 176, 114, "times its keys and values, read once"),
        text("s m", 176, 138, "result and log-sum-exp per node, sample"),
        box("own", 344, 46, 320, 104),
        text("b m", 504, 70, "suffix phase"),
        text("s m", 504, 94, "the query of each sample"),
        text("s m", 504, 114, "times its own tokens' keys and values"),
        text("s m", 504, 138, "result and log-sum-exp per sample"),
        '<path class="line" d="M176 150 V176 H340 V188 M504 150 V176 H340"/>',
        box("node", 90, 188, 500, 62),
        text("b m", 340, 212, "merge"),
        text("s m", 340, 236, "sum of the results, each weighted by exp(its log-sum-exp − total)"),
    ]
    label = "A decoding step: shared phase and suffix phase side by side, then the merge"
    return svg(680, 268, label, shapes)


if __name__ == "__main__":
    (ASSETS / "tree.svg").write_text(tree(json.load(sys.stdin)), encoding="utf-8")
    (ASSETS / "step.svg").write_text(step(), encoding="utf-8")
