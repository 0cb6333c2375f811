"""What other libraries do about a new resolution, by running them: the tables of docs/comparison.md.

    python docs/comparison.py                 # small random models of timm, transformers, open_clip and vit-pytorch
    python docs/comparison.py --why           # and, to stderr, what each refusal or error said
    python docs/comparison.py --timm [GLOB]   # how many of timm's architectures its own loader converts; some minutes

No library is the judge of another. A table is filled so that each row says where in the image its place lies; after a
resize, in whichever way, each row must still say where its own place lies, and the class token's row must be what it
was. Half a place of the coarser grid is allowed: kernels differ by less, at the borders; a grid that was taken for
another is off by several.
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

import numpy as np
import timm
import torch
import transformers
from open_clip import create_model, create_model_and_transforms
from open_clip.push_to_hf_hub import save_config_for_hf
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import BeitConfig, BeitModel, SwinConfig, SwinModel, ViTConfig, ViTImageProcessor, ViTModel
from vit_pytorch import ViT

import posinterp as pi

PATCH, WIDTH = 8, 8
Size = tuple[int, int]  # of an image: height, width
SQUARE, LONG = (64, 64), (32, 128)  # 8x8 and 4x16 places: as many
LARGER, SMALLER, OBLONG = (96, 96), (40, 40), (64, 96)
WHY = "--why" in sys.argv

YES, RAISES, REFUSES, KEPT, WRONG = "yes", "raises", "refuses", "**wrong**: rows kept", "**wrong** places"
NONE = "–"  # the library has no such thing


class Absent(Exception):
    """The library has nothing that could be asked."""


# ------------------------------------------------------------------ the ruler


def grid_of(size: Size) -> Size:
    return size[0] // PATCH, size[1] // PATCH


def ruler(size: Size) -> Tensor:
    """(1 + h·w, WIDTH): 7 for the class token, then for each place how far down and how far right it lies."""
    high, wide = grid_of(size)
    down = (torch.arange(high) + 0.5) / high
    right = (torch.arange(wide) + 0.5) / wide
    places = torch.stack(torch.meshgrid(down, right, indexing="ij"), -1).reshape(-1, 2)
    return torch.cat([torch.full((1, WIDTH), 7.0), places.repeat(1, WIDTH // 2)])


def read(table: Tensor, size: Size, source: Size) -> str:
    """What has become of the ruler of `source` at an image of `size`."""
    table, wanted = table.detach().float().reshape(-1, WIDTH), ruler(size)
    if table.shape == wanted.shape:
        coarser = torch.minimum(torch.tensor(grid_of(size)), torch.tensor(grid_of(source)))
        off = (table - wanted)[1:].reshape(-1, WIDTH // 2, 2).abs().amax((0, 1)) * coarser
        if torch.equal(table[0], wanted[0]) and bool((off < 0.5).all()):
            return YES
        if torch.equal(table, ruler(source)):
            return KEPT
    return WRONG


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
    name = "timm"
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
    name = "transformers"

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


LIBRARIES: tuple[Library, ...] = (Timm(), Transformers(), OpenClip(), VitPytorch())


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
    return YES if set(found) == {YES} else f"larger: {larger}; smaller: {smaller}; as many places: {as_many}"


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


def ignored(library: Library, desk: Path) -> str:
    """Loaded at another size with ignore_mismatched_sizes=True, which the library's error message proposes."""
    if not isinstance(library, Transformers):
        raise Absent
    place = library.write(desk / "a", SQUARE)
    model = ViTModel.from_pretrained(
        place, add_pooling_layer=False, image_size=list(LARGER), ignore_mismatched_sizes=True
    )
    answer = read(model.embeddings.position_embeddings, LARGER, SQUARE)
    return "**made anew**: positions lost" if answer == WRONG else answer


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
    return WRONG


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


