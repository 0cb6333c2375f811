"""A verdict as JUnit's XML, which CI services show: one test case for each check."""

from __future__ import annotations

import re
from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

from ..errors import PosinterpError
from .verdict import Verdict

SUITE = "posinterp verify"
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # no XML can hold them


def junit(ckpt: str, outcome: Verdict | PosinterpError) -> str:
    """The text of a JUnit file: a suite of the checks, or of one error where there is no verdict."""
    cases: list[str] = []
    if isinstance(outcome, PosinterpError):
        cases.append(_case(ckpt, "verify", f"<error message={_attribute(str(outcome))}/>"))
        return _suite(cases, errors=1)
    for check in outcome.checks:
        if check.status == "pass":
            inner = f"<system-out>{escape(_clean(check.detail))}</system-out>"
        else:
            inner = f"<{'failure' if check.status == 'fail' else 'skipped'} message={_attribute(check.detail)}/>"
        cases.append(_case(ckpt, check.name, inner))
    skipped = sum(check.status == "skip" for check in outcome.checks)
    return _suite(cases, failures=len(outcome.failed), skipped=skipped)


def _suite(cases: Sequence[str], **counts: int) -> str:
    numbers = {"tests": len(cases), "failures": 0, "errors": 0, "skipped": 0, **counts}
    said = " ".join(f'{name}="{count}"' for name, count in numbers.items())
    suite = "\n".join([f'<testsuite name="{SUITE}" {said}>', *cases, "</testsuite>"])
    return f'<?xml version="1.0" encoding="utf-8"?>\n<testsuites>\n{suite}\n</testsuites>\n'


def _case(ckpt: str, name: str, inner: str) -> str:
    return f"<testcase classname={_attribute(ckpt)} name={_attribute(name)}>{inner}</testcase>"


def _attribute(text: str) -> str:
    return quoteattr(_clean(text))


def _clean(text: str) -> str:
    return FORBIDDEN.sub("?", text)
