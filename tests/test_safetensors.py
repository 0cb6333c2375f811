"""The safetensors reader and header writer against the reference library, byte for byte, and against bad files."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from posinterp.errors import BadFile
from posinterp.store import strict_json
from posinterp.store.safetensors import canonical, make_header, read_header
from posinterp.store.tensors import TensorInfo, read_bytes

torch = pytest.importorskip("torch")
reference = pytest.importorskip("safetensors.torch")

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "C64": torch.complex64, "U64": torch.uint64, "U32": torch.uint32,
    "U16": torch.uint16,
}  # fmt: skip

NAMES = [
    "",
    "blocks.0.norm1.weight",
    "../../x",
    "__class__",
    "Größe · 位置",
    "emoji 🧭",
    'quote " and \\ backslash / slash',
    "control \x00\x01\x08\t\n\x0b\x0c\r\x1b\x1f\x7f\x80\u2028\ufeff",
    "x" * 300,
]


def filled(*shape: int, dtype: Any, seed: int = 0) -> Any:
    """A tensor of arbitrary bits."""
    width = torch.empty(0, dtype=dtype).element_size()
    count = int(np.prod(shape)) * width
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == torch.bool else 256, count, dtype=np.uint8)
    return torch.from_numpy(raw).view(dtype).reshape(shape) if count else torch.empty(shape, dtype=dtype)


def file(tmp_path: Path, tensors: Mapping[str, Any], metadata: dict[str, str] | None = None) -> Path:
    path = tmp_path / "x.safetensors"
    path.write_bytes(reference.save(dict(tensors), metadata))
    return path


def rewritten(path: Path) -> bytes:
    """What we would write for what we read."""
    infos, metadata = read_header(path)
    ordered = canonical(reversed(infos))
    return make_header(ordered, metadata) + b"".join(bytes(read_bytes(info)) for info in ordered)


# ------------------------------------------------------------------ the reference's files

KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "every dtype": lambda: {f"t{len(name) % 3}.{name}": filled(3, 8, dtype=kind) for name, kind in DTYPES.items()},
    "scalars": lambda: {name: filled(dtype=kind) for name, kind in DTYPES.items()},
    "empty": lambda: {"a": filled(0, 3, dtype=torch.float32), "b": filled(4, 0, dtype=torch.int8), "c": torch.ones(2)},
    "only empty": lambda: {"a": filled(0, dtype=torch.float32)},
    "names": lambda: {name: filled(2, 4, dtype=torch.float16, seed=i) for i, name in enumerate(NAMES)},
    "order": lambda: {n: torch.ones(2) for n in ["b", "a.10", "a.9", "a", "B", "ä", "a_", "aa", "𝕏", "\uffff"]},
    "padding": lambda: {"x" * n: torch.ones(1) for n in range(1, 9)},
    "nothing": lambda: {},
}  # fmt: skip


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}, {"é": '{"a": "\\n\u2028"}\t'}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_reading_and_writing_gives_the_same_bytes(tmp_path: Path, kind: str, metadata: dict[str, str] | None) -> None:
    path = file(tmp_path, KINDS[kind](), metadata)
    if kind == "nothing" and metadata == {}:
        pytest.skip("the reference writes no JSON for it: {}}")
    if not metadata:  # the reference writes an empty map, which says nothing
        assert rewritten(path) == reference.save(KINDS[kind]())
    else:
        assert rewritten(path) == path.read_bytes()


def test_save_file_writes_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    reference.save_file(KINDS["every dtype"](), path, {"format": "pt"})
    assert rewritten(path) == path.read_bytes()


def test_dtypes_narrower_than_a_byte_keep_their_place(tmp_path: Path) -> None:
    spec = pytest.importorskip("safetensors").TensorSpec
    held = np.arange(64, dtype=np.uint8)
    kinds = {"z": ("float4_e2m1fn_x2", 8), "a": ("uint8", 8), "m": ("float8_e8m0fnu", 8), "b": ("float32", 32)}
    specs = {
        name: spec(dtype=dtype, shape=[8], data_ptr=held.ctypes.data, data_len=size)
        for name, (dtype, size) in kinds.items()
    }
    path = tmp_path / "x.safetensors"
    path.write_bytes(pytest.importorskip("safetensors").serialize(specs))
    infos = {info.name: info for info in read_header(path)[0]}
    assert (infos["z"].dtype, infos["z"].shape, infos["z"].nbytes) == ("F4", (16,), 8)
    assert infos["m"].dtype == "F8_E8M0"
    assert rewritten(path) == path.read_bytes()


def test_several_metadata_keys_are_written_in_order(tmp_path: Path) -> None:
    metadata = {key: f"value of {key}" for key in ["z", "format", "a", "ü", "A"]}
    path = file(tmp_path, {"x": torch.ones(3)}, metadata)  # the reference writes them in no order
    out = rewritten(path)
    length = int.from_bytes(out[:8], "little")
    assert list(json.loads(out[8 : 8 + length])["__metadata__"]) == sorted(metadata)
    assert json.loads(out[8 : 8 + length])["__metadata__"] == metadata
    assert len(out) == path.stat().st_size
    reference.load(out)


@pytest.mark.parametrize("kind", KINDS)
def test_the_header_is_what_the_reference_sees(tmp_path: Path, kind: str) -> None:
    safe_open = pytest.importorskip("safetensors").safe_open
    path = file(tmp_path, KINDS[kind](), {"format": "pt", "note": "n"})
    infos, metadata = read_header(path)
    with safe_open(path, "pt") as theirs:
        assert metadata == theirs.metadata()
        assert {info.name for info in infos} == set(theirs.keys())
        for info in infos:
            view = theirs.get_slice(info.name)
            assert (info.dtype, list(info.shape)) == (view.get_dtype(), view.get_shape())
    raw = {name: tensor.contiguous().reshape(-1).view(torch.uint8) for name, tensor in KINDS[kind]().items()}
    assert all(bytes(read_bytes(info)) == raw[info.name].numpy().tobytes() for info in infos)
    assert all(info.file == path and info.strides is None for info in infos)


def test_a_header_in_another_order_is_put_in_order(tmp_path: Path) -> None:
    header = {
        "b": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]},
        "a": {"dtype": "F16", "shape": [1], "data_offsets": [0, 2]},
        "c": {"dtype": "F32", "shape": [1], "data_offsets": [6, 10]},
    }
    path = bare(tmp_path, header, bytes(range(10)), pad=False)
    tensors = reference.load(path.read_bytes())
    assert [info.name for info in read_header(path)[0]] == ["b", "a", "c"]
    assert rewritten(path) == reference.save(tensors)


def test_fields_that_nobody_knows_and_null_metadata_are_let_pass(tmp_path: Path) -> None:
    path = bare(tmp_path, {"__metadata__": None, "a": {**ENTRY, "extra": [1, {"deep": None}]}}, b"1234")
    infos, metadata = read_header(path)
    assert [(info.name, metadata) for info in infos] == [("a", {})]


def test_three_megabytes_of_metadata_are_kept(tmp_path: Path) -> None:
    path = file(tmp_path, {"x": torch.ones(3)}, {"notes": "ü位🧭" * 333_333})
    assert rewritten(path) == path.read_bytes()


def test_thirty_thousand_tensors_are_read_in_no_time(tmp_path: Path) -> None:
    header = {f"blocks.{i}": {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i in range(30_000)}
    path = bare(tmp_path, header, bytes(4 * 30_000))
    began = time.monotonic()
    assert len(read_header(path)[0]) == 30_000
    assert time.monotonic() - began < 20


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=("Cs",)), max_size=12).filter(lambda name: name != "__metadata__"),
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 3), max_size=3)),
        max_size=6,
    )
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_tensors_give_the_same_bytes(tmp_path: Path, described: dict[str, tuple[str, list[int]]]) -> None:
    tensors = {name: filled(*shape, dtype=DTYPES[dtype]) for name, (dtype, shape) in described.items()}
    path = file(tmp_path, tensors, {"format": "pt"})
    assert rewritten(path) == path.read_bytes()


# ------------------------------------------------------------------ bad files

ENTRY = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}


def bare(tmp_path: Path, header: object, data: bytes = b"", *, length: int | None = None, pad: bool = True) -> Path:
    """A file around a header: an object, or JSON's text as bytes."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    raw += b" " * (-len(raw) % 8) if pad else b""
    path = tmp_path / "bad.safetensors"
    path.write_bytes(struct.pack("<Q", len(raw) if length is None else length) + raw + data)
    return path


