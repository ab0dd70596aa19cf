"""Asks, permits and blocks."""

from __future__ import annotations

import asyncio
import logging
import pickle
import threading
from pathlib import Path

import pytest
from conftest import bucket, eventually, policy, slots, window

from tollgate_rs import Call, Closed, Conflict, Denied, Gate, InvalidInput, ManualClock, Permit, UnknownPolicy

LLM = policy("llm", window("rpm", 10), window("tpm", 1000, "tokens"))


def used(gate: Gate, subject: str = "p7", name: str = "llm") -> dict[str, int]:
    return {standing.name: standing.used for standing in gate.standing_sync(name, subject)}


def test_a_permit_is_awaited_settled_and_released() -> None:
    gate = Gate.memory([LLM])

    async def calls() -> None:
        permit = await gate.acquire("llm", "p7", tokens=100)
        assert isinstance(permit, Permit)
        assert permit.charges == [("llm", "p7")] and permit.costs == [{"requests": 1, "tokens": 100}]
        assert permit.limits[0][0].remaining == 9
        assert await permit.settle(tokens=40) is True
        assert await permit.settle(tokens=40) is False
        other = await gate.acquire("llm", "p7", tokens=100)
        assert await other.release() is True

    asyncio.run(calls())
    assert used(gate) == {"rpm": 1, "tpm": 40}


def test_a_settlement_that_is_not_awaited_is_sent() -> None:
    gate = Gate.memory([LLM])

    async def calls() -> None:
        permit = await gate.acquire("llm", "p7", tokens=100)
        permit.settle(tokens=1)

    asyncio.run(calls())
    eventually(lambda: used(gate)["tpm"] == 1)


def test_an_ask_that_is_never_awaited_takes_nothing() -> None:
    gate = Gate.memory([LLM])
    gate.acquire("llm", "p7", tokens=100)
    assert used(gate) == {"rpm": 0, "tpm": 0}


def test_a_block_sends_what_was_recorded_when_it_ends() -> None:
    gate = Gate.memory([LLM])

    async def calls() -> None:
        async with gate.acquire("llm", "p7", tokens=100) as permit:
            permit.settle(tokens=7)
            assert used(gate) == {"rpm": 1, "tpm": 100}
        assert used(gate) == {"rpm": 1, "tpm": 7}
        async with gate.acquire("llm", "p7", tokens=100) as permit:
            permit.release()
        assert used(gate) == {"rpm": 1, "tpm": 7}

    asyncio.run(calls())
    with gate.acquire_sync("llm", "p7", tokens=100) as permit:
        permit.settle(requests=1)
        permit.settle(tokens=3)
        assert used(gate) == {"rpm": 2, "tpm": 107}
    assert used(gate) == {"rpm": 2, "tpm": 10}


def test_an_exception_in_a_block_keeps_the_estimate_and_frees_slots() -> None:
    gate = Gate.memory([policy("llm", slots("running", 1), window("tpm", 1000, "tokens"))])
    with pytest.raises(ZeroDivisionError):
        with gate.acquire_sync("llm", "p7", tokens=100):
            raise ZeroDivisionError

    async def calls() -> None:
        async with gate.acquire("llm", "p7", tokens=100):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asyncio.run(calls())
    assert used(gate) == {"running": 0, "tpm": 200}


def test_several_charges_are_taken_together_or_not_at_all() -> None:
    gate = Gate.memory([policy("user", window("rpm", 1)), policy("team", window("tpm", 100, "tokens"))])
    ask = {"charges": [("user", "u1"), ("team", "t7")], "costs": {"tokens": 60}}
    permit = gate.acquire_sync(**ask)  # type: ignore[arg-type]
    assert permit.charges == [("user", "u1"), ("team", "t7")]
    with pytest.raises(Denied) as denied:
        gate.acquire_sync(charges=[("user", "u2"), ("team", "t7")], tokens=60)
    assert denied.value.policy == "team" and denied.value.limit == "tpm"
    assert [refusal.subject for refusal in denied.value.refusals] == ["t7"]
    assert [[standing.name for standing in charge] for charge in denied.value.charges] == [["rpm"], ["tpm"]]
    assert used(gate, "u2", "user") == {"rpm": 0}
    assert permit.settle(charges={1: {"tokens": 5}}) is True
    assert used(gate, "t7", "team") == {"tpm": 5}


