"""docs/comparison.md says what docs/comparison.py finds, and what that calls right can be wrong."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from conftest import ROOT

DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

from ruler import KEPT, LARGER, LONG, OBLONG, SQUARE, WRONG, YES, grid_of, offsets, read, reads_offsets, ruler  # noqa: E402

installed = pytest.mark.skipif(
    not all(find_spec(name) for name in ("open_clip", "vit_pytorch", "transformers")),
    reason="not all of the libraries that are compared are installed",
)


def run(*words: str) -> str:
    """In a process of its own: open_clip and transformers set up more than a test should leave behind."""
    done = subprocess.run([sys.executable, DOCS / "comparison.py", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@installed
def test_the_page_is_what_the_libraries_do() -> None:
    page = (DOCS / "comparison.md").read_text("utf-8")
    *tables, versions = run().strip().split("\n\n")
    (own,) = (line for line in tables[0].splitlines() if "posinterp" in line)
    assert "wrong" not in own
    assert own.count("| yes ") >= 6
    if versions not in page:
        pytest.skip(f"the page speaks of other versions of the libraries. {versions}")
    for table in tables:
        assert table in page, "run python docs/comparison.py"


@installed
@pytest.mark.parametrize(
    ("glob", "said"),
    [("levit_128*", "converts 0, and raises for 2"), ("deit_tiny_*", "converts 2, and raises for 0")],
)
def test_the_count_of_timm(glob: str, said: str) -> None:
    assert said in run("--timm", glob)


def test_a_table_of_another_grid_is_wrong() -> None:
    assert read(ruler(SQUARE), SQUARE, SQUARE) == YES
    assert read(ruler(SQUARE), LONG, SQUARE) == KEPT
    high, wide = grid_of(OBLONG)
    table = ruler(OBLONG)
    turned = torch.cat([table[:1], table[1:].reshape(high, wide, -1).transpose(0, 1).flatten(0, 1)])
    late = torch.cat([table[:1], table[1:].roll(1, 0)])
    touched = torch.cat([table[:1] + 1e-3, table[1:]])
    assert {read(other, OBLONG, SQUARE) for other in (turned, late, touched, ruler(LARGER))} == {WRONG}


def test_biases_of_another_offset_are_wrong() -> None:
    high, wide = grid_of(OBLONG)
    down = torch.arange(high).repeat_interleave(wide)
    right = torch.arange(wide).repeat(high)
    bias = torch.stack([down[:, None] - down, right[:, None] - right]).float()
    assert reads_offsets(bias, OBLONG) == YES
    assert reads_offsets(bias.flip(0), OBLONG) == WRONG  # rows for columns
    assert reads_offsets(bias.sign(), OBLONG) == WRONG  # it does not grow
    assert reads_offsets(bias + 1, OBLONG) == WRONG  # off by one
    assert reads_offsets(-bias, OBLONG) == WRONG  # upside down
    assert len(offsets(OBLONG, 3)) == (2 * high - 1) * (2 * wide - 1) + 3
