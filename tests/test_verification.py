"""The verifier: right results pass, whoever made them; each way of being wrong is caught by the check named for it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from posinterp.errors import Ambiguous, BadFile, NotFound, PosinterpError
from posinterp.verification import Check, Verdict, verify
from posinterp.writing import resize

torch = pytest.importorskip("torch")
timm = pytest.importorskip("timm")
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from timm.layers import resample_abs_pos_embed  # noqa: E402

torch.set_num_threads(1)
Tensors = dict[str, Any]


# ------------------------------------------------------------------ small checkpoints


def built(name: str, **options: Any) -> Any:
    """A timm model with tables that are not zero."""
    torch.manual_seed(0)
    model = timm.create_model(name, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.02)
    return model


def config_of(name: str, size: tuple[int, int], **model_args: Any) -> dict[str, Any]:
    return {
        "architecture": name,
        "num_classes": model_args.get("num_classes", 1000),
        "model_args": {"img_size": list(size), **model_args},
        "pretrained_cfg": {
            "input_size": [3, *size],
            "fixed_input_size": True,
            "classifier": "head",
            "first_conv": "patch_embed.proj",
            "num_classes": model_args.get("num_classes", 1000),
        },
    }


def stored(
    folder: Path, tensors: Tensors, config: dict[str, Any] | None, metadata: dict[str, str] | None = None
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.contiguous().clone() for name, value in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt", **(metadata or {})})
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


SMALL = {"depth": 2, "num_classes": 5, "embed_dim": 32, "num_heads": 2}


def source(folder: Path, name: str, size: tuple[int, int], *, dtype: Any = None, **options: Any) -> Path:
    model = built(name, img_size=size, **options)
    tensors = {key: value.to(dtype or value.dtype) for key, value in model.state_dict().items()}
    return stored(folder, tensors, config_of(name, size, **options))


@pytest.fixture(scope="session")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder: two blocks, a class token, 96 pixels in patches of 16."""
    return source(tmp_path_factory.mktemp("vit") / "src", "vit_tiny_patch16_224", (96, 96), **SMALL)


def status(verdict: Verdict) -> dict[str, str]:
    return {check.name: check.status for check in verdict.checks}


def said(verdict: Verdict, name: str) -> str:
    return next(check.detail for check in verdict.checks if check.name == name)


def assert_all_pass(verdict: Verdict, *, skipped: set[str] = frozenset()) -> None:  # type: ignore[assignment]
    report = "\n".join(f"{check.status} {check.name}: {check.detail}" for check in verdict.checks)
    assert verdict.ok, report
    assert {check.name for check in verdict.checks if check.status == "skip"} == skipped, report


# ------------------------------------------------------------------ posinterp's own results

MODELS: dict[str, tuple[str, tuple[int, int], str, dict[str, Any], dict[str, Any]]] = {
    "grown": ("vit_tiny_patch16_224", (96, 96), "160", SMALL, {}),
    "shrunk": ("vit_tiny_patch16_224", (96, 96), "64", SMALL, {}),
    "non-square": ("vit_tiny_patch16_224", (64, 112), "128x80", SMALL, {}),
    "to-one-column": ("vit_tiny_patch16_224", (64, 32), "32x16", SMALL, {}),
    "equal-count": ("vit_tiny_patch16_224", (64, 256), "128x128", SMALL, {}),
    "bf16": ("vit_tiny_patch16_224", (96, 96), "160x96", SMALL, {"dtype": torch.bfloat16}),
    "fp16": ("vit_tiny_patch16_224", (96, 96), "160", SMALL, {"dtype": torch.float16}),
    "fp64": ("vit_tiny_patch16_224", (96, 96), "160", SMALL, {"dtype": torch.float64}),
    "patch-8": ("vit_tiny_patch16_224", (96, 96), "48", SMALL, {"patch": 8}),
    "patch-24": ("vit_tiny_patch16_224", (96, 96), "144", SMALL, {"patch": 24}),
    "registers": ("vit_tiny_patch16_224", (96, 96), "128", {**SMALL, "reg_tokens": 4}, {}),
    "distilled": ("deit_tiny_distilled_patch16_224", (96, 96), "128", SMALL, {}),
    "no-prefix": ("vit_base_patch16_siglip_224", (96, 96), "64x128", {**SMALL, "num_classes": 0}, {}),
    "hybrid": ("vit_tiny_r_s16_p8_224", (128, 128), "160", SMALL, {}),
    "hybrid-that-fetches": ("vit_small_resnet26d_224", (64, 64), "96", SMALL, {}),
    "flexivit": ("flexivit_small", (96, 96), "160", SMALL, {}),
    "rope": ("vit_small_patch16_rope_mixed_224", (96, 96), "128", {"depth": 2, "num_classes": 5}, {}),
    "biases": (
        "vit_relpos_medium_patch16_cls_224",
        (96, 96),
        "160",
        {**SMALL, "rel_pos_type": "bias", "class_token": True},
        {},
    ),
    "sam": ("samvit_base_patch16", (128, 128), "192", {"depth": 3, "num_classes": 0, "num_heads": 12}, {}),
}


