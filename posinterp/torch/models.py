"""timm's VisionTransformer with PEGs after some of its blocks: one model for every size that the patch divides."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from timm.layers.format import Format
from timm.layers.patch_embed import PatchEmbed
from timm.models import deit, vision_transformer
from timm.models._features import feature_take_indices
from timm.models._manipulate import checkpoint
from torch import Tensor, nn

from ..errors import BadSize, BadUsage, Unsupported
from ..pegging import check_places, folded
from .peg import PEG
from .positions import resampled

_Base: Any = vision_transformer.VisionTransformer if TYPE_CHECKING else object

Grid = tuple[int, int]


class _WithPeg(_Base):  # type: ignore[misc]
    """What the PEG models add to timm's. Everything else of timm's interface is timm's own.

    Args:
        peg_after: the blocks (from 0) after which a PEG stands.
        peg_kernel: the side of their kernels, odd.
        patch_bias: whether the patch embedding has a bias. None: as timm builds it, not with `pre_norm`.
        pos_embed: "learn" keeps the table, resampled in forward; "none" has no table.
        *args, **kwargs: timm's.
    """

    def __init__(
        self,
        *args: Any,
        peg_after: Sequence[int] = (0,),
        peg_kernel: int = 3,
        patch_bias: bool | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("patch_drop_rate"):
            raise Unsupported("a PEG needs the whole grid: patch dropout takes places out of it")
        super().__init__(*args, **{**kwargs, "dynamic_img_size": True})
        if kwargs.get("pos_embed") in ("", "none"):
            self.pos_embed = None  # the distilled model makes one, whatever it was told
        if patch_bias and self.patch_embed.proj.bias is None:
            _add_bias(self.patch_embed.proj)
        self.peg = _pegs(self, peg_after, peg_kernel)

    # -------------------------------------------------------------- forward

    def _tokens(self, x: Tensor) -> tuple[Tensor, Grid]:
        """The tokens that the first block reads, (B, prefix + h·w, C), and their grid (h, w)."""
        x = _patches(self.patch_embed, x)  # (B, h, w, C)
        grid = (x.shape[1], x.shape[2])
        tokens: Tensor = self.norm_pre(self._pos_embed(x))
        return tokens, grid

    def _pos_embed(self, x: Tensor) -> Tensor:
        """(B, h, w, C) -> (B, prefix + h·w, C) with positions and prefix tokens."""
        grid, x = (x.shape[1], x.shape[2]), x.flatten(1, 2)
        tokens = [getattr(self, name, None) for name in ("cls_token", "dist_token", "reg_token")]
        prefix = [token.expand(x.shape[0], -1, -1) for token in tokens if token is not None]
        rows = 0 if self.no_embed_class else self.num_prefix_tokens
        table = None if self.pos_embed is None else resampled(self.pos_embed, self.patch_embed.grid_size, grid, rows)
        if table is not None and self.no_embed_class:
            x = x + table
        if prefix:  # else no copy: its memory layout would be another than timm's, and a mean over tokens rounds by it
            x = torch.cat([*prefix, x], dim=1)
        if table is not None and not self.no_embed_class:
            x = x + table
        y: Tensor = self.pos_drop(x)
        return y

    def _step(self, i: int, x: Tensor, grid: Grid) -> Tensor:
        """Block i and the PEG after it."""
        x = self.blocks[i](x)
        return self.peg[str(i)](x, grid, self.num_prefix_tokens) if str(i) in self.peg else x

    def _steps(self, x: Tensor, grid: Grid, count: int) -> Iterator[Tensor]:
        """The tokens after each of the first blocks, as the next one reads them."""
        for i in range(count):
            again = self.grad_checkpointing
            x = checkpoint(self._step, i, x, grid) if again else self._step(i, x, grid)
            yield x

    def forward_features(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """(B, 3, H, W) -> (B, prefix + h·w, C)."""
        _refuse_masks(attn_mask, is_causal)
        x, grid = self._tokens(x)
        for after in self._steps(x, grid, len(self.blocks)):
            x = after
        features: Tensor = self.norm(x)
        return features

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        return_prefix_tokens: bool = False,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
        output_dict: bool = False,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Any:
        """As timm's. An intermediate is what the next block reads: with the PEG, where one follows."""
        if output_fmt not in ("NCHW", "NLC"):
            raise BadUsage(f"output_fmt is {output_fmt!r}: NCHW or NLC were expected")
        _refuse_masks(attn_mask, is_causal)
        taken, last = feature_take_indices(len(self.blocks), indices)
        x, grid = self._tokens(x)
        outputs = []
        for i, after in enumerate(self._steps(x, grid, last + 1 if stop_early else len(self.blocks))):
            x = after
            if i in taken:
                outputs.append(self.norm(x) if norm else x)
        prefix = [y[:, : self.num_prefix_tokens] for y in outputs] if self.num_prefix_tokens else None
        patches = [y[:, self.num_prefix_tokens :] for y in outputs]
        if output_fmt == "NCHW":
            patches = [y.unflatten(1, grid).permute(0, 3, 1, 2).contiguous() for y in patches]
        final = None if intermediates_only else self.norm(x)
        if output_dict:
            found = {"image_intermediates": patches}
            if prefix is not None and return_prefix_tokens:
                found["image_intermediates_prefix"] = prefix
            return found if final is None else {**found, "image_features": final}
        both = list(zip(patches, prefix, strict=True)) if return_prefix_tokens and prefix is not None else patches
        return both if final is None else (final, both)

    # -------------------------------------------------------------- the rest of timm's interface

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """As timm's; PEGs go with their blocks."""
        taken: list[int] = super().prune_intermediate_layers(indices, prune_norm=prune_norm, prune_head=prune_head)
        for i in [i for i in self.peg if int(i) >= len(self.blocks)]:
            del self.peg[i]
        return taken

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def no_weight_decay(self) -> set[str]:
        """timm's, and the PEGs: their kernels are positions, as the table is (Twins does so too)."""
        return {*super().no_weight_decay(), *(f"peg.{name}" for name, _ in self.peg.named_parameters())}

    @torch.jit.ignore  # type: ignore[untyped-decorator]
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """timm's, with PEG i beside block i: an unknown name would learn at the head's rate."""
        groups = super().group_matcher(coarse)
        blocks = [(r"^(?:blocks|peg)\.(\d+)", None), *groups["blocks"][1:]]
        return {**groups, "blocks": blocks}