QUESTIONS: tuple[tuple[str, Callable[..., str], Callable[..., str]], ...] = (
    ("8×8 places → 12×12", *resizing(SQUARE, LARGER)),
    ("8×8 → 5×5", *resizing(SQUARE, SMALLER)),
    ("8×8 → 8×12", *resizing(SQUARE, OBLONG)),
    ("8×8 → 4×16, as many", *resizing(SQUARE, LONG)),
    ("4×16 → 8×8, the source's size is said", *resizing(LONG, SQUARE)),
    ("4×16 → 12×12, the source's size is said", *resizing(LONG, LARGER)),
    ("4×16 → 12×12, nothing says the size", library_unsaid, posinterp_unsaid),
    ("a bfloat16 table is rounded once (on a CPU)", library_half, posinterp_half),
    ("patch 8 → 16", library_patch, posinterp_patch),
    ("saved, it loads at the new size by itself", library_saved, posinterp_saved),
    ("what prepares an image follows", library_images, posinterp_images),
    ("one model, images of any size", moved, not_ours),
    ("loaded with mismatches ignored", ignored, not_ours),
)


# ------------------------------------------------------------------ biases by offset


def reads_offsets(bias: Tensor, size: Size) -> str:
    """A bias of (2, n, n) that was, for head 0, how far below, and for head 1 how far right a place lies of another.

    However it is stretched: equal for equal offsets, 0 for none, the opposite for the opposite, and always growing.
    """
    high, wide = grid_of(size)
    bias = bias.detach().float().reshape(2, high, wide, high, wide)
    for head, side in ((0, high), (1, wide)):
        seen: dict[int, list[float]] = {}
        for a in range(side):
            for b in range(side):
                pairs = bias[0, a, :, b, :] if head == 0 else bias[1, :, a, :, b]
                seen.setdefault(a - b, []).extend(pairs.flatten().tolist())
        means = [float(np.mean(seen[offset])) for offset in range(1 - side, side)]
        spread = max(max(values) - min(values) for values in seen.values())
        steps = np.diff(means) * np.sign(means[-1] or 1)
        if spread > 0.01 or abs(means[side - 1]) > 0.01 or not (steps > 0).all():
            return WRONG
        if not np.allclose(means, -np.array(means[::-1]), atol=0.01):
            return WRONG
    return YES


def offsets(size: Size, extra: int) -> Tensor:
    """((2h-1)(2w-1) + extra, 2): each row says its offset."""
    high, wide = grid_of(size)
    down, right = torch.arange(1.0 - high, high), torch.arange(1.0 - wide, wide)
    rows = torch.stack(torch.meshgrid(down, right, indexing="ij"), -1).reshape(-1, 2)
    return torch.cat([rows, torch.full((extra, 2), 70.0)])


class Beit(Timm):
    name = "timm's BEiT, 8×8 places"

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
    name = "transformers' BEiT, 8×8 places"

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

    name = "timm's Swin, window 8×8"

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
    name = "transformers' Swin, window 8×8"

    def write(self, folder: Path, size: Size, dtype: torch.dtype = torch.float32) -> Path:
        small = {"embed_dim": WIDTH, "depths": [1, 1], "num_heads": [2, 2]}
        model = SwinModel(SwinConfig(image_size=192, patch_size=4, window_size=grid_of(size)[0], **small))
        for name, value in model.state_dict().items():
            if name.endswith("relative_position_bias_table"):
                value.copy_(offsets(size, 0))
        model.save_pretrained(folder)
        return folder

    def at(self, place: Path, size: Size | None = None) -> tuple[Any, Tensor]:
        sides = set(grid_of(size)) if size else set()
        extra: dict[str, Any] = {"window_size": sides.pop() if len(sides) == 1 else list(grid_of(size))} if size else {}
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
    first = []
    for title, theirs, ours in QUESTIONS:
        cells = [asked(theirs, library) for library in LIBRARIES]
        first.append([title, *cells, together({library.name: asked(ours, library) for library in LIBRARIES})])
    second = []
    for library in (Beit(), HfBeit(), Swin(), HfSwin()):
        for size in (LARGER, SMALLER, OBLONG):
            title = f"{library.name} → {'×'.join(map(str, grid_of(size)))}"
            second.append([title, asked(biased, library, size), asked(posinterp_biased, library, size)])
    second.append(["transformers' BEiT of 8×12 places, as it is", asked(own_biases, HfBeit()), NONE])
    packages = {"open_clip": "open_clip_torch"}
    names = [f"{one.name} {version(packages.get(one.name, one.name))}" for one in LIBRARIES]
    biases = table(["biases by offset", "the library", "posinterp"], second)
    return [table(["a ViT", *names, "posinterp"], first), biases, interpolating()]


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
