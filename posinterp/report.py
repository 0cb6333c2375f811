"""The only module that prints: for people, as JSON, or just the path.

stdout carries the answer, stderr everything else. Colour and progress appear only where stderr is a terminal.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import PosinterpError
from .measuring import ROOT
from .size import shape_text
from .version import VERSION

if TYPE_CHECKING:
    from .inspection import Inspection
    from .page import Page
    from .pegging import PegPlan
    from .planning import Edit, Plan
    from .plotting import Figure
    from .proposal import Proposals
    from .rules import Family
    from .verification import Verdict
    from .writing import Written

T = TypeVar("T")
SCHEMA = 1
LIBRARIES = (
    *("numpy", "safetensors", "torch", "timm", "huggingface_hub", "transformers", "open_clip_torch", "vit-pytorch"),
    "matplotlib",
)
CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


@dataclass
class Reporter:
    """How to answer: `style` is "human", "json" or "quiet"; `colour` is "auto", "always" or "never"."""

    command: str = ""
    style: str = "human"
    colour: str = "auto"
    verbose: bool = False

    # -------------------------------------------------------------- plumbing

    def say(self, text: str = "") -> None:
        """One line of the answer."""
        sys.stdout.write(text + "\n")

    def tell(self, text: str) -> None:
        """One line that is no part of the answer."""
        sys.stderr.write(text + "\n")

    def json(self, **fields: Any) -> None:
        self.say(json.dumps({"schema": SCHEMA, "command": self.command, **fields}, ensure_ascii=True))

    def paint(self, text: str, colour: str, *, stream: Any = None) -> str:
        return f"\033[{CODES[colour]}m{text}\033[0m" if self._coloured(stream or sys.stdout) else text

    def _coloured(self, stream: Any) -> bool:
        if self.colour != "auto":
            return self.colour == "always"
        return "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb" and stream.isatty()

    # -------------------------------------------------------------- versions

    def versions(self) -> None:
        """This package's version, and those of the libraries that it would ask."""
        import platform
        from importlib.metadata import PackageNotFoundError, version

        self.say(f"posinterp {VERSION}")
        self.say(f"  {'python':16} {platform.python_version()}")
        for name in LIBRARIES:
            try:
                found = version(name)
            except PackageNotFoundError:
                found = "not installed"
            self.say(f"  {name:16} {found}")

    # -------------------------------------------------------------- failures

    def failure(self, error: PosinterpError) -> None:
        """A user's mistake, as one sentence and one way out."""
        if self.style == "json":
            fields = {"kind": error.kind, "message": error.message, "hint": error.hint}
            self.say(json.dumps({"schema": SCHEMA, "command": self.command, "error": fields}, ensure_ascii=True))
            return
        self.tell(f"{self.paint('error:', 'red', stream=sys.stderr)} {error.message}")
        if error.hint:
            self.tell(f"{self.paint('hint:', 'cyan', stream=sys.stderr)} {error.hint}")

    # -------------------------------------------------------------- plans

    def plans(self, done: Sequence[tuple[Plan, Written | None]]) -> None:
        """What changes, and where it is: of one plan, or of several sizes."""
        if self.style == "json":
            answers = [
                {"plan": plan_fields(plan), **({"output": _written(written)} if written else {})}
                for plan, written in done
            ]
            self.json(**(answers[0] if len(answers) == 1 else {"sizes": answers}))
            return
        for i, (plan, written) in enumerate(done):
            if self.style == "quiet":
                self.say(str(written.out) if written else "")
                continue
            if i:
                self.say()
            for line in self._plan_lines(plan):
                self.say(line)
            if written:
                self._written_lines(plan, written)

    def _plan_lines(self, plan: Plan) -> Iterable[str]:
        yield self.paint(headline(plan), "bold")
        shown = folded(plan.edits)
        width = max((len(name) for name, _ in shown), default=0)
        for name, edit in shown:
            shapes = f"{shape_text(edit.shape)} → {shape_text(edit.new_shape)}"
            yield f"  {name:{width}}   {shapes}   {grids_text(plan, edit)}"
        if not plan.edits:
            yield f"  nothing to resample: {_why_nothing(plan)}"
        yield f"  {rest_text(plan)}"
        for field in plan.config if self.verbose else ():
            yield f"  {field.file}   {field.path}: {_value(field.before)} → {_value(field.after)}"
        for model in plan.models[:1]:
            if model.origin in ("its shape", ROOT):
                yield f"  source size {model.src_img} told from {model.origin}; if that is wrong, say --src-img"
        if plan.moments:
            yield f"  {len(plan.moments)} moments of the optimizer resampled as their parameters"
        for note in plan.notes:
            yield f"  {self.paint('note:', 'yellow')} {note}"

    def _written_lines(self, plan: Plan, written: Written) -> None:
        if len(written.files) == 1 and written.out.name == written.files[0]:
            self.say(f"wrote {written.out}")
        else:
            self.say(f"wrote {str(written.out).rstrip('/')}/ ({_some(written.files)})")
        if written.left_out:
            self.say(f"left out: {_some(written.left_out)}")
        for note in written.notes:
            self.say(f"{self.paint('note:', 'yellow')} {note}")
        if written.out.resolve() == plan.source.path.resolve():
            self.say("the source was replaced: nothing is left to verify against")
            return
        family = f" --family {_quoted(plan.asked_family)}" if plan.asked_family else ""
        rules = "".join(f" --rule {_quoted(text)}" for text in plan.asked_rules)
        size = f" --src-img {plan.src_img}" if rules or plan.models[0].origin == "--src-img" else ""
        kept = " --allow-nonfinite" if written.notes else ""
        words = f"{_quoted(written.out)} --against {_quoted(plan.source.given)}{family}{size}{rules}{kept}"
        command = f"posinterp verify {words}"
        self.say(self.paint(f"next: {command}", "dim"))

    # -------------------------------------------------------------- PEGs

    def pegged(self, plan: PegPlan, *, written: Written | None = None) -> None:
        """What gets PEGs, what that changes, and what to expect of it."""
        if self.style == "json":
            self.json(peg=peg_fields(plan), **({"output": _written(written)} if written else {}))
        elif self.style == "quiet":
            self.say(str(written.out) if written else "")
        else:
            for line in self._peg_lines(plan):
                self.say(line)
            if written:
                self._written_lines(plan.resizing, written)

    def _peg_lines(self, plan: PegPlan) -> Iterable[str]:
        blocks = f"after block{'s' * (len(plan.after) > 1)} {', '.join(map(str, plan.after))}"
        size = f"{plan.model.src_img}" + (
            f" → {plan.resizing.dst_img}" if plan.resizing.dst_img != plan.model.src_img else ""
        )
        head = f"{plan.model.family.name} · {size} · PEG {plan.kernel}×{plan.kernel} {blocks} · {plan.mode}"
        yield self.paint(head, "bold")
        held, record = plan.resizing.source.tensors, plan.record
        weights = [name for name in plan.made if name.startswith("peg.") and name.endswith("weight")]
        how = f"fitted to {record['fitted']} images" if record.get("fitted") else "zero: the identity"
        if record.get("steps"):
            how = f"{how}, then distilled for {record['steps']} steps"
        more = f" ({len(weights)})" if len(weights) > 1 else ""
        name = "peg.*.proj" if more else weights[0].removesuffix(".weight")
        yield f"  {name}{more}   {shape_text(held[weights[0]].shape)} and a bias; {how}"
        shape = shape_text(plan.before.tensors["pos_embed"].shape)
        if plan.mode == "hybrid":
            new = "".join(f" → {shape_text(edit.new_shape)}" for edit in plan.resizing.edits)
            yield f"  pos_embed   {shape}{new}   kept; resampled in forward at other sizes"
        else:
            folded = [name for name in (*plan.changed, *plan.made) if not name.startswith("peg.")]
            yield f"  pos_embed   {shape}   dropped; folded into {', '.join(folded)}"
            if "cls_token" in plan.dropped:
                yield "  cls_token   dropped; the mean over patches is pooled"
        rest = len(plan.before.tensors) - len(plan.changed) - len(plan.dropped) - (plan.mode == "hybrid")
        yield f"  {rest} other tensors {'trained' if record.get('steps') else 'copied'}"
        for note in (*plan.notes, expectation(plan)):
            yield f"  {self.paint('note:', 'yellow')} {note}"

    # -------------------------------------------------------------- inspect

    def inspection(self, found: Inspection) -> None:
        """What a checkpoint holds, and what a target size would change."""
        plan, fields, problem = found.plan, found.fields, found.problem
        if self.style == "json":
            error = {"kind": problem.kind, "message": problem.message, "hint": problem.hint} if problem else None
            more = {"plan": plan_fields(plan), "kept": found.kept} if plan else {}
            asked = {"fits": problem is None, "error": error} if plan or problem else {}
            self.json(checkpoint=fields, **more, **asked, next=found.next)
        elif self.style == "quiet":
            self.say(fields["models"][0]["family"])
        else:
            for line in self._inspection_lines(fields):
                self.say(line)
            if plan:
                self.say()
                self.say(f"fits {plan.dst_img}:")
                for line in self._plan_lines(plan):
                    self.say(line)
                if found.kept:
                    name = min(found.kept, key=lambda name: found.kept[name])
                    self.say(f"  there and back, {name} keeps {found.kept[name]:.1%} of what varies over its places")
            if problem:
                self.say()
                self.say(f"{self.paint('does not fit:', 'red')} {problem.message}")
                if problem.hint:
                    self.say(f"{self.paint('hint:', 'cyan')} {problem.hint}")
            if found.next:
                self.say(self.paint(f"next: {found.next}", "dim"))

    def _inspection_lines(self, fields: dict[str, Any]) -> Iterable[str]:
        for model in fields["models"]:
            root = f" at {model['root']}" if model["root"] else ""
            yield self.paint(f"{model['family']} ({model['home']}){root}", "bold")
            rows = [
                ("image", f"{model['size_text']}" + (f" (told from {model['origin']})" if model["origin"] else "")),
                ("patch", f"{model['stride_text']} pixels a place, grid {model['grid_text']}"),
                *([("windows", model["windows_text"])] if model["windows"] else []),
                ("prefix", f"{model['prefix']} row{'s' * (model['prefix'] != 1)}; tokens: {model['tokens'] or 'none'}"),
                ("method", model["method"]),
                *([("sizes", f"{', '.join(model['sizes'])} fit, among others")] if model["sizes"] else []),
            ]
            for key, value in rows:
                yield f"  {key:8} {value}"
            for name, group in _kinds(model["tensors"], apart=self.verbose):
                first = group[0]
                yield f"  {name}   {shape_text(first['shape'])} {first['dtype']}   {first['layout']}"
                for line in _health_lines(group):
                    yield f"    {line}"
                for line in _ills(group):
                    yield f"    {self.paint('note:', 'yellow')} {line}"
            if not model["tensors"]:
                yield f"  no tensor depends on the image size ({model['home_does']})"
        yield f"  {fields['count']} tensors, {_bytes(fields['bytes'])}, in {', '.join(fields['files'][:3])}"

    def proposals(self, found: Proposals) -> None:
        """Which tensors of a timm model follow the size, and by which rules."""
        if self.style == "json":
            self.json(
                arch=found.arch,
                src_img=list(found.src_img),
                dst_img=list(found.dst_img),
                family=found.family,
                fault=found.fault,
                tensors=[
                    {"names": one.names, "shape": one.shape, "new_shape": one.new_shape, "rules": one.rules}
                    for one in found.tensors
                ],
            )
            return
        if self.style == "quiet":
            self.say(found.family)
            return
        count = sum(len(one.names) for one in found.tensors)
        follow = f"{count} tensor{'s' * (count != 1)} follow{'s' * (count == 1)} the size"
        self.say(self.paint(f"{found.arch} · {found.src_img} → {found.dst_img} · {follow}", "bold"))
        for one in found.tensors:
            more = f" and {len(one.names) - 1} more" if len(one.names) > 1 else ""
            self.say(f"  {one.names[0]}{more}   {shape_text(one.shape)} → {shape_text(one.new_shape)}")
            for text in one.rules[: None if self.verbose else 1]:
                self.say(f"    --rule {_quoted(text)}")
            if not one.rules:
                self.say(
                    "    no rule explains both shapes: it is no grid of the image's, but a window's, or of another kind"
                )
        if found.family:
            self.say(f"known: family {found.family} says the same shapes")
        else:
            self.say(f"not known: {found.fault}")

    # -------------------------------------------------------------- families, verdicts

    def families(self, families: Sequence[Family]) -> None:
        if self.style == "json":
            self.json(families=[family_fields(family) for family in families])
            return
        if self.style == "quiet":
            for family in families:
                self.say(family.name)
            return
        families = sorted(families, key=lambda family: family.name)
        width = max(len(family.name) for family in families)
        fixed = [] if self.verbose or len(families) == 1 else [one for one in families if not one.rules]
        for family in families:
            if family in fixed:
                continue
            tensors = ", ".join(rule.match for rule in family.rules) or "-"
            self.say(f"{self.paint(f'{family.name:{width}}', 'bold')}  {family.home:8}  {tensors}")
            if len(families) == 1 or self.verbose:
                for key, value in family_fields(family).items():
                    if key not in ("name", "home") and value:
                        words = "; ".join(map(str, value)) if isinstance(value, list) else str(value)
                        self.say(f"    {key:10} {words}")

        if free := [one.name for one in fixed if not one.refuses]:
            self.say()
            self.say("no weight depends on the size, the config does:")
            for line in textwrap.wrap(", ".join(free), 100, break_on_hyphens=False):
                self.say(f"  {line}")
        for family in fixed:
            if family.refuses:
                self.say(f"refused: {family.name}: {family.refuses}")

    def junit(self, path: Path, ckpt: str, outcome: Verdict | PosinterpError) -> None:
        """Write a verdict, or the mistake in its place, for a CI service. Raises WriteFailed."""
        from .files import write_whole
        from .verification.junit import junit

        write_whole(path, junit(ckpt, outcome).encode("utf-8"), overwrite=True)

    def annotations(self, ckpt: str, outcome: Verdict | PosinterpError) -> None:
        """Each failed check, or the mistake, as GitHub shows it beside a run; nothing elsewhere than there."""
        if os.environ.get("GITHUB_ACTIONS") != "true":
            return
        if isinstance(outcome, PosinterpError):
            found = [("verify", str(outcome))]
        else:
            found = [(check.name, check.detail) for check in outcome.failed]
        for name, text in found:
            title = _escaped(f"posinterp verify: {name}", ":,")
            self.tell(f"::error title={title}::{_escaped(f'{ckpt}: {text}')}")

    def verdict(self, verdict: Verdict) -> None:
        if self.style == "json":
            self.json(ok=verdict.ok, checks=[vars(check) for check in verdict.checks])
            return
        if self.style == "quiet":
            self.say("ok" if verdict.ok else "failed")
            return
        marks = {"pass": ("ok", "green"), "fail": ("FAIL", "red"), "skip": ("skip", "yellow")}
        width = max(len(check.name) for check in verdict.checks)
        for check in verdict.checks:
            word, colour = marks[check.status]
            self.say(f"{self.paint(f'{word:4}', colour)}  {check.name:{width}}  {check.detail}")
        failed = sum(check.status == "fail" for check in verdict.checks)
        skipped = sum(check.status == "skip" for check in verdict.checks)
        end = (
            f"verified: {len(verdict.checks) - skipped} checks pass"
            if verdict.ok
            else f"not verified: {failed} of {len(verdict.checks)} checks fail"
        )
        alone = any(check.name == "untouched" and check.status == "skip" for check in verdict.checks)
        end += f", {skipped} skipped" if skipped else ""
        self.say(end + ("; not compared with a source (--against)" if alone and verdict.ok else ""))

    # -------------------------------------------------------------- figures, pages

    def page(self, page: Page, out: Path) -> None:
        """A report that was written: its verdict, and where it is."""
        accuracy = [{**vars(one), "size": list(one.size), "share": one.share} for one in page.accuracies]
        if self.style == "json":
            checks = [vars(check) for check in page.verdict.checks]
            self.json(ok=page.verdict.ok, checks=checks, accuracy=accuracy, figures=page.figures, output=str(out))
        elif self.style == "quiet":
            self.say(str(out))
        else:
            self.verdict(page.verdict)
            for one in page.accuracies:
                self.say(f"accuracy of {one.what} at {one.size}: {100 * one.share:.2f} % of {one.of} images")
            self.say(f"wrote {out}")

    @property
    def _half_blocks(self) -> bool:
        """Whether stdout shows colours, and the characters that carry them."""
        return self._coloured(sys.stdout) and "utf" in (sys.stdout.encoding or "").lower()

    def figure(self, figure: Figure, out: Path | None, *, term: bool = False) -> None:
        """A figure that was drawn: what it shows, and where it is."""
        if self.style == "json":
            self.json(figure=figure.fields(), output=None if out is None else str(out))
            return
        if self.style == "quiet":
            self.say("" if out is None else str(out))
            return
        if term:
            from .plotting import terminal_lines

            for line in terminal_lines(figure, columns=_columns(), colour=self._half_blocks):
                self.say(line)
        else:
            self.say(self.paint(figure.title, "bold"))
            for line in textwrap.wrap(figure.caption, 100, break_on_hyphens=False):
                self.say(f"  {line}")
        if out is not None:
            self.say(f"wrote {out}")


