"""Writes docs/families.md from the families' data: python docs/families_table.py"""

from __future__ import annotations

from pathlib import Path

from posinterp.families import FAMILIES
from posinterp.rules import Family, Rule

HEAD = """# Families

What is known of each architecture, generated from `posinterp/families/` by `python docs/families_table.py`;
`posinterp families NAME` says the same of one.

How to read a layout: one word an axis; `(p h w)` is p prefix rows and then the grid, row by row; `(h w s)` has extra
rows behind it; `(u v) (h w)` is a grid cut into blocks; c is whatever is carried along. *Offsets*: the table holds
2n − 1 entries for n places. *Window*: it spans a window, not the image. `#` in a name is the number of a stage.

## Tensors that follow the image size

| family | names | tensors | method | the home library | here | |
|---|---|---|---|---|---|---|
"""

FREE = """
## Nothing that follows the size

A resize writes a copy with the new size in its config. The sides of an image must be multiples of *unit*.

| family | names | unit | the home library | |
|---|---|---|---|---|
"""

REFUSED = """
## Refused by name

| family | names | why |
|---|---|---|
"""


def code(words: object) -> str:
    return f"`{words}`"


def tensor(rule: Rule) -> str:
    kinds = [word for word, holds in (("offsets", rule.offsets), ("window", rule.window)) if holds]
    return f"{code(rule.match)} = {code(rule.layout)}" + (f" ({', '.join(kinds)})" if kinds else "")


def names(family: Family) -> str:
    return ", ".join(map(code, family.archs)) or "-"


def methods(family: Family) -> str:
    return "<br>".join(dict.fromkeys(str(rule.method or family.method) for rule in family.rules))


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") or "-" for cell in cells) + " |\n"


def page() -> str:
    out = HEAD
    for family in sorted(FAMILIES, key=lambda family: family.name):
        if family.rules:
            tensors = "<br>".join(map(tensor, family.rules))
            here = family.difference or "the same"
            out += row(
                f"**{family.name}**", names(family), tensors, methods(family), family.home_does, here, family.note
            )
    out += FREE
    for family in sorted(FAMILIES, key=lambda family: family.name):
        if not family.rules and not family.refuses:
            unit = family.unit or family.patch.stem
            step = "patch" if family.patch.kernel or family.patch.stages else str(unit)
            out += row(f"**{family.name}**", names(family), step, family.home_does, family.note)
    out += REFUSED
    for family in sorted(FAMILIES, key=lambda family: family.name):
        if family.refuses:
            out += row(f"**{family.name}**", names(family), family.refuses)
    return out


if __name__ == "__main__":
    (Path(__file__).parent / "families.md").write_text(page(), encoding="utf-8")
