"""Eight processes with eight tasks each on one store: exactly the limit goes through."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import Servers, policy, window

from tollgate_rs import Gate

PROCESSES = 8
LIMIT = 100
POLICIES = [policy("llm", window("rpd", LIMIT, window="24h"))]

WORKER = textwrap.dedent(
    """
    import asyncio, sys
    from tollgate_rs import Denied, Gate

    kind, place, policies = sys.argv[1], sys.argv[2], eval(sys.argv[3])
    gate = getattr(Gate, kind)(place, policies)

    async def task():
        admitted = 0
        while True:
            try:
                await gate.acquire("llm", "p7")
            except Denied:
                return admitted
            admitted += 1

    async def main():
        print(sum(await asyncio.gather(*[task() for _ in range(8)])))

    asyncio.run(main())
    gate.close()
    """
)


def race(kind: str, place: str) -> list[int]:
    command = [sys.executable, "-c", WORKER, kind, place, repr(POLICIES)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)]
    counts = []
    for worker in workers:
        output, _ = worker.communicate(timeout=180)
        assert worker.returncode == 0
        counts.append(int(output))
    return counts


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_eight_processes_share_a_server(servers: Servers, kind: str) -> None:
    counts = race(kind, getattr(servers, kind))
    assert sum(counts) == LIMIT, counts


def test_eight_processes_share_a_folder(tmp_path: Path) -> None:
    counts = race("embedded", str(tmp_path / "data"))
    assert sum(counts) == LIMIT, counts
    assert Gate.embedded(tmp_path / "data", POLICIES).standing_sync("llm", "p7")[0].used == LIMIT


def test_a_token_crosses_processes(tmp_path: Path) -> None:
    place = str(tmp_path / "data")
    gate = Gate.embedded(place, POLICIES)
    token = gate.acquire_sync("llm", "p7").token
    program = (
        "import sys; from tollgate_rs import Gate\n"
        "gate = Gate.embedded(sys.argv[1], eval(sys.argv[2]))\n"
        "print(gate.permit_sync(sys.argv[3]).release())"
    )
    command = [sys.executable, "-c", program, place, repr(POLICIES), token]
    # The other process waits until this one gives the folder up.
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
    assert gate.standing_sync("llm", "p7")[0].used == 0


def test_a_gate_is_opened_on_dynamodb(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    store = dict(servers.dynamodb)
    store.pop("kind")
    with pytest.raises(Exception) as error:
        Gate.dynamodb("no-such-table", POLICIES, **{name: store[name] for name in store if name != "table"}).acquire_sync(
            "llm", "p7"
        )
    assert "no-such-table" in str(error.value)
