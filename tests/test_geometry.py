"""Relative tables by what they do: the bias that a model adds between two places, at both sizes.

A table is filled with one curve over the rows' offsets in its first head, another over the columns' in its second.
What the model's own indexing then gives between two places must be a function of their offset alone; at the new size it
must be that function resampled, curve by curve, by a reference in one dimension. No layout, no index of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from timm.layers.bottleneck_attn import PosEmbedRel
from timm.layers.lambda_layer import LambdaLayer
from timm.layers.pos_embed_rel import RelPosBias, RelPosBiasTf
from timm.models import beit, efficientformer_v2, levit, swin_transformer
from timm.models.mvitv2 import MultiScaleAttention, cal_rel_pos_type

import posinterp as pi

Size = tuple[int, int]
Curve = dict[int, float]


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


# ------------------------------------------------------------------ what the models compute


def tables(model: Any) -> Iterator[tuple[str, Any]]:
    """Every module that holds relative positions."""
    kinds = (RelPosBias, RelPosBiasTf, PosEmbedRel, beit.Attention, swin_transformer.WindowAttention, levit.Attention)
    more = (levit.AttentionDownsample, efficientformer_v2.Attention2d, efficientformer_v2.Attention2dDownsample)
    for name, module in model.named_modules():
        if isinstance(module, (*kinds, *more)) or (isinstance(module, LambdaLayer) and module.pos_emb is not None):
            yield name, module


def sides(module: Any) -> Size:
    """Rows and columns of the map, or the window, that a module attends over."""
    if isinstance(module, PosEmbedRel):
        return module.height, module.width
    if isinstance(module, LambdaLayer):
        return tuple(module.feat_size)
    return tuple(getattr(module, "window_size", None) or module.resolution)


def curves(h: int, w: int, *, distances: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """One value for each offset of the rows, one for each of the columns."""
    draw = torch.Generator().manual_seed(100 * h + w)
    lengths = (h, w) if distances else (2 * h - 1, 2 * w - 1)
    return torch.randn(lengths[0], generator=draw), torch.randn(lengths[1], generator=draw)


@torch.no_grad()
def fill(module: Any) -> None:
    """Rows' curve into the first head or channel, columns' into the second."""
    h, w = sides(module)
    if isinstance(module, PosEmbedRel):
        rows, columns = curves(h, w, distances=False)
        module.height_rel.zero_()[:, 0] = rows
        module.width_rel.zero_()[:, 1] = columns
        return
    distances = hasattr(module, "attention_biases")
    rows, columns = curves(h, w, distances=distances)
    field = torch.stack([rows[:, None].expand(-1, len(columns)), columns[None].expand(len(rows), -1)])
    if distances:
        module.attention_biases.zero_()[:2] = field.flatten(1)
    elif isinstance(module, LambdaLayer):
        module.pos_emb.zero_()[..., :2] = field.permute(1, 2, 0)
    elif module.relative_position_bias_table.ndim == 3:
        module.relative_position_bias_table.zero_()[:2] = field
    else:
        flat = field.flatten(1).T
        module.relative_position_bias_table.zero_()[: len(flat), :2] = flat


@torch.no_grad()
def biases(module: Any) -> torch.Tensor:
    """(2, queries, keys): what the module adds between two places, by its own indexing."""
    h, w = sides(module)
    if isinstance(module, PosEmbedRel):
        channels = module.height_rel.shape[1]
        probes = torch.eye(channels)[:2, None].expand(2, h * w, channels)
        return torch.as_tensor(module(probes.contiguous()))
    if isinstance(module, LambdaLayer):
        return module.pos_emb[module.rel_pos_indices[0], module.rel_pos_indices[1]][..., :2].permute(2, 0, 1)
    if isinstance(module, swin_transformer.WindowAttention):
        rows = module.relative_position_bias_table[module.relative_position_index.view(-1)]
        return rows.view(h * w, h * w, -1).permute(2, 0, 1)[:2]
    if isinstance(module, beit.Attention):
        return module._get_rel_pos_bias()[0, :2, 1:, 1:]
    if hasattr(module, "attention_biases"):
        module.train(True)  # timm's returns nothing; it drops what was gathered before
        module.eval()
        return module.get_attention_biases(torch.device("cpu"))[:2]
    field = module.get_bias()
    return field[0, :2, -h * w :, -h * w :] if field.ndim == 4 else field[:2]


def observed(module: Any) -> tuple[Curve, Curve]:
    """The bias as a function of the rows' offset, and of the columns': there must be no other dependence."""
    h, w = sides(module)
    field = biases(module)
    step = 1 if field.shape[1] == h * w else 2  # queries of a downsampling block stand at every other place
    query = [(y, x) for y in range(0, h, step) for x in range(0, w, step)]
    key = [(y, x) for y in range(h) for x in range(w)]
    assert field.shape[1:] == (len(query), len(key))
    found: tuple[Curve, Curve] = ({}, {})
    for head, curve in enumerate(found):
        at = np.array([[b[head] - a[head] for b in key] for a in query])
        values = field[head].numpy()
        for offset in np.unique(at):
            same = values[at == offset]
            assert np.ptp(same) == 0, f"not a function of the offset: {offset} gives {same.min()} and {same.max()}"
            curve[int(offset)] = float(same[0])
    return found


# ------------------------------------------------------------------ references in one dimension


def by_torch(curve: list[float], length: int, **how: Any) -> list[float]:
    line = torch.tensor(curve, dtype=torch.float64)[None, None, :, None].expand(1, 1, -1, 2)
    out = F.interpolate(line, (length, 2), **{"mode": "bicubic", "antialias": True, **how})
    return out[0, 0, :, 0].tolist()


def geometric(curve: list[float], length: int) -> list[float]:
    """BEiT: offsets placed at 0, 1, 1 + q, 1 + q + q², ..., the last at the new edge, and read at whole ones."""
    old, new = len(curve) // 2, length // 2
    low, high = 1.01, 1.5
    while high - low > 1e-6:
        q = (low + high) / 2
        low, high = (low, q) if (1 - q**old) / (1 - q) > new else (q, high)
    ahead = [sum(q**i for i in range(n)) for n in range(1, old + 1)]
    places = [*(-p for p in reversed(ahead)), 0.0, *ahead]
    return list(np.interp(np.arange(-new, new + 1), places, curve))


def bicubic(curve: list[float], length: int) -> list[float]:
    return by_torch(curve, length)


def linear(curve: list[float], length: int) -> list[float]:
    return by_torch(curve, length, mode="bilinear", antialias=False)


def resampled(
    curve: Curve, places: int, reference: Callable[[list[float], int], list[float]], *, distances: bool
) -> Curve:
    """A curve over all offsets between `places` places; over the distances alone where it is of distances."""
    last = max(curve)
    if distances:
        values = reference([curve[distance] for distance in range(last + 1)], places)
        return {offset: values[abs(offset)] for offset in range(1 - places, places)}
    assert sorted(curve) == list(range(-last, last + 1))
    values = reference([curve[offset] for offset in range(-last, last + 1)], 2 * places - 1)
    return {offset: values[offset + places - 1] for offset in range(1 - places, places)}


def whole(curve: Curve) -> Curve:
    """With the offsets that downsampling queries never see, by the symmetry of distances."""
    return {**{-offset: value for offset, value in curve.items()}, **curve}


Case = tuple[str, Mapping[str, Any], Mapping[str, Any], Callable[[list[float], int], list[float]]]
SHALLOW = {"depths": (1, 1, 1, 1), "num_classes": 0}
CASES: dict[str, Case] = {
    "beit": ("beit_base_patch16_224", {"depth": 1}, {"img_size": (256, 160)}, geometric),
    "relpos": ("vit_relpos_medium_patch16_cls_224", {"depth": 1, "rel_pos_type": "bias"}, {"img_size": (256, 160)}, geometric),
    "swin": ("swin_tiny_patch4_window7_224", SHALLOW, {"img_size": (256, 320), "window_size": (8, 10)}, geometric),
    "coatnet": ("test_coatnet", {}, {"img_size": (256, 96)}, geometric),
    "maxvit": ("maxvit_tiny_pm_256", SHALLOW, {"img_size": (320, 192)}, geometric),
    "maxvit-tf": ("maxvit_tiny_tf_224", SHALLOW, {"img_size": (160, 320)}, geometric),
    "gcvit": ("gcvit_xxtiny", {}, {"img_size": (256, 160)}, geometric),
    "levit": ("levit_128s", {}, {"img_size": (320, 160)}, bicubic),
    "levit-s8": ("levit_384_s8", {}, {"img_size": (256, 160)}, bicubic),
    "efficientformer-v2": ("efficientformerv2_s0", {}, {"img_size": (320, 160)}, bicubic),
    "botnet": ("eca_botnext26ts_256", {}, {"img_size": (320, 192)}, linear),
    "botnet50": ("botnet50ts_256", {}, {"img_size": (320, 192)}, linear),
    "halobotnet": ("halo2botnet50ts_256", {}, {"img_size": (384, 256)}, linear),
    "lambda": ("lambda_resnet26rpt_256", {}, {"img_size": (320, 192)}, bicubic),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_bias_between_two_places_is_the_field_resampled(case: Case) -> None:
    name, build, change, reference = case
    old = timm.create_model(name, **build).eval()
    for _, module in tables(old):
        fill(module)
    window = {"window": change["window_size"]} if "window_size" in change else {}
    src_img = old.pretrained_cfg["input_size"][1:]
    state = pi.adapt(old.state_dict(), change["img_size"], src_img=src_img, architecture=name, **window)
    new = timm.create_model(name, **{**build, **change}).eval()
    new.load_state_dict(state, strict=True)
    compared = 0
    for (place, before), (_, after) in zip(tables(old), tables(new), strict=True):
        if sides(before) == sides(after):
            continue
        for axis, (was, now) in enumerate(zip(observed(before), observed(after), strict=True)):
            wanted = resampled(whole(was), sides(after)[axis], reference, distances=hasattr(after, "attention_biases"))
            largest = max(map(abs, was.values()))
            for offset, value in now.items():
                assert value == pytest.approx(wanted[offset], abs=2e-5 * largest), (place, axis, offset)
            compared += len(now)
    assert compared


@pytest.mark.parametrize("reference", [bicubic, linear, geometric])
def test_the_references_differ(reference: Any) -> None:
    """The test above tells one method from another."""
    draw = torch.randn(27, generator=torch.Generator().manual_seed(1)).tolist()
    others = [one for one in (bicubic, linear, geometric) if one is not reference]
    for other in others:
        assert np.abs(np.subtract(reference(draw, 39), other(draw, 39))).max() > 0.1


@torch.no_grad()
def test_mvitv2s_offsets_are_those_of_its_own_arithmetic() -> None:
    """Linear along each axis, as timm's loader; what it adds depends on the offset alone, at both sizes."""
    old = timm.create_model("mvitv2_tiny").eval()
    torch.manual_seed(0)
    for module in old.modules():
        if isinstance(module, MultiScaleAttention):
            module.rel_pos_h.copy_(torch.randn_like(module.rel_pos_h))
            module.rel_pos_w.copy_(torch.randn_like(module.rel_pos_w))
    state = pi.adapt(old.state_dict(), 320, architecture="mvitv2_tiny", src_img=224)
    new = timm.create_model("mvitv2_tiny", img_size=320).eval()
    new.load_state_dict(state, strict=True)
    for name, before in old.named_modules():
        if not isinstance(before, MultiScaleAttention):
            continue
        after = new.get_submodule(name)
        for axis in ("rel_pos_h", "rel_pos_w"):
            was, now = getattr(before, axis), getattr(after, axis)
            wanted = F.interpolate(was.double().T[None], len(now), mode="linear")[0].T
            torch.testing.assert_close(now.double(), wanted, rtol=0, atol=1e-6)
        n = (len(after.rel_pos_h) + 1) // 2
        probe = torch.eye(after.head_dim)[0].expand(1, 1, n * n, -1)
        added = cal_rel_pos_type(torch.zeros(1, 1, n * n, n * n), probe, False, (n, n), (n, n), after.rel_pos_h,
                                 torch.zeros_like(after.rel_pos_w))[0, 0].view(n, n, n, n)  # fmt: skip
        for offset in range(1 - n, n):
            assert np.ptp(torch.diagonal(added[:, 0, :, 0], offset).numpy()) == 0


@torch.no_grad()
def test_tiny_vits_tables_follow_its_windows() -> None:
    old = timm.create_model("tiny_vit_5m_224").eval()
    state = pi.adapt(old.state_dict(), 384, architecture="tiny_vit_5m_224", window="12,12,24,12")
    new = timm.create_model("tiny_vit_5m_224", window_sizes=(12, 12, 24, 12))
    new.load_state_dict(state, strict=True)
    scaled = pi.adapt(old.state_dict(), 384, src_img=224, architecture="tiny_vit_5m_224", window="scale")
    for name, value in state.items():
        assert torch.equal(value, scaled[name])
