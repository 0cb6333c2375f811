"""Any bytes at all, and bytes that nearly make sense: a sentence or a result, and never another exception."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import CLIP, timm_config, vit
from fuzz_targets import SEEDS, TARGETS, clean
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

EXAMPLES = int(os.environ.get("POSINTERP_FUZZ", "150"))  # for each test
fuzzed = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", autouse=True)
def _swept() -> Iterator[None]:
    yield
    clean()


SEED_FILES = sorted(path for path in SEEDS.glob("*/*") if path.is_file())


def test_there_are_seeds_of_every_target() -> None:
    assert {path.parent.name for path in SEED_FILES} == TARGETS.keys()


@pytest.mark.parametrize("path", SEED_FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_crashed_once_does_not_again(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
@given(data=st.binary(max_size=200))
@fuzzed
def test_any_bytes(target: str, data: bytes) -> None:
    TARGETS[target](data)


# ------------------------------------------------------------------ headers

WORDS = st.sampled_from(["F32", "F16", "BF16", "U8", "BOOL", "F4", "F8_E4M3", "f32", "", "I64", "C64"])
NUMBERS = st.one_of(st.integers(-1, 20), st.sampled_from([2**31, 2**63, 2**64, 10**30, 1.0, True, None, "1"]))


@st.composite
def entries(draw: st.DrawFn) -> Any:
    made: Any = {
        "dtype": draw(WORDS),
        "shape": draw(st.lists(NUMBERS, max_size=3)),
        "data_offsets": draw(st.lists(NUMBERS, max_size=3)),
    }
    for key in draw(st.lists(st.sampled_from(list(made)), max_size=1)):
        made[key] = draw(st.one_of(NUMBERS, st.just({}), st.just([[]])))
    return draw(st.sampled_from([made, made, made, [made], None]))


@given(
    st.dictionaries(st.one_of(st.sampled_from(["a", "__metadata__", "\ud800", ""]), st.text(max_size=3)), entries()),
    st.integers(-2, 40),
    st.binary(max_size=8),
)
@fuzzed
def test_headers_that_nearly_make_sense(header: Any, size: int, behind: bytes) -> None:
    text = json.dumps(header).encode()
    TARGETS["header"](len(text).to_bytes(8, "little") + text + bytes(max(size, 0)) + behind)


GOOD = save({"a": np.ones((2, 3), np.float32), "b": np.zeros(4, np.float16), "c": np.zeros(0)}, {"format": "pt"})
OLD = b"".join(pickle.dumps(part, 2) for part in (0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {}, []))
PLAIN = pickle.dumps({"state_dict": {"epoch": 3, "a": [1, 2.5, None, ("x",), b"y"]}, "set": {1, 2}}, 2)


@st.composite
def damaged(draw: st.DrawFn, *originals: bytes) -> bytes:
    raw = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, max(len(raw) - 1, 0)))
        kind = draw(st.sampled_from(["set", "cut", "insert", "double"]))
        if kind == "set" and raw:
            raw[at] = draw(st.integers(0, 255))
        elif kind == "cut":
            del raw[at : at + draw(st.integers(1, 20))]
        elif kind == "insert":
            raw[at:at] = draw(
                st.one_of(st.binary(max_size=6), st.sampled_from([b'"', b"{", b"]", b"1e9", b"-", b"q\0"]))
            )
        else:
            raw[at:at] = raw[at : at + draw(st.integers(1, 20))]
    return bytes(raw)


@given(damaged(GOOD))
@fuzzed
def test_damaged_files(data: bytes) -> None:
    TARGETS["header"](data)


@given(damaged(OLD, PLAIN))
@fuzzed
def test_damaged_pickles(data: bytes) -> None:
    TARGETS["pickled"](data)


# ------------------------------------------------------------------ layouts

TOKENS = st.sampled_from(["1", "p", "s", "h", "w", "t", "c", "u", "v", "(", ")", " ", "x", "=", ",", "offsets", "384"])


@given(st.lists(TOKENS, max_size=14))
@fuzzed
def test_layouts_that_nearly_make_sense(tokens: list[str]) -> None:
    TARGETS["layout"](" ".join(tokens).encode())
    TARGETS["layout"]("".join(tokens).encode())


# ------------------------------------------------------------------ configs

KEYS = [
    "architecture", "architectures", "model_args", "pretrained_cfg", "img_size", "input_size", "image_size",
    "patch_size", "pool_size", "test_input_size", "window_size", "model_type", "vision_config", "text_config", "size",
    "crop_size", "height", "width", "shortest_edge", "image_processor", "weight_map", "metadata", "total_size",
    "image_seq_length", "image_embedding_size", "model_cfg", "vision_cfg", "preprocess_cfg", "mean", "num_classes",
    "pos_embed", "image_mean", "do_center_crop",
]  # fmt: skip
VALUES = st.one_of(
    st.sampled_from([
        None, True, False, 0, -1, 1, 16, 64, 96, 224, 10**30, 1.5, "", "64", "vit_tiny_patch16_224", "clip", "model",
        "model.safetensors", "clip_vision_model", [64, 64], [3, 64, 64], [3, 64], [], [None, 64], [[64]], {}, "swin",
    ]),
    st.text(max_size=3),
)  # fmt: skip
CONFIGS = st.recursive(VALUES, lambda inner: st.dictionaries(st.sampled_from(KEYS), inner, max_size=5), max_leaves=12)


@given(st.dictionaries(st.sampled_from(KEYS), CONFIGS, max_size=6))
@fuzzed
def test_configs_that_nearly_make_sense(made: dict[str, Any]) -> None:
    TARGETS["config"](json.dumps(made).encode())


@given(st.dictionaries(st.sampled_from(["metadata", "more"]), CONFIGS, max_size=2))
@fuzzed
def test_indexes_with_a_field_changed(more: dict[str, Any]) -> None:
    names = [*vit((4, 4))]
    TARGETS["config"](json.dumps({"weight_map": dict.fromkeys(names, "a.safetensors"), **more}).encode())


@st.composite
def changed(draw: st.DrawFn) -> bytes:
    """A real config with a field or two changed, anywhere."""
    data = json.loads(json.dumps(draw(st.sampled_from([timm_config("vit_tiny_patch16_224", (64, 64)), CLIP]))))
    for _ in range(draw(st.integers(1, 3))):
        place = data
        while True:
            key = draw(st.sampled_from(sorted({*place, *KEYS})))
            if isinstance(place.get(key), dict) and draw(st.booleans()):
                place = place[key]
                continue
            place[key] = draw(CONFIGS)
            break
    return json.dumps(data).encode()


@given(changed())
@fuzzed
def test_configs_with_a_field_changed(data: bytes) -> None:
    TARGETS["config"](data)
