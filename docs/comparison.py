"""What other libraries do about a new resolution, by running them: the tables of docs/comparison.md.

    python docs/comparison.py                 # small random models of timm, transformers, open_clip and vit-pytorch
    python docs/comparison.py --why           # and, to stderr, what each refusal or error said
    python docs/comparison.py --timm [GLOB]   # how many of timm's architectures its own loader converts; some minutes

No library is the judge of another: ruler.py says how a table is read.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import timm
import torch
import transformers
from open_clip import create_model, create_model_and_transforms
from open_clip.push_to_hf_hub import save_config_for_hf
from PIL import Image
from ruler import (
    LARGER,
    LONG,
    OBLONG,
    PATCH,
    SMALLER,
    SQUARE,
    WIDTH,
    YES,
    Size,
    grid_of,
    offsets,
    read,
    reads_offsets,
    ruler,
)
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import BeitConfig, BeitModel, SwinConfig, SwinModel, ViTConfig, ViTImageProcessor, ViTModel
from vit_pytorch import ViT

import posinterp as pi

RAISES, REFUSES = "raises", "refuses"
WHY = "--why" in sys.argv

NONE = "–"  # the library has no such thing


class Absent(Exception):
    """The library has nothing that could be asked."""


def told(do: Callable[[], str]) -> str:
    """The answer; or that there was an error, of ours or of theirs."""
    try:
        return do()
    except Absent:
        return NONE
    except pi.PosinterpError as error:
        answer, said = REFUSES, error.message
    except Exception as error:
        answer, said = RAISES, f"{type(error).__name__}: {error}"
    if WHY:
        print(f"  {' '.join(said.split())[:300]}", file=sys.stderr)
    return answer


@contextmanager
def spied(module: nn.Module) -> Iterator[list[Tensor]]:
    """What goes into a module, call by call."""
    seen: list[Tensor] = []
    hook = module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    try:
        yield seen
    finally:
        hook.remove()


# ------------------------------------------------------------------ the libraries' own ViTs


class Library:
    """A library's ViT whose patches and class token are zero: what enters its blocks is the table in use."""

    name: str
    says = True  # whether its checkpoints come with a config

    def write(self, folder: Path, size: Size, dtype: torch.dtype = torch.float32) -> Path:
        """A checkpoint as the library saves it, with the ruler as its table."""
        raise NotImplementedError

    def at(self, place: Path, size: Size | None = None) -> tuple[Any, Tensor]:
        """The library's model at a size, None: the one that the checkpoint says; and the table in use."""
        raise NotImplementedError

    def moved(self, place: Path, size: Size) -> Tensor:
        """The table in use when one loaded model is given images of another size."""
        raise NotImplementedError

    def images(self, place: Path, size: Size) -> Size:
        """The size to which the library's own preprocessing brings an image for a model that was taken to a size."""
        raise NotImplementedError

    def saved(self, place: Path, size: Size, out: Path) -> Path:
        """Taken to a size and saved by the library's own call."""
        raise NotImplementedError

    def patched(self, place: Path, size: Size, patch: int) -> tuple[Any, nn.Module]:
        """The model with another patch, and its patch convolution."""
        raise NotImplementedError


def blank(state: dict[str, Tensor], table: str, size: Size, dtype: torch.dtype, *zero: str) -> dict[str, Tensor]:
    """A state with the ruler as its table, and zeros where patches and class token come from."""
    for name, value in state.items():
        if any(word in name for word in zero):
            value.zero_()
    state[table].copy_(ruler(size).reshape(state[table].shape))
    return {name: value.to(dtype).contiguous() for name, value in state.items()}