class PegVisionTransformer(_WithPeg, vision_transformer.VisionTransformer):  # type: ignore[misc]
    """timm's VisionTransformer with PEGs. Beside timm's arguments: peg_after, peg_kernel, patch_bias."""


class PegVisionTransformerDistilled(_WithPeg, deit.VisionTransformerDistilled):  # type: ignore[misc]
    """DeiT's, with a distillation token and head, with PEGs. Beside timm's arguments: peg_after, peg_kernel."""


PEG_CLASSES: dict[type[nn.Module], type[_WithPeg]] = {
    vision_transformer.VisionTransformer: PegVisionTransformer,
    deit.VisionTransformerDistilled: PegVisionTransformerDistilled,
}


# ------------------------------------------------------------------ parts


def _pegs(model: Any, after: Sequence[int], kernel: int) -> nn.ModuleDict:
    """A PEG for each of the blocks `after`, named by the block. Raises what `check_places` and PEG raise."""
    check_places(after, len(model.blocks))
    like = next(model.blocks.parameters())
    made = {i: PEG(model.embed_dim, kernel, device=like.device, dtype=like.dtype) for i in sorted({*after})}
    return nn.ModuleDict({str(i): peg for i, peg in made.items()})


def _add_bias(proj: nn.Conv2d) -> None:
    """Zeros: the same function, with somewhere to fold a constant into."""
    proj.bias = nn.Parameter(proj.weight.new_zeros(proj.out_channels))


def _patches(embed: Any, x: Tensor) -> Tensor:
    """(B, 3, H, W) -> (B, h, w, C). Raises BadSize if the patch does not divide the image.

    timm's own forward puts the size into the text of its assertions, which pins a symbolic one: torch.compile would
    build a graph for every size.
    """
    if type(embed) is not PatchEmbed:
        tokens: Tensor = embed(x)
        return tokens  # a convolutional stem has its own grid
    if embed.dynamic_img_pad:
        short = [-side % step for side, step in zip(x.shape[-2:], embed.patch_size, strict=True)]
        x = nn.functional.pad(x, (0, short[1], 0, short[0]))
    elif x.shape[-2] % embed.patch_size[0] != 0 or x.shape[-1] % embed.patch_size[1] != 0:
        size, patch = (" x ".join(map(str, sides)) for sides in (x.shape[-2:], embed.patch_size))
        raise BadSize(f"an image of {size} is not divided by the patch of {patch}", hint="resize or pad the images")
    tokens = embed.norm(embed.proj(x).permute(0, 2, 3, 1))
    return tokens


def _refuse_masks(attn_mask: Tensor | None, is_causal: bool) -> None:
    if attn_mask is not None or is_causal:
        raise Unsupported("a PEG reads every place's neighbours: tokens cannot be masked from one another")


# ------------------------------------------------------------------ a model in memory


