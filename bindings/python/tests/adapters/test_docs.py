"""The code of docs/python.md, run from top to bottom, with what it prints compared."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable
from typing import Any

import pytest

from adapters.conftest import ROOT, Fake

PAGE = ROOT / "docs/python.md"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_blocks_of_the_page_print_what_they_say(
    fake: Callable[..., Fake], servers: Any, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "REDIS_URL": servers.redis,
        "DATABASE_URL": servers.postgres,
        "DYNAMODB_ENDPOINT": servers.dynamodb["endpoint"],
        "TOLLGATE_URL": broker,
        "DRS_ENDPOINT": fake("fake-drs").url,
        "OPENAI_BASE_URL": fake("fake-llm").url + "/openai/v1",
        "OPENAI_API_KEY": "test",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }.items():
        monkeypatch.setenv(name, value)
    text = PAGE.read_text()
    blocks = BLOCK.findall(text)
    assert len(blocks) > 10
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks:
        line = text[: text.index(block)].count("\n") + 1
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            # With the lines of the page, so that a traceback points there.
            exec(compile("\n" * (line - 1) + block, str(PAGE), "exec"), names)
        said = re.findall(r"^# → (.*)$", block, re.MULTILINE)
        assert printed.getvalue().splitlines() == said, f"{PAGE}:{line}"


def test_the_page_names_every_exception_and_constructor() -> None:
    import tollgate_rs

    text = PAGE.read_text()
    for name in tollgate_rs.__all__:
        value = getattr(tollgate_rs, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert f"`{name}`" in text, name
    for name in ("memory", "embedded", "redis", "postgres", "dynamodb", "broker", "open"):
        assert f"Gate.{name}" in text, name


def test_links_of_the_page_lead_to_files() -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", PAGE.read_text()):
        assert (PAGE.parent / target).exists(), target