def test_a_denial_says_which_limit_binds_and_until_when() -> None:
    clock = ManualClock(1_700_000_000.0)
    gate = Gate.memory([policy("api", bucket("burst", 2, "1/s"))], clock=clock)
    assert gate.try_acquire("api", "alice") and gate.try_acquire("api", "alice")
    assert gate.try_acquire("api", "alice") is None
    with pytest.raises(Denied) as denied:
        gate.acquire_sync("api", "alice")
    error = denied.value
    assert (error.policy, error.limit, error.unit, error.asked, error.most) == ("api", "burst", "requests", 1, 2)
    assert error.retry_after == 1.0 and error.retry_at == 1_700_000_001.0 and not error.never
    assert error.limits[0].remaining == 0 and "try again in 1s" in str(error)
    with pytest.raises(Denied) as denied:
        gate.acquire_sync("api", "alice", requests=3)
    assert denied.value.never and denied.value.retry_after is None


def test_a_denial_can_be_pickled() -> None:
    gate = Gate.memory([policy("api", bucket("burst", 1, "1/h"))])
    gate.acquire_sync("api", "alice")
    with pytest.raises(Denied) as denied:
        gate.acquire_sync("api", "alice")
    copy = pickle.loads(pickle.dumps(denied.value))
    assert isinstance(copy, Denied) and copy.limit == "burst" and str(copy) == str(denied.value)
    assert copy.limits[0].remaining == 0 and copy.limits[0].reset_at == denied.value.limits[0].reset_at


def test_waiting_asks_are_served_in_order() -> None:
    clock = ManualClock(1_700_000_000.0)
    gate = Gate.memory([policy("api", bucket("burst", 1, "1/s"))], clock=clock)

    async def calls() -> list[int]:
        served: list[int] = []

        async def call(number: int) -> None:
            await gate.acquire("api", "alice", wait=60)
            served.append(number)

        tasks = []
        for number in range(5):
            tasks.append(asyncio.create_task(call(number)))
            while gate.waiting < number:
                await asyncio.sleep(0.001)
        while not all(task.done() for task in tasks):
            clock.advance(1)
            await asyncio.sleep(0.001)
        return served

    assert asyncio.run(calls()) == [0, 1, 2, 3, 4]


def test_a_thread_waits_for_room_without_the_interpreter() -> None:
    clock = ManualClock(1_700_000_000.0)
    gate = Gate.memory([policy("api", bucket("burst", 1, "1/s"))], clock=clock)
    gate.acquire_sync("api", "alice")
    served = threading.Event()

    def call() -> None:
        gate.acquire_sync("api", "alice", wait=5)
        served.set()

    thread = threading.Thread(target=call)
    thread.start()
    eventually(lambda: gate.waiting == 1)
    assert not served.is_set()
    clock.advance(1)
    thread.join(60)
    assert served.is_set()


def test_what_cannot_come_in_time_is_denied_at_once() -> None:
    gate = Gate.memory([policy("api", bucket("burst", 1, "1/h"))])
    gate.acquire_sync("api", "alice")

    async def call() -> None:
        with pytest.raises(Denied):
            await gate.acquire("api", "alice", wait=5)

    asyncio.run(call())
    with pytest.raises(Denied):
        gate.acquire_sync("api", "alice", wait=5)


def test_an_id_is_charged_once() -> None:
    gate = Gate.memory([LLM])
    first = gate.acquire_sync("llm", "p7", tokens=10, id="a")
    again = gate.acquire_sync("llm", "p7", tokens=10, id="a")
    assert first.token == again.token and used(gate) == {"rpm": 1, "tpm": 10}
    with pytest.raises(Conflict):
        gate.acquire_sync("llm", "p7", tokens=11, id="a")


def test_slots_are_renewed_and_freed() -> None:
    clock = ManualClock(1_700_000_000.0)
    gate = Gate.memory([policy("jobs", slots("running", 1, "1m"))], clock=clock)
    with gate.acquire_sync("jobs", "drs") as permit:
        assert permit.expires_at == 1_700_000_060.0
        clock.advance(30)
        permit.renew()
        assert permit.expires_at == 1_700_000_090.0
        assert gate.try_acquire("jobs", "drs") is None

    async def calls() -> None:
        async with gate.acquire("jobs", "drs") as permit:
            clock.advance(30)
            await permit.renew()
            assert permit.expires_at == 1_700_000_120.0
        assert gate.try_acquire("jobs", "drs") is not None

    asyncio.run(calls())


def test_a_token_settles_a_permit_elsewhere() -> None:
    gate = Gate.memory([LLM])
    token = gate.acquire_sync("llm", "p7", tokens=100).token
    assert gate.permit_sync(token).settle(tokens=1) is True

    async def call() -> None:
        permit = await gate.permit(token)
        assert await permit.release() is False

    asyncio.run(call())
    assert used(gate) == {"rpm": 1, "tpm": 1}


