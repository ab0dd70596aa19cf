"""What the tests share: policies, real servers, and waiting for other processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import subprocess
import sys
import threading
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
    services = binary("services")
    subprocess.run([services, "up", folder], check=True, stdout=subprocess.DEVNULL)
    yield Servers(folder)
    subprocess.run([services, "down", folder], check=True, stdout=subprocess.DEVNULL)


def binary(name: str, package: str = "tollgate-testkit") -> Path:
    """Returns a program of the workspace, and builds it if it is missing."""
    path = TARGET / "debug" / name
    if not path.exists():
        subprocess.run(["cargo", "build", "-q", "-p", package, "--bin", name], cwd=ROOT, check=True)
    return path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def as_toml(policies: list[dict[str, Any]], **keys: list[str]) -> str:
    """Writes policies, and keys with their scopes, as the sections of a `tollgate.toml`."""

    def written(value: Any) -> str:
        if isinstance(value, dict):
            return "{ " + ", ".join(f"{name} = {written(field)}" for name, field in value.items()) + " }"
        if isinstance(value, list):
            return "[" + ", ".join(map(written, value)) + "]"
        return f'"{value}"' if isinstance(value, str) else str(value).lower()

    text = ""
    for each in policies:
        text += "[[policy]]\n" + "".join(f"{name} = {written(each[name])}\n" for name in each)
    for key, scopes in keys.items():
        digest = hashlib.sha256(key.encode()).hexdigest()
        text += f'[[key]]\nname = "{key}"\nscopes = {written(scopes)}\nhash = "sha256:{digest}"\n'
    return text


class Broker:
    """The broker in a process of its own, which can be stopped and started again at the same address."""

    def __init__(self, folder: Path, sections: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        (folder / "broker.toml").write_text(
            f'[server]\nhttp = "127.0.0.1:{self.port}"\nresp = "off"\ngrpc = "off"\n[store]\nkind = "embedded"\n{sections}'
        )
        self.start()

    def start(self) -> None:
        command = [str(binary("tollgate", "tollgate-cli")), "--config", str(self.folder / "broker.toml"), "serve"]
        with open(self.folder / "log", "w") as log:
            self.process = subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log)
        eventually(self._answers)

    def _answers(self) -> bool:
        assert self.process.poll() is None, (self.folder / "log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            return True
        return False

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()

    def __enter__(self) -> Broker:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


class Relay:
    """A relay in front of a server, which can be cut off and restored at the same address."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.server = address
        self.port = free_port()
        self.open: set[socket.socket] = set()
        self.restore()

    def restore(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self.listener,), daemon=True).start()

    def cut(self) -> None:
        # A thread that accepts is woken by this, and not by closing.
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        for each in list(self.open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(self.server)
                self.open |= {client, server}
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)
        self.open.discard(source)


@pytest.fixture(scope="session")
def credentials() -> Iterator[None]:
    """What dynoxide takes: any."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "test")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield


@pytest.fixture(scope="session")
def table(servers: Servers, credentials: None) -> str:
    command = [str(binary("tollgate", "tollgate-cli")), "--config", str(servers.folder / "dynamodb.toml")]
    # Idempotent, and repeated: the command gives a server half a second.
    eventually(lambda: subprocess.run([*command, "dynamodb", "create-table"]).returncode == 0)
    return str(servers.dynamodb.get("table", "tollgate"))
