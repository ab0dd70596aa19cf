"""Cancellations and exceptions at random moments: the books balance.

A gate in memory with a clock that is moved by hand waits for room; a gate on Redis is cancelled in the middle of a round trip. What
is used at the end is what completed calls kept, whatever happened to the others.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from conftest import Servers, eventually, policy, slots, window

from tollgate_rs import Denied, Gate, ManualClock, Permit


class Boom(Exception):
    pass


async def one_call(gate: Gate, subject: str, random_source: random.Random, kept: list[int]) -> None:
    """A call that may fail, be released or be cancelled. Records what it keeps as soon as it has a permit."""
    tokens = random_source.randrange(1, 50)
    ending = random_source.choice(["settle", "release", "fail", "keep"])
    async with gate.acquire("llm", subject, tokens=tokens, wait=3600) as permit:
        index = len(kept)
        kept.append(tokens)
        if ending == "release":
            permit.release()
            kept[index] = 0
        if ending == "settle":
            permit.settle(tokens=tokens // 2)
            kept[index] = tokens // 2
        for _ in range(random_source.randrange(3)):
            await asyncio.sleep(0)
        if ending == "fail":
            raise Boom


async def one_leaking_call(gate: Gate, subject: str, random_source: random.Random, kept: list[int]) -> None:
    """A call whose ask goes on when the call is cancelled, and whose admission then belongs to no one."""

    async def ask(tokens: int) -> Permit:
        return await gate.acquire("llm", subject, tokens=tokens, wait=3600)

    tokens = random_source.randrange(1, 50)
    permit = await asyncio.shield(asyncio.ensure_future(ask(tokens)))
    kept.append(tokens)
    await permit.settle()


async def storm(
    gate: Gate, rounds: int, clock: ManualClock | None, seed: int, call: Any = one_call, at_once: int = 64
) -> tuple[int, int, int]:
    """Starts calls, so many at once, and cancels some of them at random. Returns how many were cancelled and failed, and
    what is kept."""
    random_source = random.Random(seed)
    kept: list[int] = []
    cancelled = failed = started = ended = 0
    running: set[asyncio.Task[None]] = set()
    while started < rounds or running:
        if started < rounds and len(running) < at_once:
            running.add(asyncio.create_task(call(gate, "p7", random_source, kept)))
            started += 1
        # At most every other call, so that a slow machine also admits some.
        if running and cancelled <= ended // 2 and random_source.random() < 0.4:
            random_source.choice(list(running)).cancel()
        for _ in range(random_source.randrange(3)):
            await asyncio.sleep(0)
        if clock is not None and random_source.random() < 0.2:
            clock.advance(random_source.choice([0.01, 0.1, 1.0]))
        if started == rounds and clock is not None:
            clock.advance(1.0)
            await asyncio.sleep(0.001)
        for task in [task for task in running if task.done()]:
            running.discard(task)
            ended += 1
            if task.cancelled():
                cancelled += 1
            elif isinstance(task.exception(), (Boom, Denied)):
                failed += 1
            else:
                task.result()
        if not running:
            await asyncio.sleep(0)
    return cancelled, failed, sum(kept)


def used(gate: Gate) -> dict[str, int]:
    return {standing.name: standing.used for standing in gate.standing_sync("llm", "p7")}


def waiting_gate(clock: ManualClock) -> Gate:
    """Two slots make calls wait; the month counts what is kept, and does not end during the test."""
    month = {"name": "month", "unit": "tokens", "rule": "calendar-window", "limit": 10**9, "period": "month"}
    return Gate.memory([policy("llm", slots("running", 2), month)], clock=clock)


def test_ten_thousand_cancellations_and_exceptions_in_memory() -> None:
    clock = ManualClock(1_700_000_000.0)
    gate = waiting_gate(clock)
    cancelled, failed, kept = asyncio.run(storm(gate, 10_000, clock, seed=1))
    assert cancelled > 2_000 and failed > 200, (cancelled, failed)
    eventually(lambda: gate.waiting == 0)
    eventually(lambda: used(gate) == {"running": 0, "month": kept})


def test_the_books_show_admissions_that_are_not_released() -> None:
    clock = ManualClock(1_700_000_000.0)
    gate = waiting_gate(clock)
    cancelled, _, kept = asyncio.run(storm(gate, 500, clock, seed=1, call=one_leaking_call))
    assert cancelled > 100
    assert used(gate)["month"] > kept


def test_cancellations_during_round_trips_to_redis(servers: Servers) -> None:
    policies = [policy("llm", window("tpm", 10**9, "tokens", "24h"))]
    gate = Gate.redis(servers.redis, policies, prefix="cancel:", attempt_timeout="5s")
    cancelled, _, kept = asyncio.run(storm(gate, 1_500, None, seed=2))
    assert cancelled > 200, cancelled
    # What raced a cancellation is released in the background.
    eventually(lambda: used(gate) == {"tpm": kept})
    gate.close()


def test_a_cancelled_waiter_takes_nothing_and_the_next_is_served() -> None:
    gate = Gate.memory([policy("llm", slots("running", 1))])

    async def calls() -> None:
        first = await gate.acquire("llm", "p7")
        second = asyncio.create_task(waiting(gate))
        third = asyncio.create_task(waiting(gate))
        while gate.waiting < 2:
            await asyncio.sleep(0.001)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        while gate.waiting != 1:
            await asyncio.sleep(0.001)
        await first.release()
        await asyncio.wait_for(third, 60)
        assert used(gate) == {"running": 1}

    asyncio.run(calls())


async def waiting(gate: Gate) -> None:
    await gate.acquire("llm", "p7", wait=3600)


def test_an_admission_that_races_a_cancellation_is_released() -> None:
    """The result is there, and the task is cancelled before it runs again."""
    gate = Gate.memory([policy("llm", slots("running", 1))])

    async def calls() -> None:
        for _ in range(200):
            first = await gate.acquire("llm", "p7")
            task = asyncio.create_task(waiting(gate))
            while gate.waiting < 1:
                await asyncio.sleep(0)
            await first.release()
            # The waiter is admitted on another thread; its task does not run before the cancellation.
            eventually(lambda: gate.waiting == 0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            eventually(lambda: used(gate) == {"running": 0})

    asyncio.run(calls())


def test_a_time_limit_of_asyncio_works_as_a_cancellation() -> None:
    gate = Gate.memory([policy("llm", window("rpm", 1))])

    async def calls() -> None:
        await gate.acquire("llm", "p7")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await gate.acquire("llm", "p7", wait=3700)
        assert gate.waiting == 0 or await settled()

    async def settled() -> bool:
        while gate.waiting:
            await asyncio.sleep(0.001)
        return True

    asyncio.run(calls())
    assert used(gate) == {"rpm": 1}


def test_an_ask_outlives_its_loop() -> None:
    """The loop ends while an ask waits: it is cancelled with its task."""
    gate = Gate.memory([policy("llm", slots("running", 1))])

    async def calls() -> None:
        await gate.acquire("llm", "p7")
        asyncio.create_task(waiting(gate))
        while gate.waiting < 1:
            await asyncio.sleep(0.001)

    asyncio.run(calls())
    eventually(lambda: gate.waiting == 0)
    assert used(gate) == {"running": 1}
