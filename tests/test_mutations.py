"""The verifier, proved: right results of home libraries pass, and a right one that is spoilt is caught by the check
named for what was spoilt. The tables' own corruptions are in test_verification.py; here are those of whole folders, of
biases, of rotary buffers, and of what a config makes a model compute."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_verification import (
    OTHERS,
    SMALL,
    TABLES,
    assert_all_pass,
    config_of,
    failed,
    said,
    source,
    spoil,
    status,
    stored,
)

from posinterp.verification import NAMES, verify
from posinterp.writing import resize

torch = pytest.importorskip("torch")
timm = pytest.importorskip("timm")
import torch.nn.functional as F  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from timm.layers import resample_abs_pos_embed, resample_patch_embed  # noqa: E402

torch.set_num_threads(1)
Tensors = dict[str, Any]


@pytest.fixture(scope="session")
def vit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return source(tmp_path_factory.mktemp("vit") / "src", "vit_tiny_patch16_224", (96, 96), **SMALL)


@pytest.fixture(scope="session")
def right(vit: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `src` and a right `out`, of 96x160."""
    folder = tmp_path_factory.mktemp("right")
    (folder / "src").symlink_to(vit)
    resize(vit, (96, 160), folder / "out")
    return folder


# ------------------------------------------------------------------ what a config makes a model compute