class Progress:
    """A line on stderr that follows a long copy; nothing where stderr is no terminal, or the copy is short."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self.total, self.done, self.began, self.shown = total, 0, time.monotonic(), 0.0
        self.active = not quiet and sys.stderr.isatty() and total > 256 << 20

    def __call__(self, count: int) -> None:
        self.done += count
        now = time.monotonic()
        if self.active and now - self.shown > 0.1:
            self.shown = now
            share = min(self.done / self.total, 1.0)
            left = (now - self.began) * (1 - share) / share if share else 0.0
            bar = "━" * int(24 * share) + "─" * (24 - int(24 * share))
            sys.stderr.write(
                f"\r{bar} {share:4.0%}  {self.done / 1e9:.1f} of {self.total / 1e9:.1f} GB, {left:.0f} s left "
            )
            sys.stderr.flush()

    def close(self) -> None:
        if self.active and self.shown:
            sys.stderr.write("\r" + " " * 70 + "\r")
            sys.stderr.flush()


class Stage:
    """The name of what is done, on a terminal's stderr, until the next or the end."""

    def __init__(self, doing: str, *, quiet: bool) -> None:
        self.doing, self.active, self.width = doing, not quiet and sys.stderr.isatty(), 0

    def __call__(self, name: str) -> None:
        if self.active:
            line = f"{self.doing}: {name} ..."
            sys.stderr.write(f"\r{line:<{self.width}}")
            sys.stderr.flush()
            self.width = len(line)

    def close(self) -> None:
        if self.width:
            sys.stderr.write("\r" + " " * self.width + "\r")
            sys.stderr.flush()


