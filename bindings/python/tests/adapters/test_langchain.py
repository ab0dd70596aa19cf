"""The rate limiter of LangChain, with chat models in several processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

from adapters.conftest import bucket, eventually, policy
from tollgate_rs import Denied, Gate, InvalidInput, ManualClock
from tollgate_rs.langchain import RateLimiter


def model(limiter: RateLimiter) -> Any:
    def answers() -> Any:
        while True:
            yield AIMessage(content="hello")

    return GenericFakeChatModel(messages=answers(), rate_limiter=limiter)


def test_a_chat_model_takes_a_permit_for_each_call_and_raises_without_one() -> None:
    gate = Gate.memory([policy("llm", bucket("rpm", 2))])
    chat = model(RateLimiter(gate, "llm", "p7", wait=0))
    assert chat.invoke("hi").content == "hello"
    assert asyncio.run(chat.ainvoke("hi")).content == "hello"
    with pytest.raises(Denied) as denied:
        chat.invoke("hi")
    assert denied.value.limit == "rpm" and denied.value.retry_after is not None
    with pytest.raises(Denied):
        asyncio.run(chat.ainvoke("hi"))
    assert gate.standing_sync("llm", "p7")[0].used == 2


def test_without_blocking_it_says_whether_there_was_a_permit() -> None:
    gate = Gate.memory([policy("llm", bucket("rpm", 2))])
    limiter = RateLimiter(gate, "llm", "p7")
    assert [limiter.acquire(blocking=False) for _ in range(2)] == [True, True]
    assert limiter.acquire(blocking=False) is False
    assert asyncio.run(limiter.aacquire(blocking=False)) is False


def test_a_blocking_ask_waits_until_there_is_room() -> None:
    clock = ManualClock(1_000.0)
    gate = Gate.memory([policy("llm", bucket("rpm", 1, "1/s"))], clock=clock)
    limiter = RateLimiter(gate, "llm", "p7")
    assert limiter.acquire()
    results: list[bool] = []
    thread = threading.Thread(target=lambda: results.append(limiter.acquire()))
    thread.start()
    eventually(lambda: gate.waiting == 1)
    assert results == []
    clock.advance(1.0)
    thread.join(30)
    assert results == [True]


def test_a_cost_larger_than_the_limit_is_denied_instead_of_waiting_for_ever() -> None:
    gate = Gate.memory([policy("llm", bucket("tpm", 100, unit="tokens"))])
    limiter = RateLimiter(gate, "llm", "p7", costs={"tokens": 101})
    with pytest.raises(Denied) as denied:
        limiter.acquire()
    assert denied.value.never
    with pytest.raises(Denied):
        asyncio.run(limiter.aacquire())


def test_a_policy_with_slots_is_refused() -> None:
    slots = {"name": "slots", "unit": "requests", "rule": "concurrency", "limit": 1, "ttl": "1m"}
    with pytest.raises(InvalidInput, match="does not say when a call ends"):
        RateLimiter(Gate.memory([policy("llm", slots)]), "llm", "p7")


WORKER = """
    import sys
    from langchain_core.language_models import GenericFakeChatModel
    from langchain_core.messages import AIMessage
    from tollgate_rs import Denied, Gate
    from tollgate_rs.langchain import RateLimiter

    limit = {"name": "rpd", "unit": "requests", "rule": "token-bucket", "capacity": 50, "refill": "1/h"}
    gate = Gate.embedded(sys.argv[1], [{"name": "llm", "limits": [limit]}])
    limiter = RateLimiter(gate, "llm", "project-7", wait=0)
    chat = GenericFakeChatModel(messages=iter([AIMessage(content="hello")] * 40), rate_limiter=limiter)
    sys.stdin.readline()
    calls = 0
    for _ in range(40):
        try:
            chat.invoke("hi")
            calls += 1
        except Denied:
            pass
    print(calls)
"""


def test_chat_models_in_four_processes_make_exactly_as_many_calls_as_the_limit_allows(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(WORKER), str(tmp_path / "data")]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    workers = [subprocess.Popen(command, **pipes) for _ in range(4)]
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    calls = [int(worker.communicate()[0]) for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 4
    assert sum(calls) == 50, calls