CONFIGS: dict[str, tuple[Callable[[Tensors, dict[str, Any]], Any], set[str]]] = {
    "other head count": (lambda t, c: c["model_args"].update(num_heads=4), {"config", "forward"}),
    "head count left out": (lambda t, c: c["model_args"].pop("num_heads"), {"loads"}),
    "other pooling, added": (lambda t, c: c["model_args"].update(global_pool="avg", fc_norm=False), {"forward"}),
    "other activation, added": (lambda t, c: c["model_args"].update(act_layer="relu"), {"forward"}),
    "other mean": (lambda t, c: c["pretrained_cfg"].update(mean=[0.5, 0.5, 0.4]), {"config"}),
    "other std": (lambda t, c: c["pretrained_cfg"].update(std=[1.0, 1.0, 1.0]), {"config"}),
    "other crop": (lambda t, c: c["pretrained_cfg"].update(crop_pct=0.5), {"config"}),
    "other interpolation": (lambda t, c: c["pretrained_cfg"].update(interpolation="nearest"), {"config"}),
    "other classes": (lambda t, c: c["pretrained_cfg"].update(num_classes=7), {"config"}),
}


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a config that says how images are prepared."""
    folder = tmp_path_factory.mktemp("prepared")
    src = source(folder / "src", "vit_tiny_patch16_224", (96, 96), **SMALL)
    config = json.loads((src / "config.json").read_text())
    config["pretrained_cfg"] |= {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 0.9, "interpolation": "bicubic"}
    (src / "config.json").write_text(json.dumps(config))
    resize(src, (96, 160), folder / "out")
    return folder


@pytest.mark.parametrize("what", CONFIGS)
def test_a_config_that_changes_the_computation_is_caught(what: str, prepared: Path, tmp_path: Path) -> None:
    change, names = CONFIGS[what]
    assert names <= failed(verify(spoil(prepared, tmp_path / "out", change), against=prepared / "src"))


def test_words_in_a_config_may_change(prepared: Path, tmp_path: Path) -> None:
    def change(tensors: Tensors, config: dict[str, Any]) -> None:
        config["pretrained_cfg"] |= {"tag": "mine", "license": "mit", "url": ""}

    assert_all_pass(verify(spoil(prepared, tmp_path / "out", change), against=prepared / "src"))


# ------------------------------------------------------------------ biases, rotary buffers, patch kernels

BEIT = {**SMALL, "init_values": 0.1}


@pytest.fixture(scope="session")
def beit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("beit")
    src = source(folder / "src", "beit_base_patch16_224", (96, 96), **BEIT)
    resize(src, 160, folder / "out")
    return folder


def bias(tensors: Tensors, block: int = 0) -> str:
    return next(name for name in tensors if name.endswith(f"blocks.{block}.attn.relative_position_bias_table"))


def extra_rows_resampled(tensors: Tensors, config: dict[str, Any]) -> None:
    """All rows as one run, the three of the class token among them."""
    name = bias(tensors)
    table = tensors[name]
    old = torch.randn(124, table.shape[1], generator=torch.Generator().manual_seed(0))
    tensors[name] = F.interpolate(old.T[None], size=len(table), mode="linear")[0].T.contiguous()


def extra_rows_shifted(tensors: Tensors, config: dict[str, Any]) -> None:
    name = bias(tensors)
    tensors[name] = torch.cat([tensors[name][-3:], tensors[name][:-3]])


def extra_row_changed(tensors: Tensors, config: dict[str, Any]) -> None:
    tensors[bias(tensors)][-1, 0] += 1e-6


def biases_swapped(tensors: Tensors, config: dict[str, Any]) -> None:
    one, other = bias(tensors), bias(tensors, 1)
    tensors[one], tensors[other] = tensors[other], tensors[one]


def heads_swapped(tensors: Tensors, config: dict[str, Any]) -> None:
    tensors[bias(tensors)] = tensors[bias(tensors)].flip(1).contiguous()


def offsets_flipped(tensors: Tensors, config: dict[str, Any]) -> None:
    name = bias(tensors)
    tensors[name] = torch.cat([tensors[name][:-3].flip(0), tensors[name][-3:]])


BIASES = [extra_rows_resampled, extra_rows_shifted, extra_row_changed, biases_swapped, heads_swapped, offsets_flipped]


@pytest.mark.parametrize("change", BIASES, ids=lambda change: change.__name__)
def test_wrong_biases_are_caught(change: Any, beit: Path, tmp_path: Path) -> None:
    verdict = verify(spoil(beit, tmp_path / "out", change), against=beit / "src")
    assert "resampled" in failed(verdict)


def test_right_biases_pass(beit: Path, tmp_path: Path) -> None:
    assert_all_pass(verify(spoil(beit, tmp_path / "out", lambda t, c: None), against=beit / "src"))


ROPE = {"depth": 2, "num_classes": 5}


@pytest.fixture(scope="session")
def rope(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rope")
    src = source(folder / "src", "vit_small_patch16_rope_mixed_224", (96, 96), **ROPE)
    resize(src, 160, folder / "out")
    return folder


def rope_interpolated(tensors: Tensors, config: dict[str, Any]) -> None:
    """Learned frequencies belong to no place: resampled along any axis, they turn by other angles."""
    name = next(name for name in tensors if "freqs" in name)
    flat = tensors[name].reshape(1, 1, -1)
    tensors[name] = F.interpolate(F.interpolate(flat, scale_factor=1.5), size=flat.shape[-1]).reshape(
        tensors[name].shape
    )


def rope_table_stored(tensors: Tensors, config: dict[str, Any]) -> None:
    tensors["rope.freqs_cos"] = torch.ones(100, 64)


@pytest.mark.parametrize("change", [rope_interpolated, rope_table_stored], ids=lambda change: change.__name__)
def test_rotary_embeddings_that_were_touched_are_caught(change: Any, rope: Path, tmp_path: Path) -> None:
    verdict = verify(spoil(rope, tmp_path / "out", change), against=rope / "src")
    assert "untouched" in failed(verdict)


@pytest.mark.parametrize(
    ("patch", "size"), [((16, 8), (96, 48)), ((8, 24), (96, 192))], ids=lambda value: "x".join(map(str, value))
)
def test_a_patch_that_is_not_square(patch: tuple[int, int], size: tuple[int, int], vit: Path, tmp_path: Path) -> None:
    """As timm resamples it; resized like an image instead, it is caught."""
    tensors = load_file(vit / "model.safetensors")
    kernel = tensors["patch_embed.proj.weight"]
    grid = [side // step for side, step in zip(size, patch, strict=True)]
    made = {
        **tensors,
        "patch_embed.proj.weight": resample_patch_embed(kernel, list(patch), interpolation="bicubic", antialias=True),
        "pos_embed": resample_abs_pos_embed(tensors["pos_embed"], grid, old_size=[6, 6]),
    }
    config = config_of("vit_tiny_patch16_224", size, **SMALL, patch_size=list(patch))
    assert_all_pass(verify(stored(tmp_path / "out", made, config), against=vit), skipped={"recipe"})
    wrong = F.interpolate(kernel, size=patch, mode="bicubic", antialias=True)
    out = stored(tmp_path / "wrong", {**made, "patch_embed.proj.weight": wrong}, config)
    assert failed(verify(out, against=vit)) == {"resampled"}


# ------------------------------------------------------------------ folders of transformers

TINY = {
    "image_size": 64,
    "patch_size": 16,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "layer_norm_eps": 1e-3,
}
LABELS = {"id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2}}
PREPROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": 64, "width": 64},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
    "do_normalize": True,
    "resample": 2,
}
INDEX = "model.safetensors.index.json"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in shards, with a preprocessor, and the right result for 96."""
    transformers = pytest.importorskip("transformers")
    place = tmp_path_factory.mktemp("hf")
    torch.manual_seed(3)
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**TINY, **LABELS))
    with torch.no_grad():
        for value in model.parameters():
            value.normal_(std=0.1)
    model.save_pretrained(place / "src", max_shard_size="60KB")
    (place / "src" / "preprocessor_config.json").write_text(json.dumps(PREPROCESSOR))
    assert (place / "src" / INDEX).is_file()
    resize(place / "src", 96, place / "out")
    return place


