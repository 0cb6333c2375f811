"""The .pth reader: torch's own files to the byte, hostile files to a sentence."""

from __future__ import annotations

import argparse
import io
import os
import pathlib
import pickle
import re
import struct
import subprocess
import sys
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from posinterp.errors import BadFile, PosinterpError, Unsupported
from posinterp.store import checks, pickle_names, torch_legacy, torch_tensors, torch_zip
from posinterp.store import pickle as reader
from posinterp.store.pickle import PickleFile, TorchName, read_pickle
from posinterp.store.tensors import TensorInfo, read_bytes
from posinterp.store.torch_legacy import BEGINNING

torch = pytest.importorskip("torch")


def raw(tensor: Any) -> bytes:
    """A tensor's values as torch sees them."""
    dense = tensor.detach().clone(memory_format=torch.contiguous_format)
    return bytes(dense.reshape(-1).view(torch.uint8).numpy())


def saved(tmp_path: Path, what: Any, **options: Any) -> PickleFile:
    torch.save(what, tmp_path / "model.pth", **options)
    return read_pickle(tmp_path / "model.pth")


def same(info: TensorInfo, tensor: Any) -> bool:
    return info.shape == tuple(tensor.shape) and bytes(read_bytes(info)) == raw(tensor)


# ------------------------------------------------------------------ real files

LAYOUTS = [{}, {"pickle_protocol": 4}, {"pickle_protocol": 5}, {"_use_new_zipfile_serialization": False}]

TENSORS: dict[str, Callable[[], Any]] = {
    "f32": lambda: torch.randn(2, 3),
    "f16": lambda: torch.randn(5).half(),
    "bf16": lambda: torch.randn(4, 2).bfloat16(),
    "f64": lambda: torch.randn(2, dtype=torch.float64),
    "i64": lambda: torch.arange(5),
    "i8": lambda: torch.arange(-3, 3, dtype=torch.int8),
    "bool": lambda: torch.tensor([True, False, True]),
    "c64": lambda: torch.randn(3, dtype=torch.complex64),
    "scalar": lambda: torch.tensor(2.5),
    "empty": lambda: torch.empty(0, 7),
    "transposed": lambda: torch.randn(3, 4, 5).permute(2, 0, 1),
    "slice": lambda: torch.randn(10, 6)[3:7, 1:4],
    "stepped": lambda: torch.arange(20.0)[::3],
    "stepped once": lambda: torch.arange(20.0)[3::3][:1],
    "broadcast": lambda: torch.randn(1, 3).expand(4, 3),
    "parameter": lambda: torch.nn.Parameter(torch.randn(3)),
}


@pytest.mark.parametrize("options", LAYOUTS, ids=str)
def test_every_kind_of_tensor_reads_back_as_torch_has_it(tmp_path: Path, options: dict[str, Any]) -> None:
    tensors: dict[str, Any] = {name: make() for name, make in TENSORS.items()}
    file = saved(tmp_path, tensors, **options)
    assert list(file.tensors) == list(tensors)
    assert all(same(file.tensors[name], tensor) for name, tensor in tensors.items())
    assert all(file.tree[name] is info for name, info in file.tensors.items())


def test_dtypes_without_a_storage_class_and_tensors_with_attributes(tmp_path: Path) -> None:
    marked = torch.nn.Parameter(torch.ones(2))
    marked.no_decay = True
    plain = torch.zeros(3)
    plain.note = "x"
    tensors = {"f8": torch.ones(3).to(torch.float8_e5m2), "u16": torch.arange(3).to(torch.uint16)[1:]}
    file = saved(tmp_path, {**tensors, "marked": marked, "plain": plain})
    assert [info.dtype for info in file.tensors.values()] == ["F8_E5M2", "U16", "F32", "F32"]
    assert all(same(file.tensors[name], tensor) for name, tensor in tensors.items())


