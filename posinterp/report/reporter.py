"""Answering a command: for people, as JSON, or in one word."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import PosinterpError
from ..measuring import ROOT
from ..size import shape_text
from ..version import VERSION
from .fields import family_fields, peg_fields, plan_fields, written_fields
from .words import (
    columns,
    escaped,
    expectation,
    folded,
    grids_text,
    headline,
    health_lines,
    ills,
    in_bytes,
    kinds,
    quoted,
    rest_text,
    some,
    value_text,
    why_nothing,
)

if TYPE_CHECKING:
    from ..inspection import Inspection
    from ..page import Page
    from ..pegging import PegPlan
    from ..planning import Plan
    from ..plotting import Figure
    from ..proposal import Proposals
    from ..rules import Family
    from ..verification import Verdict
    from ..writing import Written

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
                {"plan": plan_fields(plan), **({"output": written_fields(written)} if written else {})}
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
            yield f"  nothing to resample: {why_nothing(plan)}"
        yield f"  {rest_text(plan)}"
        for field in plan.config if self.verbose else ():
            yield f"  {field.file}   {field.path}: {value_text(field.before)} → {value_text(field.after)}"
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
            self.say(f"wrote {str(written.out).rstrip('/')}/ ({some(written.files)})")
        if written.left_out:
            self.say(f"left out: {some(written.left_out)}")
        for note in written.notes:
            self.say(f"{self.paint('note:', 'yellow')} {note}")
        if written.out.resolve() == plan.source.path.resolve():
            self.say("the source was replaced: nothing is left to verify against")
            return
        family = f" --family {quoted(plan.asked_family)}" if plan.asked_family else ""
        rules = "".join(f" --rule {quoted(text)}" for text in plan.asked_rules)
        size = f" --src-img {plan.src_img}" if rules or plan.models[0].origin == "--src-img" else ""
        kept = " --allow-nonfinite" if written.notes else ""
        words = f"{quoted(written.out)} --against {quoted(plan.source.given)}{family}{size}{rules}{kept}"
        command = f"posinterp verify {words}"
        self.say(self.paint(f"next: {command}", "dim"))

    # -------------------------------------------------------------- PEGs

    def pegged(self, plan: PegPlan, *, written: Written | None = None) -> None:
        """What gets PEGs, what that changes, and what to expect of it."""
        if self.style == "json":
            self.json(peg=peg_fields(plan), **({"output": written_fields(written)} if written else {}))
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
            how = f"{how.partition(':')[0]}, then distilled for {record['steps']} steps"
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
            for name, group in kinds(model["tensors"], apart=self.verbose):
                first = group[0]
                yield f"  {name}   {shape_text(first['shape'])} {first['dtype']}   {first['layout']}"
                for line in health_lines(group):
                    yield f"    {line}"
                for line in ills(group):
                    yield f"    {self.paint('note:', 'yellow')} {line}"
            if not model["tensors"]:
                yield f"  no tensor depends on the image size ({model['home_does']})"
        yield f"  {fields['count']} tensors, {in_bytes(fields['bytes'])}, in {', '.join(fields['files'][:3])}"

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
                self.say(f"    --rule {quoted(text)}")
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
        from ..files import write_whole
        from ..verification.junit import junit

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
            title = escaped(f"posinterp verify: {name}", ":,")
            self.tell(f"::error title={title}::{escaped(f'{ckpt}: {text}')}")

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
        alone = verdict.case is not None and verdict.case.source is None
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
            from ..plotting import terminal_lines

            for line in terminal_lines(figure, columns=columns(), colour=self._half_blocks):
                self.say(line)
        else:
            self.say(self.paint(figure.title, "bold"))
            for line in textwrap.wrap(figure.caption, 100, break_on_hyphens=False):
                self.say(f"  {line}")
        if out is not None:
            self.say(f"wrote {out}")
