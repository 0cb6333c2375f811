"""From a learned position table to PEGs: what each tensor of a checkpoint becomes, decided before anything is touched.

Nothing here needs torch: a new PEG is zeros, and folding is a sum. What needs the model to run, fitting the PEG or
distilling into it, is in `torch.conversion`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from . import config as configs
from .config.fields import ConfigEdit, edit_of
from .errors import BadUsage, BadValues, Mismatch, Unsupported, did_you_mean
from .families.peg import why_not
from .measuring import Model
from .models import architecture_of, models_of
from .planning import Plan, Wish, check_guesses, make_plan
from .size import Size, as_size
from .store import CONFIG, Checkpoint, Config, WeightFile, open_checkpoint
from .store.tensors import FLOATS, TensorInfo, byte_size, encode, read_float
from .writing import check_folder, execute, names_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array = NDArray[np.float64]

Mode = Literal["hybrid", "replace", "distill"]
Pool = Literal["token", "avg"]
MODES = ("hybrid", "replace", "distill")
TABLE = "pos_embed"
BIAS = "patch_embed.proj.bias"
TOKENS = ("cls_token", "dist_token", "reg_token")  # in the order of their rows
FITTED = 400  # images: more hardly change a fit of ten numbers a channel
STEPS, BATCH = 1000, 64
FIRST_BLOCKS, WIDE = 4, 7  # after which, and how wide, the PEGs of a distillation are unless it is said
LARGEST = 63  # a kernel's side; the paper tries 27
RECORD = "posinterp_peg"  # the metadata key under which a file says how its PEGs were made


@dataclass(frozen=True)
class PegPlan:
    """What `posinterp peg` will do.

    `before`: the source, its tensors named as the model names them; `resizing`: the plan that writes the output:
    its edits take the table to another grid, its source holds the new tensors; `made`: new tensors, `changed`: those
    with other values, `dropped`: those that are left out; `notes`: what a person should know; `sizes`: at which it is
    distilled, if they were said.
    """

    before: Checkpoint
    model: Model
    architecture: str
    mode: Mode
    after: tuple[int, ...]
    kernel: int
    pool: Pool
    resizing: Plan
    made: tuple[str, ...]
    changed: tuple[str, ...]
    dropped: tuple[str, ...]
    notes: tuple[str, ...] = ()
    sizes: tuple[Size, ...] = ()

    @property
    def record(self) -> dict[str, Any]:
        """How the PEGs are made, as the output says it."""
        return record_of(self.resizing.source) or {}


def plan_peg(
    ckpt: str | Path | Checkpoint,
    *,
    mode: str = "hybrid",
    img: int | Sequence[int] | str | None = None,
    after: Sequence[int] | None = None,
    kernel: int | None = None,
    pool: str = "token",
    sizes: Sequence[int | Sequence[int] | str] = (),
    src_img: int | Sequence[int] | str | None = None,
    family: str | None = None,
) -> PegPlan:
    """Decide what giving a checkpoint PEGs changes. Reads headers, and of a table that is dropped, the values.

    Args:
        ckpt: a path, a hub or timm name, or an opened checkpoint of timm's VisionTransformer.
        mode: "hybrid" keeps the table, and the output computes what the source computes; "replace" folds the table's
            mean into the patch bias and its prefix rows into the prefix tokens, and drops it; "distill" starts there.
        img: the size whose grid the output stores, or says in its config. None: the source's.
        after: the blocks (from 0) after which a PEG stands, at most depth - 2. None: the first, as in CPVT; for
            "distill" the first four.
        kernel: the side of the PEGs, odd. None: 3, as in CPVT; for "distill" 7 (docs/peg_recipes.py).
        pool: "token" keeps the head on what it read; "avg" drops the class token and pools over the patches.
        sizes: at which a distillation teaches. None: eight from 0.7 to 1.9 times the source's.
        src_img, family: as `plan` takes them; where no config says the architecture, `family` is its timm name.

    Raises:
        PosinterpError: what `plan` raises.
        Unsupported: the model cannot have PEGs; it says why.
    """
    if mode not in MODES:
        raise BadUsage(f"there is no mode {mode!r}", hint=f"{did_you_mean(mode, MODES)}one of {', '.join(MODES)}")
    if pool not in ("token", "avg"):
        raise BadUsage(f"there is no pooling {pool!r}", hint="token, or avg for a model without a class token")
    opened = ckpt if isinstance(ckpt, Checkpoint) else open_checkpoint(ckpt)
    model = _only(models_of(opened, family=family, src_img=src_img))
    source = _plain(opened, model)
    model = _only(models_of(source, family=family, src_img=src_img))
    architecture = _architecture(opened, family)
    check_guesses(source, [model])
    if after is None:
        after = range(min(FIRST_BLOCKS, max(depth_of(source.tensors) - 1, 1))) if mode == "distill" else (0,)
    if kernel is None:
        kernel = WIDE if mode == "distill" else 3
    _check(source, model, after, kernel, mode, pool)
    known = source.config if configs.architecture(source.config) else None
    config = known or _config(model, architecture)
    source = replace(source, config=config)
    dst_img = as_size(img) if img is not None else model.src_img
    assert dst_img is not None  # a model with a table has a size
    resizing = make_plan(source, [model], dst_img, Wish(), patch=None)
    taught = tuple(as_size(size) for size in sizes)
    for size in taught:
        make_plan(source, [model], size, Wish(), patch=None)  # raises for one that the model cannot have
    tensors = source.tensors
    new = _zeros(tensors[TABLE], after, kernel)
    arguments: dict[str, Any] = {"peg_after": sorted({*after}), "peg_kernel": kernel}
    notes: list[str] = []
    dropped: tuple[str, ...] = ()
    folded_in: dict[str, TensorInfo] = {}
    if mode != "hybrid":
        folded_in = _fold(tensors, model, drop_class=pool == "avg")
        dropped = (TABLE, *(["cls_token"] if pool == "avg" else []))
        arguments["pos_embed"] = "none"
        resizing = replace(resizing, edits=())
        if BIAS not in tensors:
            arguments["patch_bias"] = True
            notes.append("the patch embedding gets a bias, which timm builds it without, to hold the table's mean")
        if pool == "avg":
            arguments |= {"class_token": False, "global_pool": "avg", "fc_norm": False}
            notes.append("the head was trained on the class token: with pooled patches it starts over")
    written = _with(source, {**folded_in, **new}, dropped)
    edits = [edit_of(config, ("architecture",), f"peg_{architecture}")]
    edits += [edit_of(config, ("model_args", key), value) for key, value in arguments.items()]
    if "global_pool" in arguments and "global_pool" in config.data:
        edits.append(edit_of(config, ("global_pool",), "avg"))
    resizing = replace(resizing, source=written, config=_merged(resizing.config, edits), drop=resizing.drop)
    made = (*new, *(name for name in folded_in if name not in tensors))
    changed = tuple(name for name in folded_in if name in tensors)
    places = tuple(sorted({*after}))
    how = (cast(Mode, mode), places, kernel, cast(Pool, pool))
    plan = PegPlan(source, model, architecture, *how, resizing, made, changed, dropped, tuple(notes), taught)
    return recorded(plan, {})


def peg(
    ckpt: str | Path | Checkpoint,
    out: str | Path,
    *,
    images: str | Path | None = None,
    steps: int | None = None,
    batch: int | None = None,
    overwrite: bool = False,
    **wishes: Any,
) -> PegPlan:
    """Give a checkpoint PEGs and write the result: a folder that timm loads after `import posinterp.torch`.

    Args:
        ckpt, **wishes: as `plan_peg` takes them.
        out: a folder.
        images: a folder of unlabelled images: the PEGs of "replace" are fitted to them, and a distillation needs them.
        steps: of a distillation; with "hybrid", which is taught other sizes then, its table kept.
        batch: images a step of a distillation; None: 64.
        overwrite: replace an output that is there.

    Returns:
        The plan that was executed.

    Raises:
        PosinterpError: what `plan_peg` raises.
        OutputExists: the output is there already.
        WriteFailed: the machine would not take it.
    """
    plan = plan_peg(ckpt, **wishes)
    plan = completed(plan, Path(out), images=images, steps=steps, batch=batch, overwrite=overwrite)
    execute(plan.resizing, Path(out), overwrite=overwrite)
    return plan


def completed(
    plan: PegPlan,
    out: Path,
    *,
    images: str | Path | None = None,
    steps: int | None = None,
    batch: int | None = None,
    overwrite: bool = False,
    tick: Callable[[int, float], None] | None = None,
) -> PegPlan:
    """The plan with the values that only running the model gives; at once where none are asked for.

    A distillation that is interrupted goes on from `OUT.distill`, which stands beside the output until it is done.
    Raises BadUsage for wishes that do not go together.
    """
    if names_file(out):
        raise BadUsage(f"{out}: a PEG model needs its config beside it", hint="name a folder")
    check_folder(out, overwrite=overwrite)
    check_wishes(plan.mode, images, steps, plan.sizes, batch)
    if images is None:
        return plan
    from .torch.conversion import Pictures, distilled, fitted, source_model

    if plan.mode == "replace":
        return fitted(plan, Pictures(images, source_model(plan)).some(FITTED))
    out.absolute().parent.mkdir(parents=True, exist_ok=True)
    return distilled(plan, images, steps or STEPS, batch=batch or BATCH, state=resume_file(out), tick=tick)


def resume_file(out: Path) -> Path:
    """From what an interrupted distillation goes on."""
    return out.absolute().with_name(f"{out.name}.distill")


def check_wishes(
    mode: str,
    images: str | Path | None,
    steps: int | None,
    sizes: Sequence[object] = (),
    batch: int | None = None,
) -> None:
    """Raises BadUsage for images, steps, sizes or a batch that a mode has no use for, or lacks."""
    taught = mode == "distill" or (mode == "hybrid" and steps is not None)
    if mode == "hybrid" and images is not None and not taught:
        raise BadUsage(
            "a hybrid starts as its source: there is nothing to fit to images",
            hint="leave --images out; or say --steps, and it is taught other sizes",
        )
    if not taught and (steps is not None or sizes or batch is not None):
        raise BadUsage(
            f"{'steps are' if steps is not None else 'sizes are' if sizes else 'a batch is'} the distillation's",
            hint="--mode distill, or --mode hybrid with --steps and --images",
        )
    if taught and images is None:
        raise BadUsage("distillation needs images, without labels", hint="--images DIR")
    if batch is not None and batch < 1:
        raise BadUsage(f"a batch of {batch} images is none", hint=f"--batch {BATCH}")
    if steps is not None and steps < 1:
        raise BadUsage(f"{steps} steps of distillation are none", hint=f"--steps {STEPS}")


def recorded(plan: PegPlan, values: Mapping[str, TensorInfo], **more: Any) -> PegPlan:
    """The plan with other values for some tensors of its output, and with what made them in the file's metadata."""
    said = {"mode": plan.mode, "after": list(plan.after), "kernel": plan.kernel, "pool": plan.pool, **more}
    source = _with(plan.resizing.source, values, ())
    text = json.dumps(said, separators=(",", ":"), sort_keys=True)
    files = tuple(replace(file, metadata={**file.metadata, RECORD: text}) for file in source.files)
    return replace(plan, resizing=replace(plan.resizing, source=replace(source, files=files)))