class Timm(Library):
    name = "timm, `local-dir:`"
    ARCH = "vit_tiny_patch16_224"

    def write(self, folder: Path, size: Size, dtype: torch.dtype = torch.float32) -> Path:
        small = {"patch_size": PATCH, "embed_dim": WIDTH, "depth": 1, "num_heads": 1}
        model = timm.create_model(self.ARCH, img_size=size, num_classes=2, **small)
        blank(model.state_dict(), "pos_embed", size, dtype, "patch_embed", "cls_token")
        timm.models.save_for_hf(model.to(dtype), folder, safe_serialization=True)
        return folder

    def at(self, place: Path, size: Size | None = None) -> tuple[Any, Tensor]:
        extra: dict[str, Any] = {"img_size": size} if size else {}
        model = timm.create_model(f"local-dir:{place}", pretrained=True, **extra)
        return model, model.pos_embed

    def moved(self, place: Path, size: Size) -> Tensor:
        model = timm.create_model(f"local-dir:{place}", pretrained=True, dynamic_img_size=True)
        with spied(model.blocks) as seen, torch.no_grad():
            model(torch.zeros(1, 3, *size))
        return seen[0]

    def images(self, place: Path, size: Size) -> Size:
        model, _ = self.at(place, size)
        make = timm.data.create_transform(**timm.data.resolve_input_data_config(model))
        return tuple(make(Image.new("RGB", (200, 150))).shape[-2:])

    def saved(self, place: Path, size: Size, out: Path) -> Path:
        timm.models.save_for_hf(self.at(place, size)[0], out, safe_serialization=True)
        return out

    def patched(self, place: Path, size: Size, patch: int) -> tuple[Any, nn.Module]:
        model = timm.create_model(f"local-dir:{place}", pretrained=True, img_size=size, patch_size=patch)
        return model, model.patch_embed.proj


class Transformers(Library):
    name = "transformers, on each call"

    def write(self, folder: Path, size: Size, dtype: torch.dtype = torch.float32) -> Path:
        small = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": WIDTH}
        model = ViTModel(ViTConfig(image_size=size, patch_size=PATCH, **small), add_pooling_layer=False)
        blank(model.state_dict(), "embeddings.position_embeddings", size, dtype, "patch_embeddings", "cls_token")
        model.to(dtype).save_pretrained(folder)
        ViTImageProcessor(size={"height": size[0], "width": size[1]}).save_pretrained(folder)
        return folder

    def at(self, place: Path, size: Size | None = None) -> tuple[Any, Tensor]:
        model = ViTModel.from_pretrained(place, add_pooling_layer=False).eval()
        config = model.config.image_size
        image = torch.zeros(1, 3, *(size or config), dtype=model.dtype)
        with torch.no_grad():
            return model, model.embeddings(image, interpolate_pos_encoding=bool(size))

    def moved(self, place: Path, size: Size) -> Tensor:
        return self.at(place, size)[1]

    def images(self, place: Path, size: Size) -> Size:
        made = ViTImageProcessor.from_pretrained(place)(Image.new("RGB", (200, 150)), return_tensors="np")
        return tuple(made["pixel_values"].shape[-2:])

    def saved(self, place: Path, size: Size, out: Path) -> Path:
        self.at(place, size)[0].save_pretrained(out)
        return out

    def patched(self, place: Path, size: Size, patch: int) -> tuple[Any, nn.Module]:
        model = ViTModel.from_pretrained(place, add_pooling_layer=False, image_size=size, patch_size=patch)
        return model, model.embeddings.patch_embeddings.projection


