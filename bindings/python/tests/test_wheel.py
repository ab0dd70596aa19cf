"""The built wheel in a clean virtual environment, used from another folder."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from conftest import TARGET

PROGRAM = textwrap.dedent(
    """
    import asyncio, sys
    from tollgate_rs import Denied, Gate

    assert sys.prefix in sys.modules["tollgate_rs"].__file__
    limits = [{"name": "burst", "unit": "requests", "rule": "token-bucket", "capacity": 1, "refill": "1/h"}]
    policies = [{"name": "api", "limits": limits}]

    async def main(gate):
        async with gate.acquire("api", "alice", wait=1):
            pass
        try:
            await gate.acquire("api", "alice")
        except Denied as denied:
            return denied.limit

    print(asyncio.run(main(Gate.memory(policies))), asyncio.run(main(Gate.embedded("data", policies))))
    """
)


def test_the_wheel_works_in_a_clean_environment(tmp_path: Path) -> None:
    (wheel,) = (TARGET / "python" / "wheels").glob("tollgate_rs-*.whl")
    assert "-cp311-abi3-" in wheel.name
    environment = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / "bin" / "python"
    # Without an index: the package needs nothing else.
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", wheel], check=True)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    output = subprocess.run([python, "-c", PROGRAM], cwd=folder, check=True, capture_output=True, text=True).stdout
    assert output == "burst burst\n"
    assert (folder / "data" / "entries.sqlite").exists()
