"""What the tests of the adapters share: policies, and the fakes of providers as real processes."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Broker, as_toml, binary

ROOT = Path(__file__).resolve().parents[4]


def bucket(name: str, capacity: int, refill: str = "1/h", unit: str = "requests") -> dict[str, Any]:
    """A limit that practically does not refill during a test."""
    return {"name": name, "unit": unit, "rule": "token-bucket", "capacity": capacity, "refill": refill}


def policy(name: str, *limits: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "limits": list(limits)}


class Fake:
    """A fake of the testkit in a process of its own."""

    def __init__(self, name: str, *options: str) -> None:
        self.process = subprocess.Popen(
            [binary(name), "--port", "0", *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url.startswith("http://127.0.0.1:"), self.url

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path) as response:
            return json.load(response)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def fake() -> Iterator[Callable[..., Fake]]:
    """Starts fakes: `fake("fake-drs", "--servers", "120")`."""
    started: list[Fake] = []

    def start(name: str, *options: str) -> Fake:
        started.append(Fake(name, *options))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def eventually(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Waits until another process or thread got there."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    """A broker with one policy; its URL."""
    limit = {"name": "rpm", "unit": "requests", "rule": "rolling-window", "limit": 5, "window": "1m"}
    with Broker(tmp_path, as_toml([policy("gemini-free", limit)])) as broker:
        yield broker.url