class OpenClip(Library):
    name = "open_clip"

    def _config(self, size: Size) -> dict[str, Any]:
        vision = {"image_size": list(size), "layers": 1, "width": WIDTH, "head_width": WIDTH, "patch_size": PATCH}
        text = {"context_length": 8, "vocab_size": 16, "width": WIDTH, "heads": 1, "layers": 1}
        return {"embed_dim": WIDTH, "vision_cfg": vision, "text_cfg": text}

    def write(self, folder: Path, size: Size, dtype: torch.dtype = torch.float32) -> Path:
        from open_clip import CLIP

        state = CLIP(**self._config(size)).state_dict()
        state = blank(state, "visual.positional_embedding", size, dtype, "visual.conv1", "class_embedding")
        folder.mkdir()
        save_file(state, folder / "open_clip_model.safetensors")
        said = {"model_cfg": self._config(size), "preprocess_cfg": {"size": list(size)}}
        (folder / "open_clip_config.json").write_text(json.dumps(said))
        return folder

    def at(self, place: Path, size: Size | None = None) -> tuple[Any, Tensor]:
        kept = load_file(place / "open_clip_model.safetensors")["visual.positional_embedding"].dtype
        precision = {torch.float32: "fp32", torch.bfloat16: "pure_bf16", torch.float16: "pure_fp16"}[kept]
        model = create_model(f"local-dir:{place}", force_image_size=size, precision=precision)
        return model, model.visual.positional_embedding

    def moved(self, place: Path, size: Size) -> Tensor:
        model, _ = self.at(place)
        with spied(model.visual.ln_pre) as seen, torch.no_grad():
            model.encode_image(torch.zeros(1, 3, *size))
        return seen[0]

    def images(self, place: Path, size: Size) -> Size:
        _, _, make = create_model_and_transforms(f"local-dir:{place}", force_image_size=size)
        return tuple(make(Image.new("RGB", (200, 150))).shape[-2:])

    def saved(self, place: Path, size: Size, out: Path) -> Path:
        model, _ = self.at(place, size)
        out.mkdir()
        save_file({name: value.contiguous() for name, value in model.state_dict().items()},
                  out / "open_clip_model.safetensors")  # fmt: skip
        said = json.loads((place / "open_clip_config.json").read_text())["model_cfg"]
        save_config_for_hf(model, out / "open_clip_config.json", said)
        return out

    def patched(self, place: Path, size: Size, patch: int) -> tuple[Any, nn.Module]:
        said = json.loads((place / "open_clip_config.json").read_text())
        vision = said["model_cfg"]["vision_cfg"] | {"patch_size": patch, "image_size": list(size)}
        said["model_cfg"]["vision_cfg"] = vision
        (place / "open_clip_config.json").write_text(json.dumps(said))
        model = create_model(f"local-dir:{place}")
        return model, model.visual.conv1


class VitPytorch(Library):
    name, says = "vit-pytorch", False

    def _model(self, size: Size, patch: int = PATCH) -> ViT:
        return ViT(image_size=size, patch_size=patch, num_classes=2, dim=WIDTH, depth=1, heads=1, mlp_dim=WIDTH)

    def write(self, folder: Path, size: Size, dtype: torch.dtype = torch.float32) -> Path:
        state = blank(self._model(size).state_dict(), "pos_embedding", size, dtype, "to_patch_embedding", "cls_token")
        folder.mkdir()
        save_file(state, folder / "model.safetensors")
        return folder

    def at(self, place: Path, size: Size | None = None) -> tuple[Any, Tensor]:
        if size is None:
            raise Absent  # there is no config
        state = load_file(place / "model.safetensors")
        model = self._model(size).to(state["pos_embedding"].dtype)
        model.load_state_dict(state)
        return model, model.pos_embedding

    def moved(self, place: Path, size: Size) -> Tensor:
        model, _ = self.at(place, SQUARE)
        with spied(model.dropout) as seen, torch.no_grad():
            model(torch.zeros(1, 3, *size))
        return seen[0]

    def images(self, place: Path, size: Size) -> Size:
        raise Absent

    def saved(self, place: Path, size: Size, out: Path) -> Path:
        raise Absent

    def patched(self, place: Path, size: Size, patch: int) -> tuple[Any, nn.Module]:
        model = self._model(size, patch)
        model.load_state_dict(load_file(place / "model.safetensors"))
        return model, model.to_patch_embedding[2]


class TimmFile(Timm):
    name = "timm, `checkpoint_path`"

    def at(self, place: Path, size: Size | None = None) -> tuple[Any, Tensor]:
        small = {"patch_size": PATCH, "embed_dim": WIDTH, "depth": 1, "num_heads": 1, "num_classes": 2}
        file = str(place / "model.safetensors")
        model = timm.create_model(self.ARCH, checkpoint_path=file, img_size=size, **small)
        return model, model.pos_embed


