"""A million decisions leave no memory behind."""

from __future__ import annotations

import asyncio
import gc
import resource
from pathlib import Path

from conftest import policy, slots, window

from tollgate_rs import Denied, Gate

PAGE = resource.getpagesize()


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def test_memory_is_flat_over_a_million_decisions() -> None:
    gate = Gate.memory([policy("llm", window("rpm", 10**9), slots("running", 1000)), policy("full", window("rpd", 1))])
    gate.acquire_sync("full", "p7")
    subjects = [f"p{number}" for number in range(64)]

    def sync_calls(count: int) -> None:
        for number in range(count):
            with gate.acquire_sync("llm", subjects[number % 64]) as permit:
                permit.settle(requests=1)

    def refusals(count: int) -> None:
        for _ in range(count):
            assert gate.try_acquire("full", "p7") is None

    async def async_calls(count: int) -> None:
        for number in range(count):
            async with gate.acquire("llm", subjects[number % 64]):
                pass

    async def waits(count: int) -> None:
        for _ in range(count):
            try:
                await gate.acquire("full", "p7", wait=1)
            except Denied:
                pass

    def round() -> None:
        sync_calls(80_000)
        refusals(60_000)
        asyncio.run(async_calls(50_000))
        asyncio.run(waits(10_000))

    round()
    before = resident()
    for _ in range(5):
        round()
    grown = resident() - before
    assert grown < 8 << 20, f"{grown / 2**20:.1f} MiB more after a million decisions"
