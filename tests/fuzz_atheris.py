"""Fuzzing that is led by coverage: `python tests/fuzz_atheris.py TARGET [libFuzzer's options]`.

Needs `pip install atheris`; the targets are those of fuzz_targets.py. An input that crashes is written to the current
folder: it belongs into tests/seeds/TARGET/, where the tests replay it.
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))
with atheris.instrument_imports(include=["posinterp"]):
    from fuzz_targets import PLACE, SEEDS, TARGETS, clean

if __name__ == "__main__":
    name, *options = sys.argv[1:] or [""]
    if name not in TARGETS:
        sys.exit(f"usage: python {sys.argv[0]} {'|'.join(TARGETS)} [-max_total_time=60]")
    try:
        corpus = PLACE / "corpus"  # the first folder is where the fuzzer writes what reaches new code
        corpus.mkdir()
        atheris.Setup([sys.argv[0], *options, str(corpus), str(SEEDS / name)], TARGETS[name])
        atheris.Fuzz()
    finally:
        clean()
