"""Bytes to float64 and back: every pattern survives, and what is computed is rounded once, to nearest even."""

from __future__ import annotations

import struct
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from posinterp.errors import BadFile, BadValues
from posinterp.store.tensors import (
    BF16_MAX,
    BITS,
    TensorInfo,
    byte_size,
    decode,
    encode,
    read_bytes,
    read_float,
    read_range,
    storage,
)

torch = pytest.importorskip("torch")

Floats = NDArray[np.float64]
TORCH = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32, "F64": torch.float64}
MANTISSA = {"F16": 10, "BF16": 7}  # stored bits
LOWEST = {"F16": -14, "BF16": -126}  # exponent of the smallest normal number
TOP = {"F16": 65504.0, "BF16": BF16_MAX, "F32": float(np.finfo("f4").max), "F64": float(np.finfo("f8").max)}


def numbers(dtype: str) -> Floats:
    """Every finite number of a 16-bit dtype, by pattern."""
    patterns = torch.arange(-(1 << 15), 1 << 15).to(torch.int16)
    values: Floats = patterns.view(TORCH[dtype]).double().numpy()
    return values[np.isfinite(values)]


def as_floats(items: NDArray[np.void], dtype: str) -> Floats:
    """Stored items as torch reads them."""
    values: Floats = torch.frombuffer(bytearray(items.tobytes()), dtype=TORCH[dtype]).double().numpy()
    return values


def encoded(values: Floats, dtype: str) -> Floats:
    return as_floats(encode(np.asarray(values, dtype=np.float64), dtype), dtype)


def nearest(values: Floats, dtype: str) -> Floats:
    """Round to nearest even, from the definition of the format: a whole number of units in the last place."""
    _, exponent = np.frexp(values)
    unit = np.maximum(exponent - 1, LOWEST[dtype]) - MANTISSA[dtype]
    return np.clip(np.ldexp(np.round(np.ldexp(values, -unit)), unit), -TOP[dtype], TOP[dtype])


