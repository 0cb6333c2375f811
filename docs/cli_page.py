"""docs/cli.md, from the command line itself.

python docs/cli_page.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from posinterp.cli import app

HEAD = """# Command line

Generated from the commands by `python docs/cli_page.py`; `posinterp COMMAND --help` says the same.

Exit codes: 0 done; 1 the answer is no (`verify` failed, `inspect --img` does not fit); 2 a mistake in usage or input;
130 interrupted, nothing left behind. The answer goes to stdout, everything else to stderr. `--json` answers with one
object, mistakes too; `-q` with one word. `posinterp --install-completion` teaches the shell the commands, methods and
families.
"""


def page() -> str:
    """The whole page."""
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    return HEAD + "".join(_section(name, command) for name, command in commands.items())


def _section(name: str, command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    words = " ".join(one.metavar or one.name.upper() for one in arguments)
    lines = [f"\n## {name}\n", f"{command.help}\n", f"`posinterp {name} {words} [OPTIONS]`\n"]
    lines += ["| option | |", "|---|---|"]
    lines += [_row(_said(one), one) for one in arguments + options]
    return "\n".join(lines) + "\n"


def _said(one: Any) -> str:
    """An option's names, as they are typed."""
    if one.param_type_name == "argument":
        return f"`{(one.metavar or one.name.upper()).strip('[]')}`"
    names = [*one.opts, *one.secondary_opts]
    value = "" if one.is_flag else f" {one.metavar or '|'.join(getattr(one.type, 'choices', []) or [])}"
    return ", ".join(f"`{name}{value}`".replace("|", "\\|") for name in sorted(names, key=lambda name: -len(name)))


def _row(names: str, one: Any) -> str:
    words = (one.help or "").replace("|", "\\|")
    shown = one.param_type_name == "option" and not one.is_flag and one.default not in (None, "", ())
    default = getattr(one.default, "value", one.default)
    more = " Required." if one.required else f" Default: {default}." if shown and "default" not in words else ""
    return f"| {names} | {words}{more} |"


if __name__ == "__main__":
    (Path(__file__).parent / "cli.md").write_text(page(), "utf-8")
