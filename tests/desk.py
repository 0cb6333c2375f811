"""A reader's folder for the commands of the docs: the fixtures, and small checkpoints of the kinds that the pages speak of."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conftest import CLIP, ROOT, clip, save, swin, table, timm_config, vit
from PIL import Image
from safetensors.numpy import save_file

from posinterp.formulas import sines

WIDTH = 8  # of every table: the grids are the real ones


def furnish(place: Path) -> None:
    """Lay everything out in a folder."""
    shutil.copytree(
        ROOT / "fixtures", place / "fixtures", ignore=shutil.ignore_patterns("fashion-vit-*", "__pycache__")
    )
    save(place / "model.safetensors", vit())
    save(place / "swin", swin(), timm_config("swin_tiny_patch4_window7_224", (224, 224)))
    save(place / "clip", clip(), CLIP)
    private = {"net.places": table((14, 14), 8, 1), "net.stem.weight": np.ones((8, 3, 16, 16), np.float32)}
    save(place / "private.safetensors", private)
    (place / "images").mkdir()
    with np.load(ROOT / "fixtures" / "fashion-test.npz") as data:
        for i, pixels in enumerate(data["images"][:40]):
            Image.fromarray(pixels).save(place / "images" / f"{i:02}.png")
    weights = {name: torch.from_numpy(value) for name, value in vit().items()}
    torch.save({"model": weights, "model_ema": weights, "epoch": 3}, place / "train.pth")
    small = {name: torch.from_numpy(value) for name, value in vit((4, 4)).items()}
    moments = {"exp_avg": torch.ones(1, 17, 8), "exp_avg_sq": torch.ones(1, 17, 8), "step": torch.tensor(2.0)}
    groups = {"state": {0: moments}, "param_groups": [{"lr": 1e-3, "params": [0]}]}
    torch.save({"model": small, "optimizer": groups}, place / "run.pth")
    clip_config = {"model_type": "vivit", "image_size": 64, "num_frames": 4, "tubelet_size": [2, 16, 16]}
    clips = {
        "embeddings.position_embeddings": table((8, 4), 8, 1),
        "embeddings.cls_token": np.ones((1, 1, 8), np.float32),
        "embeddings.patch_embeddings.projection.weight": np.ones((8, 3, 2, 16, 16), np.float32),
    }
    save(place / "video", clips, clip_config)
    np.savez(
        place / "ViT.npz",
        **{
            "Transformer/posembed_input/pos_embedding": table((14, 14), 8, 1),
            "cls": np.ones((1, 1, 8), np.float32),
            "embedding/bias": np.ones(8, np.float32),
            "embedding/kernel": np.ones((16, 16, 3, 8), np.float32),
        },
    )
    save(place / "mae.safetensors", mae())
    for name, (tensors, config) in KINDS.items():
        save(place / name, tensors, config)
    (place / "openclip").mkdir()
    save_file(OPEN_CLIP, place / "openclip" / "open_clip_model.safetensors")
    (place / "openclip" / "open_clip_config.json").write_text(json.dumps(OPEN_CLIP_CONFIG))
    (place / "llava" / "preprocessor_config.json").write_text(json.dumps(LLAVA_IMAGES))
    (place / "ast" / "preprocessor_config.json").write_text(json.dumps({"max_length": 1024, "num_mel_bins": 128}))


def mae() -> dict[str, np.ndarray]:
    """MAE's encoder and decoder, with the fixed sines that they have."""
    tables = {
        name: np.concatenate([np.zeros((1, width)), sines(14, 14, width).reshape(196, width)])[None].astype(np.float32)
        for name, width in (("pos_embed", 8), ("decoder_pos_embed", 4))
    }
    return {**vit(), **tables, "decoder_blocks.0.attn.qkv.weight": ones(12, 4)}


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def sam() -> dict[str, np.ndarray]:
    """timm's SAM encoder, base: known by its width. Blocks of windows have tables of 27 offsets, those of the image 127."""
    offsets = {
        f"blocks.{block}.attn.rel_pos_{axis}": table((1, 27 if block == 0 else 127), 64)[0]
        for block in (0, 2, 5, 8, 11)
        for axis in "hw"
    }
    return {
        "pos_embed": table((64, 64), 768).reshape(1, 64, 64, 768),
        "patch_embed.proj.weight": ones(768, 3, 16, 16),
        **offsets,
    }


OPEN_CLIP = {
    "positional_embedding": ones(77, WIDTH),
    "visual.positional_embedding": table((14, 14), WIDTH, 1)[0],
    "visual.class_embedding": ones(WIDTH),
    "visual.conv1.weight": ones(WIDTH, 3, 16, 16),
    "visual.transformer.resblocks.0.ln_1.weight": ones(WIDTH),
    "transformer.resblocks.0.ln_1.weight": ones(WIDTH),
    "logit_scale": np.array(1.0, np.float32),
}
OPEN_CLIP_CONFIG = {
    "model_cfg": {"embed_dim": 8, "vision_cfg": {"image_size": 224, "patch_size": 16}, "text_cfg": {}},
    "preprocess_cfg": {"size": [224, 224], "mean": [0.48, 0.46, 0.41]},
}
LLAVA_IMAGES = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}, "do_center_crop": True}
TOWER = "model.vision_tower.vision_model.embeddings"
KINDS: dict[str, tuple[dict[str, np.ndarray], dict[str, Any]]] = {
    "dinov2": (vit((37, 37), patch=14), timm_config("vit_small_patch14_dinov2", (518, 518))),
    "sam": (sam(), timm_config("samvit_base_patch16", (1024, 1024))),
    "llava": (
        {
            f"{TOWER}.class_embedding": ones(WIDTH),
            f"{TOWER}.patch_embedding.weight": ones(WIDTH, 3, 14, 14),
            f"{TOWER}.position_embedding.weight": table((24, 24), WIDTH, 1)[0],
            "model.multi_modal_projector.linear_1.weight": ones(4, WIDTH),
            "model.language_model.embed_tokens.weight": ones(10, 4),
        },
        {
            "model_type": "llava",
            "image_seq_length": 576,
            "text_config": {"model_type": "llama"},
            "vision_config": {"model_type": "clip_vision_model", "image_size": 336, "patch_size": 14},
        },
    ),
    "ast": (
        {
            "audio_spectrogram_transformer.embeddings.cls_token": ones(1, 1, WIDTH),
            "audio_spectrogram_transformer.embeddings.distillation_token": ones(1, 1, WIDTH),
            "audio_spectrogram_transformer.embeddings.position_embeddings": table((12, 101), WIDTH, 2),
            "audio_spectrogram_transformer.embeddings.patch_embeddings.projection.weight": ones(WIDTH, 1, 16, 16),
        },
        {
            "model_type": "audio-spectrogram-transformer",
            "num_mel_bins": 128,
            "max_length": 1024,
            "patch_size": 16,
            "frequency_stride": 10,
            "time_stride": 10,
        },
    ),
}