def record_of(ckpt: Checkpoint) -> dict[str, Any] | None:
    """How a checkpoint's PEGs were made, as its file says it; None if it does not."""
    try:
        said = json.loads(ckpt.files[0].metadata.get(RECORD, "null"))
    except ValueError:
        return None
    known = isinstance(said, dict) and said.get("mode") in MODES and isinstance(said.get("after"), list)
    return said if known else None


# ------------------------------------------------------------------ what can be given PEGs


def _only(models: Sequence[Model]) -> Model:
    if len(models) > 1:
        roots = ", ".join(model.root or "the top" for model in models)
        raise Unsupported(
            f"the checkpoint holds {len(models)} models, at {roots}, and a PEG model is one",
            hint="take the one you mean out into a file of its own",
        )
    return models[0]


def _plain(source: Checkpoint, model: Model) -> Checkpoint:
    """The model's tensors by their own names: what stands around them in a pickle is left out."""
    root = model.root
    if root and not root.endswith("/"):
        raise Unsupported(
            f"the weights stand at {root!r}, which timm's models do not call them", hint="save model.module's state"
        )

    def below(file: WeightFile) -> tuple[TensorInfo, ...]:
        own = (info for info in file.tensors if info.name.startswith(root) and "/" not in info.name[len(root) :])
        return tuple(replace(info, name=info.name[len(root) :]) for info in own)

    files = tuple(
        WeightFile(file.path, below(file), dict(file.metadata) or {"format": "pt"}, None) for file in source.files
    )
    return replace(source, files=files)


