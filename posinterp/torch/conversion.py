"""What a PEG model needs its source to run for: fitting its PEGs in closed form, and distilling."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import BadFile, BadUsage, NotFound, Unsupported
from ..files import replacing
from ..pegging import BATCH, FITTED, PegPlan, recorded, tensor_of
from ..store.tensors import read_bytes
from ..torch_io import save, tensor
from .models import to_peg

SAVE_EVERY = 60.0  # seconds
FIT_BYTES = 512 << 20
READERS = 8  # threads that decode images
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".ppm")
SCALES = (0.7, 0.85, 1.0, 1.0, 1.0, 1.15, 1.3, 1.5, 1.7, 1.9)  # of the source's grid: what is distilled at
RATE, WIDTH = 1e-3, 128  # that was right for a model of so many channels (docs/peg_recipes.py)
Step = Callable[[int, float], None]
Sides = tuple[int, int]


def source_model(plan: PegPlan) -> Any:
    """The source in timm, in eval mode. Raises Unsupported, with timm's words, if timm does not load it."""
    import timm

    assert plan.before.config is not None
    data, tensors = plan.before.config.data, plan.before.tensors
    arguments = {"num_classes": data.get("num_classes", 1000), **(data.get("model_args") or {})}
    state = {name: tensor(read_bytes(info), info.dtype, info.shape) for name, info in tensors.items()}
    try:
        model: Any = timm.create_model(plan.architecture, **{**arguments, "img_size": list(plan.model.src_img or ())})
        model.load_state_dict(state)
    except Exception as error:  # whatever timm raises, the answer is that the source does not run
        words = " ".join(str(error).split())[:300]
        raise Unsupported(f"timm does not load the source as {plan.architecture}: {words}") from None
    cfg = data.get("pretrained_cfg")
    model.pretrained_cfg = {**model.pretrained_cfg, **(cfg if isinstance(cfg, dict) else {})}
    return model.eval()


def fitted(plan: PegPlan, images: Tensor) -> PegPlan:
    """The plan of a replaced table with its PEGs fitted to images (N, 3, H, W) of the source's size."""
    source = source_model(plan)
    model = to_peg(source, after=plan.after, kernel=plan.kernel, table=False, pool=plan.pool)
    fit(model, source, images)
    return with_values(plan, model, fitted=len(images))


def with_values(plan: PegPlan, model: nn.Module, **more: Any) -> PegPlan:
    """The plan with a model's values for the tensors that it changes or makes; all of them, if training changed all."""
    held = plan.resizing.source.tensors
    state = model.state_dict()
    names = held if more.get("steps") else [name for name in plan.made if name.startswith("peg.")]
    dtypes = {name: held[name].dtype for name in names}
    values = {name: state[name].detach().cpu().double().numpy() for name in names if dtypes[name][0] in "FB"}
    return recorded(plan, {name: tensor_of(name, value, dtypes[name]) for name, value in values.items()}, **more)


# ------------------------------------------------------------------ images


class Pictures:
    """The images of a folder and those below it, prepared as a model's own config says, read when they are asked for.

    Args:
        folder: where they are; what is no image there is passed over.
        model: whose channels, normalisation and input size they get, and who is not run.
        size: (height, width) in pixels, instead of the model's.

    Raises:
        NotFound: without a folder, or without images in it. Reading one raises BadFile if it cannot be.
    """

    def __init__(self, folder: str | Path, model: Any, *, size: Sides | None = None) -> None:
        from timm.data.config import resolve_data_config
        from timm.data.transforms_factory import create_transform

        self.paths = sorted(path for path in Path(folder).rglob("*") if path.suffix.lower() in ENDINGS)
        if not self.paths:
            raise NotFound(
                f"there are no images in {folder}", hint=f"{', '.join(ENDINGS[:4])}, ... are read, unlabelled"
            )
        self.channels = next(part.in_channels for part in model.modules() if isinstance(part, nn.Conv2d))
        cfg: dict[str, Any] = resolve_data_config({}, pretrained_cfg=model.pretrained_cfg)  # type: ignore[no-untyped-call]
        sides = (self.channels, *(size or model.patch_embed.img_size))
        self.prepare = create_transform(**{**cfg, "input_size": sides}, is_training=False)
        self.readers = ThreadPoolExecutor(READERS)

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, chosen: Tensor) -> Tensor:
        """(n,) indices -> (n, channels, H, W)."""
        return torch.stack([*self.readers.map(self._read, chosen.tolist())])

    def some(self, most: int) -> Tensor:
        """At most so many of them, evenly from all."""
        return self[torch.linspace(0, len(self) - 1, min(most, len(self))).long()]

    def _read(self, i: int) -> Tensor:
        from PIL import Image

        try:
            with Image.open(self.paths[i]) as picture:
                pixels: Tensor = self.prepare(picture.convert("L" if self.channels == 1 else "RGB"))
                return pixels
        except OSError as error:
            raise BadFile(f"{self.paths[i]} cannot be read as an image: {error}") from None