def to_peg(
    model: nn.Module,
    *,
    after: Sequence[int] = (0,),
    kernel: int = 3,
    table: bool = True,
    pool: str = "token",
) -> Any:
    """A copy of a timm model with PEGs, for images of any size that the patch divides.

    With its table, the copy's outputs equal the model's bit for bit at the model's own size; at others they are what
    timm's `dynamic_img_size=True` gives. Without, the mean over the table's places is folded into the patch
    embedding's bias and its prefix rows into the prefix tokens: a start for a long training, since the positions are
    gone.

    Args:
        model: timm's VisionTransformer or VisionTransformerDistilled; it is not changed.
        after: the blocks (from 0) after which a PEG stands; at most depth - 2.
        kernel: the side of their kernels, odd.
        table: keep the position table.
        pool: "avg" drops the class token with the table, and pools over the patches (CPVT-GAP): the head starts over.

    Raises:
        Unsupported: it is another model; it says why that has no PEGs.
        BadUsage: there are no such places or kernels.
    """
    refuse(model)
    new: Any = copy.deepcopy(model)
    new.__class__ = PEG_CLASSES[type(model)]
    new.dynamic_img_size = True
    embed = new.patch_embed
    embed.strict_img_size, embed.flatten, embed.output_fmt = False, False, Format.NHWC
    new.peg = _pegs(new, after, kernel)
    more: dict[str, Any] = {"peg_after": list(after), "peg_kernel": kernel}
    if not table:
        if embed.proj.bias is None:
            _add_bias(embed.proj)
            more["patch_bias"] = True
        fold(new)
        more["pos_embed"] = "none"
    if pool == "avg":
        plain = type(model) is vision_transformer.VisionTransformer and model.global_pool == "token"
        if table or new.cls_token is None or not plain:
            raise BadUsage("pool='avg' takes the class token out of a model without table whose head reads it alone")
        new.cls_token, new.has_class_token, new.global_pool = None, False, "avg"
        new.num_prefix_tokens -= 1
        more |= {"class_token": False, "global_pool": "avg", "fc_norm": False}
    new.train(model.training)
    _tell_timm(new, more)
    return new


def _tell_timm(model: Any, arguments: dict[str, Any]) -> None:
    """What timm writes into a config when the model is saved."""
    said = dict(getattr(model, "pretrained_cfg", None) or {})
    if said.get("architecture"):
        said["architecture"] = f"peg_{said['architecture']}"
    model.pretrained_cfg = model.default_cfg = said
    model._model_args = {**getattr(model, "_model_args", {}), **arguments}


@torch.no_grad()
def fold(model: Any) -> None:
    """Take a model's table out: its patches' mean into the patch bias, its prefix rows into the prefix tokens."""
    names = ("cls_token", "dist_token", "reg_token")
    tokens = {name: getattr(model, name) for name in names if getattr(model, name, None) is not None}
    rows = 0 if model.no_embed_class else model.num_prefix_tokens
    table, bias = model.pos_embed, model.patch_embed.proj.bias
    new = folded(_exact(table), _exact(bias), {name: _exact(token) for name, token in tokens.items()}, prefix=rows)
    bias.copy_(torch.from_numpy(new.bias))
    for name, token in tokens.items():
        token.copy_(torch.from_numpy(new.tokens[name]))
    model.pos_embed = None


def _exact(value: Tensor) -> Any:
    return value.detach().cpu().double().numpy()


def refuse(model: nn.Module) -> None:
    """Raises Unsupported, with the reason, for a model that cannot have PEGs."""
    kind = type(model)
    if isinstance(model, _WithPeg):
        raise Unsupported("the model has PEGs already")
    if kind not in PEG_CLASSES:
        raise Unsupported(f"{kind.__name__} {_why_not(model)}", hint="only timm's VisionTransformer gets PEGs")
    whole: Any = model
    if whole.pos_embed is None:
        raise Unsupported("the model has no position table: there is nothing to free it from")
    if not isinstance(whole.patch_drop, nn.Identity):
        raise Unsupported("a PEG needs the whole grid: patch dropout takes places out of it", hint="patch_drop_rate=0")
    if not isinstance(getattr(whole.patch_embed, "proj", None), nn.Conv2d):
        raise Unsupported("the patch embedding has no projection whose grid could be read")
    if not isinstance(whole.patch_embed.norm if hasattr(whole.patch_embed, "norm") else nn.Identity(), nn.Identity):
        raise Unsupported("the patch embedding has a norm: a table's mean cannot be folded in before it")


def _why_not(model: nn.Module) -> str:
    """In a few words, by what the model has."""
    has: Callable[[str], bool] = lambda name: any(hasattr(part, name) for part in model.modules())  # noqa: E731
    if type(model).__name__.startswith("NaFlex"):
        return "packs patches of several images into one sequence: there is no grid to convolve"
    if has("rope") or has("rot_pos_emb"):
        return "has rotary positions, which follow any size already"
    if has("relative_position_bias_table") or has("rel_pos"):
        return "has relative positions, not a table that a PEG could replace"
    if hasattr(model, "stages") or hasattr(model, "layers"):
        return "is a pyramid: it has no single grid"
    return "is no vision transformer of one grid"