def _architecture(source: Checkpoint, family: str | None) -> str:
    """timm's name of the model, without a tag. Raises BadUsage if nothing says it."""
    name = architecture_of(source) or (family if family and "_" in family else None)
    if name is None:
        raise BadUsage(
            "no config says which architecture this is, and the output's must",
            hint="say timm's name of it with --family vit_base_patch16_224, or the like",
        )
    return name.partition(".")[0]


def _check(source: Checkpoint, model: Model, after: Sequence[int], kernel: int, mode: str, pool: str) -> None:
    tensors, family = source.tensors, model.family
    if reason := why_not(family):
        raise Unsupported(f"{family.name} models get no PEG: {reason}")
    if TABLE not in tensors or TABLE not in model.places:
        raise Unsupported("the model has no position table: there is nothing to free it from")
    if "patch_embed.proj.weight" not in tensors:
        raise Unsupported("the patch embedding has no projection whose bias could take the table's mean")
    if any(name.startswith("patch_embed.norm.") for name in tensors):
        raise Unsupported("the patch embedding has a norm: a table's mean cannot be folded in before it")
    if model.arguments.get("patch_drop_rate"):
        raise Unsupported("a PEG needs the whole grid: patch dropout takes places out of it", hint="patch_drop_rate=0")
    if model.arguments.get("use_naflex"):
        raise Unsupported("NaFlex packs patches of several images into one sequence: there is no grid to convolve")
    if tensors[TABLE].dtype not in (*FLOATS, "BF16"):
        raise BadValues(f"{TABLE} is stored as {tensors[TABLE].dtype}", hint="de-quantise or cast the checkpoint first")
    check_places(after, depth_of(tensors))
    check_kernel(kernel)
    if pool == "avg" and mode == "hybrid":
        raise BadUsage("pooling over patches drops the class token and the table", hint="it goes with --mode replace")
    if pool == "avg" and ("cls_token" not in tensors or "dist_token" in tensors or "attn_pool.latent" in tensors):
        raise BadUsage("the head does not read a class token alone: its pooling stays as it is", hint="--pool token")
    explained = sum(tensors[name].shape[1] for name in TOKENS if name in tensors)
    if model.extra[TABLE] not in (0, explained):
        raise Mismatch(
            f"{TABLE} has {model.extra[TABLE]} prefix rows, and the file {explained} prefix tokens",
            hint="say the source's size with --src-img",
        )


