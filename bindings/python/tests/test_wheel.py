"""The built wheel in a clean virtual environment, used from another folder."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path

from conftest import TARGET

#: The wheel of `cargo xtask python`, or a release.
WHEELS = Path(os.environ.get("TOLLGATE_WHEELS", TARGET / "python" / "wheels"))
#: The newest glibc that the wheel may need.
GLIBC = os.environ.get("TOLLGATE_GLIBC", platform.libc_ver()[1])

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


def the_wheel() -> Path:
    (wheel,) = WHEELS.glob("tollgate_rs-*.whl")
    return wheel


def glibc_versions(module: bytes) -> list[tuple[int, ...]]:
    """Returns the versions of the symbols that a native module imports from glibc."""
    names = re.findall(rb"\0GLIBC_([0-9.]+)(?=\0)", module)
    return [tuple(map(int, name.decode().split("."))) for name in names]


def test_the_wheel_needs_no_newer_glibc_than_it_says() -> None:
    with zipfile.ZipFile(the_wheel()) as files:
        (name,) = (name for name in files.namelist() if name.endswith(".so"))
        versions = glibc_versions(files.read(name))
    assert versions and max(versions) <= tuple(map(int, GLIBC.split("."))), (GLIBC, sorted(versions))
    tag = re.search(r"-manylinux_(\d+)_(\d+)_", the_wheel().name)
    assert tag and max(versions) <= tuple(map(int, tag.groups())), the_wheel().name
    if "TOLLGATE_GLIBC" in os.environ:
        assert ".".join(tag.groups()) == GLIBC, "pip would refuse it on older systems"


def test_the_wheel_works_in_a_clean_environment(tmp_path: Path) -> None:
    wheel = the_wheel()
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
