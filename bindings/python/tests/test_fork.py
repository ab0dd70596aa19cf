"""Forks: nothing is spent twice, and what belongs to the parent stays there."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Servers, policy, window

from tollgate_rs import Denied, Forked, Gate

POLICIES = [policy("llm", window("rpd", 100, window="24h"))]


def in_child(work: Callable[[], int]) -> Callable[[], int]:
    """Runs `work` in a fork. Returns a function that waits for its result, a number below 200."""
    child = os.fork()
    if child == 0:
        code = 255
        try:
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def wait() -> int:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert 0 <= code < 200, f"the child ended with {code}"
        return code

    return wait


def take_all(gate: Gate) -> int:
    admitted = 0
    try:
        while True:
            gate.acquire_sync("llm", "p7")
            admitted += 1
    except Denied:
        return admitted


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_a_store_on_a_server_is_opened_again(servers: Servers, kind: str) -> None:
    policies = [policy(f"fork-{kind}", window("rpd", 100, window="24h"))]
    gate = getattr(Gate, kind)(getattr(servers, kind), policies, attempt_timeout="5s")

    def take() -> int:
        admitted = 0
        while gate.try_acquire(f"fork-{kind}", "p7") is not None:
            admitted += 1
        return admitted

    for _ in range(10):
        gate.acquire_sync(f"fork-{kind}", "p7")
    children = [in_child(take) for _ in range(3)]
    assert 10 + take() + sum(child() for child in children) == 100
    gate.close()


def test_nothing_of_a_leased_gate_is_spent_twice(servers: Servers) -> None:
    """The parent holds blocks of tokens when it forks. Its children lease their own."""
    policies = [policy("leased", window("rpm", 200, window="1h"), block_ttl="3m")]
    gate = Gate.redis(servers.redis, policies, strategy={"kind": "leased"}, prefix="leased:", attempt_timeout="5s")

    def take(most: int) -> int:
        admitted = 0
        while admitted < most and gate.try_acquire("leased", "p7") is not None:
            admitted += 1
        return admitted

    before = take(20)
    assert before == 20
    children = [in_child(lambda: take(190)) for _ in range(3)]
    counts = [before, take(190), *[child() for child in children]]
    assert sum(counts) <= 200, counts
    # The blocks of the parent stayed with the parent: it can spend them after the fork.
    assert counts[1] > 0, counts
    gate.close()


def test_a_folder_is_shared_by_parent_and_children(tmp_path: Path) -> None:
    gate = Gate.embedded(tmp_path / "data", POLICIES)
    for _ in range(10):
        gate.acquire_sync("llm", "p7")
    children = [in_child(lambda: take_all(gate)) for _ in range(2)]
    assert 10 + take_all(gate) + sum(child() for child in children) == 100


def test_a_memory_store_is_an_error_in_a_child() -> None:
    gate = Gate.memory(POLICIES)
    gate.acquire_sync("llm", "p7")

    def work() -> int:
        for call in (
            lambda: gate.acquire_sync("llm", "p7"),
            lambda: gate.try_acquire("llm", "p7"),
            lambda: gate.standing_sync("llm", "p7"),
        ):
            with pytest.raises(Forked, match="open the gate after the fork"):
                call()
        assert Gate.memory(POLICIES).try_acquire("llm", "p7") is not None
        return 7

    assert in_child(work)() == 7
    assert gate.standing_sync("llm", "p7")[0].used == 1


def test_a_permit_belongs_to_the_process_that_got_it(servers: Servers) -> None:
    policies = [policy("owned", window("rpd", 100, window="24h"))]
    gate = Gate.redis(servers.redis, policies, attempt_timeout="5s")
    permit = gate.acquire_sync("owned", "p7")
    token = permit.token

    def work() -> int:
        with pytest.raises(Forked, match="pass its token"):
            permit.release()
        return int(gate.permit_sync(token).release())

    assert in_child(work)() == 1
    assert permit.release() is False
    gate.close()


def test_a_permit_in_a_block_of_the_parent_is_not_settled_by_a_child(servers: Servers) -> None:
    policies = [policy("block", window("tpd", 100, "tokens", "24h"))]
    gate = Gate.redis(servers.redis, policies, attempt_timeout="5s")
    with gate.acquire_sync("block", "p7", tokens=10) as permit:
        permit.settle(tokens=1)

        def work() -> int:
            permit.__exit__(None, None, None)
            return 0

        in_child(work)()
        assert gate.standing_sync("block", "p7")[0].used == 10
    assert gate.standing_sync("block", "p7")[0].used == 1
    gate.close()