def depth_of(tensors: Mapping[str, Any]) -> int:
    """The number of blocks."""
    return 1 + max((int(name.split(".")[1]) for name in tensors if name.startswith("blocks.")), default=-1)


def places_of(text: str) -> tuple[int, ...]:
    """Blocks from "0,1,2". Raises BadUsage."""
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise BadUsage(f"{text!r} names no blocks", hint="write --after 0, or --after 0,1,2") from None


def check_places(after: Sequence[int], depth: int) -> None:
    """Raises BadUsage for places that are not blocks, or after which nothing would read what a PEG says."""
    wrong = [i for i in after if not 0 <= i <= depth - 2]
    if wrong or not after:
        what = f"no PEG can stand after block {wrong[0]}" if wrong else "no block was given after which a PEG stands"
        raise BadUsage(
            f"{what}: the model has {depth} blocks",
            hint=f"0 to {depth - 2}: after the last one, no block carries positions to the class token",
        )


def check_kernel(kernel: int) -> None:
    """Raises BadUsage for a kernel without a centre, or larger than any use of it."""
    if not 1 <= kernel <= LARGEST or kernel % 2 == 0:
        raise BadUsage(f"a PEG has an odd kernel of at most {LARGEST}, not {kernel}", hint="3 is usual")


# ------------------------------------------------------------------ tensors


