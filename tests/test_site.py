"""The pages of the documentation: those that are generated are current, and each is on the site."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import posinterp as pi

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS))

import cli_page  # noqa: E402


def test_the_command_line_page_is_the_command_lines() -> None:
    assert (DOCS / "cli.md").read_text("utf-8") == cli_page.page(), "run python docs/cli_page.py"


def test_every_page_is_on_the_site_once() -> None:
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    named = re.findall(r"[\w-]+\.md", config.partition("\nnav:")[2])
    assert sorted(named) == sorted(page.name for page in DOCS.glob("*.md"))


def test_every_public_name_is_in_the_reference() -> None:
    named = re.findall(r"^::: (\S+)$", (DOCS / "api.md").read_text("utf-8"), re.MULTILINE)
    for name in named:
        module, _, attribute = name.rpartition(".")
        assert getattr(import_module(module), attribute).__doc__, name
    assert {*pi.__all__} - {"__version__"} <= {name.rpartition(".")[2] for name in named}