@pytest.mark.parametrize("case", MODELS)
def test_own_result_passes(case: str, tmp_path: Path) -> None:
    name, size, target, options, more = MODELS[case]
    wishes = {key: value for key, value in more.items() if key != "dtype"}
    src = source(tmp_path / "src", name, size, dtype=more.get("dtype"), **options)
    resize(src, target, tmp_path / "out", **wishes)
    verdict = verify(tmp_path / "out", against=src)
    assert_all_pass(verdict, skipped={"resampled", "values"} if case == "rope" else set())


METHODS: list[dict[str, Any]] = [
    {"method": "bicubic", "antialias": False},
    {"method": "bilinear"},
    {"method": "bilinear", "antialias": False, "align_corners": True},
    {"method": "bicubic", "antialias": False, "align_corners": True},
    {"method": "nearest"},
    {"method": "nearest-exact"},
    {"method": "area"},
    {"method": "lanczos3"},
    {"method": "lanczos3", "antialias": False},
]


@pytest.mark.parametrize("how", METHODS, ids=lambda how: "-".join(map(str, how.values())))
@pytest.mark.parametrize("target", ["160x128", "48x64"])
def test_own_result_by_every_method_passes_by_its_recipe(
    how: dict[str, Any], target: str, vit: Path, tmp_path: Path
) -> None:
    resize(vit, target, tmp_path / "out", **how)
    assert_all_pass(verify(tmp_path / "out", against=vit))


def test_own_result_by_the_geometric_method_passes(vit: Path, tmp_path: Path) -> None:
    src = source(tmp_path / "src", "vit_tiny_patch16_224", (80, 112), **SMALL)
    resize(src, "112x144", tmp_path / "out", method="geometric")
    assert_all_pass(verify(tmp_path / "out", against=src))


def test_scale_factor_convention_passes(tmp_path: Path) -> None:
    """DINOv2's own layout: a scale factor that carries 0.1, and no home library to load it here."""
    model = built("vit_tiny_patch16_224", img_size=96, init_values=1e-5, **SMALL)
    tensors = {**model.state_dict(), "mask_token": torch.zeros(1, 32)}
    src = stored(tmp_path / "src", tensors, None)
    resize(src, 160, tmp_path / "out.safetensors")
    verdict = verify(tmp_path / "out.safetensors", against=src)
    assert "offset 0.1" in said(verdict, "resampled")
    assert_all_pass(verdict, skipped={"config", "loads", "forward", "similarity"})


def test_single_file_takes_its_architecture_from_the_source(vit: Path, tmp_path: Path) -> None:
    resize(vit, 160, tmp_path / "out.safetensors")
    verdict = verify(tmp_path / "out.safetensors", against=vit)
    assert_all_pass(verdict, skipped={"config"})


def test_single_file_with_a_new_patch(vit: Path, tmp_path: Path) -> None:
    resize(vit, 48, tmp_path / "out.safetensors", patch=8)
    assert_all_pass(verify(tmp_path / "out.safetensors", against=vit), skipped={"config"})


