"""PEG models: the module against torch's own sums, the models against timm's, whatever the image's size."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from timm.optim import param_groups_layer_decay, param_groups_weight_decay
from torch import Tensor, nn

from posinterp.errors import BadSize, BadUsage, Unsupported
from posinterp.torch import PEG, to_peg

torch.set_num_threads(1)

SMALL = {"depth": 3, "embed_dim": 48, "num_heads": 3, "num_classes": 5}
EXAMPLES: dict[str, tuple[str, dict[str, Any]]] = {
    "class": ("vit_tiny_patch16_224", SMALL),
    "distilled": ("deit_tiny_distilled_patch16_224", SMALL),
    "registers": ("vit_small_patch14_reg4_dinov2", {**SMALL, "img_size": 112}),
    "registers-with-rows": ("vit_small_patch16_224", {**SMALL, "reg_tokens": 2, "img_size": 96}),
    "gap": ("vit_base_patch16_gap_224", SMALL),
    "deit3": ("deit3_small_patch16_224", SMALL),
    "siglip": ("vit_base_patch16_siglip_224", SMALL),
    "siglip-gap": ("vit_base_patch16_siglip_gap_224", SMALL),
    "flexivit": ("flexivit_small", SMALL),
    "clip": ("vit_base_patch32_clip_224", SMALL),
    "hybrid-stem": ("vit_tiny_r_s16_p8_224", SMALL),
    "hybrid-resnet": ("vit_small_r26_s32_224", SMALL),
    "parallel": ("vit_small_patch16_18x2_224", SMALL),
    "post-norm": ("vit_base_patch16_rpn_224", SMALL),
    "not-square": ("vit_tiny_patch16_224", {**SMALL, "img_size": (64, 128)}),
}


def example(kind: str, **more: Any) -> nn.Module:
    """A small model with weights as strong as trained ones: timm's own start leaves tables near zero."""
    name, arguments = EXAMPLES[kind]
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, **arguments, **more)
    return strengthened(model).eval()


@torch.no_grad()
def strengthened(model: nn.Module) -> nn.Module:
    for name, parameter in model.named_parameters():
        if name in ("pos_embed", "cls_token", "dist_token", "reg_token") or name.startswith("peg."):
            parameter.normal_(std=0.5)
        elif name.endswith(("gamma", "norm1.weight")):
            parameter.fill_(0.7)
        elif name.endswith(("qkv.weight", "attn.proj.weight")):
            parameter.normal_(std=0.15)  # attention that looks somewhere: else places hardly matter
        elif name.startswith("head"):
            parameter.normal_(std=0.2)
    return model


def image(model: Any, size: tuple[int, int] | None = None, *, batch: int = 2) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(batch, 3, *(size or model.patch_embed.img_size), generator=generator)


