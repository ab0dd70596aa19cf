"""Eight processes with eight tasks each on one store: exactly the limit goes through."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import Broker, Servers, as_toml, policy, window

from tollgate_rs import Gate, Unavailable

PROCESSES = 8
LIMIT = 100
POLICIES = [policy("llm", window("rpd", LIMIT, window="24h"))]

WORKER = textwrap.dedent(
    """
    import asyncio, sys
    from tollgate_rs import Contended, Denied, Gate

    kind, place, policies, options = sys.argv[1], sys.argv[2], eval(sys.argv[3]), eval(sys.argv[4])
    gate = getattr(Gate, kind)(place, policies, **options)

    async def task():
        admitted = unknown = 0
        while True:
            try:
                await gate.acquire("llm", "p7")
            except Denied:
                return admitted, unknown
            except Contended:
                unknown += 1
                continue
            admitted += 1

    async def main():
        print(*map(sum, zip(*await asyncio.gather(*[task() for _ in range(8)]))))

    asyncio.run(main())
    gate.close()
    """
)


def race(kind: str, place: str, **options: str) -> None:
    """Lets processes take permits until there are none, and checks that they got the limit."""
    command = [sys.executable, "-c", WORKER, kind, place, repr(POLICIES), repr(options)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)]
    counts = []
    for worker in workers:
        output, _ = worker.communicate(timeout=180)
        assert worker.returncode == 0
        counts.append([int(word) for word in output.split()])
    admitted, unknown = map(sum, zip(*counts))
    # An ask that ends in an error may be charged, and is then charged to nobody.
    assert LIMIT - unknown <= admitted <= LIMIT, counts


@pytest.mark.parametrize("kind", ["redis", "postgres"])
def test_eight_processes_share_a_server(servers: Servers, kind: str) -> None:
    race(kind, getattr(servers, kind), attempt_timeout="5s")


def test_eight_processes_share_a_folder(tmp_path: Path) -> None:
    race("embedded", str(tmp_path / "data"))
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


def test_eight_processes_share_a_table(servers: Servers, table: str) -> None:
    store = servers.dynamodb
    race("dynamodb", table, endpoint=store["endpoint"], region="eu-central-1", attempt_timeout="5s")


def test_eight_processes_share_a_broker(tmp_path: Path) -> None:
    with Broker(tmp_path, as_toml(POLICIES)) as broker:
        race("broker", broker.url, attempt_timeout="5s")


def test_a_missing_table_says_how_to_make_it(servers: Servers, credentials: None) -> None:
    with pytest.raises(Unavailable, match="no-such-table.*tollgate dynamodb create-table"):
        Gate.dynamodb("no-such-table", POLICIES, endpoint=servers.dynamodb["endpoint"], region="eu-central-1").acquire_sync(
            "llm", "p7"
        )