def test_config_beside_a_single_file_is_not_taken_for_its_own(vit: Path, tmp_path: Path) -> None:
    shutil.copytree(vit, tmp_path / "both")
    resize(tmp_path / "both" / "model.safetensors", 160, tmp_path / "both" / "big.safetensors")
    verdict = verify(tmp_path / "both" / "big.safetensors", against=tmp_path / "both")
    assert_all_pass(verdict, skipped={"config"})


def test_flat_pickle(vit: Path, tmp_path: Path) -> None:
    torch.save(load_file(vit / "model.safetensors"), tmp_path / "src.pth")
    resize(tmp_path / "src.pth", 160, tmp_path / "out.pth")
    verdict = verify(tmp_path / "out.pth", against=tmp_path / "src.pth")
    assert_all_pass(verdict, skipped={"recipe", "config", "loads", "forward", "similarity"})


def nested(vit: Path, path: Path) -> Path:
    """A training checkpoint: two sets of weights, and an optimizer's moments."""
    weights = load_file(vit / "model.safetensors")
    average = {name: value * 1.5 for name, value in weights.items()}
    moments = {"state": {0: {"exp_avg": weights["pos_embed"]}}, "param_groups": [{"lr": 0.1}]}
    torch.save({"model": weights, "model_ema": average, "optimizer": moments, "epoch": 3}, path)
    return path


def test_both_branches_of_a_pickle_are_checked(vit: Path, tmp_path: Path) -> None:
    src = nested(vit, tmp_path / "src.pth")
    resize(src, 160, tmp_path / "out.pth")
    verdict = verify(tmp_path / "out.pth", against=src, family="vit_tiny_patch16_224")
    assert "2 tensors" in said(verdict, "resampled")
    # Depth and width are not the registered model's, and no config says what they are.
    assert_all_pass(verdict, skipped={"config", "loads", "forward", "similarity"})
    spoilt = torch.load(tmp_path / "out.pth", weights_only=True)
    spoilt["model_ema"]["pos_embed"][0, 5] += 1e-4
    torch.save(spoilt, tmp_path / "out.pth")
    verdict = verify(tmp_path / "out.pth", against=src)
    assert status(verdict)["resampled"] == "fail"
    assert "model_ema/pos_embed" in said(verdict, "resampled")


def test_branch_of_a_pickle_as_a_bare_file(vit: Path, tmp_path: Path) -> None:
    weights = load_file(vit / "model.safetensors")
    torch.save({"model": weights, "epoch": 3}, tmp_path / "src.pth")
    resize(tmp_path / "src.pth", 160, tmp_path / "out.safetensors")
    verdict = verify(tmp_path / "out.safetensors", against=tmp_path / "src.pth")
    assert_all_pass(verdict, skipped={"config", "loads", "forward", "similarity"})
    back = verify(tmp_path / "src.pth", against=vit)  # and the other way round
    assert status(back)["untouched"] == "pass"


def test_recipe_of_a_branch_holds_against_the_bare_weights(vit: Path, tmp_path: Path) -> None:
    torch.save({"model": load_file(vit / "model.safetensors"), "epoch": 3}, tmp_path / "src.pth")
    resize(tmp_path / "src.pth", 160, tmp_path / "out.pth", method="bilinear")
    assert_all_pass(verify(tmp_path / "out.pth", against=vit), skipped={"config"})


def test_tables_that_were_zero_may_be_zero(tmp_path: Path) -> None:
    src = source(tmp_path / "src", "vit_tiny_patch16_224", (64, 256), **SMALL)
    tensors = load_file(src / "model.safetensors")
    stored(src, {**tensors, "pos_embed": tensors["pos_embed"] * 0}, json.loads((src / "config.json").read_text()))
    resize(src, 128, tmp_path / "out")
    assert_all_pass(verify(tmp_path / "out", against=src))
    assert failed(verify(tmp_path / "out")) == {"values"}


def test_bare_file_is_held_against_the_branch_it_is_of(vit: Path, tmp_path: Path) -> None:
    src = nested(vit, tmp_path / "src.pth")
    average = torch.load(src, weights_only=True)["model_ema"]
    table = resample_abs_pos_embed(average["pos_embed"], [10, 10])
    save_file({**average, "pos_embed": table}, tmp_path / "ema.safetensors")
    verdict = verify(tmp_path / "ema.safetensors", against=src)
    assert status(verdict)["untouched"] == status(verdict)["resampled"] == "pass"


