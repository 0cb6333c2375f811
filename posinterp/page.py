"""A result and its proof as one page: HTML that needs nothing beside it, and asks for nothing."""

from __future__ import annotations

import base64
import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import PosinterpError
from .planning import Plan
from .plotting import make_figure
from .plotting.image import rendered
from .plotting.panels import Figure, printable
from .report.words import folded, grids_text, headline, rest_text
from .size import shape_text
from .store import open_checkpoint
from .verification import Verdict, verify
from .verification.accuracy import Accuracy, accuracies, read_labelled
from .version import VERSION

MARKS = {"pass": "ok", "fail": "FAIL", "skip": "skip"}

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --quiet: #57606a; --paper: #fff; --line: #d0d7de; --box: #f6f8fa;
  --pass: #1a7f37; --fail: #cf222e; --skip: #9a6700; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --quiet: #9198a1; --paper: #0d1117; --line: #3d444d;
  --box: #151b23; --pass: #3fb950; --fail: #f85149; --skip: #d29922; } }
@media print { :root { color-scheme: light; --ink: #000; --quiet: #333; --paper: #fff; --line: #999; --box: #fff;
  --pass: #1a7f37; --fail: #cf222e; --skip: #7d5300; } figure, tr { break-inside: avoid; } h2 { break-after: avoid; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1rem; max-width: 60rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { margin: .3rem 0; } .quiet { color: var(--quiet); }
.pass { color: var(--pass); } .fail { color: var(--fail); } .skip { color: var(--skip); }
strong.pass, strong.fail { font-size: 1.1rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { border-bottom: 1px solid var(--line); padding: .35rem .6rem .35rem 0; text-align: left; vertical-align: top; }
th { font-weight: 600; white-space: nowrap; }
code, pre { font: .85rem/1.45 ui-monospace, monospace; overflow-wrap: anywhere; }
pre { background: var(--box); border: 1px solid var(--line); padding: .75rem; margin: 0; white-space: pre-wrap; }
figure { margin: 0 0 1rem; } img { display: block; width: 100%; height: auto; background: #fff;
  border: 1px solid var(--line); }
"""


@dataclass(frozen=True)
class Page:
    """A page, the verdict that is on it, and what else a caller asks of it."""

    html: str
    verdict: Verdict
    accuracies: tuple[Accuracy, ...] = ()
    figures: tuple[str, ...] = ()


def make_page(ckpt: str | Path, against: str | Path, *, accuracy: str | Path | None = None, **wishes: Any) -> Page:
    """The page of a checkpoint and the one it was made from.

    Args:
        ckpt, against, **wishes: as `verify` takes them.
        accuracy: images with their classes, as `verification.accuracy.read_labelled` takes them; None: not measured.

    Raises:
        What `verify` raises, and what `read_labelled` raises. What else cannot be had is said on the page.
    """
    data = None if accuracy is None else read_labelled(accuracy)
    verdict = verify(ckpt, against=against, **wishes)
    case = verdict.case
    figures, unseen = _figures(ckpt, against, wishes)
    measured: tuple[Accuracy, ...] = ()
    unmeasured = ""
    if data is not None:
        try:
            if case is None:
                raise PosinterpError("accuracy is measured of a resized checkpoint that can be read")
            measured = accuracies(case, data)
        except PosinterpError as error:
            unmeasured = str(error)
    plan = None if case is None else case.plan
    sections = [
        _section("Checks", _checks(verdict)),
        _section("What changed", "" if plan is None else _plan(plan)),
        _section("Config", "" if plan is None else _config(plan)),
        _section("Accuracy", _accuracy(measured, data.name if data else "", unmeasured)),
        _section("Positions", "".join(map(_figure, figures)) + "".join(_quiet(why) for why in unseen)),
        _section("Recipe", _recipe(ckpt)),
    ]
    text = _page(ckpt, against, plan, verdict, sections)
    return Page(text, verdict, measured, tuple(figure.show for figure in figures))


# ------------------------------------------------------------------ pieces


def _text(value: object) -> str:
    """Text as HTML shows it, whatever a tensor is called."""
    return html.escape(printable(str(value)))


def _quiet(text: str) -> str:
    return f'<p class="quiet">{_text(text)}</p>' if text else ""


def _code(value: object) -> str:
    return f"<code>{_text(value)}</code>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of cells that are HTML already."""
    names = "".join(f"<th>{_text(name)}</th>" for name in head)
    lines = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{names}</tr></thead><tbody>{lines}</tbody></table>"


def _section(title: str, body: str) -> str:
    return f"<section><h2>{_text(title)}</h2>{body}</section>" if body else ""


def _page(ckpt: str | Path, against: str | Path, plan: Plan | None, verdict: Verdict, sections: Sequence[str]) -> str:
    word, kind = ("verified", "pass") if verdict.ok else ("not verified", "fail")
    title = f"{Path(ckpt).name}: {'' if plan is None else headline(plan) + ', '}{word}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        "style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{_text(title)}</title><style>{STYLE}</style></head><body>"
        f"<header><h1>{_text(Path(ckpt).name)}</h1>"
        f"<p>{_text('' if plan is None else headline(plan))}</p>"
        f'<p><strong class="{kind}">{word}</strong></p>'
        f'<p class="quiet">{_code(ckpt)} against {_code(against)}, by posinterp {_text(VERSION)}</p></header>'
        f"<main>{''.join(sections)}</main></body></html>\n"
    )


def _checks(verdict: Verdict) -> str:
    rows = [
        (f'<span class="{check.status}">{MARKS[check.status]}</span>', _text(check.name), _text(check.detail))
        for check in verdict.checks
    ]
    return _table(("", "check", "what was found"), rows)


def _plan(plan: Plan) -> str:
    rows = [
        (_code(name), _text(f"{shape_text(edit.shape)} → {shape_text(edit.new_shape)}"), _text(grids_text(plan, edit)))
        for name, edit in folded(plan.edits)
    ]
    table = _table(("tensor", "shape", "grid"), rows) if rows else ""
    notes = "".join(f"<p>{_text(f'note: {note}')}</p>" for note in plan.notes)
    return f"{table}<p>{_text(rest_text(plan))}</p>{notes}"


def _config(plan: Plan) -> str:
    rows = [
        (_text(edit.file), _code(edit.path), _code(json.dumps(edit.before)), _code(json.dumps(edit.after)))
        for edit in plan.config
    ]
    return _table(("file", "field", "before", "after"), rows) if rows else ""


def _accuracy(measured: Sequence[Accuracy], name: str, unmeasured: str) -> str:
    if not measured:
        return _quiet(unmeasured)
    rows = [
        (_text(one.what), _text(one.size), _text(f"{100 * one.share:.2f} % ± {100 * one.error:.2f}"), _text(one.right))
        for one in measured
    ]
    table = _table(("model", "image size", "accuracy", "right"), rows)
    return table + _quiet(
        f"Of {measured[0].of} images of {name}, squeezed to each size (bicubic); ± the standard error."
    )


def _recipe(ckpt: str | Path) -> str:
    try:
        said = open_checkpoint(ckpt).recipe
    except PosinterpError:  # the checks say it
        return ""
    if not said:
        return _quiet("The file does not say how it was made.")
    return f"<pre>{_text_lines(json.dumps(said, indent=2, ensure_ascii=False))}</pre>"


def _text_lines(text: str) -> str:
    return "\n".join(map(_text, text.split("\n")))


# ------------------------------------------------------------------ figures


def _figures(ckpt: str | Path, against: str | Path, wishes: dict[str, Any]) -> tuple[list[Figure], list[str]]:
    """The figures that can be had of the two, and why there are none, if so."""
    known = {key: wishes[key] for key in ("family", "rules", "src_img") if wishes.get(key) is not None}
    found: list[Figure] = []
    why: list[str] = []
    for show in ("resize", "components", "peg"):
        try:
            figure = make_figure(ckpt, show, against=None if show == "peg" else against, **known)
        except PosinterpError as error:
            why.append(str(error))
            continue
        found.append(figure)
    return found, [] if found else why[:1]


def _figure(figure: Figure) -> str:
    try:
        data = base64.b64encode(rendered(figure, "png")).decode("ascii")
    except PosinterpError as error:  # without matplotlib
        return _quiet(str(error))
    return (
        f'<figure><img src="data:image/png;base64,{data}" alt="{_text(f"{figure.title}. {figure.caption}")}"></figure>'
    )