def test_a_violation_closes_a_limit() -> None:
    clock = ManualClock(1_700_000_000.0)
    gate = Gate.memory([LLM], clock=clock)
    permit = gate.acquire_sync("llm", "p7")
    incident = permit.violation(retry_after=30, limit="rpm")
    assert (incident.policy, incident.subject, incident.limit) == ("llm", "p7", "rpm")
    assert incident.closed and incident.until == 1_700_000_030.0 and incident.trouble is None
    with pytest.raises(Denied) as denied:
        gate.acquire_sync("llm", "p7")
    assert denied.value.limit == "rpm" and denied.value.retry_after == 30.0

    async def call() -> None:
        assert (await gate.violation("llm", "p8", retry_after=5)).limit == "rpm"
        permit = await gate.acquire("llm", "p9")
        assert (await permit.violation(retry_after=5)).closed

    asyncio.run(call())


def test_a_charge_is_posted_without_a_decision() -> None:
    gate = Gate.memory([LLM])
    gate.charge_sync("llm", "p7", tokens=1500)
    assert used(gate)["tpm"] == 1500

    async def call() -> None:
        await gate.charge("llm", "p7", tokens=1)
        assert await gate.reset("llm", "p7") is True
        assert (await gate.standing("llm", "p7"))[1].used == 0

    asyncio.run(call())


def test_a_decorator_limits_functions_of_both_kinds() -> None:
    gate = Gate.memory([policy("llm", slots("running", 1), window("tpm", 100, "tokens"))])

    @gate.limit("llm", lambda user, text: user, costs=lambda user, text: {"tokens": len(text)}, permit="permit")
    def call(user: str, text: str, *, permit: object = None) -> str:
        """Calls."""
        assert permit is not None and used(gate, user) == {"running": 1, "tpm": len(text)}
        return text.upper()

    @gate.limit("llm", "fixed", tokens=60)
    async def call_async(number: int) -> int:
        return number + 1

    assert call("u1", "abc") == "ABC" and call.__name__ == "call" and call.__doc__ == "Calls."
    assert used(gate, "u1") == {"running": 0, "tpm": 3}
    assert asyncio.run(call_async(1)) == 2
    with pytest.raises(Denied):
        asyncio.run(call_async(1))
    with pytest.raises(InvalidInput, match="generator"):

        @gate.limit("llm", "fixed")
        def stream() -> object:
            yield 1


def test_a_gate_is_a_context_manager_and_can_be_closed() -> None:
    with Gate.memory([LLM]) as gate:
        gate.acquire_sync("llm", "p7")
    with pytest.raises(Closed):
        gate.acquire_sync("llm", "p7")
    gate.close()

    async def calls() -> None:
        async with Gate.memory([LLM]) as gate:
            await gate.acquire("llm", "p7")
        with pytest.raises(Closed):
            await gate.acquire("llm", "p7")
        await gate.aclose()

    asyncio.run(calls())


def test_a_gate_is_opened_from_a_file_and_from_text(tmp_path: Path) -> None:
    text = """
        [store]
        kind = "memory"
        [server]
        http = "127.0.0.1:0"
        [[policy]]
        name = "api"
        limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 1, refill = "1/h" }]
    """
    file = tmp_path / "limits.toml"
    file.write_text(text)
    for gate in (Gate.open(file), Gate.open(str(file)), Gate.parse(text)):
        assert gate.store == "memory" and not gate.degraded
        assert gate.policies == [
            {
                "name": "api",
                "limits": [
                    {"name": "burst", "unit": "requests", "rule": "token-bucket", "capacity": 1, "refill": "1/h"}
                ],
            }
        ]
        assert gate.try_acquire("api", "alice") and not gate.try_acquire("api", "alice")


def test_a_result_is_awaited_once() -> None:
    gate = Gate.memory([LLM])

    async def calls() -> None:
        ask = gate.acquire("llm", "p7")
        await ask
        with pytest.raises(RuntimeError, match="awaited already"):
            await ask
        standing: Call[object] = gate.standing("llm", "p7")
        await standing
        with pytest.raises(RuntimeError, match="awaited already"):
            await standing

    asyncio.run(calls())


def test_an_unknown_policy_is_named_with_the_known_ones() -> None:
    gate = Gate.memory([LLM])
    with pytest.raises(UnknownPolicy, match="no policy is called \"lm\"; did you mean llm"):
        gate.acquire_sync("lm", "p7")


def test_a_settlement_that_fails_at_the_end_of_a_block_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate.embedded(tmp_path / "data", [LLM])
    with caplog.at_level(logging.WARNING, "tollgate_rs"):
        with gate.acquire_sync("llm", "p7", tokens=5) as permit:
            permit.settle(tokens=1)
            gate.close()
    assert "was not settled" in caplog.text