class Steps:
    """A line on stderr that follows a training: rewritten on a terminal, a line for every tenth elsewhere."""

    def __init__(self, total: int, *, quiet: bool) -> None:
        self.total, self.quiet, self.began, self.shown, self.first = total, quiet, time.monotonic(), 0.0, 0
        self.live = sys.stderr.isatty()

    def __call__(self, step: int, loss: float) -> None:
        now = time.monotonic()
        if not self.first:  # a run that was resumed does not begin at 1
            self.first, self.began = step, now
        due = now - self.shown > 0.2 if self.live else step % max(self.total // 10, 1) == 0 or step == self.total
        if self.quiet or not due:
            return
        self.shown = now
        done = step - self.first
        left = f", {(now - self.began) / done * (self.total - step):.0f} s left" if done else ""
        line = f"step {step} of {self.total}, loss {loss:.4f}{left}"
        sys.stderr.write(f"\r{line:<70}" if self.live else line + "\n")
        sys.stderr.flush()

    def close(self) -> None:
        if self.live and self.shown:
            sys.stderr.write("\r" + " " * 70 + "\r")
            sys.stderr.flush()


# ------------------------------------------------------------------ the words


def expectation(plan: PegPlan) -> str:
    """What to expect of a PEG model before it is trained, in plain words."""
    if plan.mode == "hybrid":
        resized = plan.resizing.edits
        return (
            "it computes what the source, resized, computes" if resized else "it computes what the source computes"
        ) + (" until its PEG is trained" if resized else ", bit for bit, until its PEG is trained")
    start = (
        "a start for training, not a model to use: on a small ViT, 37 to 41 points of accuracy of 79 were lost at once"
    )
    if plan.mode == "replace":  # docs/peg_recipes.py
        return f"{start}, and 9 to 18 after 250 steps of fine-tuning (docs/peg.md)"
    return f"{start}, and 9 after 250 steps of distillation (1 after 1000, with --kernel 13) (docs/peg.md)"


def peg_fields(plan: PegPlan) -> dict[str, Any]:
    """A PEG plan as JSON has it; its keys are a contract."""
    return {
        "source": str(plan.before.path),
        "family": plan.model.family.name,
        "architecture": f"peg_{plan.architecture}",
        "src_img": list(plan.model.src_img or ()),
        "dst_img": list(plan.resizing.dst_img),
        **plan.record,
        "made": list(plan.made),
        "changed": list(plan.changed),
        "dropped": list(plan.dropped),
        "config": [
            {"file": edit.file, "key": edit.path, "before": edit.before, "after": edit.after}
            for edit in plan.resizing.config
        ],
        "notes": [*plan.notes, expectation(plan)],
    }


def headline(plan: Plan) -> str:
    """The plan in one line: family, sizes, patch, method."""
    parts = [plan.family.name]
    before, after = plan.src_img or "?", plan.dst_img
    parts.append(f"{before} → {after}" if str(before) != str(after) else f"{after}")
    stride = plan.models[0].stride
    own = str(stride[0]) if stride[0] == stride[1] else f"{stride[0]}x{stride[1]}"
    word = "patch" if plan.family.patch.resizable else "stride"
    if stride != (1, 1):
        parts.append(f"{word} {own}" + (f" → {plan.patch[0]}" if plan.patch and plan.patch != stride else ""))
    if plan.edits:
        parts.append(str(plan.method))
    return " · ".join(parts)


def _why_nothing(plan: Plan) -> str:
    if str(plan.src_img) == str(plan.dst_img):
        return "it is at that size already"
    if not plan.models[0].ruled:
        return plan.family.why_nothing
    windows = any(rule.window for rule in plan.models[0].ruled.values())
    return "its tables span windows, and those stay" if windows else "no tensor's grid changes"


def folded(edits: Sequence[Edit]) -> list[tuple[str, Edit]]:
    """Edits of the same kind in many blocks as one line: blocks.*.attn.rel_pos_h (12)."""
    kinds = ((edit.name, (edit.shape, edit.new_shape, str(edit.method)), edit) for edit in edits)
    return [(name, group[0]) for name, group in _grouped(kinds)]


def _kinds(tensors: Sequence[dict[str, Any]], *, apart: bool) -> list[tuple[str, list[dict[str, Any]]]]:
    """Inspected tensors, those of the same kind in many blocks together; `apart`: each by itself."""
    if apart:
        return [(tensor["name"], [tensor]) for tensor in tensors]
    return _grouped((one["name"], (one["shape"], one["dtype"], one["layout"]), one) for one in tensors)


def _grouped(items: Iterable[tuple[str, Any, T]]) -> list[tuple[str, list[T]]]:
    """Items by the kind of their name, where numbers are any, and what else must be the same."""
    import re

    groups: dict[str, list[tuple[str, T]]] = {}
    kinds: dict[str, str] = {}
    for name, same, item in items:
        kind = re.sub(r"\d+", "*", name)
        key = f"{kind} {same}"
        kinds[key] = kind
        groups.setdefault(key, []).append((name, item))
    return [
        (f"{kinds[key]} ({len(group)})" if len(group) > 1 else group[0][0], [item for _, item in group])
        for key, group in groups.items()
    ]


DIRECTIONS = {1: ("",), 2: (" down", " across"), 3: (" in time", " down", " across")}


def _health_lines(group: Sequence[dict[str, Any]]) -> Iterable[str]:
    """How tables of one kind fare, as means over them."""
    found = [tensor["health"] for tensor in group if tensor["health"] and tensor["health"]["norm"]]
    if not found:
        return
    norm, spread = (_mean([one["norm"][key] for one in found]) for key in ("mean", "std"))
    parts = [f"norms {norm:.3g} ± {spread:.2g}"]
    if all(one["alike"] for one in found):
        alike = [_mean(one) for one in zip(*(one["alike"] for one in found), strict=True)]
        words = DIRECTIONS[len(alike)]
        parts.append(
            "neighbours alike " + ", ".join(f"{like:.2f}{word}" for like, word in zip(alike, words, strict=True))
        )
    if all(one["structure"] is not None for one in found):
        parts.append(f"rows and columns explain {_mean([one['structure'] for one in found]):.0%}")
    if all(one["rank"] is not None for one in found):
        parts.append(f"effective rank {_mean([one['rank'] for one in found]):.1f}")
    yield "; ".join(parts)


def _ills(group: Sequence[dict[str, Any]]) -> Iterable[str]:
    """What is wrong with tables of one kind, as far as their values tell."""
    told: dict[str, list[str]] = {}
    for tensor in group:
        found = tensor["health"] or {}
        if count := found.get("nonfinite"):
            told.setdefault(f"{count} value{'s' * (count != 1)} are not finite (NaN or Inf)", []).append(tensor["name"])
        if count := found.get("zero_rows"):
            every = "every place holds" if count == found["places"] else f"{count} places hold"
            told.setdefault(f"{every} nothing but 0", []).append(tensor["name"])
        if other := found.get("looks_like"):
            text = f"read as {shape_text(tensor['grid'])}, but the values are those of a grid of {shape_text(other)}"
            told.setdefault(text, []).append(tensor["name"])
    for text, names in told.items():
        yield text if len(names) == len(group) else f"{_some(names, 3)}: {text}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def rest_text(plan: Plan) -> str:
    """What becomes of the tensors that are not resampled."""
    copied = len(plan.source.tensors) - len(plan.edits) - len(plan.drop)
    return f"{copied} {'other ' if plan.edits else ''}tensor{'s' * (copied != 1)} copied" + _dropped(plan)


def grids_text(plan: Plan, edit: Edit) -> str:
    """The grids of an edit, with what stays beside them, and its method where it is not the plan's."""
    if edit.kernel:
        return f"patch kernel, pseudo-inverse of {edit.method}"
    sides = [("×".join(str(grid[axis]) for axis in edit.layout.grid_axes)) for grid in (edit.before, edit.after)]
    extra = (
        f"{edit.extra} {'prefix' if 'p' in str(edit.layout) and not edit.suffix else 'extra'} + "
        if edit.layout.has_extras and edit.extra
        else ""
    )
    other = f"   {edit.method}" if edit.method != plan.method else ""
    return f"{extra}{sides[0]} → {sides[1]}{other}"


def _dropped(plan: Plan) -> str:
    if not plan.drop:
        return ""
    return (
        f", {len(plan.drop)} dropped: {', '.join(plan.drop[:3])}{' ...' * (len(plan.drop) > 3)} (computed by the model)"
    )


def _columns() -> int:
    """Of the terminal; 80 where there is none."""
    return max(shutil.get_terminal_size().columns, 20)


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} bytes"