def edited(name: str, change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def edit(out: Path) -> None:
        data = json.loads((out / name).read_text())
        change(data)
        (out / name).write_text(json.dumps(data))

    return edit


def edited_text(name: str, text: str) -> Callable[[Path], None]:
    def edit(out: Path) -> None:
        (out / name).write_text(text)

    return edit


def shards(out: Path) -> list[Path]:
    return sorted(out.glob("model-*.safetensors"))


def rewritten(change: Callable[[Tensors], Any]) -> Callable[[Path], None]:
    """A change of the tensors of the first shard that has what the change needs; metadata and index stay."""

    def edit(out: Path) -> None:
        for path in shards(out):
            with safe_open(path, "pt") as file:
                metadata = file.metadata()
            tensors = load_file(path)
            if change(tensors) is not False:
                save_file({name: value.contiguous() for name, value in tensors.items()}, path, metadata)
                return
        raise AssertionError("nothing to change")

    return edit


def position(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    def edit(tensors: Tensors) -> bool:
        name = next((name for name in tensors if name.endswith("position_embeddings")), None)
        if name is not None:
            tensors[name] = change(tensors[name])
        return name is not None

    return rewritten(edit)


def moved_in_the_index(data: dict[str, Any]) -> None:
    name = next(iter(data["weight_map"]))
    others = set(data["weight_map"].values()) - {data["weight_map"][name]}
    data["weight_map"][name] = min(others)


def another_recipe(out: Path) -> None:
    path = shards(out)[-1]
    save_file(load_file(path), path, {"format": "pt", "posinterp": '{"to": [96, 96], "tensors": {}}'})


FOLDERS: dict[str, tuple[Callable[[Path], None], set[str]]] = {
    "stale config": (edited("config.json", lambda c: c.update(image_size=64)), {"config", "loads"}),
    "stale preprocessor": (
        edited("preprocessor_config.json", lambda c: c.update(size={"height": 64, "width": 64})),
        {"config"},
    ),
    "preprocessor of another size": (
        edited("preprocessor_config.json", lambda c: c.update(size={"height": 80, "width": 96})),
        {"config"},
    ),
    "other mean": (edited("preprocessor_config.json", lambda c: c.update(image_mean=[0.1, 0.5, 0.5])), {"config"}),
    "not normalised": (edited("preprocessor_config.json", lambda c: c.update(do_normalize=False)), {"config"}),
    "stale index": (edited(INDEX, lambda c: c["metadata"].update(total_size=1)), {"file"}),
    "index of another shard": (edited(INDEX, moved_in_the_index), {"file"}),
    "index of a tensor that there is not": (
        edited(INDEX, lambda c: c["weight_map"].update(ghost=next(iter(c["weight_map"].values())))),
        {"file"},
    ),
    "index out of the folder": (
        edited(INDEX, lambda c: c["weight_map"].update(ghost="../model.safetensors")),
        {"file"},
    ),
    "missing shard": (lambda out: shards(out)[-1].unlink(), {"file"}),
    "damaged shard": (lambda out: os.truncate(shards(out)[0], 5000), {"file"}),
    "config that is no JSON": (edited_text("config.json", "{"), {"file"}),
    "another recipe in a shard": (another_recipe, {"recipe"}),
    "other head count": (edited("config.json", lambda c: c.update(num_attention_heads=4)), {"config", "forward"}),
    "other eps": (edited("config.json", lambda c: c.update(layer_norm_eps=1e-1)), {"config", "forward"}),
    "eps left out": (edited("config.json", lambda c: c.pop("layer_norm_eps")), {"forward"}),
    "other activation": (edited("config.json", lambda c: c.update(hidden_act="relu")), {"config", "forward"}),
    "labels swapped": (edited("config.json", lambda c: c.update(id2label={"0": "c", "1": "b", "2": "a"})), {"config"}),
    "other precision": (edited("config.json", lambda c: c.update(dtype="float16")), {"config"}),
    "foreign code": (edited("config.json", lambda c: c.update(auto_map={"AutoModel": "evil.Evil"})), {"config"}),
    "other model type": (edited("config.json", lambda c: c.update(model_type="deit")), {"config"}),
    "other patch": (edited("config.json", lambda c: c.update(patch_size=8)), {"loads"}),
    "class row resampled": (position(lambda t: torch.cat([t[:, 1:2], t[:, 1:]], 1)), {"resampled"}),
    "transposed": (
        position(lambda t: torch.cat([t[:, :1], t[:, 1:].reshape(1, 6, 6, -1).transpose(1, 2).flatten(1, 2)], 1)),
        {"resampled"},
    ),
    "zero": (position(torch.zeros_like), {"values"}),
    "NaN": (position(lambda t: t * float("nan")), {"values"}),
}


@pytest.mark.parametrize("what", FOLDERS)
def test_a_spoilt_folder_is_caught(what: str, folder: Path, tmp_path: Path) -> None:
    change, names = FOLDERS[what]
    shutil.copytree(folder / "out", tmp_path / "out")
    change(tmp_path / "out")
    verdict = verify(tmp_path / "out", against=folder / "src")
    assert names <= failed(verdict), {check.name: check.detail for check in verdict.checks}


def test_the_right_folder_passes(folder: Path) -> None:
    verdict = verify(folder / "out", against=folder / "src")
    assert_all_pass(verdict)
    assert said(verdict, "similarity").startswith("cosine ")


def test_there_are_enough_ways_to_be_wrong() -> None:
    assert len(TABLES) + len(OTHERS) + len(CONFIGS) + len(BIASES) + len(FOLDERS) + 3 >= 25
    caught = {name for _, names in [*OTHERS.values(), *CONFIGS.values(), *FOLDERS.values()] for name in names}
    assert caught | {"resampled", "similarity"} == {*NAMES}  # each check is the one that catches something


# ------------------------------------------------------------------ right results of home libraries


def by_timm_loading(src: Path, out: Path) -> dict[str, Any]:
    """timm loads the old weights into a model of the new size, and saves it its own way."""
    config = json.loads((src / "config.json").read_text())
    options = {**config["model_args"], "img_size": (96, 160)}
    weights = {"file": str(src / "model.safetensors"), "num_classes": 5}
    model = timm.create_model("vit_tiny_patch16_224", pretrained=True, pretrained_cfg_overlay=weights, **options)
    timm.models.save_for_hf(
        model, out, model_config={**config["pretrained_cfg"], "input_size": [3, 96, 160]}, model_args=options
    )
    return {}


def by_timm_input_size(src: Path, out: Path) -> dict[str, Any]:
    model = timm.create_model(f"local-dir:{src}", pretrained=True)
    model.set_input_size(img_size=(96, 160))
    torch.save(model.state_dict(), out.with_suffix(".pth"))
    return {"out": out.with_suffix(".pth")}


def by_timm_function(src: Path, out: Path) -> dict[str, Any]:
    state = torch.load(by_hand_loaded(src, out), weights_only=True)
    state["pos_embed"] = resample_abs_pos_embed(state["pos_embed"], [6, 10])
    out.mkdir()
    torch.save({"state_dict": state}, out / "epoch.pth")
    return {"out": out / "epoch.pth"}


def by_hand_loaded(src: Path, out: Path) -> Path:
    path = out.with_name("old.pth")
    torch.save(load_file(src / "model.safetensors"), path)
    return path


def by_hand(src: Path, out: Path) -> dict[str, Any]:
    """The script that everybody has written once."""
    state = load_file(src / "model.safetensors")
    cls, grid = state["pos_embed"][:, :1], state["pos_embed"][:, 1:]
    grid = grid.reshape(1, 6, 6, -1).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, size=(6, 10), mode="bicubic", align_corners=False)
    state["pos_embed"] = torch.cat([cls, grid.flatten(2).transpose(1, 2)], dim=1)
    save_file({name: value.contiguous() for name, value in state.items()}, out.with_suffix(".safetensors"))
    return {"out": out.with_suffix(".safetensors"), "antialias": False}


@pytest.mark.parametrize(
    "make", [by_timm_loading, by_timm_input_size, by_timm_function, by_hand], ids=lambda make: make.__name__
)
def test_what_others_made_of_a_timm_model_passes(make: Any, vit: Path, tmp_path: Path) -> None:
    wishes = make(vit, tmp_path / "out")
    out = wishes.pop("out", tmp_path / "out")
    verdict = verify(out, against=vit, img=(96, 160), **wishes)
    assert verdict.ok, verdict
    passed = {name for name, how in status(verdict).items() if how == "pass"}
    assert {"file", "untouched", "resampled", "values"} <= passed
    assert out.suffix == ".pth" or {"loads", "forward", "similarity"} <= passed


def test_what_timm_made_of_biases_passes(beit: Path, tmp_path: Path) -> None:
    config = json.loads((beit / "src" / "config.json").read_text())
    options = {**config["model_args"], "img_size": 160}
    weights = {"file": str(beit / "src" / "model.safetensors"), "num_classes": 5}
    model = timm.create_model("beit_base_patch16_224", pretrained=True, pretrained_cfg_overlay=weights, **options)
    timm.models.save_for_hf(
        model,
        tmp_path / "out",
        model_config={**config["pretrained_cfg"], "input_size": [3, 160, 160]},
        model_args=options,
    )
    verdict = verify(tmp_path / "out", against=beit / "src")
    assert_all_pass(verdict, skipped={"recipe"})


def test_what_transformers_made_passes(folder: Path, tmp_path: Path) -> None:
    """The library's own interpolation in forward, its result stored; what prepares the images was not written."""
    transformers = pytest.importorskip("transformers")
    model = transformers.ViTForImageClassification.from_pretrained(folder / "src")
    with torch.no_grad():
        table = model.vit.embeddings.interpolate_pos_encoding(torch.zeros(1, 37, 32), 96, 96)
    other = transformers.ViTForImageClassification(transformers.ViTConfig(**{**TINY, "image_size": 96}, **LABELS))
    state = {**model.state_dict(), "vit.embeddings.position_embeddings": table}
    other.load_state_dict(state)
    other.save_pretrained(tmp_path / "out")
    assert_all_pass(verify(tmp_path / "out", against=folder / "src"), skipped={"recipe"})


@pytest.fixture(scope="session")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of OpenCLIP's own, in a folder, and the right result for 96."""
    open_clip = pytest.importorskip("open_clip")
    place = tmp_path_factory.mktemp("clip")
    tower = {"image_size": 64, "patch_size": 16, "layers": 2, "width": 64, "head_width": 32}
    text = {"context_length": 9, "vocab_size": 50, "width": 32, "heads": 2, "layers": 1}
    config = {"embed_dim": 24, "vision_cfg": tower, "text_cfg": text}
    torch.manual_seed(4)
    model = open_clip.CLIP(**config)
    (place / "src").mkdir()
    save_file(model.state_dict(), place / "src" / "open_clip_model.safetensors")
    prepared = {"size": [64, 64], "mean": [0.5] * 3, "std": [0.5] * 3}
    data = {"model_cfg": config, "preprocess_cfg": prepared}
    (place / "src" / "open_clip_config.json").write_text(json.dumps(data))
    resize(place / "src", 96, place / "out")
    return place


def test_the_right_result_passes_in_open_clip(clip: Path) -> None:
    assert_all_pass(verify(clip / "out", against=clip / "src"))


def test_what_open_clip_made_passes(clip: Path, tmp_path: Path) -> None:
    import open_clip

    model = open_clip.create_model(f"local-dir:{clip / 'src'}", force_image_size=96)
    (tmp_path / "out").mkdir()
    save_file(model.state_dict(), tmp_path / "out" / "open_clip_model.safetensors")
    data = json.loads((clip / "src" / "open_clip_config.json").read_text())
    data["model_cfg"]["vision_cfg"]["image_size"] = 96
    data["preprocess_cfg"]["size"] = [96, 96]
    (tmp_path / "out" / "open_clip_config.json").write_text(json.dumps(data))
    assert_all_pass(verify(tmp_path / "out", against=clip / "src"), skipped={"recipe"})


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda c: c["model_cfg"]["vision_cfg"].update(image_size=64), {"config", "loads"}),
        (lambda c: c["preprocess_cfg"].update(size=[64, 64]), {"config"}),
        (lambda c: c["preprocess_cfg"].update(mean=[0.1] * 3), {"config"}),
        (lambda c: c["model_cfg"]["vision_cfg"].update(head_width=16), {"config", "forward"}),
        (lambda c: c["model_cfg"].update(quick_gelu=True), {"forward"}),
    ],
    ids=["stale size", "stale preprocessing", "other mean", "other heads", "other activation"],
)
def test_a_spoilt_config_of_open_clip_is_caught(change: Any, names: set[str], clip: Path, tmp_path: Path) -> None:
    shutil.copytree(clip / "out", tmp_path / "out")
    edited("open_clip_config.json", change)(tmp_path / "out")
    assert names <= failed(verify(tmp_path / "out", against=clip / "src"))