class TransformersLoad(Transformers):
    name = "transformers, `from_pretrained`"
    how: dict[str, Any] = {}  # noqa: RUF012

    def at(self, place: Path, size: Size | None = None) -> tuple[Any, Tensor]:
        extra: dict[str, Any] = {"image_size": list(size)} if size else {}
        model = ViTModel.from_pretrained(place, add_pooling_layer=False, **extra, **self.how)
        return model, model.embeddings.position_embeddings


class TransformersIgnoring(TransformersLoad):
    name = "transformers, `ignore_mismatched_sizes`"
    how = {"ignore_mismatched_sizes": True}  # noqa: RUF012


LIBRARIES: tuple[Library, ...] = (Timm(), Transformers(), OpenClip(), VitPytorch())
WAYS = (Timm(), TimmFile(), Transformers(), TransformersLoad(), TransformersIgnoring(), OpenClip(), VitPytorch())


# ------------------------------------------------------------------ the questions about a ViT


def library_resizes(library: Library, desk: Path, source: Size, size: Size) -> str:
    place = library.write(desk / "a", source)
    return read(library.at(place, size)[1], size, source)


def posinterp_resizes(library: Library, desk: Path, source: Size, size: Size) -> str:
    place, out = library.write(desk / "a", source), desk / "b"
    pi.resize(place, size, out, **({} if library.says else {"src_img": source}))
    return read(library.at(out, None if library.says else size)[1], size, source)


def resizing(source: Size, size: Size) -> tuple[Callable[..., str], Callable[..., str]]:
    return (
        lambda library, desk: library_resizes(library, desk, source, size),
        lambda library, desk: posinterp_resizes(library, desk, source, size),
    )


def library_unsaid(library: Library, desk: Path) -> str:
    """A table of 4x16 places in a file that says nothing: as many as 8x8."""
    place = library.write(desk / "a", LONG)
    if isinstance(library, Timm):
        small = {"patch_size": PATCH, "embed_dim": WIDTH, "depth": 1, "num_heads": 1, "num_classes": 2}
        overlay = {"file": str(place / "model.safetensors"), "num_classes": 2, "custom_load": False}
        model = timm.create_model(
            library.ARCH, pretrained=True, pretrained_cfg_overlay=overlay, img_size=LARGER, **small
        )
        return read(model.pos_embed, LARGER, LONG)
    if isinstance(library, VitPytorch):
        return read(library.at(place, LARGER)[1], LARGER, LONG)
    raise Absent  # it loads nothing without a config


def posinterp_unsaid(library: Library, desk: Path) -> str:
    place = library.write(desk / "a", LONG)
    (weights,) = place.glob("*.safetensors")
    bare = weights.rename(desk / "bare.safetensors")
    pi.resize(bare, LARGER, desk / "b.safetensors")
    state = load_file(desk / "b.safetensors")
    (table,) = (one for key, one in state.items() if key.endswith(TABLES) and one.numel() == ruler(LARGER).numel())
    return read(table, LARGER, LONG)


def moved(library: Library, desk: Path) -> str:
    """One model, images of three sizes."""
    place = library.write(desk / "a", SQUARE)
    found = [told(lambda size=size: read(library.moved(place, size), size, SQUARE)) for size in (LARGER, SMALLER, LONG)]
    larger, smaller, as_many = found
    return YES if set(found) == {YES} else f"larger: {larger}; smaller: {smaller}; as many: {as_many}"


def library_half(library: Library, desk: Path) -> str:
    """bfloat16 through the library against the same numbers through it in float32, rounded once."""
    return half(library, desk, lambda place, size: library.at(place, size)[1])


def posinterp_half(library: Library, desk: Path) -> str:
    def through(place: Path, size: Size) -> Tensor:
        out = place.with_name(place.name + "-b")
        pi.resize(place, size, out, **({} if library.says else {"src_img": SQUARE}))
        return library.at(out, None if library.says else size)[1]

    return half(library, desk, through)