def other_sizes(model: Any) -> list[tuple[int, int]]:
    """Half, one and a half, and a size that is not square, as far as the patch divides them."""
    unit = model.patch_embed.feat_ratio()
    h, w = (side // unit for side in model.patch_embed.img_size)
    grids = [(max(h // 2, 1), max(w // 2, 1)), (h * 3 // 2, w * 3 // 2), (h + 1, max(w - 2, 1))]
    return [(a * unit, b * unit) for a, b in grids]


# ------------------------------------------------------------------ the module


def neighbours(x: Tensor, peg: PEG, grid: tuple[int, int], prefix: int) -> Tensor:
    """The definition, place by place: what stands outside the grid is zero."""
    h, w = grid
    side = peg.proj.weight.shape[-1]
    out = x.clone()
    for i in range(h):
        for j in range(w):
            total = peg.proj.bias.clone().expand(x.shape[0], -1)
            for a in range(side):
                for b in range(side):
                    y, z = i + a - side // 2, j + b - side // 2
                    if 0 <= y < h and 0 <= z < w:
                        total = total + peg.proj.weight[:, 0, a, b] * x[:, prefix + y * w + z]
            out[:, prefix + i * w + j] = x[:, prefix + i * w + j] + total
    return out


@pytest.mark.parametrize("kernel", [1, 3, 5])
@pytest.mark.parametrize(("prefix", "suffix"), [(0, 0), (1, 0), (5, 2), (0, 3)])
def test_peg_is_its_definition(kernel: int, prefix: int, suffix: int) -> None:
    torch.manual_seed(0)
    peg = PEG(6, kernel).double()
    nn.init.normal_(peg.proj.weight)
    nn.init.normal_(peg.proj.bias)
    x = torch.randn(2, prefix + 3 * 5 + suffix, 6, dtype=torch.float64)
    out = peg(x, (3, 5), prefix)
    torch.testing.assert_close(out, neighbours(x, peg, (3, 5), prefix), rtol=0, atol=1e-12)
    assert torch.equal(out[:, :prefix], x[:, :prefix])
    assert torch.equal(out[:, prefix + 15 :], x[:, prefix + 15 :])
    assert kernel == 1 or not torch.equal(out, peg(x, (5, 3), prefix)), "rows and columns are told apart"


def test_peg_starts_as_the_identity() -> None:
    x = torch.randn(2, 13, 8)
    assert torch.equal(PEG(8)(x, (3, 4), 1), x)


@pytest.mark.parametrize("kernel", [0, 2, -1])
def test_even_kernels_are_refused(kernel: int) -> None:
    with pytest.raises(BadUsage, match="odd kernel"):
        PEG(8, kernel)


# ------------------------------------------------------------------ the models, against timm's


@pytest.mark.parametrize("kind", EXAMPLES)
def test_hybrid_equals_its_source_bit_for_bit(kind: str) -> None:
    model = example(kind)
    with torch.no_grad():
        assert torch.equal(to_peg(model)(image(model)), model(image(model)))


@pytest.mark.parametrize("kind", EXAMPLES)
def test_hybrid_equals_dynamic_img_size_elsewhere(kind: str) -> None:
    model = example(kind)
    dynamic = example(kind, dynamic_img_size=True)
    dynamic.load_state_dict(model.state_dict())
    new = to_peg(model)
    for size in other_sizes(model):
        x = image(model, size)
        with torch.no_grad():
            torch.testing.assert_close(new(x), dynamic(x), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", EXAMPLES)
def test_without_a_table_folding_is_exact(kind: str) -> None:
    """The table less what was folded, added back, gives the source; and every size runs."""
    model: Any = example(kind).double()
    new = to_peg(model, table=False)
    assert "pos_embed" not in new.state_dict()
    for size in other_sizes(model):
        assert torch.isfinite(new(image(model, size).double())).all()
    prefix = 0 if model.no_embed_class else model.num_prefix_tokens
    rest = model.pos_embed.detach().clone()
    rest[:, :prefix] = 0
    rest[:, prefix:] -= rest[:, prefix:].mean(1, keepdim=True)
    x = image(model).double()
    away = new(x)
    new.pos_embed = nn.Parameter(rest)
    with torch.no_grad():
        torch.testing.assert_close(new(x), model(x), rtol=0, atol=1e-10)
        assert (away - model(x)).abs().max() > 1e-3, "the positions did matter"


@pytest.mark.parametrize("table", [True, False])
@pytest.mark.parametrize("kind", EXAMPLES)
def test_saved_and_loaded_by_timm_it_is_the_same(kind: str, table: bool, tmp_path: Path) -> None:
    new = strengthened(to_peg(example(kind), after=(0, 1), kernel=5, table=table))
    path = tmp_path / "model.safetensors"
    state = new.state_dict()
    save_file(state, path)
    loaded = timm.create_model(f"peg_{EXAMPLES[kind][0]}", **new._model_args, checkpoint_path=str(path)).eval()
    assert loaded.pretrained_cfg["architecture"] == new.pretrained_cfg["architecture"]
    assert all(torch.equal(value, state[name]) for name, value in loaded.state_dict().items())
    x = image(new)
    with torch.no_grad():
        assert torch.equal(loaded(x), new(x))


def test_a_saved_folder_loads_by_its_config(tmp_path: Path) -> None:
    """timm's own export knows the arguments: nothing of ours is needed to write the folder."""
    from timm.models import save_for_hf

    new = strengthened(to_peg(example("class"), table=False)).eval()
    save_for_hf(new, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["architecture"] == "peg_vit_tiny_patch16_224"
    loaded = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
    with torch.no_grad():
        assert torch.equal(loaded(image(new, (96, 160))), new(image(new, (96, 160))))


@pytest.mark.parametrize("kind", ["class", "distilled", "deit3", "hybrid-stem", "flexivit"])
def test_timms_filters_keep_pegs_and_take_ordinary_weights(kind: str, tmp_path: Path) -> None:
    """What a checkpoint has not, the PEG, starts at zero: an ordinary checkpoint loads, and is equal."""
    name, arguments = EXAMPLES[kind]
    model = example(kind)
    for source in (model, strengthened(to_peg(model))):
        state = source.state_dict()
        overlay = {"state_dict": state, "input_size": (3, *source.patch_embed.img_size), "num_classes": 5}
        loaded = timm.create_model(
            f"peg_{name}", pretrained=True, pretrained_cfg_overlay={**overlay, "custom_load": False}, **arguments
        ).eval()
        with torch.no_grad():
            assert torch.equal(loaded(image(model)), source(image(model)))


def test_every_name_is_known_to_timm() -> None:
    names = timm.list_models("peg_*")
    assert {"peg_vit_base_patch16_224", "peg_deit3_small_patch16_224", "peg_vit_tiny_r_s16_p8_224"} <= {*names}
    assert len(names) > 150
    cfg = timm.get_pretrained_cfg("peg_vit_base_patch16_384")
    assert cfg.input_size == (3, 384, 384)
    assert timm.create_model("vit_tiny_patch16_224", **SMALL).__class__.__name__ == "VisionTransformer"


def test_padding_a_size_that_the_patch_does_not_divide_is_timms() -> None:
    model = example("class", dynamic_img_size=True, dynamic_img_pad=True)
    with torch.no_grad():
        x = image(model, (100, 90))
        torch.testing.assert_close(to_peg(model)(x), model(x), rtol=0, atol=1e-5)


# ------------------------------------------------------------------ positions


def pair(**padding: Any) -> tuple[Any, Tensor]:
    """A table-free model with a PEG that says something, and what it makes of an image without any content."""
    torch.manual_seed(1)
    model = strengthened(to_peg(example("class"), table=False)).eval()
    for peg in model.peg.values():
        if padding:
            peg.proj.padding_mode = padding["mode"]
            peg.proj._reversed_padding_repeated_twice = [1, 1, 1, 1]
    with torch.no_grad():
        return model, model.forward_features(torch.full((1, 3, 96, 128), 0.3))[0, 1:]


def test_zero_padding_tells_places_apart_and_circular_does_not() -> None:
    _, tokens = pair()
    assert (tokens[0] - tokens[9]).abs().max() > 1e-2, "corner and inside"
    assert (tokens[0] - tokens[1]).abs().max() > 1e-2, "corner and edge"
    _, tokens = pair(mode="circular")
    assert (tokens - tokens[:1]).abs().max() < 1e-4


def test_gradients_reach_the_table_through_the_resampling() -> None:
    model = to_peg(example("class"))
    model(image(model, (96, 160))).sum().backward()
    assert model.pos_embed.grad.abs().sum(-1).gt(0).all()


# ------------------------------------------------------------------ timm's interface


@pytest.mark.parametrize("kind", ["class", "distilled", "registers", "gap", "clip", "hybrid-stem"])
def test_intermediates_are_timms(kind: str) -> None:
    model: Any = example(kind)
    new, x = to_peg(model, after=(0, 1)), image(model)
    with torch.no_grad():
        for options in (
            {},
            {"indices": [0, 2], "norm": True, "output_fmt": "NLC"},
            {"indices": 2, "stop_early": True, "intermediates_only": True, "return_prefix_tokens": True},
        ):
            for ours, theirs in zip(
                leaves(new.forward_intermediates(x, **options)),
                leaves(model.forward_intermediates(x, **options)),
                strict=True,
            ):
                assert torch.equal(ours, theirs)
        ours, theirs = (m.forward_intermediates(x, output_dict=True, return_prefix_tokens=True) for m in (new, model))
        assert ours.keys() == theirs.keys()
        assert torch.equal(ours["image_features"], theirs["image_features"])
        size = other_sizes(model)[2]
        final, maps = new.forward_intermediates(image(model, size))
        assert torch.equal(final, new.forward_features(image(model, size)))
        assert [m.shape[-2:] for m in maps] == [
            (size[0] // new.patch_embed.feat_ratio(), size[1] // new.patch_embed.feat_ratio())
        ] * 3


def leaves(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [leaf for part in value for leaf in leaves(part)]


def test_an_intermediate_is_what_the_next_block_reads() -> None:
    model = strengthened(to_peg(example("class"))).eval()
    x = image(model)
    with torch.no_grad():
        final, (first, *_) = model.forward_intermediates(x, output_fmt="NLC", return_prefix_tokens=True)
        tokens = torch.cat([first[1], first[0]], dim=1)
        for block in model.blocks[1:]:
            tokens = block(tokens)
        assert torch.equal(model.norm(tokens), final)


def test_features_only_and_pruning() -> None:
    features = timm.create_model("peg_vit_tiny_patch16_224", features_only=True, out_indices=(0, 1), **SMALL)
    assert [tuple(f.shape) for f in features(torch.randn(1, 3, 64, 96))] == [(1, 48, 4, 6)] * 2
    model = to_peg(example("class"), after=(0, 1))
    assert model.prune_intermediate_layers([0]) == [0]
    assert [*model.peg] == ["0"]
    assert len(model.blocks) == 1


def test_layer_decay_puts_a_peg_beside_its_block_and_nothing_decays_it() -> None:
    model: Any = to_peg(example("distilled"), after=(0, 1))
    groups = param_groups_layer_decay(model, 0.05, model.no_weight_decay(), layer_decay=0.5, min_scale=0)
    scale = {id(p): group["lr_scale"] for group in groups for p in group["params"]}
    of = {name: scale[id(p)] for name, p in model.named_parameters()}
    for i in (0, 1):
        assert of[f"peg.{i}.proj.weight"] == of[f"peg.{i}.proj.bias"] == of[f"blocks.{i}.attn.qkv.weight"]
    assert of["peg.0.proj.weight"] < of["peg.1.proj.weight"] < of["head.weight"]
    decayed = param_groups_weight_decay(model, 0.05, no_weight_decay_list=model.no_weight_decay())
    assert not any(p is q for g in decayed if g["weight_decay"] for p in g["params"] for q in model.peg.parameters())
    assert {name for name, _ in model.named_parameters()} >= {*model.no_weight_decay()} - {"reg_token"}


def test_size_and_classifier_can_be_set() -> None:
    for table in (True, False):
        model = to_peg(example("class"), table=table)
        model.set_input_size((96, 160))
        model.reset_classifier(7)
        assert model(torch.randn(1, 3, 96, 160)).shape == (1, 7)
        assert model(torch.randn(1, 3, 224, 224)).shape == (1, 7)
        if table:
            assert model.pos_embed.shape == (1, 1 + 6 * 10, 48)


@pytest.mark.parametrize("mode", ["", "jax", "moco", "reset"])
def test_initialising_leaves_the_identity(mode: str) -> None:
    model = strengthened(to_peg(example("class")))
    model.init_weights(mode)
    assert not any(p.any() for p in model.peg.parameters())
    fresh = timm.create_model("peg_vit_tiny_patch16_224", weight_init=mode or "jax", **SMALL)
    assert not any(p.any() for p in fresh.peg.parameters())


@pytest.mark.parametrize("table", [True, False])
def test_checkpointing_changes_no_gradient_with_several_sizes_before_one_backward(table: bool) -> None:
    model = strengthened(to_peg(example("class"), after=(0, 1), table=table)).train()

    def gradients(again: bool) -> list[Tensor]:
        model.set_grad_checkpointing(again)
        model.zero_grad()
        sum(model(image(model, size)).square().sum() for size in ((96, 160), (64, 64), (160, 96))).backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    for plain, again in zip(gradients(False), gradients(True), strict=True):
        assert torch.equal(plain, again)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_keeps_positions_exact(dtype: torch.dtype) -> None:
    model = strengthened(to_peg(example("class"))).eval()
    x = image(model, (96, 160))
    with torch.no_grad(), torch.autocast("cpu", dtype):
        grid = torch.zeros(1, 6, 10, 48)
        assert model._pos_embed(grid).dtype == torch.float32
        half = model(x)
    with torch.no_grad():
        exact = model(x)
    assert (half.float() - exact).abs().max() < 0.05 * exact.abs().max()
    whole = model.to(dtype)
    with torch.no_grad():
        assert (whole(x.to(dtype)).float() - exact).abs().max() < 0.1 * exact.abs().max()


@pytest.mark.parametrize("table", [True, False])
def test_eight_sizes_make_two_graphs(table: bool) -> None:
    torch._dynamo.reset()
    model = strengthened(to_peg(example("class"), table=table)).eval()
    graphs = []

    def count(module: Any, inputs: Any) -> Any:
        graphs.append(module)
        return module.forward

    compiled = torch.compile(model, backend=count, fullgraph=True)
    with torch.no_grad():
        for size in ((224, 224), (256, 256), (288, 288), (320, 320), (384, 384), (256, 384), (384, 256), (448, 448)):
            x = image(model, size, batch=1)
            torch.testing.assert_close(compiled(x), model(x), rtol=0, atol=1e-5)
    assert len(graphs) == 2


@pytest.mark.parametrize("table", [True, False])
def test_export_with_every_size_open(table: bool) -> None:
    model = strengthened(to_peg(example("class"), table=table)).eval()
    h, w = torch.export.Dim("h", min=2, max=40), torch.export.Dim("w", min=2, max=40)
    shapes = ({0: torch.export.Dim("b", min=2, max=64), 2: 16 * h, 3: 16 * w},)
    program = torch.export.export(model, (image(model, (96, 160)),), dynamic_shapes=shapes)
    with torch.no_grad():
        for size in ((224, 224), (64, 208)):
            x = image(model, size, batch=3)
            torch.testing.assert_close(program.module()(x), model(x), rtol=0, atol=1e-5)


# ------------------------------------------------------------------ what is refused

REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "patch dropout": (lambda: timm.create_model("vit_tiny_patch16_224", patch_drop_rate=0.5, **SMALL), "whole grid"),
    "rotary": (lambda: timm.create_model("eva02_tiny_patch14_224", depth=2), "rotary"),
    "relative bias": (lambda: timm.create_model("beit_base_patch16_224", depth=2), "relative positions"),
    "pyramid": (lambda: timm.create_model("pvt_v2_b0"), "pyramid"),
    "packing": (lambda: timm.create_model("naflexvit_base_patch16_gap", depth=2), "packs patches"),
    "no grid": (lambda: timm.create_model("mixer_s32_224"), "no vision transformer"),
    "no table": (lambda: timm.create_model("vit_tiny_patch16_224", pos_embed="none", **SMALL), "no position table"),
    "twice": (lambda: to_peg(example("class")), "already"),
    "embedding norm": (
        lambda: timm.create_model("vit_tiny_patch16_224", embed_norm_layer="layernorm", **SMALL),
        "norm",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_have_a_peg_is_refused_with_the_reason(what: str) -> None:
    build, reason = REFUSED[what]
    with pytest.raises(Unsupported, match=reason):
        to_peg(build())


def test_mistakes_are_sentences() -> None:
    model = to_peg(example("class"))
    with pytest.raises(BadSize, match="100 x 96 is not divided by the patch of 16 x 16"):
        model(torch.randn(1, 3, 100, 96))
    with pytest.raises(Unsupported, match="masked"):
        model(image(model), attn_mask=torch.ones(1))
    with pytest.raises(Unsupported, match="masked"):
        model.forward_intermediates(image(model), is_causal=True)
    with pytest.raises(Unsupported, match="patch dropout"):
        timm.create_model("peg_vit_tiny_patch16_224", patch_drop_rate=0.5, **SMALL)
    for after in ((), (2,), (-1,), (0, 9)):
        with pytest.raises(BadUsage, match=r"block"):
            to_peg(example("class"), after=after)


def test_the_source_model_is_not_changed() -> None:
    model = example("class")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    to_peg(model, table=False)
    assert type(model).__name__ == "VisionTransformer"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert F.mse_loss(model(image(model)), model(image(model))) == 0


def test_ddp_and_fsdp_train_as_one_process() -> None:
    """Two processes on the CPU; on GPUs, tests/gpu runs the same script."""
    script = str(Path(__file__).parent / "gpu" / "distributed.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=300, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("parameters within") == 2