@pytest.mark.parametrize("pool", ["cls", "mean"])
def test_vit_pytorch_is_asked(pool: str, tmp_path: Path) -> None:
    vit_pytorch = pytest.importorskip("vit_pytorch")
    torch.manual_seed(5)
    shape = {"patch_size": 16, "num_classes": 5, "dim": 32, "depth": 2, "heads": 2, "mlp_dim": 48, "pool": pool}
    model = vit_pytorch.ViT(image_size=64, **shape)
    save_file(model.state_dict(), tmp_path / "src.safetensors")
    resize(tmp_path / "src.safetensors", (64, 96), tmp_path / "out.safetensors")
    verdict = verify(tmp_path / "out.safetensors", against=tmp_path / "src.safetensors")
    assert_all_pass(verdict, skipped={"config"})
    assert "vit-pytorch's ViT holds all" in said(verdict, "loads")
    tensors = load_file(tmp_path / "out.safetensors")
    save_file({**tensors, "norm.extra": torch.ones(3)}, tmp_path / "more.safetensors")
    verdict = verify(tmp_path / "more.safetensors", against=tmp_path / "src.safetensors", img=(64, 96))
    assert failed(verdict) == {"untouched"}
    assert status(verdict)["loads"] == "skip"  # it may be another class's


def test_a_head_of_another_name_loads_from_a_bare_file(tmp_path: Path) -> None:
    """LeViT's head is no `head.weight`: how many classes it has, the source's config says."""
    src = source(tmp_path / "src", "levit_128s", (224, 224), num_classes=5)
    resize(src, (256, 192), tmp_path / "out.safetensors")
    assert_all_pass(verify(tmp_path / "out.safetensors", against=src), skipped={"config"})