def test_shards_against_one_file(vit: Path, tmp_path: Path) -> None:
    made = tmp_path / "one"
    resize(vit, 160, made)
    tensors = load_file(made / "model.safetensors")
    with safe_open(made / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    sharded = tmp_path / "sharded"
    sharded.mkdir()
    names = sorted(tensors)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for part, some in parts.items():
        save_file({name: tensors[name] for name in some}, sharded / part, metadata=metadata)
    total = sum(value.numel() * value.element_size() for value in tensors.values())
    where = {name: part for part, some in parts.items() for name in some}
    index = {"metadata": {"total_size": total}, "weight_map": where}
    shutil.copy(made / "config.json", sharded)
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_all_pass(verify(sharded, against=vit))
    index["metadata"] = {"total_size": total - 4}
    (sharded / "model.safetensors.index.json").write_text(json.dumps(index))
    assert status(verify(sharded, against=vit))["file"] == "fail"


def test_same_size_is_a_copy(vit: Path, tmp_path: Path) -> None:
    resize(vit, 96, tmp_path / "out")
    assert_all_pass(verify(tmp_path / "out", against=vit), skipped={"resampled", "values"})


def test_without_a_source_the_rest_is_checked(vit: Path, tmp_path: Path) -> None:
    resize(vit, 160, tmp_path / "out")
    assert_all_pass(verify(tmp_path / "out"), skipped={"untouched", "resampled", "similarity"})
    assert_all_pass(verify(vit), skipped={"recipe", "untouched", "resampled", "similarity"})


# ------------------------------------------------------------------ results of others


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_what_timm_resampled_passes_without_a_recipe(dtype: Any, vit: Path, tmp_path: Path) -> None:
    tensors = {name: value.to(dtype) for name, value in load_file(vit / "model.safetensors").items()}
    src = stored(tmp_path / "src", tensors, config_of("vit_tiny_patch16_224", (96, 96), **SMALL))
    table = resample_abs_pos_embed(tensors["pos_embed"], [8, 5])
    config = config_of("vit_tiny_patch16_224", (128, 80), **SMALL)
    out = stored(tmp_path / "out", {**tensors, "pos_embed": table}, config)
    assert_all_pass(verify(out, against=src), skipped={"recipe"})


@pytest.mark.parametrize("change", [{"img_size": 160}, {"img_size": (48, 64), "patch_size": 8}], ids=str)
def test_what_timm_set_passes_without_a_recipe(change: dict[str, Any], vit: Path, tmp_path: Path) -> None:
    model = timm.create_model(f"local-dir:{vit}", pretrained=True)
    model.set_input_size(**change)
    size = change["img_size"] if isinstance(change["img_size"], tuple) else (change["img_size"],) * 2
    config = config_of("vit_tiny_patch16_224", size, **SMALL, **{k: v for k, v in change.items() if k == "patch_size"})
    out = stored(tmp_path / "out", model.state_dict(), config)
    assert_all_pass(verify(out, against=vit), skipped={"recipe"})


def test_another_method_is_named_and_passes_when_asked_for(vit: Path, tmp_path: Path) -> None:
    tensors = load_file(vit / "model.safetensors")
    table = resample_abs_pos_embed(tensors["pos_embed"], [10, 10], interpolation="bilinear", antialias=False)
    out = stored(tmp_path / "out", {**tensors, "pos_embed": table}, None)
    verdict = verify(out, against=vit)
    assert {name for name, how in status(verdict).items() if how == "fail"} == {"resampled"}
    assert said(verdict, "resampled").endswith("it is bilinear")
    assert verify(out, against=vit, method="bilinear", antialias=False).ok


def test_another_method_is_named_beside_a_recipe_too(right: Path, tmp_path: Path) -> None:
    def change(tensors: Tensors, config: dict[str, Any]) -> None:
        src = load_file(right / "src" / "model.safetensors")["pos_embed"]
        tensors["pos_embed"] = again({"src": src}, antialias=False)

    verdict = verify(spoil(right, tmp_path / "out", change), against=right / "src")
    assert said(verdict, "resampled").endswith("it is bicubic")


# ------------------------------------------------------------------ every way of being wrong

SIZE, GRID = (96, 160), (6, 10)  # what the corrupted ones are for; the source has 6 x 6


def again(t: Tensors, **how: Any) -> Any:
    return resample_abs_pos_embed(t["src"], list(GRID), old_size=[6, 6], **how)


def grid_of(table: Any) -> Any:
    return table[:, 1:].reshape(1, *GRID, -1)


def with_grid(table: Any, grid: Any) -> Any:
    return torch.cat([table[:, :1], grid.reshape(1, -1, table.shape[-1])], 1)


def of_grid(t: Tensors, change: Callable[[Any], Any]) -> Any:
    """The right table with its grid changed, and its class row as it was."""
    return with_grid(t["pos_embed"], change(grid_of(t["pos_embed"])))


def shifted(table: Any) -> Any:
    return torch.cat([table[:, :1], table[:, :-1]], 1)


def prefix_resampled(t: Tensors) -> Any:
    """Prefix and grid as one run of rows."""
    rows = t["src"].permute(0, 2, 1)
    return torch.nn.functional.interpolate(rows, size=61, mode="linear").permute(0, 2, 1)


def with_one(table: Any, value: float) -> Any:
    out = table.clone()
    out[0, 7, 3] = value
    return out


# What becomes of the table, given {"src": old table, "pos_embed": right one}; and the check that must fail.
TABLES: dict[str, tuple[Callable[[Tensors], Any], str]] = {
    "transposed": (lambda t: of_grid(t, lambda grid: grid.transpose(1, 2)), "resampled"),
    "rows and columns swapped": (
        lambda t: resample_abs_pos_embed(t["src"], list(GRID[::-1]), old_size=[6, 6]),
        "resampled",
    ),
    "flipped": (lambda t: of_grid(t, lambda grid: grid.flip(1)), "resampled"),
    "shifted by the class row": (lambda t: shifted(t["pos_embed"]), "resampled"),
    "prefix resampled": (prefix_resampled, "resampled"),
    "class row changed": (lambda t: t["pos_embed"] + torch.eye(1, 61)[..., None] * 1e-7, "resampled"),
    "no antialias": (lambda t: again(t, antialias=False), "resampled"),
    "align-corners": (lambda t: again(t, antialias=False, align_corners=True), "resampled"),
    "bilinear": (lambda t: again(t, interpolation="bilinear"), "resampled"),
    "nearest": (lambda t: again(t, interpolation="nearest", antialias=False), "resampled"),
    "re-initialised": (lambda t: of_grid(t, lambda grid: torch.randn(grid.shape) * 0.02), "resampled"),
    "off by little": (lambda t: of_grid(t, lambda grid: grid * (1 + 1e-4)), "resampled"),
    "one small channel off": (lambda t: of_grid(t, lambda grid: grid + torch.eye(1, 32)[0] * 1e-6), "resampled"),
    "through fp16": (lambda t: of_grid(t, lambda grid: grid.half().float()), "resampled"),
    "of another model": (
        lambda t: resample_abs_pos_embed(t["src"].flip(-1), list(GRID), old_size=[6, 6]),
        "resampled",
    ),
    "wrong dtype": (lambda t: t["pos_embed"].half(), "resampled"),
    "table transposed": (lambda t: t["pos_embed"].transpose(1, 2), "resampled"),
    "zero": (lambda t: t["pos_embed"] * 0, "values"),
    "zero but for the class row": (lambda t: of_grid(t, lambda grid: grid * 0), "values"),
    "constant": (lambda t: torch.full_like(t["pos_embed"], 0.02), "values"),
    "the mean everywhere": (
        lambda t: of_grid(t, lambda grid: grid.mean((1, 2), keepdim=True).expand(grid.shape)),
        "values",
    ),
    "NaN": (lambda t: with_one(t["pos_embed"], float("nan")), "values"),
    "Inf": (lambda t: with_one(t["pos_embed"], float("-inf")), "values"),
    "integers": (lambda t: (t["pos_embed"] * 100).to(torch.int8), "values"),
    "left at the old size": (lambda t: t["src"], "values"),
    "missing": (lambda t: None, "resampled"),
}


@pytest.fixture(scope="session")
def right(vit: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A right result for SIZE, and one channel of its source small, so that others could hide it."""
    folder = tmp_path_factory.mktemp("right")
    tensors = load_file(vit / "model.safetensors")
    tensors["pos_embed"][..., 0] *= 1e-3
    tensors["pos_embed"][..., 1] *= 1e3
    stored(folder / "src", tensors, json.loads((vit / "config.json").read_text()))
    resize(folder / "src", SIZE, folder / "out")
    return folder


def spoil(right: Path, out: Path, change: Callable[[Tensors, dict[str, Any]], None], *, recipe: bool = True) -> Path:
    """A copy of the right result with one thing changed."""
    with safe_open(right / "out" / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    tensors = load_file(right / "out" / "model.safetensors")
    config = json.loads((right / "out" / "config.json").read_text())
    change(tensors, config)
    return stored(out, tensors, config, metadata if recipe else None)


def failed(verdict: Verdict) -> set[str]:
    return {check.name for check in verdict.checks if check.status == "fail"}


@pytest.mark.parametrize("recipe", [True, False], ids=["recipe", "bare"])
@pytest.mark.parametrize("what", TABLES)
def test_wrong_table_is_caught(what: str, recipe: bool, right: Path, tmp_path: Path) -> None:
    make, name = TABLES[what]

    def change(tensors: Tensors, config: dict[str, Any]) -> None:
        torch.manual_seed(1)
        src = load_file(right / "src" / "model.safetensors")["pos_embed"]
        made = make({"src": src, "pos_embed": tensors.pop("pos_embed")})
        if made is not None:
            tensors["pos_embed"] = made

    out = spoil(right, tmp_path / "out", change, recipe=recipe)
    assert name in failed(verify(out, against=right / "src", img=SIZE))


def test_the_right_table_passes_that_matrix(right: Path, tmp_path: Path) -> None:
    """Without a change, both with and without a recipe: what fails above fails for its change alone."""
    assert_all_pass(verify(spoil(right, tmp_path / "a", lambda t, c: None), against=right / "src", img=SIZE))
    bare = spoil(right, tmp_path / "b", lambda t, c: None, recipe=False)
    assert_all_pass(verify(bare, against=right / "src"), skipped={"recipe"})


def swapped_blocks(tensors: Tensors, config: dict[str, Any]) -> None:
    for name in [name for name in tensors if name.startswith("blocks.0.")]:
        other = name.replace("blocks.0.", "blocks.1.")
        tensors[name], tensors[other] = tensors[other], tensors[name]


def rounded(tensors: Tensors, config: dict[str, Any]) -> None:
    tensors["blocks.1.mlp.fc1.weight"] = tensors["blocks.1.mlp.fc1.weight"].half().float()


def one_bit(tensors: Tensors, config: dict[str, Any]) -> None:
    tensors["blocks.1.mlp.fc1.weight"].view(torch.int32)[3, 3] ^= 1


def stale(*keys: str) -> Callable[[Tensors, dict[str, Any]], None]:
    def change(tensors: Tensors, config: dict[str, Any]) -> None:
        for key in keys:
            if key == "img_size":
                config["model_args"]["img_size"] = [96, 96]
            elif key == "swapped":
                config["model_args"]["img_size"] = [160, 96]
                config["pretrained_cfg"]["input_size"] = [3, 160, 96]
            elif key == "patch_size":
                config["model_args"]["patch_size"] = 8
            else:
                config["pretrained_cfg"]["input_size"] = [3, 96, 96]

    return change


OTHERS: dict[str, tuple[Callable[[Tensors, dict[str, Any]], Any], set[str]]] = {
    "rounded": (rounded, {"untouched"}),
    "one bit": (one_bit, {"untouched"}),
    "two blocks swapped": (swapped_blocks, {"untouched"}),
    "missing tensor": (lambda t, c: t.pop("norm.bias"), {"untouched", "loads"}),
    "extra tensor": (lambda t, c: t.update(mask_token=torch.ones(1, 32)), {"untouched"}),
    "extra buffer": (lambda t, c: t.update({"rope.bands": torch.ones(4)}), {"untouched"}),
    "other dtype": (lambda t, c: t.update({"norm.bias": t["norm.bias"].double()}), {"untouched"}),
    "other shape": (lambda t, c: t.update({"norm.bias": t["norm.bias"][:16]}), {"untouched", "loads"}),
    "stale img_size": (stale("img_size"), {"config", "loads"}),
    "stale input_size": (stale("input_size"), {"config"}),
    "both stale": (stale("img_size", "input_size"), {"config", "loads"}),
    "height and width swapped": (stale("swapped"), {"config", "loads"}),
    "another patch_size": (stale("patch_size"), {"config"}),
    "img_size that is none": (lambda t, c: c["model_args"].update(img_size="big"), {"config", "loads"}),
    "fewer blocks": (lambda t, c: c["model_args"].update(depth=1), {"loads"}),
    "another architecture": (lambda t, c: c.update(architecture="no_such_vit"), {"loads"}),
    "other class count": (lambda t, c: c["model_args"].update(num_classes=7), {"loads"}),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_damage_is_caught(what: str, right: Path, tmp_path: Path) -> None:
    change, names = OTHERS[what]
    out = spoil(right, tmp_path / "out", change)
    assert names <= failed(verify(out, against=right / "src"))


def test_equal_count_of_tokens_left_as_it_was(tmp_path: Path) -> None:
    """4x16 places are 64, and so are 8x8: no shape shows that nothing was done."""
    src = source(tmp_path / "src", "vit_tiny_patch16_224", (64, 256), **SMALL)
    tensors = load_file(src / "model.safetensors")
    out = stored(tmp_path / "out", tensors, config_of("vit_tiny_patch16_224", (128, 128), **SMALL))
    verdict = verify(out, against=src)
    assert {"resampled", "values"} <= failed(verdict)


def test_nothing_done_at_all(vit: Path) -> None:
    assert {"resampled", "values", "config"} <= failed(verify(vit, against=vit, img=160))


def test_source_of_another_training(right: Path, vit: Path) -> None:
    assert {"recipe", "resampled"} <= failed(verify(right / "out", against=vit))


def test_source_of_another_width_or_grid(right: Path, tmp_path: Path) -> None:
    other = source(tmp_path / "wide", "vit_tiny_patch16_224", (96, 96), **{**SMALL, "embed_dim": 48})
    assert {"recipe", "untouched", "resampled"} <= failed(verify(right / "out", against=other))
    coarse = source(tmp_path / "coarse", "vit_tiny_patch16_224", (128, 128), **{**SMALL, "patch_size": 64})
    assert "resampled" in failed(verify(right / "out", against=coarse))


def test_recipe_of_another_size(right: Path) -> None:
    assert {"recipe", "config", "file"} <= failed(verify(right / "out", against=right / "src", img=160))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "cannot be read"),
        ('{"to": [0, 5], "tensors": {}}', "cannot be read"),
        ('{"to": [96, 160], "tensors": {"pos_embed": "magic"}}', "method"),
        ('{"to": [96, 160], "tensors": {"pos_embed": "nearest, antialias"}}', "method"),
        ('{"to": [96, 160], "tensors": {}, "family": "vit", "from": [96, 96]}', "digest"),
    ],
)
def test_recipe_that_lies(text: str, why: str, right: Path, tmp_path: Path) -> None:
    tensors = load_file(right / "out" / "model.safetensors")
    config = json.loads((right / "out" / "config.json").read_text())
    out = stored(tmp_path / "out", tensors, config, {"posinterp": text})
    verdict = verify(out, against=right / "src", img=SIZE)
    assert "recipe" in failed(verdict)
    assert why in said(verdict, "recipe")


def test_blind_forward_pass_is_caught(vit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resize(vit, 160, tmp_path / "out")
    kind = timm.models.vision_transformer.VisionTransformer
    monkeypatch.setattr(kind, "forward_features", lambda self, x: self.patch_embed(x))
    assert failed(verify(tmp_path / "out", against=vit)) == {"forward"}


def test_features_that_are_not_finite_are_caught(vit: Path, tmp_path: Path) -> None:
    tensors = load_file(vit / "model.safetensors")
    tensors["norm.weight"][3] = 3e38
    tensors["norm.bias"][3] = 3e38
    src = stored(tmp_path / "src", tensors, json.loads((vit / "config.json").read_text()))
    resize(src, 160, tmp_path / "out")
    verdict = verify(tmp_path / "out", against=src)
    assert failed(verdict) == {"forward"}
    assert "not finite" in said(verdict, "forward")


def test_values_that_change_on_loading_are_caught(vit: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resize(vit, 160, tmp_path / "out")
    create = timm.create_model

    def create_otherwise(*words: Any, **options: Any) -> Any:
        model = create(*words, **options)
        model.pos_embed[0, 7, 3] += 1e-6
        return model

    monkeypatch.setattr(timm, "create_model", create_otherwise)
    verdict = verify(tmp_path / "out", against=vit)
    assert failed(verdict) == {"loads"}
    assert "pos_embed has other values" in said(verdict, "loads")


def test_what_is_asked_for_counts_more_than_the_recipe(vit: Path, tmp_path: Path) -> None:
    resize(vit, 160, tmp_path / "out", method="bilinear")
    assert failed(verify(tmp_path / "out", against=vit, method="bicubic")) == {"resampled"}


# ------------------------------------------------------------------ what cannot be answered


def test_not_understood_is_an_error_alone_and_an_answer_against_a_source(vit: Path, tmp_path: Path) -> None:
    tensors = load_file(vit / "model.safetensors")
    del tensors["pos_embed"]
    save_file(tensors, tmp_path / "out.safetensors")
    with pytest.raises(PosinterpError):
        verify(tmp_path / "out.safetensors")
    assert failed(verify(tmp_path / "out.safetensors", against=vit)) == {"file"}


def test_a_size_that_nothing_says_is_asked_for(vit: Path, tmp_path: Path) -> None:
    tensors = load_file(vit / "model.safetensors")
    table = resample_abs_pos_embed(tensors["pos_embed"], [5, 8])
    save_file({**tensors, "pos_embed": table}, tmp_path / "out.safetensors")
    with pytest.raises(Ambiguous) as asked:
        verify(tmp_path / "out.safetensors", against=vit)
    assert "--img" in str(asked.value.hint)
    assert verify(tmp_path / "out.safetensors", against=vit, img="80x128").ok
    assert failed(verify(tmp_path / "out.safetensors", against=vit, img="128x80")) == {"resampled"}


def test_damage_is_an_answer_and_what_is_not_there_a_mistake(vit: Path, tmp_path: Path) -> None:
    raw = (vit / "model.safetensors").read_bytes()
    (tmp_path / "out.safetensors").write_bytes(raw[:-8])
    verdict = verify(tmp_path / "out.safetensors", against=vit)
    assert [check.status for check in verdict.checks] == ["fail"] + 8 * ["skip"]
    assert "truncated" in said(verdict, "file")
    with pytest.raises(BadFile):
        verify(vit, against=tmp_path / "out.safetensors")  # of the source, it is no answer
    with pytest.raises(NotFound):
        verify(tmp_path / "none.safetensors", against=vit)


def test_global_state_stays(right: Path) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    verify(right / "out", against=right / "src")
    assert torch.equal(before, torch.get_rng_state())
    assert torch.is_grad_enabled()


def test_importing_it_imports_no_torch() -> None:
    code = "import sys, posinterp.verification; sys.exit('torch' in sys.modules or 'timm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_check_is_plain_data() -> None:
    plain = {"name": "file", "status": "pass", "detail": "x", "compared": 0, "difference": None}
    assert vars(Check("file", "pass", "x")) == plain
    assert Check.of("file", [], "x", difference=float("nan")).difference is None  # JSON has no NaN