def half(library: Library, desk: Path, through: Callable[[Path, Size], Tensor]) -> str:
    table = torch.randn(ruler(SQUARE).shape, generator=torch.Generator().manual_seed(0)).bfloat16()
    found = []
    for dtype in (torch.bfloat16, torch.float32):
        place = library.write(desk / str(dtype), SQUARE, dtype)
        (weights,) = place.glob("*.safetensors")
        state = load_file(weights)
        (name,) = (key for key in state if key.endswith(TABLES) and state[key].numel() == table.numel())
        state[name] = table.to(dtype).reshape(state[name].shape)
        save_file(state, weights, metadata={"format": "pt"})
        found.append(through(place, LARGER).detach().to(torch.bfloat16).flatten())
    return YES if torch.equal(*found) else "rounded on the way"


TABLES = ("pos_embed", "position_embeddings", "visual.positional_embedding", "pos_embedding")


def library_patch(library: Library, desk: Path) -> str:
    return patched(library, desk, lambda place, size: library.patched(place, size, 2 * PATCH))


def posinterp_patch(library: Library, desk: Path) -> str:
    def through(place: Path, size: Size) -> tuple[Any, nn.Module]:
        out = desk / "b"
        pi.resize(place, size, out, patch=2 * PATCH, **({} if library.says else {"src_img": SQUARE}))
        return library.patched(out, size, 2 * PATCH)

    return patched(library, desk, through)


def patched(library: Library, desk: Path, through: Callable[[Path, Size], tuple[Any, nn.Module]]) -> str:
    """A patch twice as large, of an image twice as large, must embed as the patch did (FlexiViT)."""
    place = library.write(desk / "a", SQUARE)
    (weights,) = place.glob("*.safetensors")
    state = load_file(weights)
    draw = torch.Generator().manual_seed(0)
    names = [key for key, value in state.items() if value.ndim == 4 and value.shape[-1] == PATCH]
    kernel = torch.randn(WIDTH, 3, PATCH, PATCH, generator=draw)
    if names:
        state[names[0]] = kernel
        save_file(state, weights, metadata={"format": "pt"})
    _, conv = through(place, (2 * SQUARE[0], 2 * SQUARE[1]))
    image = torch.randn(1, 3, PATCH, PATCH, generator=draw)
    embedded = nn.functional.conv2d(image, kernel)
    for antialias in (True, False):  # whichever cubic it is
        twice = nn.functional.interpolate(image, scale_factor=2.0, mode="bicubic", antialias=antialias)
        if torch.allclose(embedded, nn.functional.conv2d(twice, conv.weight), atol=1e-3):
            return YES
    return "**wrong** kernel"


def library_saved(library: Library, desk: Path) -> str:
    """Taken to another size, saved, loaded with no word about it."""
    place = library.saved(library.write(desk / "a", SQUARE), LARGER, desk / "b")
    table = library.at(place)[1]
    return "no: the old size" if table.numel() == ruler(SQUARE).numel() else read(table, LARGER, SQUARE)


def posinterp_saved(library: Library, desk: Path) -> str:
    if not library.says:
        raise Absent
    return posinterp_resizes(library, desk, SQUARE, LARGER)


def library_images(library: Library, desk: Path) -> str:
    got = library.images(library.write(desk / "a", SQUARE), LARGER)
    return YES if got == LARGER else "no: the old size"


def posinterp_images(library: Library, desk: Path) -> str:
    if not library.says:
        raise Absent
    place, out = library.write(desk / "a", SQUARE), desk / "b"
    pi.resize(place, LARGER, out)
    if isinstance(library, OpenClip):
        _, _, make = create_model_and_transforms(f"local-dir:{out}")
        return YES if tuple(make(Image.new("RGB", (200, 150))).shape[-2:]) == LARGER else "no: the old size"
    if isinstance(library, Timm):
        model = timm.create_model(f"local-dir:{out}", pretrained=True)
        return YES if timm.data.resolve_model_data_config(model)["input_size"][1:] == LARGER else "no: the old size"
    return YES if library.images(out, LARGER) == LARGER else "no: the old size"