@pytest.mark.parametrize("options", LAYOUTS[:2] + LAYOUTS[3:], ids=str)
def test_training_checkpoint(tmp_path: Path, options: dict[str, Any]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    weights, ema = model.state_dict(), {name: value * 2 for name, value in model.state_dict().items()}
    args = argparse.Namespace(lr=0.1, betas=(0.9, 0.99), sizes=[1, {"a": None}])
    state = {"model": weights, "model_ema": ema, "args": args, "optimizer": optimizer.state_dict(), "epoch": 3}
    file = saved(tmp_path, state, **options)
    assert file.tree["args"] == args
    assert file.tree["epoch"] == 3
    assert type(file.tree["model"]) is OrderedDict
    assert vars(file.tree["model"])["_metadata"] == weights._metadata
    assert list(file.tensors)[:2] == ["model/0.weight", "model/0.bias"]
    assert all(same(file.tensors[f"model/{name}"], tensor) for name, tensor in weights.items())
    assert all(same(file.tensors[f"model_ema/{name}"], tensor) for name, tensor in ema.items())
    assert same(file.tensors["optimizer/state/0/exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])


def test_plain_values_survive(tmp_path: Path) -> None:
    values = {
        "numpy": np.float64(1.5), "array": np.arange(6.0).reshape(2, 3), "fortran": np.asfortranarray(np.eye(3, 2)),
        "text": np.str_("abc"), "bool": np.bool_(True), "dtype": np.dtype("float32"), "bytes": b"a\xff", "none": None,
        "bytearray": bytearray(b"xy"), "set": {1, "a"}, "frozen": frozenset([2]), "complex": 1 + 2j, "big": 2**60,
        "counter": Counter("aab"), "size": torch.Size([2, 3]), "device": torch.device("cuda", 1),
        "torch_dtype": torch.bfloat16, "path": pathlib.PurePosixPath("/a/b"), 7: (True, 2.5), "nothing": b"",
    }  # fmt: skip
    for protocol in (2, 4):
        tree = saved(tmp_path, values, pickle_protocol=protocol).tree
        np.testing.assert_array_equal(tree.pop("array"), values["array"])
        np.testing.assert_array_equal(tree.pop("fortran"), values["fortran"])
        expected = {k: v for k, v in values.items() if k not in ("array", "fortran")}
        expected |= {"size": (2, 3), "device": TorchName("torch.device", ("cuda", 1)), "path": "/a/b"}
        assert tree == expected | {"torch_dtype": TorchName("torch.bfloat16")}
        assert type(tree["numpy"]) is np.float64


def test_one_storage_under_two_names(tmp_path: Path) -> None:
    weight = torch.randn(4, 3)
    file = saved(tmp_path, {"a": weight, "again": weight, "row": weight[1], "list": [weight, (weight,)]})
    assert list(file.tensors) == ["a", "again", "row", "list/0", "list/1/0"]
    assert [info.name for info in file.tensors.values()] == list(file.tensors)
    assert len({info.start for name, info in file.tensors.items() if name != "row"}) == 1
    assert same(file.tensors["row"], weight[1])


def test_a_file_with_no_tensors_is_no_error(tmp_path: Path) -> None:
    assert saved(tmp_path, {"epoch": 1}).tensors == {}


def test_a_root_tensor_has_the_empty_name(tmp_path: Path) -> None:
    assert list(saved(tmp_path, torch.ones(2)).tensors) == [""]


@pytest.mark.parametrize("make", [
    lambda: torch.eye(2).to_sparse(), lambda: torch.eye(2).to_sparse_csr(),
    lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), lambda: torch.ones(2, device="meta"),
    lambda: torch.ones(2, dtype=torch.complex128), lambda: torch.ones(2, dtype=torch.complex64).conj(),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_are_not_plain_bytes_are_unsupported(tmp_path: Path, make: Callable[[], Any]) -> None:
    with pytest.raises(Unsupported):
        saved(tmp_path, {"x": make()})


def test_whole_module_and_bare_storage_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"asks for torch\.nn\.modules\.linear\.Linear"):
        saved(tmp_path, torch.nn.Linear(2, 2))
    with pytest.raises(BadFile, match="Storage itself"):
        saved(tmp_path, {"x": torch.ones(2).untyped_storage()})
    with pytest.raises(BadFile, match="OrderedDict itself"):
        saved(tmp_path, {"x": OrderedDict})


@pytest.mark.parametrize("sign", ["constants.pkl", "code/m.py"])
def test_torchscript_says_how_to_get_a_state_dict(tmp_path: Path, sign: str) -> None:
    with zipfile.ZipFile(tmp_path / "m.pt", "w") as archive:
        for member in ("data.pkl", sign):
            archive.writestr(f"m/{member}", b"")
    with pytest.raises(Unsupported, match="TorchScript") as caught:
        read_pickle(tmp_path / "m.pt")
    assert "torch.jit.load" in str(caught.value.hint)


def test_reading_imports_no_torch(tmp_path: Path) -> None:
    saved(tmp_path, {"a": torch.ones(2)})
    torch.save({"b": torch.ones(2)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    (tmp_path / "garbage.pth").write_bytes(b"\x80\x02}.")
    code = """
import sys
from pathlib import Path
from posinterp.errors import BadFile
from posinterp.store.pickle import read_pickle
print([list(read_pickle(Path(name)).tensors) for name in ("model.pth", "old.pth")])
try:
    read_pickle(Path("garbage.pth"))
except BadFile:
    print("refused")
print("torch" in sys.modules)
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, check=False, capture_output=True, text=True
    )
    assert done.stdout.split("\n")[:3] == ["[['a'], ['b']]", "refused", "False"], done.stderr


def test_the_environment_cannot_switch_protection_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    canary = tmp_path / "canary"
    with pytest.raises(BadFile, match=r"posix\.system"):
        saved(tmp_path, {"x": Touch(canary)}, _use_new_zipfile_serialization=False)
    assert not canary.exists()


class Touch:
    """Pickles as a call that would create a file."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.canary}",)


# ------------------------------------------------------------------ hand-made files


def text(value: str) -> bytes:
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def number(value: int) -> bytes:
    return pickle.dumps(value, protocol=2)[2:-1]


def many(*parts: bytes) -> bytes:
    return b"(" + b"".join(parts) + b"t"


def name(full: str) -> bytes:
    module, _, last = full.rpartition(".")
    return f"c{module}\n{last}\n".encode()


def tensor(key: str = "0", numel: int = 6, shape: tuple[int, ...] = (2, 3), strides: tuple[int, ...] = (3, 1),
           offset: int | bytes = 0, kind: str = "torch.FloatStorage") -> bytes:  # fmt: skip
    storage = many(text("storage"), name(kind), text(key), text("cpu"), number(numel)) + b"Q"
    where = offset if isinstance(offset, bytes) else number(offset)
    parts = many(storage, where, many(*map(number, shape)), many(*map(number, strides)), b"\x89", b"N")
    return name("torch._utils._rebuild_tensor_v2") + parts + b"R"


def archive(body: bytes, records: dict[str, bytes] | None = None, proto: int = 2) -> bytes:
    members = {"data.pkl": b"\x80" + bytes([proto]) + body + b".", "byteorder": b"little"}
    members |= {f"data/{key}": data for key, data in (records or {"0": bytes(24)}).items()}
    members["version"] = b"3\n"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        for member, data in members.items():
            file.writestr(f"ck/{member}", data)
    return out.getvalue()


def read(tmp_path: Path, data: bytes) -> PickleFile:
    (tmp_path / "made.pth").write_bytes(data)
    return read_pickle(tmp_path / "made.pth")


def refused(tmp_path: Path, data: bytes, match: str) -> None:
    with pytest.raises(BadFile) as caught:
        read(tmp_path, data)
    start = f"{tmp_path / 'made.pth'} "  # holds the name of the test, so it is kept out of the search
    assert caught.value.message.startswith(start)
    assert re.search(match, caught.value.message.removeprefix(start)), caught.value.message


def test_the_assembler_makes_files_that_both_read(tmp_path: Path) -> None:
    values = np.arange(6, dtype="<f4").tobytes()
    file = read(tmp_path, archive(b"}" + text("w") + tensor() + b"s", {"0": values}))
    assert read_bytes(file.tensors["w"]) == values
    assert raw(torch.load(tmp_path / "made.pth", weights_only=True)["w"]) == values


CALL = "posix.system"
ROUTES: dict[str, Callable[[bytes], bytes]] = {
    "REDUCE": lambda arg: name(CALL) + arg + b"\x85R",
    "REDUCE of a dtype": lambda arg: name("torch.float32") + b")R",
    "REDUCE of a value": lambda arg: arg + b")R",
    "REDUCE of a storage": lambda arg: name("torch.FloatStorage") + b")R",
    "INST": lambda arg: b"(" + arg + b"iposix\nsystem\n",
    "INST of a good name": lambda arg: b"(icollections\nOrderedDict\n",
    "OBJ": lambda arg: b"(" + name(CALL) + arg + b"o",
    "OBJ of a good name": lambda arg: b"(" + name("collections.OrderedDict") + b"o",
    "NEWOBJ": lambda arg: name(CALL) + arg + b"\x85\x81",
    "NEWOBJ_EX": lambda arg: name("collections.OrderedDict") + b")}\x92",
    "STACK_GLOBAL": lambda arg: text("posix") + text("system") + b"\x93" + arg + b"\x85R",
    "dotted STACK_GLOBAL": lambda arg: text("collections") + text("OrderedDict.__reduce__") + b"\x93" + arg + b"\x85R",
    "getattr": lambda arg: name("builtins.getattr") + name("collections.OrderedDict") + text("x") + b"\x86R",
    "BUILD of a name": lambda arg: name("collections.OrderedDict") + b"}" + text("x") + arg + b"sb",
    "BUILD of a dict": lambda arg: b"}}" + text("x") + arg + b"sb",
    "BUILD with a dunder": lambda arg: name("argparse.Namespace") + b")R}" + text("__class__") + arg + b"sb",
    "BUILD with slots": lambda arg: name("argparse.Namespace") + b")RN}" + text("x") + arg + b"s\x86b",
    "EXT1": lambda arg: b"\x82\x01", "EXT2": lambda arg: b"\x83\x01\x00", "EXT4": lambda arg: b"\x84\x01\x00\x00\x00",
    "PERSID": lambda arg: b"Pstorage\n",
    "BINPERSID": lambda arg: many(arg, name("torch.FloatStorage"), text("0"), arg, number(6)) + b"Q",
    "NEXT_BUFFER": lambda arg: b"\x97",
    "READONLY_BUFFER": lambda arg: b"C\x01a\x98",
    "APPEND to a name": lambda arg: name("collections.OrderedDict") + arg + b"a",
    "APPENDS to a bytearray": lambda arg: name("builtins.bytearray") + b")R(K\x01e",
    "SETITEM of a list": lambda arg: b"]NaK\x00" + arg + b"s",
    "SETITEMS of a tensor": lambda arg: tensor() + b"(K\x00Nu",
    "ADDITEMS to a dict": lambda arg: b"}(K\x01\x90",
    "Namespace with arguments": lambda arg: name("argparse.Namespace") + arg + b"\x85R",
    "bytearray of a size": lambda arg: name("builtins.bytearray") + b"\x8a\x06\x00\x00\x00\x00\x00\x10\x85R",
    "defaultdict with a factory": lambda arg: name("collections.defaultdict") + name("torch.Size") + b"\x85R",
    "object dtype": lambda arg: name("numpy.dtype") + text("O8") + b"\x89\x88\x87R",
    "structured dtype": lambda arg: name("numpy.dtype") + text("f8,O8") + b"\x85R",
    "numpy scalar of objects": lambda arg: name("numpy.core.multiarray.scalar") + text("O8") + arg + b"\x86R",
    "array of a list": lambda arg: name("numpy._core.multiarray._reconstruct") + b")R" + many(
        b"K\x01", b"K\x01\x85", name("numpy.dtype") + text("f8") + b"\x85R", b"\x89", b"]") + b"b",
    "array larger than its bytes": lambda arg: name("numpy._core.multiarray._reconstruct") + b")R" + many(
        b"K\x01", number(2**40) + b"\x85", name("numpy.dtype") + text("f8") + b"\x85R", b"\x89", b"C\x04aaaa") + b"b",
    "rebuild through a name": lambda arg: name("torch._tensor._rebuild_from_type_v2") + many(
        name("torch.Size"), name("torch.Tensor"), many(many()), b"N") + b"R",
    "parameter of a text": lambda arg: name("torch._utils._rebuild_parameter") + many(arg, b"\x89", b"N") + b"R",
}  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
def test_no_instruction_runs_anything(tmp_path: Path, route: str) -> None:
    canary = tmp_path / "canary"
    evil = ROUTES[route](text(f"touch {canary}"))
    for body in (evil, evil + b"0}"):  # the second leaves no trace in the object
        refused(tmp_path, archive(body, proto=4), "nothing was executed|hostile|storage in a way|dtype")
    assert not canary.exists()


def test_a_refused_name_is_said_and_never_imported(tmp_path: Path) -> None:
    refused(tmp_path, archive(name("antigravity.fly") + b")R"), r"asks for antigravity\.fly, which is not on the list")
    refused(tmp_path, archive(name("torch._utils._rebuild_tensor_v9")), "rebuild_tensor_v9")
    refused(tmp_path, archive(b"ca\x1b[31m\n" + b"b" * 1000 + b"\n"), r"asks for a\\x1b\[31m\.b+\.\.\.,")
    assert "antigravity" not in sys.modules


def test_registered_extensions_are_not_looked_up(tmp_path: Path) -> None:
    import copyreg

    copyreg.add_extension("posix", "system", 241)
    try:
        canary = tmp_path / "canary"
        refused(tmp_path, archive(b"\x82\xf1" + text(f"touch {canary}") + b"\x85R"), "instruction")
        assert not canary.exists()
    finally:
        copyreg.remove_extension("posix", "system", 241)


def test_attributes_cannot_hide_methods(tmp_path: Path) -> None:
    state = b"}(" + text("items") + b"N" + text("_metadata") + b"K\x05ub"
    tree = read(tmp_path, archive(name("collections.OrderedDict") + b")R" + text("w") + tensor() + b"s" + state)).tree
    assert vars(tree) == {"_metadata": 5}
    assert next(iter(tree.items()))[0] == "w"


MALFORMED = {
    "empty": b"", "underflow": b"tR", "no mark": b"}u", "unknown instruction": b"\xff", "memo miss": b"h\x05",
    "bad UTF-8": b"X\x01\x00\x00\x00\xff", "unhashable key": b"}]Ns", "tuple of a list as key": b"}]\x85Ns",
    "huge key": b"}" + number(2**70) + b"Ns", "a name as key": b"}" + name("collections.OrderedDict") + b"Ns",
    "claims a string of 4 GB": b"X\xff\xff\xff\xffa", "claims bytes of 2^62": b"\x8e" + struct.pack("<Q", 1 << 62),
    "claims a bytearray of 2^40": b"\x96" + struct.pack("<Q", 1 << 40), "odd length": b"}(K\x00u",
    "LONG4": b"\x8b\xff\xff\xff\x7f1",
    "claims a frame of 2^62": b"\x95" + struct.pack("<Q", 1 << 62), "protocol 9": b"\x80\x09N",
    "protocol 0": b"I1\n", "digits": b"L" + b"9" * 10000 + b"L\n", "set of lists": b"\x8f(]\x90",
}  # fmt: skip


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_pickles_are_sentences(tmp_path: Path, case: str) -> None:
    refused(tmp_path, archive(MALFORMED[case], proto=4), "pickle|a dict key")


def test_a_memo_index_allocates_nothing(tmp_path: Path) -> None:
    assert read(tmp_path, archive(b"}r\xff\xff\xff\x7f")).tree == {}


NESTS = {"lists": (b"]", b"a"), "tuples": (b"", b"\x85"), "dicts": (b"}K\x00", b"s"),
         "ordered": (name("collections.OrderedDict") + b")RK\x00", b"s")}  # fmt: skip


@pytest.mark.parametrize("kind", NESTS)
def test_deep_nesting_is_a_sentence(tmp_path: Path, kind: str) -> None:
    before, after = NESTS[kind]
    refused(tmp_path, archive(before * 100_000 + b"N" + after * 100_000), "nested more than")


def test_an_object_inside_itself_is_a_sentence(tmp_path: Path) -> None:
    refused(tmp_path, archive(b"]q\x00h\x00a"), "nested more than")
    refused(tmp_path, archive(b"]q\x00(" + b"h\x00" * 10 + b"e"), "nested more than|too many objects")


@pytest.mark.parametrize("body", [
    b"]" + b"2\x86" * 60,  # 2^60 copies of one list in nested pairs
    b"](" + b"K\x00" * 100_000 + b"eq\x000" + (name("builtins.set") + b"h\x00\x85R0") * 100 + b"N",
    b"X\x40\x42\x0f\x00" + b"a" * 1_000_000 + b"q\x000" + (name("_codecs.encode") + b"h\x00\x85R0") * 1000 + b"N",
    b"X\xe8\x03\x00\x00" + b"a" * 1000 + b"q\x000](" + tensor() + b"q\x01" + b"}h\x00h\x01s" * 100_000 + b"e",
])  # fmt: skip
def test_a_small_pickle_cannot_ask_for_much(tmp_path: Path, body: bytes) -> None:
    refused(tmp_path, archive(body), "too many objects|nested more than")


def test_too_many_instructions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks.Budget.__init__, "__defaults__", (1000,))
    refused(tmp_path, archive(b"N0" * 600 + b"}"), "too many objects")
    refused(tmp_path, archive(b"\x95" + struct.pack("<Q", 1201) + b"N0" * 600 + b"}", proto=4), "too many objects")


TENSOR_LIES = {
    "storage claims 10^12": tensor(numel=10**12), "storage claims less": tensor(numel=5),
    "storage of another width": tensor(kind="torch.DoubleStorage"), "negative numel": tensor(numel=-6),
    "negative offset": tensor(offset=-1), "offset out of bounds": tensor(offset=1),
    "False as offset": tensor(offset=b"\x89"),
    "strides out of bounds": tensor(strides=(4, 1)), "negative strides": tensor(strides=(-3, 1)),
    "shape out of bounds": tensor(shape=(3, 3)), "negative shape": tensor(shape=(-2, 3)),
    "fewer strides": tensor(strides=(3,)), "too many dimensions": tensor(shape=(1,) * 40, strides=(1,) * 40),
    "record missing": tensor(key="1"), "overflowing shape": tensor(shape=(2**62, 2**62, 4), strides=(0, 0, 1)),
    "a broadcast of 10^12": tensor(shape=(10**12,), strides=(0,)), "one record, two dtypes":
    b"(" + tensor() + tensor(kind="torch.IntStorage") + b"t", "key climbs": tensor(key="../data.pkl"),
}  # fmt: skip


@pytest.mark.parametrize("lie", TENSOR_LIES)
def test_lies_about_tensors(tmp_path: Path, lie: str) -> None:
    refused(tmp_path, archive(b"}" + text("w") + TENSOR_LIES[lie] + b"s"), "")


def test_offsets_and_strides_that_just_fit(tmp_path: Path) -> None:
    values = np.arange(6, dtype="<f4")
    body = b"}" + text("w") + tensor(shape=(2, 2), strides=(3, 1), offset=1) + b"s"
    info = read(tmp_path, archive(body, {"0": values.tobytes()})).tensors["w"]
    assert np.frombuffer(read_bytes(info), "<f4").tolist() == [1, 2, 4, 5]
    body = b"}" + text("w") + tensor(shape=(2**40, 0), strides=(2**40, 2**40)) + b"s"
    assert read_bytes(read(tmp_path, archive(body)).tensors["w"]) == b""
    body = b"}" + text("w") + tensor(shape=(1, 6), strides=(2**62, 1)) + b"s"
    assert read(tmp_path, archive(body)).tensors["w"].strides is None


def test_two_places_with_one_name(tmp_path: Path) -> None:
    inner = b"}" + text("b") + tensor() + b"s"
    refused(tmp_path, archive(b"}(" + text("a") + inner + text("a/b") + tensor() + b"u"), "both called a/b")
    refused(tmp_path, archive(b"}(K\x01" + tensor() + text("1") + tensor() + b"u"), "both called 1")
    refused(tmp_path, archive(b"}X\x03\x00\x00\x00\xed\xa0\x80" + tensor() + b"s"), "no text")


# ------------------------------------------------------------------ the zip

GOOD = archive(b"}" + text("w") + tensor() + b"s", {"0": np.arange(6, dtype="<f4").tobytes()})


def rezip(change: Callable[[zipfile.ZipFile, str, bytes], None], source: bytes = GOOD) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(source)) as old, zipfile.ZipFile(out, "w") as new:
        for member in old.namelist():
            change(new, member, old.read(member))
    return out.getvalue()


def patched(member: str, at: int, form: str, value: int, *, central: bool, data: bytes = GOOD) -> bytes:
    """One field of a member's local or central header overwritten."""
    out = bytearray(data)
    where = zipfile.ZipFile(io.BytesIO(data)).getinfo(member).header_offset
    if central:
        where = data.index(b"PK\x01\x02")
        while data[where + 46 :][: len(member)] != member.encode():
            where = data.index(b"PK\x01\x02", where + 1)
    struct.pack_into(form, out, where + at, value)
    return bytes(out)


def deflated(new: zipfile.ZipFile, member: str, data: bytes) -> None:
    new.writestr(member, data, zipfile.ZIP_DEFLATED if member == "ck/data/0" else zipfile.ZIP_STORED)


def twice(new: zipfile.ZipFile, member: str, data: bytes) -> None:
    for _ in range(2 if member == "ck/data/0" else 1):
        new.writestr(member, data)


def outside(new: zipfile.ZipFile, member: str, data: bytes) -> None:
    new.writestr(member, data)
    new.writestr("../../evil" + str(len(data)), b"x")


RECORD, LAST = "ck/data/0", "ck/version"
ZIP_TRICKS: dict[str, tuple[Callable[[], bytes], str]] = {
    "cut": (lambda: GOOD[:-30], "corrupt or truncated"),
    "half": (lambda: GOOD[: len(GOOD) // 2], "corrupt or truncated"),
    "member twice": (lambda: rezip(twice), "twice"),
    "deflated": (lambda: rezip(deflated), "compressed member"),
    "two folders": (lambda: rezip(outside), "several folders"),
    "no data.pkl": (lambda: rezip(lambda new, m, d: None if m.endswith("pkl") else new.writestr(m, d)), "no data.pkl"),
    "directory 8 off": (lambda: patched(RECORD, 42, "<I", 8 + zip_offset(), central=True), "disagree"),
    "directory at another member": (lambda: patched(RECORD, 42, "<I", 0, central=True), "disagree|twice"),
    "offset past the end": (lambda: patched(RECORD, 42, "<I", 2**31, central=True), "truncated"),
    "encrypted": (lambda: patched(RECORD, 8, "<H", 1, central=True), "encrypted"),
    "encrypted locally": (lambda: patched(RECORD, 6, "<H", 1, central=False), "disagree"),
    "deflated locally": (lambda: patched(RECORD, 8, "<H", 8, central=False), "disagree"),
    "longer locally": (lambda: patched(RECORD, 22, "<I", 25, central=False), "disagree"),
    "zip64 without its field": (lambda: patched(RECORD, 22, "<I", 0xFFFFFFFF, central=False), "disagree"),
    "another name locally": (lambda: patched(RECORD, 38, "<B", ord("1"), central=False), "disagree"),
    "extra field over the next member": (lambda: patched(RECORD, 28, "<H", 900, central=False), "not its own"),
    "data overlap": (lambda: patched(RECORD, 28, "<H", 8, central=False), "not its own"),
    "sizes of the directory differ": (lambda: patched(RECORD, 24, "<I", 25, central=True), "compressed member"),
    "last member reaches into the directory": (lambda: patched(LAST, 28, "<H", 99, central=False), "not its own"),
    "another method": (lambda: patched(RECORD, 10, "<H", 8, central=True), "compressed member"),
    "no local header": (lambda: patched(RECORD, 0, "<I", 0, central=False), "disagree"),
    "a NUL in a name": (lambda: patched(LAST, 50, "<B", 0, central=True, data=patched(
        LAST, 34, "<B", 0, central=False)), "unusual zip member"),
    "streamed, another size locally": (lambda: patched(RECORD, 22, "<I", 25, central=False, data=patched(
        RECORD, 6, "<H", 8, central=False, data=patched(RECORD, 8, "<H", 8, central=True))), "disagree"),
    "record shorter": (lambda: archive(b"}" + text("w") + tensor() + b"s", {"0": bytes(20)}), "has 20 bytes"),
    "record longer": (lambda: archive(b"}" + text("w") + tensor() + b"s", {"0": bytes(28)}), "has 28 bytes"),
}  # fmt: skip


def zip_offset() -> int:
    return zipfile.ZipFile(io.BytesIO(GOOD)).getinfo(RECORD).header_offset


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("trick", ZIP_TRICKS)
def test_zip_tricks(tmp_path: Path, trick: str) -> None:
    make, match = ZIP_TRICKS[trick]
    refused(tmp_path, make(), match)


def test_big_endian_is_unsupported(tmp_path: Path) -> None:
    data = rezip(lambda new, member, d: new.writestr(member, b"big" if member.endswith("byteorder") else d))
    with pytest.raises(Unsupported, match="big-endian"):
        read(tmp_path, data)


def test_zip64_and_streamed_members_are_read(tmp_path: Path) -> None:
    class Pipe(io.RawIOBase):
        """Not seekable, so zipfile writes data descriptors."""

        def __init__(self) -> None:
            self.out = bytearray()

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.out += data
            return len(data)

    def wide(new: zipfile.ZipFile, member: str, data: bytes) -> None:
        with new.open(zipfile.ZipInfo(member), "w", force_zip64=True) as out:
            out.write(data)

    pipe = Pipe()
    with zipfile.ZipFile(io.BytesIO(GOOD)) as old, zipfile.ZipFile(pipe, "w") as new:
        for number_, member in enumerate(old.namelist()):
            new.writestr(member, old.read(member)) if number_ % 2 else wide(new, member, old.read(member))
    for data in (rezip(wide), bytes(pipe.out)):
        assert read_bytes(read(tmp_path, data).tensors["w"]) == np.arange(6, dtype="<f4").tobytes()


def test_a_huge_pickle_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_PICKLE", 20)
    refused(tmp_path, GOOD, "at most 20 are read")


def test_a_huge_directory_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_zip, "MAX_DIRECTORY", 100)
    refused(tmp_path, GOOD, "zip directory of")


# ------------------------------------------------------------------ before 1.6


def legacy(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=False)
    return stream.getvalue()


OLD = legacy({"w": torch.arange(6.0), "b": torch.arange(3), "tied": torch.zeros(2)})
STORAGE = OLD.index(struct.pack("<q6f", 6, *range(6)))

OLD_LIES: dict[str, tuple[bytes, str]] = {
    "cut": (OLD[:-4], "truncated"),
    "cut in the pickle": (OLD[: STORAGE // 2], "truncated pickle"),
    "another length": (OLD[:STORAGE] + struct.pack("<q", 5) + OLD[STORAGE + 8 :], "another length"),
    "a negative length": (OLD[:STORAGE] + struct.pack("<q", -1) + OLD[STORAGE + 8 :], "another length"),
    "big-endian": (OLD.replace(b"little_endianq\x02\x88", b"little_endianq\x02\x89"), "big-endian"),
    "another protocol": (OLD.replace(b"\x80\x02M\xe9\x03.", b"\x80\x02M\xea\x03.", 1), "not torch's"),
    "a view of a storage": (
        OLD.replace(b"Nt", b"(K\x00K\x00K\x01tt", 1),
        "view of a storage",
    ),
}


@pytest.mark.parametrize("lie", OLD_LIES)
def test_lies_in_older_files(tmp_path: Path, lie: str) -> None:
    data, message = OLD_LIES[lie]
    assert data != OLD
    with pytest.raises((BadFile, Unsupported), match=message):
        read(tmp_path, data)


def test_an_older_file_with_long_pickles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its beginning is read at first, and no more than is allowed."""
    data = legacy({"notes": "x" * 5000, "w": torch.arange(6.0), "more": ["y" * 50] * 50})
    monkeypatch.setattr(torch_legacy, "USUAL", 1000)
    assert read_bytes(read(tmp_path, data).tensors["w"]) == np.arange(6, dtype="<f4").tobytes()
    monkeypatch.setattr(reader, "MAX_PICKLE", 2000)
    refused(tmp_path, data, "truncated pickle")


# ------------------------------------------------------------------ neither zip nor legacy

OTHERS = {
    b"": "empty or truncated", b"PK\x03": "empty or truncated", b"\x80\x02}.": "a bare Python pickle",
    b"version https://git-lfs.github.com/spec/v1\n": "Git LFS pointer", b"\n<!DOCTYPE html>": "web page",
    b"\x89PNG\r\n\x1a\n": "picture", b"\x10" + bytes(7) + b'{"a":1}': "safetensors",
    b"pickle".ljust(257, b"\0") + b"ustar\x0000": "a tar, as torch 0.1 wrote", b"\1\2\3\4\5": "bytes 01 02 03 04 05",
    pickle.dumps({"w": 1}, protocol=4): "a bare Python pickle", BEGINNING + b"\x80\x02}.": "truncated pickle",
}  # fmt: skip


@pytest.mark.parametrize("data", OTHERS, ids=OTHERS.values())
def test_what_is_not_a_checkpoint_is_named(tmp_path: Path, data: bytes) -> None:
    refused(tmp_path, data, OTHERS[data])


# ------------------------------------------------------------------ fuzz


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    folder = tmp_path_factory.mktemp("fuzz")
    weights = torch.nn.Linear(3, 2).state_dict()
    args = argparse.Namespace(lr=np.float64(0.5), array=np.arange(3.0))
    torch.save({"model": weights, "args": args, "t": torch.randn(4, 3).t(), "s": {1}}, folder / "real.pth")
    return (folder / "real.pth").read_bytes(), folder / "fuzzed.pth"


def survives(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    try:
        file = read_pickle(path)
        for info in file.tensors.values():
            assert len(read_bytes(info)) <= max(len(data), torch_tensors.MAX_BROADCAST)
    except PosinterpError:
        pass


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=4), cut=st.none() | st.integers(0))
def test_flipped_and_cut_files_are_read_or_refused(
    real: tuple[bytes, Path], flips: list[tuple[int, int]], cut: int | None
) -> None:
    data = bytearray(real[0])
    for at, value in flips:
        data[at % len(data)] = value
    survives(real[1], bytes(data[: cut % len(data)] if cut is not None else data))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(flips=st.lists(st.tuples(st.integers(0), st.integers(0, 255)), min_size=1, max_size=3))
def test_flipped_pickles_are_read_or_refused(real: tuple[bytes, Path], flips: list[tuple[int, int]]) -> None:
    def change(new: zipfile.ZipFile, member: str, data: bytes) -> None:
        body = bytearray(data)
        for at, value in flips if member.endswith(".pkl") else ():
            body[at % len(body)] = value
        new.writestr(member, bytes(body))

    survives(real[1], rezip(change, real[0]))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(body=st.lists(st.sampled_from(sorted([
    b"}", b"]", b")", b"(", b"t", b"\x85", b"\x86", b"2", b"0", b"1", b"N", b"K\x01", b"R", b"b", b"s", b"u", b"a",
    b"e",    b"\x81", b"\x8f", b"\x90", b"\x91", b"q\x00", b"h\x00", b"Q", text("w"), text("0"), b"C\x02ab", tensor(),
    *map(name, [*pickle_names.CALLS, *pickle_names.CLASSES, "torch.FloatStorage", "torch.float32"]),
])), max_size=30))  # fmt: skip
def test_random_programs_are_read_or_refused(real: tuple[bytes, Path], body: list[bytes]) -> None:
    survives(real[1], archive(b"".join(body), proto=4))