def _some(names: Sequence[str], most: int = 6) -> str:
    return ", ".join([*names[:most], *["..."] * (len(names) > most)])


def _value(value: Any) -> str:
    return "-" if value is None else json.dumps(value)


def _escaped(text: str, more: str = "") -> str:
    """Text in a workflow command of GitHub's (actions/toolkit, packages/core/src/command.ts)."""
    for mark in ("%", "\r", "\n", *more):
        text = text.replace(mark, f"%{ord(mark):02X}")
    return text


def _quoted(path: Path | str) -> str:
    import shlex

    return shlex.quote(str(path))


def _written(written: Written) -> dict[str, Any]:
    return {
        "path": str(written.out),
        "files": list(written.files),
        "left_out": list(written.left_out),
        "notes": list(written.notes),
    }


def plan_fields(plan: Plan) -> dict[str, Any]:
    """A plan as JSON has it; its keys are a contract."""
    from .windows import windows_fields

    return {
        "source": str(plan.source.path),
        "family": plan.family.name,
        "home": plan.family.home,
        "src_img": list(plan.src_img) if plan.src_img else None,
        "src_img_from": plan.models[0].origin,
        "dst_img": list(plan.dst_img),
        "patch": list(plan.patch) if plan.patch else None,
        "windows": windows_fields(plan.windows),
        "edits": [
            {
                "name": edit.name,
                "layout": str(edit.layout),
                "shape": list(edit.shape),
                "new_shape": list(edit.new_shape),
                "grid": [edit.before[axis] for axis in edit.layout.grid_axes],
                "new_grid": [edit.after[axis] for axis in edit.layout.grid_axes],
                "extra_rows": edit.extra,
                "method": {
                    "name": edit.method.name,
                    "antialias": edit.method.antialias,
                    "align_corners": edit.method.align_corners,
                    "offset": edit.method.offset,
                    "mirrored": edit.method.mirrored,
                },
                "kernel": edit.kernel,
            }
            for edit in plan.edits
        ],
        "drop": list(plan.drop),
        "optimizer": plan.optimizer,
        "config": [
            {"file": edit.file, "key": edit.path, "before": edit.before, "after": edit.after} for edit in plan.config
        ],
        "notes": list(plan.notes),
    }


def family_fields(family: Family) -> dict[str, Any]:
    """A family as `families --json` has it."""
    return {
        "name": family.name,
        "home": family.home,
        "models": list(family.archs),
        "tensors": [f"{rule.match} = {rule.layout}" for rule in family.rules],
        "method": "; ".join(dict.fromkeys(str(rule.method or family.method) for rule in family.rules)),
        "home_does": family.home_does,
        "differs": family.difference,
        "unit": family.unit,
        "square": family.square,
        "window": family.window.argument if family.window else "",
        "refuses": family.refuses,
        "known_by": list(family.has),
        "drop": list(family.drop),
        "note": family.note,
    }
