"""An answer as `--json` has it. The keys are a contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .words import expectation

if TYPE_CHECKING:
    from ..pegging import PegPlan
    from ..planning import Plan
    from ..rules import Family
    from ..writing import Written


def plan_fields(plan: Plan) -> dict[str, Any]:
    """A plan as JSON has it; its keys are a contract."""
    from ..windows import windows_fields

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


def written_fields(written: Written) -> dict[str, Any]:
    """What was written, and where."""
    return {
        "path": str(written.out),
        "files": list(written.files),
        "left_out": list(written.left_out),
        "notes": list(written.notes),
    }