def not_ours(library: Library, desk: Path) -> str:
    raise Absent


Question = tuple[str, Callable[..., str], Callable[..., str]]  # of a library, and of posinterp with its checkpoint
SIZES: tuple[Question, ...] = (
    ("8×8 → 12×12", *resizing(SQUARE, LARGER)),
    ("→ 5×5", *resizing(SQUARE, SMALLER)),
    ("→ 8×12", *resizing(SQUARE, OBLONG)),
    ("→ 4×16", *resizing(SQUARE, LONG)),
    ("4×16 → 8×8", *resizing(LONG, SQUARE)),
    ("→ 12×12", *resizing(LONG, LARGER)),
)
AROUND: tuple[Question, ...] = (
    ("4×16 → 12×12, and nothing says 4×16", library_unsaid, posinterp_unsaid),
    ("patch 8 → 16", library_patch, posinterp_patch),
    ("a bfloat16 table is rounded once (on a CPU)", library_half, posinterp_half),
    ("saved, it loads at the new size by itself", library_saved, posinterp_saved),
    ("what prepares an image follows", library_images, posinterp_images),
    ("one model, images of any size", moved, not_ours),
)


# ------------------------------------------------------------------ biases by offset


class Beit(Timm):
    name = "timm's BEiT"

    def write(self, folder: Path, size: Size, dtype: torch.dtype = torch.float32) -> Path:
        small = {"patch_size": PATCH, "embed_dim": WIDTH, "depth": 1, "num_heads": 2}
        model = timm.create_model("beit_base_patch16_224", img_size=size, num_classes=2, **small)
        model.blocks[0].attn.relative_position_bias_table.data = offsets(size, 3)
        timm.models.save_for_hf(model, folder, safe_serialization=True)
        return folder

    def at(self, place: Path, size: Size | None = None) -> tuple[Any, Tensor]:
        extra: dict[str, Any] = {"img_size": size} if size else {}
        model = timm.create_model(f"local-dir:{place}", pretrained=True, **extra)
        return model, model.blocks[0].attn._get_rel_pos_bias()[0][:, 1:, 1:]


class HfBeit(Transformers):
    name = "transformers' BEiT"

    def write(self, folder: Path, size: Size, dtype: torch.dtype = torch.float32) -> Path:
        small = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": WIDTH}
        config = BeitConfig(image_size=size, patch_size=PATCH, use_relative_position_bias=True, **small)
        model = BeitModel(config, add_pooling_layer=False)
        for name, value in model.state_dict().items():
            if name.endswith("relative_position_bias_table"):
                value.copy_(offsets(size, 3))
        model.save_pretrained(folder)
        return folder

    def at(self, place: Path, size: Size | None = None) -> tuple[Any, Tensor]:
        model = BeitModel.from_pretrained(place, add_pooling_layer=False).eval()
        said = model.config.image_size
        found: list[Tensor] = []
        for module in model.modules():
            if type(module).__name__ == "BeitRelativePositionBias":
                module.register_forward_hook(lambda _, inputs, output: found.append(output))
        with torch.no_grad():
            model(torch.zeros(1, 3, *(size or as_size(said))), interpolate_pos_encoding=bool(size))
        return model, found[0].reshape(2, *found[0].shape[-2:])[:, 1:, 1:]


