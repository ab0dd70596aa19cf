"""A program as users write it, checked by mypy --strict."""

from __future__ import annotations

import asyncio

from tollgate_rs import Denied, Gate, Incident, Permit, Standing, SyncPermit, Unavailable

gate: Gate = Gate.memory(
    [
        {
            "name": "llm",
            "limits": [
                {"name": "rpm", "unit": "requests", "rule": "rolling-window", "limit": 60, "window": "1m"},
                {"name": "tpm", "unit": "tokens", "rule": "rolling-window", "limit": 100_000, "window": "1m"},
            ],
        }
    ]
)


@gate.limit("llm", "p7", wait=30, tokens=500)
async def ask(question: str) -> str:
    return question.upper()


@gate.limit("llm", lambda user: user)
def ask_sync(user: str) -> int:
    return len(user)


async def main() -> str:
    async with gate.acquire("llm", "p7", tokens=3750, wait=30) as permit:
        held: Permit = permit
        permit.settle(tokens=12)
    other: Permit = await gate.acquire(charges=[("llm", "p8"), ("llm", "p9", {"tokens": 5})], tokens=1, id="a")
    changed: bool = await other.settle(charges={1: {"tokens": 1}})
    standings: list[Standing] = await gate.standing("llm", "p7")
    incident: Incident = await held.violation(retry_after=1.5)
    answer: str = await ask("why")
    return f"{answer} {changed} {standings[0].remaining} {incident.limit}"


def main_sync() -> float | None:
    try:
        with gate.acquire_sync("llm", "p7", tokens=3750) as permit:
            held: SyncPermit = permit
            permit.settle(tokens=12)
        token: str = held.token
        found: SyncPermit | None = gate.try_acquire("llm", "p7")
        length: int = ask_sync("p7")
        return found.decided_at + length + len(token) if found else None
    except Denied as denied:
        return denied.retry_after
    except Unavailable:
        return None


def test_the_sample_runs() -> None:
    assert asyncio.run(main()).startswith("WHY True 5")
    # The limit that was closed above may be closed still.
    assert (main_sync() or 0) > 0
