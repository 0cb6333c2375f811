"""How much of transformers posinterp converts: every type that takes images, held against the library's own shapes.

    python docs/coverage_transformers.py [TYPE ...]

Each model class of each type is built on the meta device (no weight is made) and written as a folder whose weights are
a hole on the disk, under the names that the library gives them there. The folder is planned at another size, its config
edited as the plan says, and the library's model built from that config: a class counts as converted where its shapes
are the planned ones. What is refused is listed with the reason. About five minutes for all types on two cores.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posinterp import PosinterpError, plan
from posinterp import config as configs
from posinterp.config.fields import applied
from posinterp.errors import BadSize
from posinterp.store import open_checkpoint
from posinterp.store.tensors import byte_size

SIZES = ("image_size", "img_size", "input_size", "crop_size", "num_frames", "window_size", "num_mel_bins")
TASKS = (
    "MODEL", "MODEL_FOR_PRETRAINING", "MODEL_FOR_IMAGE_CLASSIFICATION", "MODEL_FOR_DEPTH_ESTIMATION",
    "MODEL_FOR_OBJECT_DETECTION", "MODEL_FOR_IMAGE_TEXT_TO_TEXT", "MODEL_FOR_BACKBONE", "MODEL_FOR_MASK_GENERATION",
    "MODEL_FOR_UNIVERSAL_SEGMENTATION", "MODEL_FOR_SEMANTIC_SEGMENTATION", "MODEL_FOR_VIDEO_CLASSIFICATION",
    "MODEL_FOR_AUDIO_CLASSIFICATION",
)  # fmt: skip
DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "bool": "BOOL",
          "uint8": "U8", "complex64": "C64"}  # fmt: skip
Shapes = dict[str, tuple[int, ...]]


def says_a_size(config: Any) -> bool:
    """Whether a config, or one inside it, has a field that follows the image."""
    if not isinstance(config, dict):
        return False
    return any(value and any(one in str(key) for one in SIZES) for key, value in config.items()) or any(
        says_a_size(value) for value in config.values()
    )


def classes(config: Any) -> Iterator[Any]:
    """The library's model classes for a config."""
    from transformers.models.auto import modeling_auto

    seen = set()
    for task in TASKS:
        mapping = getattr(modeling_auto, f"{task}_MAPPING", {})
        try:
            found = mapping[type(config)]
        except (KeyError, ValueError, ImportError, AttributeError):
            continue
        for kind in found if isinstance(found, (list, tuple)) else [found]:
            if kind not in seen:
                seen.add(kind)
                yield kind


def built(kind: Any, config: Any) -> dict[str, Any]:
    """A model's state on the meta device, by the names that stand on disk."""
    import torch
    from transformers.core_model_loading import revert_weight_conversion

    own = copy.deepcopy(config)
    own._attn_implementation = "eager"
    with torch.device("meta"):
        model = kind(own)
    state = revert_weight_conversion(model, model.state_dict())
    tied = set(getattr(model, "all_tied_weights_keys", None) or ())
    return {key: value for key, value in state.items() if key not in tied}


def write(folder: Path, state: dict[str, Any], config: Any, kind: Any) -> None:
    """A folder as `save_pretrained` writes it, whose weights take no room."""
    header: dict[str, Any] = {}
    end = 0
    for key, value in state.items():
        dtype, shape = DTYPES[str(value.dtype).removeprefix("torch.")], tuple(value.shape)
        size = byte_size(dtype, shape)
        header[key] = {"dtype": dtype, "shape": list(shape), "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        file.truncate(8 + len(raw) + end)
    own = copy.deepcopy(config)
    own.architectures = [kind.__name__]
    (folder / "config.json").write_text(own.to_json_string(use_diff=False))


def judge(name: str, kind: Any, config: Any, folder: Path) -> tuple[str, str]:
    """What becomes of one class, and why."""
    try:
        state = built(kind, config)
        write(folder, state, config, kind)
    except Exception as error:  # a default config that the library cannot build, a package that it lacks
        return "not built", f"{type(error).__name__}: {error}"
    source = open_checkpoint(folder)
    try:
        made = _planned(source)
    except PosinterpError as error:
        return ("refused" if error.kind != "unknown_family" else "not known"), error.message
    data = applied(
        source.config.data if source.config else {}, [edit for edit in made.config if edit.file == "config.json"]
    )
    try:
        target = type(config).from_dict(data)
    except Exception as error:  # of the library's own config, as the library wrote it
        return "not built", f"{type(error).__name__}: {error}"
    wanted = {key: tuple(value.shape) for key, value in built(kind, target).items()}
    own: Shapes = {key: info.shape for key, info in source.tensors.items() if key not in made.drop}
    own |= {edit.name: edit.new_shape for edit in made.edits}
    if own != wanted:
        astray = sorted(key for key in {*own, *wanted} if own.get(key) != wanted.get(key))
        return "wrong", f"{astray[0]} is {own.get(astray[0])}, the library's {wanted.get(astray[0])}"
    return ("converted" if made.edits else "does not follow the size"), made.family.name


def _planned(source: Any) -> Any:
    """The plan at the first larger size that the model can have."""
    sizes = [size for _, size in configs.source_sizes(source.config)] or [(224, 224)]
    high, wide = sizes[0]
    tries = [
        (high * 3 // 2, wide * 3 // 2),
        (high * 2, wide * 2),
        (high // 14 * 14 + 112,) * 2,
        (high // 32 * 32 + 96,) * 2,
    ]
    for size in tries[:-1]:
        try:
            return plan(source, size)
        except BadSize:
            continue
    return plan(source, tries[-1])


def main() -> int:
    import transformers
    from transformers import CONFIG_MAPPING

    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    counts: Counter[str] = Counter()
    lines: dict[str, list[str]] = {}
    for name in sorted(sys.argv[1:] or CONFIG_MAPPING.keys()):
        try:
            config = CONFIG_MAPPING[name]()
        except Exception:
            continue
        if not says_a_size(config.to_dict()):
            continue
        for kind in classes(config):
            with tempfile.TemporaryDirectory() as place:
                verdict, why = judge(name, kind, config, Path(place))
            counts[verdict] += 1
            lines.setdefault(verdict, []).append(f"{name}: {kind.__name__}: {' '.join(why.split())[:160]}")
    print(f"transformers {transformers.__version__}: {sum(counts.values())} classes of types that say a size")
    for verdict, count in counts.most_common():
        print(f"  {count:5}  {verdict}")
    for verdict in ("wrong", "refused", "not known", "not built"):
        for line in lines.get(verdict, []):
            print(f"{verdict}: {line}")
    return 1 if counts["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