@dataclass(frozen=True)
class Folded:
    """What takes the constant part of a table: the patch embedding's bias (C,), and prefix tokens (1, n, C) by name."""

    bias: Array
    tokens: dict[str, Array]


def folded(table: Array, bias: Array, tokens: Mapping[str, Array], *, prefix: int) -> Folded:
    """Fold a table (1, prefix + h·w, C): the mean over its places into the bias, its first rows into the tokens.

    `tokens` are in the order of their rows; none of them is changed if `prefix` is 0 (timm's `no_embed_class`).
    """
    rows = table[0, :prefix]
    new = {}
    for name, token in tokens.items():
        own, rows = rows[: token.shape[1]], rows[token.shape[1] :]
        new[name] = token + own if prefix else token
    return Folded(bias + table[0, prefix:].mean(0), new)


def tensor_of(name: str, values: Array, dtype: str) -> TensorInfo:
    """A tensor in memory, rounded once to its dtype."""
    raw = encode(values, dtype).tobytes()
    return TensorInfo(name, dtype, values.shape, Path(), nbytes=len(raw), data=memoryview(raw))


def _zeros(table: TensorInfo, after: Sequence[int], kernel: int) -> dict[str, TensorInfo]:
    width, dtype = table.shape[-1], table.dtype
    found = {}
    for i in sorted({*after}):
        for kind, shape in (("weight", (width, 1, kernel, kernel)), ("bias", (width,))):
            name, size = f"peg.{i}.proj.{kind}", byte_size(dtype, shape)
            found[name] = TensorInfo(name, dtype, shape, Path(), nbytes=size, data=memoryview(bytes(size)))
    return found


def _fold(tensors: Mapping[str, TensorInfo], model: Model, *, drop_class: bool) -> dict[str, TensorInfo]:
    import numpy as np

    table = read_float(tensors[TABLE])
    if not np.isfinite(table).all():
        raise BadValues(f"{TABLE} holds NaN or Inf: folding would spread them", hint="repair the checkpoint first")
    bias = read_float(tensors[BIAS]) if BIAS in tensors else np.zeros(table.shape[-1])
    tokens = {name: read_float(tensors[name]) for name in TOKENS if name in tensors}
    new = folded(table, bias, tokens, prefix=model.extra[TABLE])
    found = {BIAS: tensor_of(BIAS, new.bias, tensors["patch_embed.proj.weight"].dtype)}
    if model.extra[TABLE]:
        kept = {name: token for name, token in new.tokens.items() if not (drop_class and name == "cls_token")}
        found |= {name: tensor_of(name, token, tensors[name].dtype) for name, token in kept.items()}
    return found


def _with(source: Checkpoint, new: Mapping[str, TensorInfo], dropped: Sequence[str]) -> Checkpoint:
    """The checkpoint with tensors put in place of those of their names, or beside them, and some left out."""
    held = source.tensors
    beside = [info for name, info in new.items() if name not in held]
    files = []
    for file in source.files:
        own = [new.get(info.name, info) for info in file.tensors if info.name not in dropped]
        if any(info.name == "patch_embed.proj.weight" for info in file.tensors):
            own += beside
        files.append(replace(file, tensors=tuple(own)))
    return replace(source, files=tuple(files))


# ------------------------------------------------------------------ config


def _config(model: Model, architecture: str) -> Config:
    """What timm needs to build the model, for a file that comes without a config."""
    kernel, head = model.tensors["patch_embed.proj.weight"], model.tensors.get("head.weight")
    classes = head.shape[0] if head is not None else 0
    size = model.src_img or (0, 0)
    stem = model.family.patch.stem == 1
    return Config(
        Path(CONFIG),
        {
            "architecture": architecture,
            "num_classes": classes,
            "num_features": kernel.shape[0],
            "model_args": {"img_size": list(size), "num_classes": classes},
            "pretrained_cfg": {
                "input_size": [kernel.shape[1] if stem else 3, *size],
                "num_classes": classes,
                "first_conv": "patch_embed.proj",
                "classifier": "head",
            },
        },
    )


def _merged(some: Sequence[ConfigEdit], others: Sequence[ConfigEdit]) -> tuple[ConfigEdit, ...]:
    return (*some, *(edit for edit in others if edit.before != edit.after))
