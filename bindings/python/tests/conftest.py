"""What the tests share: policies, real servers, and waiting for other processes."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))

sys.path.insert(0, str(Path(__file__).parent))


def window(name: str, limit: int, unit: str = "requests", window: str = "1h") -> dict[str, Any]:
    return {"name": name, "unit": unit, "rule": "rolling-window", "limit": limit, "window": window}


def slots(name: str, limit: int, ttl: str = "5m") -> dict[str, Any]:
    return {"name": name, "unit": "requests", "rule": "concurrency", "limit": limit, "ttl": ttl}


def bucket(name: str, capacity: int, refill: str = "1/s", unit: str = "requests") -> dict[str, Any]:
    return {"name": name, "unit": unit, "rule": "token-bucket", "capacity": capacity, "refill": refill}


def policy(name: str, *limits: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return {"name": name, "limits": list(limits), **settings}


def eventually(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Waits for another process or thread."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


class Servers:
    """Real servers, started and stopped by the launcher of the Rust tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _store(self, name: str) -> dict[str, Any]:
        text = (self.folder / f"{name}.toml").read_text()
        store: dict[str, Any] = tomllib.loads(text)["store"]
        return store

    @property
    def redis(self) -> str:
        return str(self._store("redis")["url"])

    @property
    def postgres(self) -> str:
        return str(self._store("postgres")["url"])

    @property
    def dynamodb(self) -> dict[str, Any]:
        return self._store("dynamodb")


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("services")
    # The PostgreSQL server runs as another user.
    for parent in [folder, *folder.parents]:
        if parent.stat().st_uid == os.getuid() and parent != parent.parent:
            parent.chmod(parent.stat().st_mode | 0o011)
    binary = TARGET / "debug" / "services"
    if not binary.exists():
        subprocess.run(["cargo", "build", "-q", "-p", "tollgate-testkit", "--bin", "services"], cwd=ROOT, check=True)
    subprocess.run([binary, "up", folder], check=True, stdout=subprocess.DEVNULL)
    yield Servers(folder)
    subprocess.run([binary, "down", folder], check=True, stdout=subprocess.DEVNULL)
