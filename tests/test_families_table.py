"""docs/families.md and docs/coverage.py say what the data says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"
sys.path.insert(0, str(DOCS))

import families_table  # noqa: E402


def test_the_page_is_the_datas() -> None:
    assert (DOCS / "families.md").read_text() == families_table.page(), "run python docs/families_table.py"


@pytest.mark.parametrize(
    ("glob", "said"),
    [("levit_128*", "2  converted"), ("gmlp_ti16*", "refused: mlp-mixer: its token-mixing weights are not positions")],
)
def test_coverage(glob: str, said: str) -> None:
    """The count that docs/how-it-works.md quotes, for a few names: all take minutes."""
    done = subprocess.run([sys.executable, DOCS / "coverage.py", glob], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