def entry(**changed: object) -> dict[str, object]:
    return {"a": {**ENTRY, **changed}}


def two(first: tuple[int, int], second: tuple[int, int]) -> dict[str, object]:
    return {
        name: {"dtype": "U8", "shape": [stop - start], "data_offsets": [start, stop]}
        for name, (start, stop) in {"a": first, "b": second}.items()
    }


def text(entry_: bytes, name: bytes = b'"a"') -> bytes:
    return b"{" + name + b":" + entry_ + b"}"


GOOD = json.dumps(ENTRY).encode()
Bad = tuple[Any, bytes, str]
BAD: dict[str, Bad] = {
    # the header's own shape
    "not UTF-8": (b'{"\xff\xfe":' + GOOD + b"}", b"1234", "invalid safetensors header: 'utf-8' codec"),
    "cut JSON": (b'{"a":{"dtype":"F32","sha', b"1234", "invalid safetensors header"),
    "a list": ([ENTRY], b"1234", "a JSON object was expected"),
    "a string": ("text", b"", "a JSON object was expected"),
    "two objects": (b"{} {}", b"", "invalid safetensors header: Extra data"),
    "byte-order mark": (b"\xef\xbb\xbf" + text(GOOD), b"1234", "invalid safetensors header"),
    "NUL padding": (text(GOOD) + b"\0\0", b"1234", "invalid safetensors header"),
    "nothing but spaces": (b" " * 8, b"", "invalid safetensors header"),
    "nested 200 000 deep": (b'{"a":' + b"[" * 200_000, b"", "nested too deeply"),
    "nested and closed": (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", b"", "nested too deeply"),
    "6000 digits": (text(b'{"dtype":"F32","shape":[' + b"1" * 6000 + b'],"data_offsets":[0,4]}'), b"1234", "integer"),
    "lone surrogate": (text(GOOD, b'"\\ud800"'), b"1234", "surrogates not allowed"),
    "lone surrogate, capital": (text(GOOD, b'"\\UD800"'.replace(b"U", b"u")), b"1234", "surrogates not allowed"),
    # names twice
    "a tensor twice": (b'{"a":' + GOOD + b',"a":' + GOOD + b"}", b"1234", "duplicate key 'a'"),
    "a tensor twice, other bytes": (
        b'{"a":' + GOOD + b',"a":' + GOOD.replace(b"0, 4", b"4, 8") + b"}", b"12345678", "duplicate key 'a'",
    ),
    "a field twice": (text(GOOD[:-1] + b',"dtype":"I32"}'), b"1234", "duplicate key 'dtype'"),
    "metadata twice": (b'{"__metadata__":{},"__metadata__":{},"a":' + GOOD + b"}", b"1234", "duplicate key '__meta"),
    "a metadata key twice": (b'{"__metadata__":{"k":"1","k":"2"}}', b"", "duplicate key 'k'"),
    # metadata
    "a number in metadata": ({"__metadata__": {"k": 1}, "a": ENTRY}, b"1234", "metadata is not a string"),
    "null in metadata": ({"__metadata__": {"k": None}, "a": ENTRY}, b"1234", "metadata is not a string"),
    "metadata a list": ({"__metadata__": ["k"], "a": ENTRY}, b"1234", "metadata is not a string"),
    # entries
    "an entry that is a list": ({"a": [1]}, b"", "tensor 'a' has not dtype, shape and data_offsets"),
    "an entry that is null": ({"a": None}, b"", "tensor 'a' has not dtype, shape and data_offsets"),
    "no dtype": ({"a": {"shape": [1], "data_offsets": [0, 4]}}, b"1234", "has not dtype, shape and data_offsets"),
    "no offsets": ({"a": {"dtype": "F32", "shape": [1]}}, b"1234", "has not dtype, shape and data_offsets"),
    "unknown dtype": (entry(dtype="F31"), b"1234", "unknown dtype 'F31'"),
    "a name without end": ({"x" * 5000: {**ENTRY, "dtype": "y" * 5000}}, b"1234", "unknown dtype 'yyyy"),
    "a name without end, a gap": ({"x" * 5000: {**ENTRY, "data_offsets": [4, 8]}}, b"12345678", "leaves a gap"),
    "lower-case dtype": (entry(dtype="f32"), b"1234", "unknown dtype 'f32'"),
    "dtype a number": (entry(dtype=32), b"1234", "unknown dtype '32'"),
    "dtype a list": (entry(dtype=["F32"]), b"1234", "unknown dtype"),
    "dimension true": (entry(shape=[True]), b"1234", "invalid shape"),
    "dimension NaN": (text(b'{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}'), b"1234", "NaN is no JSON number"),
    "dimension Infinity": (text(b'{"dtype":"F32","shape":[Infinity],"data_offsets":[0,4]}'), b"1234", "Infinity is no"),
    "dimension a float": (entry(shape=[1.0]), b"1234", "invalid shape"),
    "dimension negative": (entry(shape=[-1]), b"1234", "invalid shape"),
    "two negative dimensions": (entry(shape=[-1, -1]), b"1234", "invalid shape"),
    "dimension a string": (entry(shape=["1"]), b"1234", "invalid shape"),
    "shape a number": (entry(shape=1), b"1234", "invalid shape"),
    "shape null": (entry(shape=None), b"1234", "invalid shape"),
    "dimension of 2^64": (entry(shape=[1 << 64]), b"1234", "invalid shape"),
    "product past 64 bits": (entry(shape=[1 << 62, 1 << 62]), b"1234", "has not the size of its 4 bytes"),
    "product that wraps to the size": (entry(shape=[1 << 32, 1 << 32, 1]), b"", "has not the size"),
    "shape and bytes disagree": (entry(shape=[2]), b"1234", "[2] and dtype F32 has not the size of its 4 bytes"),
    "half a byte over": ({"a": {"dtype": "F4", "shape": [9], "data_offsets": [0, 4]}}, b"1234", "has not the size"),
    "offsets negative": (entry(data_offsets=[-4, 0]), b"1234", "invalid data_offsets"),
    "offsets reversed": (entry(data_offsets=[4, 0]), b"1234", "invalid data_offsets"),
    "offsets floats": (entry(data_offsets=[0.0, 4.0]), b"1234", "invalid data_offsets"),
    "offsets true": (entry(data_offsets=[False, 4]), b"1234", "invalid data_offsets"),
    "one offset": (entry(data_offsets=[4]), b"1234", "invalid data_offsets"),
    "three offsets": (entry(data_offsets=[0, 4, 4]), b"1234", "invalid data_offsets"),
    "offsets null": (entry(data_offsets=None), b"1234", "invalid data_offsets"),
    # how the tensors lie
    "overlap": (two((0, 4), (2, 6)), b"123456", "tensor 'b' overlaps another"),
    "the same bytes": (two((0, 4), (0, 4)), b"1234", "overlaps another"),
    "a hole": (two((0, 4), (6, 8)), b"12345678", "tensor 'b' leaves a gap before it"),
    "a hole at the start": (two((2, 4), (4, 8)), b"12345678", "tensor 'a' leaves a gap before it"),
    "trailing bytes": (entry(), b"123456", "has 2 trailing bytes after its last tensor"),
    "bytes without a tensor": ({}, b"1", "has 1 trailing bytes"),
    "data cut": (entry(), b"12", "is truncated: its tensors end at byte"),
    "no data": (entry(), b"", "is truncated: its tensors end at byte"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_bad_headers_are_refused(tmp_path: Path, case: str) -> None:
    header, data, message = BAD[case]
    path = bare(tmp_path, header, data)
    began = time.monotonic()
    with pytest.raises(BadFile) as caught:
        read_header(path)
    assert time.monotonic() - began < 20
    assert message in caught.value.message
    assert caught.value.message.startswith(str(path)) or f"{path}:" in caught.value.message
    assert caught.value.kind == "bad_file"
    assert len(caught.value.message) < len(str(path)) + 400
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


# What the reference lets through and we do not: two readers would read it differently, or nobody can write it again.
STRICTER = {"a tensor twice", "a metadata key twice"}


@pytest.mark.parametrize("case", sorted(BAD.keys() - STRICTER))
def test_the_reference_refuses_them_too(tmp_path: Path, case: str) -> None:
    header, data, _ = BAD[case]
    with pytest.raises(Exception, match=r".+"):
        reference.load_file(bare(tmp_path, header, data))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has 0 bytes: empty or truncated"),
        (b"abc", "has 3 bytes: empty or truncated"),
        (b"1234567", "has 7 bytes: empty or truncated"),
        (bytes(8), "header length would be 0 bytes"),
        (bytes(100), "header length would be 0 bytes"),
        (struct.pack("<Q", 1 << 63) + b"{}", "header length would be 9223372036854775808 bytes"),
        (struct.pack("<Q", (1 << 64) - 1) + b"{}", "header length would be 18446744073709551615 bytes"),
        (struct.pack("<Q", 100_000_001) + b"{}", "header length would be 100000001 bytes"),
        (struct.pack("<Q", 100) + b"{}", "is truncated: its header ends at byte 108, the file at 10"),
    ],
)
def test_bad_beginnings_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(content)
    with pytest.raises(BadFile) as caught:
        read_header(path)
    assert f"{path}" in caught.value.message
    assert message in caught.value.message


def test_a_hundred_thousand_entries_on_the_same_bytes_are_refused_soon(tmp_path: Path) -> None:
    same = json.dumps({"dtype": "U8", "shape": [16384], "data_offsets": [0, 16384]})
    header = "{" + ",".join(f'"{i}":{same}' for i in range(100_000)) + "}"
    path = bare(tmp_path, header.encode(), bytes(16384))
    began = time.monotonic()
    with pytest.raises(BadFile, match="overlaps another"):
        read_header(path)
    assert time.monotonic() - began < 20


SMALL = {"a": torch.ones(2, 3), "b.ü": torch.zeros(4, dtype=torch.float16), "c": torch.zeros(0)}


@given(st.data())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_is_a_sentence_or_a_result(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(reference.save(SMALL, {"format": "pt"}))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1)) if raw else 0
        kind = data.draw(st.sampled_from(["set", "cut", "insert", "end"]))
        if kind == "set" and raw:
            raw[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del raw[at : at + data.draw(st.integers(1, 9))]
        elif kind == "insert":
            raw[at:at] = data.draw(st.one_of(st.binary(max_size=4), st.sampled_from([b'"', b"{", b"]", b"1e9", b"-"])))
        else:
            del raw[at:]
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(raw)
    try:
        infos, metadata = read_header(path)
    except BadFile:
        return
    assert all(isinstance(value, str) for value in metadata.values())
    assert all(isinstance(info, TensorInfo) and len(read_bytes(info)) == info.nbytes for info in infos)
    assert set(reference.load(bytes(raw))) == {info.name for info in infos}  # never looser than the reference


# ------------------------------------------------------------------ JSON of strangers


@pytest.mark.parametrize(
    ("text_", "value"),
    [
        (b'{"a": [1, 2.5, true, null, "\\ud83e\\udded"]}', {"a": [1, 2.5, True, None, "🧭"]}),
        ('"ü"'.encode(), "ü"),
        (b'  {"\\ud83e\\udded": 1}\n', {"🧭": 1}),
        (b'{"a": {"k": 1}, "b": {"k": 1}}', {"a": {"k": 1}, "b": {"k": 1}}),
        (b'"\\\\ud800"', "\\ud800"),
    ],
)
def test_good_json_is_read(text_: bytes, value: object) -> None:
    assert strict_json.loads(text_) == value


@pytest.mark.parametrize(
    ("text_", "message"),
    [
        (b"", "Expecting value"),
        (b"{'a': 1}", "Expecting property name"),
        (b'{"a": {"k": 1, "k": 1}}', "duplicate key 'k'"),
        (b"[-Infinity]", "-Infinity is no JSON number"),
        (b"[NaN]", "NaN is no JSON number"),
        (b'{"a": "\\udfff"}', "surrogates not allowed"),
        (b'"\xed\xa0\x80"', "'utf-8' codec"),
        (b'{"' + b"k" * 500 + b'": 1, "' + b"k" * 500 + b'": 1}', "duplicate key"),
    ],
)
def test_bad_json_is_refused(text_: bytes, message: str) -> None:
    with pytest.raises(strict_json.NotStrict) as caught:
        strict_json.loads(text_)
    assert message in str(caught.value)
    assert len(str(caught.value)) <= 200