# ------------------------------------------------------------------ tables that are not finite


def test_nonfinite_tables_pass_only_where_they_are_allowed_and_inherited(vit: Path, tmp_path: Path) -> None:
    tensors = load_file(vit / "model.safetensors")
    tensors["pos_embed"][0, 9, 3] = float("inf")
    src = stored(tmp_path / "src", tensors, json.loads((vit / "config.json").read_text()))
    resize(src, (96, 160), tmp_path / "out", allow_nonfinite=True)
    assert {"values", "resampled", "forward"} <= failed(verify(tmp_path / "out", against=src))
    verdict = verify(tmp_path / "out", against=src, allow_nonfinite=True)
    assert_all_pass(verdict, skipped={"forward", "similarity"})
    spread = load_file(tmp_path / "out" / "model.safetensors")
    spread["pos_embed"][0, 50, 5] = float("nan")
    out = stored(tmp_path / "spread", spread, json.loads((tmp_path / "out" / "config.json").read_text()))
    assert "resampled" in failed(verify(out, against=src, allow_nonfinite=True))
    healed = {name: value.nan_to_num(0.0) for name, value in spread.items()}
    out = stored(tmp_path / "healed", healed, json.loads((tmp_path / "out" / "config.json").read_text()))
    assert "resampled" in failed(verify(out, against=src, allow_nonfinite=True))
    assert "values" in failed(verify(tmp_path / "spread", against=vit, allow_nonfinite=True))  # not its source's