# ------------------------------------------------------------------ there and back


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_every_finite_pattern_survives(dtype: str) -> None:
    raw = np.arange(1 << 16, dtype="<u2")
    values = decode(raw.tobytes(), dtype, raw.shape, name="x")
    finite = np.isfinite(values)
    assert finite.sum() == {"F16": (1 << 16) - 2 * 1024, "BF16": (1 << 16) - 2 * 128}[dtype]
    np.testing.assert_array_equal(encode(values[finite], dtype).view("<u2"), raw[finite])


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32", "F64"])
def test_decoding_is_torchs(dtype: str) -> None:
    raw = np.random.default_rng(0).integers(0, 256, 4096, dtype=np.uint8).tobytes()
    right = torch.frombuffer(bytearray(raw), dtype=TORCH[dtype]).double().numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # there are signalling NaNs among them
        values = decode(raw, dtype, (2, right.size // 2), name="x")
    assert values.dtype == np.float64
    np.testing.assert_array_equal(values.reshape(-1), right)


@pytest.mark.parametrize(("dtype", "width"), [("F32", "f4"), ("F64", "f8")])
def test_wide_floats_survive(dtype: str, width: str) -> None:
    raw = np.random.default_rng(1).integers(0, 256, 8192, dtype=np.uint8).tobytes()
    finite = np.frombuffer(raw, width)[np.isfinite(np.frombuffer(raw, width))]
    values = decode(finite.tobytes(), dtype, finite.shape, name="x")
    assert encode(values, dtype).tobytes() == finite.tobytes()


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32", "F64"])
def test_minus_zero_keeps_its_sign(dtype: str) -> None:
    assert np.signbit(encoded(np.array([-0.0]), dtype))[0]
    assert not np.signbit(encoded(np.array([0.0]), dtype))[0]


# ------------------------------------------------------------------ rounding


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_between_two_numbers_the_nearer_and_at_the_tie_the_even(dtype: str) -> None:
    ordered = np.unique(numbers(dtype))
    low, high = ordered[:-1], ordered[1:]
    tie = low / 2 + high / 2
    above, below = np.nextafter(tie, np.inf), np.nextafter(tie, -np.inf)
    np.testing.assert_array_equal(encoded(above, dtype), high)  # float32 cannot tell it from the tie
    np.testing.assert_array_equal(encoded(below, dtype), low)
    np.testing.assert_array_equal(encoded(tie, dtype), nearest(tie, dtype))
    even = encode(tie, dtype).view("<u2") % 2 == 0
    assert even.all()


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_the_traps_are_traps(dtype: str) -> None:
    ordered = np.unique(numbers(dtype))
    above = np.nextafter(ordered[:-1] / 2 + ordered[1:] / 2, np.inf)
    by_float32 = torch.tensor(above).float().to(TORCH[dtype]).double().numpy()
    assert (by_float32 != ordered[1:]).sum() > 10_000


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_rounding_is_torchs_where_float32_is_exact(dtype: str) -> None:
    rng = np.random.default_rng(2)
    patterns = rng.integers(0, 1 << 32, 20_000, dtype=np.uint64).astype(np.uint32).view(np.float32)
    ordered = np.unique(numbers(dtype))
    ties = (ordered[:-1] / 2 + ordered[1:] / 2).astype(np.float32)
    single = np.concatenate([patterns[np.isfinite(patterns)], ties, rng.standard_normal(20_000).astype(np.float32)])
    right = torch.tensor(single).to(TORCH[dtype]).double().numpy()
    right = np.clip(right, -TOP[dtype], TOP[dtype])  # torch says Inf there
    np.testing.assert_array_equal(encoded(single.astype(np.float64), dtype), right)


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
@settings(max_examples=200, deadline=None)
def test_any_float64_goes_to_the_nearest(dtype: str, values: list[float]) -> None:
    exact = np.array(values)
    np.testing.assert_array_equal(encoded(exact, dtype), nearest(np.clip(exact, -TOP[dtype], TOP[dtype]), dtype))


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_subnormals(dtype: str) -> None:
    unit = 2.0 ** (LOWEST[dtype] - MANTISSA[dtype])
    exact = np.array([unit, 2.5 * unit, 3.5 * unit, 0.5 * unit, 0.5000001 * unit, -1.5 * unit, 0.49 * unit, 1e-300])
    np.testing.assert_array_equal(encoded(exact, dtype) / unit, [1, 2, 4, 0, 1, -2, 0, 0])


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32"])
def test_an_overshoot_is_clipped_to_the_largest_number(dtype: str) -> None:
    top = TOP[dtype]
    exact = np.array([top, np.nextafter(top, np.inf), 1.001 * top, 4 * top, -top, -1.001 * top, -(2.0**200)])
    assert encoded(exact, dtype).tolist() == [top, top, top, top, -top, -top, -top]


def test_float32_is_numpys() -> None:
    exact = np.random.default_rng(3).standard_normal(1000)
    np.testing.assert_array_equal(encoded(exact, "F32"), exact.astype(np.float32))
    np.testing.assert_array_equal(encoded(exact, "F64"), exact)


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32", "F64"])
def test_shapes_are_kept(dtype: str) -> None:
    items = encode(np.zeros((2, 0, 3)), dtype)
    assert items.shape == (2, 0, 3)
    assert encode(np.zeros((2, 3)), dtype).dtype.itemsize * 8 == BITS[dtype]


# ------------------------------------------------------------------ what has no values to average


@pytest.mark.parametrize("dtype", sorted(BITS.keys() - TORCH.keys()))
def test_other_dtypes_are_refused_by_name(dtype: str) -> None:
    with pytest.raises(BadValues) as caught:
        decode(b"\0" * 8, dtype, (1,), name="pos_embed")
    assert f"pos_embed is stored as {dtype}; only F16, BF16, F32 and F64" in caught.value.message
    assert caught.value.hint
    assert caught.value.kind == "bad_values"


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"),
    [
        ("F32", (2, 3), 24),
        ("BF16", (), 2),
        ("F4", (8,), 4),
        ("F6_E2M3", (4, 2), 6),
        ("I64", (0, 5), 0),
        ("C64", (3,), 24),
    ],
)
def test_byte_size(dtype: str, shape: tuple[int, ...], nbytes: int) -> None:
    assert byte_size(dtype, shape) == nbytes


# ------------------------------------------------------------------ reading


def test_a_range_is_read_from_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(bytes(range(100)))
    assert read_range(file, 10, 5) == bytes(range(10, 15))
    assert read_range(file, 3, 0) == b""
    info = TensorInfo("x", "F32", (2,), file, 8, 8)
    assert read_bytes(info) == bytes(range(8, 16))
    assert read_float(info).tolist() == list(struct.unpack("<2f", bytes(range(8, 16))))


def test_a_range_past_the_end_is_said(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(bytes(100))
    with pytest.raises(BadFile, match="ends 7 bytes too early: truncated, or changed while it was read"):
        read_range(file, 95, 12)


def test_bytes_in_memory_are_not_read_from_a_file() -> None:
    info = TensorInfo("x", "F32", (1,), Path("/nowhere"), data=memoryview(struct.pack("<f", 2.5)))
    assert read_float(info).tolist() == [2.5]


@pytest.mark.parametrize("dtype", ["F16", "F32", "F64"])
def test_strides_are_followed(tmp_path: Path, dtype: str) -> None:
    full = torch.arange(60, dtype=TORCH[dtype]).reshape(3, 4, 5)
    file = tmp_path / "x"
    file.write_bytes(b"head" * 4 + full.numpy().tobytes())
    for view in (full.permute(2, 0, 1), full[:, 1:3, ::2], full[1:2].expand(4, 4, 5), full[:0]):
        start = 16 + view.storage_offset() * full.itemsize
        info = TensorInfo("x", dtype, tuple(view.shape), file, start, 0, strides=tuple(view.stride()))
        np.testing.assert_array_equal(read_float(info), view.double().numpy())
    nothing = TensorInfo("x", dtype, (0, 3), tmp_path / "nowhere", 0, 0, strides=(3, 1))
    assert read_float(nothing).shape == (0, 3)


def test_storage_keeps_every_bit() -> None:
    raw = np.array([0x7F800001, 0xFFBFFFFF, 0x80000000, 1], dtype="<u4").tobytes()  # signalling NaNs, -0, subnormal
    items = storage(raw, "F32", (2, 2))
    assert items.T[:, ::-1].T[::-1].tobytes() == raw
    assert items.shape == (2, 2)