class Swin(Timm):
    """The window stands for the image: its sides are those of an image of so many patches of 8."""

    name = "timm's Swin, by its window"

    def write(self, folder: Path, size: Size, dtype: torch.dtype = torch.float32) -> Path:
        small = {"embed_dim": WIDTH, "depths": (1, 1), "num_heads": (2, 2), "window_size": grid_of(size)}
        model = timm.create_model("swin_tiny_patch4_window7_224", img_size=192, num_classes=2, **small)
        for layer in model.layers:
            layer.blocks[0].attn.relative_position_bias_table.data = offsets(size, 0)
        timm.models.save_for_hf(model, folder, safe_serialization=True)
        return folder

    def at(self, place: Path, size: Size | None = None) -> tuple[Any, Tensor]:
        extra: dict[str, Any] = {"window_size": grid_of(size)} if size else {}
        model = timm.create_model(f"local-dir:{place}", pretrained=True, **extra)
        return model, model.layers[0].blocks[0].attn._get_rel_pos_bias()[0]


class HfSwin(Transformers):
    name = "transformers' Swin, by its window"

    def window(self, size: Size) -> Any:
        high, wide = grid_of(size)
        return high if high == wide else [high, wide]

    def write(self, folder: Path, size: Size, dtype: torch.dtype = torch.float32) -> Path:
        small = {"embed_dim": WIDTH, "depths": [1, 1], "num_heads": [2, 2]}
        model = SwinModel(SwinConfig(image_size=192, patch_size=4, window_size=self.window(size), **small))
        for name, value in model.state_dict().items():
            if name.endswith("relative_position_bias_table"):
                value.copy_(offsets(size, 0))
        model.save_pretrained(folder)
        return folder

    def at(self, place: Path, size: Size | None = None) -> tuple[Any, Tensor]:
        extra: dict[str, Any] = {"window_size": self.window(size)} if size else {}
        model = SwinModel.from_pretrained(place, **extra).eval()
        found: list[Tensor] = []
        for module in model.modules():
            if type(module).__name__ == "SwinRelativePositionBias":
                module.register_forward_hook(lambda _, inputs, output: found.append(output))
        with torch.no_grad():
            model(torch.zeros(1, 3, 192, 192))
        return model, found[0].reshape(2, *found[0].shape[-2:])


def as_size(said: Any) -> Size:
    return (said, said) if isinstance(said, int) else tuple(said)


def biased(library: Library, size: Size, desk: Path) -> str:
    return reads_offsets(library.at(library.write(desk / "a", SQUARE), size)[1], size)


def own_biases(library: Library, desk: Path) -> str:
    return reads_offsets(library.at(library.write(desk / "a", OBLONG))[1], OBLONG)


def posinterp_biased(library: Library, size: Size, desk: Path) -> str:
    place, out = library.write(desk / "a", SQUARE), desk / "b"
    if isinstance(library, (Swin, HfSwin)):
        pi.resize(place, 192, out, window="x".join(map(str, grid_of(size))))
    else:
        pi.resize(place, size, out)
    return reads_offsets(library.at(out)[1], size)


# ------------------------------------------------------------------ how much of timm its own loader converts