# ------------------------------------------------------------------ the closed form


@torch.no_grad()
def fit(model: Any, source: Any, images: Tensor, *, penalty: float = 1e-3, batch: int | None = None) -> None:
    """Ridge regression of each PEG, channel by channel: what its block's output lacks of the source's.

    A depth-wise kernel of k·k taps and a bias has k·k + 1 numbers a channel, and its inputs are shifts of the tokens:
    the normal equations are summed over all images and places, in float64, and solved. PEGs are fitted one after the
    other, each with those before it in place.

    Args:
        model: a table-free PEG model of `source`; its PEGs are overwritten.
        images: (N, channels, H, W) of the source's own size; no labels are needed.
        penalty: of the taps, in units of the mean of the normal matrix's diagonal. The bias has none.
        batch: images at a time. None: as many as FIT_BYTES hold the equations' columns of.
    """
    model.eval(), source.eval()
    for i in sorted(map(int, model.peg)):
        peg = model.peg[str(i)]
        peg.reset_parameters()
        taps = peg.proj.kernel_size[0] ** 2
        columns_of_one = 8 * (taps + 1) * model.embed_dim * math.prod(source.patch_embed.grid_size)
        count = batch or min(max(FIT_BYTES // columns_of_one, 1), 50)
        gram: Any = 0.0
        moment: Any = 0.0
        for part in torch.split(images, count):
            tokens, grid = model._tokens(part)
            *_, x = model._steps(tokens, grid, i + 1)  # the PEG itself is the identity here
            aim = source.forward_intermediates(
                part, indices=[i], output_fmt="NLC", intermediates_only=True, stop_early=True
            )[0]
            own = x[:, model.num_prefix_tokens :]
            columns = _shifts(own, grid, peg.proj.kernel_size[0])  # (B, C, k·k + 1, h·w)
            gram = gram + torch.einsum("bckn,bcln->ckl", columns, columns)
            moment = moment + torch.einsum("bckn,bnc->ck", columns, (aim - own).double())
        scale = penalty * gram.diagonal(dim1=-2, dim2=-1)[:, :taps].mean(-1)  # (C,)
        ridge = torch.zeros_like(gram)
        ridge.diagonal(dim1=-2, dim2=-1)[:, :taps] = scale[:, None]
        found = torch.linalg.solve(gram + ridge, moment)  # (C, k·k + 1)
        peg.proj.weight.copy_(found[:, :taps].reshape(peg.proj.weight.shape))
        peg.proj.bias.copy_(found[:, taps])


def _shifts(tokens: Tensor, grid: tuple[int, int], kernel: int) -> Tensor:
    """What each tap of a zero-padded kernel reads at each place, and a one: (B, C, k·k + 1, h·w) in float64."""
    batch, _, width = tokens.shape
    maps = tokens.double().transpose(1, 2).reshape(batch * width, 1, *grid)
    columns = F.unfold(maps, kernel, padding=kernel // 2).reshape(batch, width, kernel * kernel, -1)
    return torch.cat([columns, torch.ones_like(columns[:, :, :1])], dim=2)


# ------------------------------------------------------------------ distillation


def sizes_around(model: Any) -> list[Sides]:
    """Sizes (height, width) from 0.7 to 1.9 times a model's own grid: what the distillation mixes unless it is told.

    Its own is there three times: it is what most will go on to use.
    """
    (h, w), (high, wide) = model.patch_embed.grid_size, model.patch_embed.img_size
    grids = [(max(round(h * scale), 1), max(round(w * scale), 1)) for scale in SCALES]
    return [(rows * (high // h), columns * (wide // w)) for rows, columns in grids]


def distil(
    model: Any,
    source: Any,
    images: Tensor | Pictures,
    steps: int,
    *,
    batch: int = BATCH,
    rate: float | None = None,
    peg_rate: float = 3e-3,
    sizes: Sequence[Sides] = (),
    seed: int = 0,
    state: Path | None = None,
    tick: Step | None = None,
) -> None:
    """Teach a PEG model its source's features and logits, at mixed sizes, without labels.

    The teacher sees each image at its own size, where it is at its best, whatever size the model sees it at. The loss
    is the mean squared difference of the final tokens, each normalised, the teacher's patches resampled to the model's
    grid; and the divergence of the classes' probabilities.

    Args:
        model: is trained in place, on the device where it is.
        images: (N, channels, H, W), of the source's own size or larger.
        batch: images a step; of the source's own size they are in memory at once, of larger ones some at a time.
        rate: the peak learning rate (warm-up over a tenth, then a cosine to zero). None: 1e-3 for up to 128 channels,
            and for more less in proportion, as Adam's rate for matrices goes (Tensor Programs V, arXiv 2203.03466).
        peg_rate: that of the PEGs, whose kernels are a vector for each channel: it does not go with the width.
        sizes: (height, width) in pixels, one drawn for each batch; more often if it is there more often. None:
            `sizes_around` the source's.
        state: a file from which a run that was interrupted goes on, written every minute and removed at the end.
        tick: called with the step and its loss.

    Raises:
        BadUsage: if `state` holds another run's.
    """
    device = next(model.parameters()).device
    teacher = source.to(device).eval()
    own, mixed = teacher.patch_embed.img_size, [*sizes] or sizes_around(source)
    rate = RATE * min(WIDTH / model.embed_dim, 1.0) if rate is None else rate
    model.train()
    pegs = {id(parameter) for parameter in model.peg.parameters()}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in pegs]
    groups: list[dict[str, Any]] = [{"params": rest}, {"params": [*model.peg.parameters()], "lr": peg_rate}]
    optimizer = torch.optim.AdamW(groups, lr=rate, weight_decay=0.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _schedule(step, steps))
    generator = torch.Generator().manual_seed(seed)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    run = {
        "source": _digest(source),
        "model": _digest(model),
        "steps": steps,
        "batch": batch,
        "rate": rate,
        "peg_rate": peg_rate,
        "seed": seed,
        "sizes": [list(size) for size in mixed],
        "images": len(images),
    }
    first = _resume(state, parts, generator, run)
    saved = time.monotonic()
    for step in range(first, steps):
        chosen = torch.randint(len(images), (batch,), generator=generator)
        size = mixed[int(torch.randint(len(mixed), (1,), generator=generator))]
        x = images[chosen].to(device)
        optimizer.zero_grad(set_to_none=True)
        loss = 0.0
        # A large size takes a batch in parts, so that it needs no more memory than the source's own.
        for part in x.chunk(max(math.ceil(math.prod(size) / math.prod(own)), 1)):
            share = _loss(model, teacher, _at(part, size), _at(part, own)) * (len(part) / len(x))
            share.backward()  # type: ignore[no-untyped-call]
            loss += float(share.detach())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if tick:
            tick(step + 1, loss)
        if state is not None and time.monotonic() - saved > SAVE_EVERY and step + 1 < steps:
            _save(state, parts, generator, {**run, "step": step + 1})
            saved = time.monotonic()
    model.eval()
    if state is not None:
        state.unlink(missing_ok=True)


def _digest(model: nn.Module) -> str:
    """Tells one model's weights from another's."""
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        digest.update(f"{name} {tuple(value.shape)}".encode())
        digest.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _schedule(step: int, steps: int) -> float:
    warm = max(steps // 10, 1)
    if step < warm:
        return (step + 1) / warm
    return 0.5 + 0.5 * float(np.cos(np.pi * (step - warm) / max(steps - warm, 1)))


def _at(images: Tensor, size: Sides) -> Tensor:
    """(N, channels, H, W) -> (N, channels, *size)."""
    if tuple(images.shape[-2:]) == tuple(size):
        return images
    return F.interpolate(images.float(), tuple(size), mode="bicubic", antialias=True)


def _loss(model: Any, teacher: Any, x: Tensor, at_its_own: Tensor) -> Tensor:
    own = model.forward_features(x)
    with torch.no_grad():
        aim = teacher.forward_features(at_its_own)
        logits = teacher.forward_head(aim)
        prefix = teacher.num_prefix_tokens
        grids = (teacher.patch_embed.dynamic_feat_size(tuple(one.shape[-2:])) for one in (at_its_own, x))
        patches = _on_grid(aim[:, prefix:], *grids)
        same = model.num_prefix_tokens == prefix  # else its class token was dropped
        aim = torch.cat([aim[:, :prefix], patches], 1) if same else patches
    width = own.shape[-1:]
    mine = own if same else own[:, model.num_prefix_tokens :]
    loss = F.mse_loss(F.layer_norm(mine, width), F.layer_norm(aim, width))
    if model.num_classes:
        mine = F.log_softmax(model.forward_head(own), -1)
        loss = loss + F.kl_div(mine, F.log_softmax(logits, -1), log_target=True, reduction="batchmean")
    return loss


def _on_grid(tokens: Tensor, old: Sides, new: Sides) -> Tensor:
    """Patch tokens (N, h·w, C) of one grid, on another."""
    if tuple(old) == tuple(new):
        return tokens
    maps = tokens.transpose(1, 2).reshape(len(tokens), -1, *old)
    resized: Tensor = F.interpolate(maps.float(), tuple(new), mode="bilinear", antialias=True)
    return resized.flatten(2).transpose(1, 2).to(tokens.dtype)


def _save(path: Path, parts: dict[str, Any], generator: torch.Generator, run: dict[str, Any]) -> None:
    held = {name: part.state_dict() for name, part in parts.items()}
    with replacing(path, overwrite=True) as fd:
        save({**held, "generator": generator.get_state(), "run": run}, fd)


def _resume(path: Path | None, parts: dict[str, Any], generator: torch.Generator, run: dict[str, Any]) -> int:
    """The step at which to go on: 0 without an interrupted run."""
    if path is None or not path.exists():
        return 0
    held = torch.load(path, weights_only=True)
    said = dict(held["run"])
    step: int = said.pop("step")
    if said != run:
        raise BadUsage(
            f"{path} holds an interrupted run of another source, or with other settings",
            hint=f"rm {path}, or give the command that began it",
        )
    for name, part in parts.items():
        part.load_state_dict(held[name])
    generator.set_state(held["generator"])
    return step


def distilled(
    plan: PegPlan,
    folder: str | Path,
    steps: int,
    *,
    batch: int = BATCH,
    state: Path | None = None,
    tick: Step | None = None,
) -> PegPlan:
    """The plan with every tensor as the distillation leaves it; on a GPU where there is one.

    The images are read as large as the largest of the sizes, so that what a large one shows is there to be seen.
    """
    source = source_model(plan)
    table = plan.mode == "hybrid"
    model = to_peg(source, after=plan.after, kernel=plan.kernel, table=table, pool=plan.pool)
    if not table:
        fit(model, source, Pictures(folder, source).some(FITTED))
    mixed = [(high, wide) for high, wide in plan.sizes] or sizes_around(source)
    own = source.patch_embed.img_size
    largest = max(high for high, _ in (own, *mixed)), max(wide for _, wide in (own, *mixed))
    images = Pictures(folder, source, size=largest)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    distil(model.to(device), source, images, steps, batch=batch, sizes=mixed, state=state, tick=tick)
    said: dict[str, Any] = {"sizes": [list(size) for size in mixed], "images": len(images)}
    said |= {} if table else {"fitted": min(len(images), FITTED)}
    return with_values(plan, model, steps=steps, **said)
