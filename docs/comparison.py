"""What libraries do with a checkpoint at another resolution: docs/comparison.md's table, by running them.

python docs/comparison.py

Each library makes a small ViT of its own at 64 pixels (patch 16, a class row and 4×4 places), saves it its own way, and
loads it as its documentation says for another size. The table that it then holds is compared with torch's
two-dimensional resize of the 4×4 (or 2×8) grid, class row kept. Nothing is trained, nothing is downloaded.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
warnings.simplefilter("ignore")

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

import posinterp as pi  # noqa: E402

Size = tuple[int, int]
SQUARE, WIDE, LARGER, ODD = (64, 64), (32, 128), (96, 96), (96, 64)
WIDTH, DEPTH, HEADS = 32, 1, 2
CASES: dict[str, tuple[Size, Size, int]] = {  # from, to, patch
    "64 → 96": (SQUARE, LARGER, 16),
    "64 → 96×64": (SQUARE, ODD, 16),
    "64 → 32×128: as many places": (SQUARE, WIDE, 16),
    "32×128 → 64: as many places": (WIDE, SQUARE, 16),
    "32×128 → 96": (WIDE, LARGER, 16),
    "patch 16 → 8 at 64": (SQUARE, SQUARE, 8),
}


def outcome(load: Callable[[], torch.Tensor], before: torch.Tensor, old: Size, new: Size, patch: int) -> str:
    """What a load made of the table `before`, of a source at `old`: in a few words."""
    try:
        after = load().detach().reshape(-1, WIDTH)
    except Exception as error:  # whatever a library raises is its answer
        return f"raises {type(error).__name__}"
    table = before.detach().reshape(-1, WIDTH)
    sides, wanted = [side // 16 for side in old], [side // patch for side in new]
    grid = table[1:].reshape(1, *sides, WIDTH).permute(0, 3, 1, 2)
    for antialias in (False, True):
        for method in ("bicubic", "bilinear"):
            right = F.interpolate(grid, wanted, mode=method, antialias=antialias)[0].flatten(1).T
            if after.shape == (len(right) + 1, WIDTH) and torch.allclose(after[1:], right, atol=1e-4):
                return "resampled"
    if after.shape == table.shape and torch.equal(after, table):
        return "**kept as it was**"
    known = any(torch.allclose(row, other, atol=1e-4) for row in after[1:3] for other in table)
    return "**scrambled**" if known or after[0].equal(table[0]) else "**random**"


# ------------------------------------------------------------------ the libraries


def timm_folder(place: Path, old: Size, new: Size, patch: int) -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
    """timm's path for pretrained weights: a folder that it saved itself."""
    import timm
    from timm.models import save_for_hf

    arguments = {"embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS, "num_classes": 0}
    model = timm.create_model("vit_tiny_patch16_224", img_size=old, **arguments)
    save_for_hf(model, place, model_args={"img_size": list(old), **arguments})

    def load() -> torch.Tensor:
        given: dict[str, Any] = {"img_size": new, **({"patch_size": patch} if patch != 16 else {})}
        return timm.create_model(f"local-dir:{place}", pretrained=True, **given).pos_embed

    return load, model.pos_embed


def timm_file(place: Path, old: Size, new: Size, patch: int) -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
    """timm's `checkpoint_path`: a file of weights."""
    import timm

    arguments = {"embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS, "num_classes": 0}
    model = timm.create_model("vit_tiny_patch16_224", img_size=old, **arguments)
    torch.save(model.state_dict(), place / "vit.pth")

    def load() -> torch.Tensor:
        given = {"img_size": new, "patch_size": patch, **arguments}
        return timm.create_model("vit_tiny_patch16_224", checkpoint_path=place / "vit.pth", **given).pos_embed

    return load, model.pos_embed


def transformers_folder(
    place: Path, old: Size, new: Size, patch: int, **how: Any
) -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
    """transformers' `from_pretrained` with another `image_size`."""
    from transformers import ViTConfig, ViTModel
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    config = ViTConfig(
        image_size=list(old), patch_size=16, hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=HEADS
    )
    model = ViTModel(config)
    model.embeddings.position_embeddings.data.normal_()
    model.save_pretrained(place)

    def load() -> torch.Tensor:
        loaded = ViTModel.from_pretrained(place, image_size=list(new), patch_size=patch, **how)
        return loaded.embeddings.position_embeddings

    return load, model.embeddings.position_embeddings


def transformers_mismatched(
    place: Path, old: Size, new: Size, patch: int
) -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
    """The same with what its error message points to."""
    return transformers_folder(place, old, new, patch, ignore_mismatched_sizes=True)


def open_clip_file(place: Path, old: Size, new: Size, patch: int) -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
    """open_clip's `load_checkpoint`, which `create_model(pretrained=...)` calls."""
    from open_clip import CLIP
    from open_clip.factory import load_checkpoint

    def built(size: Size, patch: int) -> Any:
        vision = {
            "image_size": size,
            "patch_size": patch,
            "width": WIDTH,
            "layers": DEPTH,
            "head_width": WIDTH // HEADS,
        }
        text = {"context_length": 8, "vocab_size": 16, "width": WIDTH, "heads": HEADS, "layers": DEPTH}
        return CLIP(embed_dim=WIDTH, vision_cfg=vision, text_cfg=text)

    model = built(old, 16)
    torch.save(model.state_dict(), place / "clip.pt")

    def load() -> torch.Tensor:
        target = built(new, patch)
        load_checkpoint(target, str(place / "clip.pt"))
        return target.visual.positional_embedding

    return load, model.visual.positional_embedding


def vit_pytorch_file(place: Path, old: Size, new: Size, patch: int) -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
    """vit-pytorch has no loader: torch's `load_state_dict`."""
    from vit_pytorch import ViT

    def built(size: Size, patch: int) -> Any:
        return ViT(image_size=size, patch_size=patch, num_classes=2, dim=WIDTH, depth=DEPTH, heads=HEADS, mlp_dim=WIDTH)

    model = built(old, 16)

    def load() -> torch.Tensor:
        target = built(new, patch)
        target.load_state_dict(model.state_dict())
        return target.pos_embedding

    return load, model.pos_embedding


def posinterp_folder(place: Path, old: Size, new: Size, patch: int) -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
    """`posinterp resize` of timm's folder, loaded by timm."""
    import timm

    _, before = timm_folder(place, old, new, patch)

    def load() -> torch.Tensor:
        pi.resize(place, new, place / "out", patch=patch if patch != 16 else None)
        return timm.create_model(f"local-dir:{place / 'out'}", pretrained=True).pos_embed

    return load, before


def posinterp_file(place: Path, old: Size, new: Size, patch: int) -> tuple[Callable[[], torch.Tensor], torch.Tensor]:
    """`posinterp resize` of a bare file, which does not say its size: `--src-img` does where it is not square."""
    _, before = timm_file(place, old, new, patch)

    def load() -> torch.Tensor:
        given: dict[str, Any] = {"patch": patch if patch != 16 else None, "src_img": old if old[0] != old[1] else None}
        pi.resize(place / "vit.pth", new, place / "out.pth", **given)
        return torch.load(place / "out.pth", weights_only=True)["pos_embed"]

    return load, before


COLUMNS: dict[str, Callable[[Path, Size, Size, int], tuple[Callable[[], torch.Tensor], torch.Tensor]]] = {
    "timm, `local-dir:`": timm_folder,
    "timm, `checkpoint_path`": timm_file,
    "transformers": transformers_folder,
    "transformers, `ignore_mismatched_sizes`": transformers_mismatched,
    "open_clip": open_clip_file,
    "vit-pytorch": vit_pytorch_file,
    "posinterp, folder": posinterp_folder,
    "posinterp, file": posinterp_file,
}
LIBRARIES = ("timm", "transformers", "open_clip_torch", "vit-pytorch", "torch")


def table() -> str:
    """The table in Markdown: a row for each load path, a column for each case."""
    lines = [f"| | {' | '.join(CASES)} |", "|---" * (len(CASES) + 1) + "|"]
    for name, made in COLUMNS.items():
        cells = []
        for old, new, patch in CASES.values():
            torch.manual_seed(0)
            with tempfile.TemporaryDirectory() as place:
                load, before = made(Path(place), old, new, patch)
                before = before.detach().clone()
                cells.append(outcome(load, before, old, new, patch))
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def versions() -> str:
    """What it was run with."""
    return ", ".join(f"{name} {version(name)}" for name in LIBRARIES)


if __name__ == "__main__":
    print(table())
    print(f"\n{versions()}")