def timm_converts(name: str) -> str:
    """Whether timm's loader takes a name's checkpoint to twice and to half its size; no weight is made."""
    from timm.models import _builder

    loads: list[dict[str, Any]] = []

    def build(**extra: Any) -> Any:
        """The model's shapes; what its loader would be called with is the last of `loads`."""
        loader, _builder.load_pretrained = _builder.load_pretrained, lambda model, **how: loads.append(how)
        try:
            with torch.device("meta"):
                overlay = {"custom_load": False, "url": "", "hf_hub_id": None}
                return timm.create_model(name, pretrained=True, pretrained_cfg_overlay=overlay, **extra)
        finally:
            _builder.load_pretrained = loader

    def shapes(model: Any) -> dict[str, tuple[int, ...]]:
        return {key: tuple(value.shape) for key, value in model.state_dict().items()}

    own = build()
    high, wide = own.pretrained_cfg["input_size"][1:]
    zeros = {key: torch.zeros(()).expand(shape) for key, shape in shapes(own).items()}  # take no room
    follows = False
    for size in ((2 * high, 2 * wide), (high // 2, wide // 2)):
        try:
            model = build(img_size=size)
        except (TypeError, ValueError, AssertionError, RuntimeError):
            continue  # it takes no size, or not this one
        if shapes(model) == shapes(own):
            continue
        follows = True
        how = loads[-1]
        how["pretrained_cfg"] = {**how["pretrained_cfg"], "state_dict": zeros, "file": None, "source": ""}
        try:
            _builder.load_pretrained(model, **how)
        except RuntimeError as error:
            if "size mismatch" not in str(error):
                raise
            return "raises"
    return "converts" if follows else "nothing to do"


def count_timm(glob: str) -> None:
    """Two lines, and with --why the names."""
    names = timm.list_models(glob)
    with Pool(2, quiet) as pool:
        found = dict(zip(names, pool.map(timm_converts, names, chunksize=8), strict=True))
    counts = Counter(found.values())
    follow = counts["converts"] + counts["raises"]
    print(f"timm {timm.__version__}: {len(names)} names, {follow} with tensors that follow the image size")
    print(f"its loader converts {counts['converts']}, and raises for {counts['raises']}")
    if WHY:
        print(", ".join(name for name in names if found[name] == "raises"), file=sys.stderr)


# ------------------------------------------------------------------ the tables


def asked(question: Callable[..., str], *about: Any) -> str:
    """An answer, in a folder of its own."""
    with tempfile.TemporaryDirectory() as desk:
        return told(lambda: question(*about, Path(desk)))


def together(answers: dict[str, str]) -> str:
    """One word for posinterp where it does the same with each library's checkpoint."""
    said = {name: answer for name, answer in answers.items() if answer != NONE}
    usual = max(set(said.values()), key=list(said.values()).count, default=NONE)
    others = [f"{name}'s: {answer}" for name, answer in said.items() if answer != usual]
    return "; ".join([usual, *others])


def table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def page() -> list[str]:
    """Each table of docs/comparison.md."""
    sizes = [[way.name, *(asked(theirs, way) for _, theirs, _ in SIZES)] for way in WAYS]
    sizes.append(["**posinterp**", *(posinterp_does(ours) for _, _, ours in SIZES)])
    around = [
        [title, *(asked(theirs, library) for library in LIBRARIES), posinterp_does(ours)]
        for title, theirs, ours in AROUND
    ]
    biases = []
    for library in (Beit(), HfBeit(), Swin(), HfSwin()):
        theirs = [asked(biased, library, size) for size in (LARGER, SMALLER, OBLONG)]
        ours = [asked(posinterp_biased, library, size) for size in (LARGER, SMALLER, OBLONG)]
        biases.append([library.name, *theirs, asked(own_biases, library)])
        biases.append([f"**posinterp**, {library.name}", *ours, NONE])
    return [
        table(["", *(title for title, _, _ in SIZES)], sizes),
        table(["", *(library.name.partition(",")[0] for library in LIBRARIES), "posinterp"], around),
        table(["", "8×8 → 12×12", "→ 5×5", "→ 8×12", "8×12, as stored"], biases),
        interpolating(),
        f"Run with {', '.join(f'{name} {version(name)}' for name in PACKAGES)}.\n",
    ]


PACKAGES = ("timm", "transformers", "open_clip_torch", "vit-pytorch", "torch")


def posinterp_does(question: Callable[..., str]) -> str:
    return together({library.name.partition(",")[0]: asked(question, library) for library in LIBRARIES})


def interpolating() -> str:
    """How many of transformers' models have a resize of their own."""
    texts = [file.read_text("utf-8") for file in Path(transformers.__file__).parent.glob("models/*/modeling_*.py")]
    count = sum("def interpolate_pos_encoding" in text for text in texts)
    of = f"{len(texts)} modelling files of transformers {transformers.__version__}"
    return f"{count} of {of} define `interpolate_pos_encoding`.\n"


def quiet() -> None:
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    transformers.utils.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)


if __name__ == "__main__":
    quiet()
    torch.manual_seed(0)
    if "--timm" in sys.argv:
        count_timm(next((word for word in sys.argv[1:] if not word.startswith("--")), ""))
    else:
        print("\n".join(page()))
