"""Every store on a server: asks, permits and faults, on the real servers."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import os
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Broker, Relay, Servers, as_toml, bucket, eventually, policy, slots, window
from test_cancellation import storm

from tollgate_rs import Conflict, Denied, Forbidden, Gate, Unavailable

POLICIES = [
    policy("chat", window("rpd", 10, window="24h"), window("tpd", 1000, "tokens", "24h")),
    policy("team", window("tpd", 500, "tokens", "24h")),
    policy("slow", bucket("burst", 1, "1/h")),
    policy("jobs", slots("running", 1)),
    policy("llm", window("tpd", 10**9, "tokens", "24h")),
    policy("lenient", bucket("burst", 5, "1/h"), on_store_failure="open"),
]
KINDS = ["redis", "postgres", "dynamodb", "broker"]
#: The longest that a gate may wait for its server: tests pass however slow the machine is.
PATIENT: dict[str, Any] = {"attempt_timeout": "5s"}

@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    keys = {"everything": ["acquire", "inspect", "administer"], "asking": ["acquire"]}
    with Broker(tmp_path_factory.mktemp("broker"), as_toml(POLICIES, **keys)) as broker:
        yield broker


def place(kind: str, servers: Servers) -> str:
    """Returns the URL of a server."""
    return str(servers.dynamodb["endpoint"]) if kind == "dynamodb" else str(getattr(servers, kind))


def open_at(kind: str, url: str, table: str = "") -> Gate:
    if kind == "dynamodb":
        return Gate.dynamodb(table, POLICIES, endpoint=url, region="eu-central-1", **PATIENT)
    open_kind = Gate.redis if kind == "redis" else Gate.postgres
    return open_kind(url, POLICIES, **PATIENT)


@pytest.fixture(params=KINDS)
def gate(request: pytest.FixtureRequest, servers: Servers) -> Iterator[Gate]:
    kind = request.param
    if kind == "broker":
        broker = request.getfixturevalue("broker")
        gate = Gate.broker(broker.url, key="everything", **PATIENT)
    else:
        table = request.getfixturevalue("table") if kind == "dynamodb" else ""
        gate = open_at(kind, place(kind, servers), table)
    assert gate.store == kind
    yield gate
    gate.close()


def used(gate: Gate, name: str, subject: str) -> dict[str, int]:
    return {standing.name: standing.used for standing in gate.standing_sync(name, subject)}


def test_permits_are_settled_and_released(gate: Gate) -> None:
    async def calls() -> None:
        permit = await gate.acquire("chat", "async", tokens=100)
        assert permit.charges == [("chat", "async")] and not permit.degraded
        assert [standing.remaining for standing in permit.limits[0]] == [9, 900]
        assert await permit.settle(tokens=40) is True
        assert await permit.settle(tokens=1) is False
        other = await gate.acquire("chat", "async", tokens=100)
        assert await other.release() is True
        assert await other.release() is False
        async with gate.acquire("chat", "async", tokens=100) as block:
            block.settle(tokens=7)

    asyncio.run(calls())
    assert used(gate, "chat", "async") == {"rpd": 2, "tpd": 47}
    with gate.acquire_sync("chat", "sync", tokens=100) as permit:
        permit.settle(tokens=3)
    with pytest.raises(ZeroDivisionError), gate.acquire_sync("chat", "sync", tokens=10):
        raise ZeroDivisionError
    assert used(gate, "chat", "sync") == {"rpd": 2, "tpd": 13}


def test_several_charges_are_taken_together_or_not_at_all(gate: Gate) -> None:
    permit = gate.acquire_sync(charges=[("chat", "several"), ("team", "t7", {"tokens": 25})], tokens=400)
    assert used(gate, "chat", "several") == {"rpd": 1, "tpd": 400}
    assert used(gate, "team", "t7") == {"tpd": 25}
    with pytest.raises(Denied) as denied:
        gate.acquire_sync(charges=[("chat", "several"), ("team", "t7")], tokens=480)
    assert (denied.value.policy, denied.value.limit) == ("team", "tpd")
    assert used(gate, "chat", "several") == {"rpd": 1, "tpd": 400}
    assert permit.settle(tokens=300, charges={1: {"tokens": 5}}) is True
    assert used(gate, "chat", "several") == {"rpd": 1, "tpd": 300}
    assert used(gate, "team", "t7") == {"tpd": 5}


def test_a_denial_has_the_wait_and_changes_nothing(gate: Gate) -> None:
    gate.acquire_sync("slow", "denied")
    with pytest.raises(Denied) as denied:
        gate.acquire_sync("slow", "denied")
    assert denied.value.limit == "burst" and not denied.value.never and not denied.value.degraded
    assert denied.value.retry_after is not None and 3000 < denied.value.retry_after <= 3600
    # It cannot come in that time, so the denial does not take that long.
    with pytest.raises(Denied):
        gate.acquire_sync("slow", "denied", wait=600)
    with pytest.raises(Denied) as denied:
        gate.acquire_sync("slow", "denied", requests=2)
    assert denied.value.never and denied.value.retry_after is None
    assert used(gate, "slow", "denied") == {"burst": 1}


def test_a_waiting_ask_is_served_when_a_slot_is_free(gate: Gate) -> None:
    first = gate.acquire_sync("jobs", "waiting")
    assert first.expires_at is not None

    async def calls() -> None:
        waiting = asyncio.ensure_future(served())
        while gate.waiting == 0:
            await asyncio.sleep(0.001)
        assert await asyncio.to_thread(first.release)
        assert await asyncio.wait_for(waiting, 60) is True

    async def served() -> bool:
        permit = await gate.acquire("jobs", "waiting", wait=3600)
        return await permit.release()

    asyncio.run(calls())
    assert used(gate, "jobs", "waiting") == {"running": 0}


def test_an_id_is_charged_once_and_a_token_settles_elsewhere(gate: Gate) -> None:
    permit = gate.acquire_sync("chat", "ids", tokens=100, id="a")
    assert gate.acquire_sync("chat", "ids", tokens=100, id="a").charges == permit.charges
    assert used(gate, "chat", "ids") == {"rpd": 1, "tpd": 100}
    with pytest.raises(Conflict):
        gate.acquire_sync("chat", "ids", tokens=101, id="a")
    assert gate.permit_sync(permit.token).settle(tokens=1) is True
    assert permit.settle(tokens=50) is False
    assert used(gate, "chat", "ids") == {"rpd": 1, "tpd": 1}


def test_a_violation_closes_the_limit(gate: Gate) -> None:
    permit = gate.acquire_sync("chat", "closed")
    assert permit.violation(retry_after=600, limit="rpd").closed
    with pytest.raises(Denied) as denied:
        gate.acquire_sync("chat", "closed")
    assert denied.value.limit == "rpd" and denied.value.retry_after is not None and denied.value.retry_after <= 600


def test_a_charge_and_a_reset(gate: Gate) -> None:
    gate.charge_sync("chat", "charged", tokens=1500)
    assert used(gate, "chat", "charged")["tpd"] == 1500
    with pytest.raises(Denied):
        gate.acquire_sync("chat", "charged", tokens=1)
    assert gate.reset_sync("chat", "charged") is True
    assert used(gate, "chat", "charged")["tpd"] == 0


def test_cancellations_during_round_trips_balance(gate: Gate) -> None:
    # Few at once: they change one row, and a store gives up on a row that others have for too long.
    cancelled, _, kept = asyncio.run(storm(gate, 400, None, seed=3, at_once=4))
    assert cancelled > 50, cancelled

    def balances() -> bool:
        # What raced a cancellation is released in the background, and may have every connection until then.
        with contextlib.suppress(Unavailable):
            return used(gate, "llm", "p7") == {"tpd": kept}
        return False

    eventually(balances)
    gate.reset_sync("llm", "p7")


def check_absence(gate: Gate, cut: Callable[[], None], restore: Callable[[], None]) -> None:
    """What a gate does while its server is away, and afterwards."""
    gate.acquire_sync("chat", "away", tokens=10)
    with gate.acquire_sync("chat", "away", tokens=20) as permit:
        permit.settle(tokens=1)
        cut()
    with pytest.raises(Unavailable):
        gate.acquire_sync("chat", "away")
    with pytest.raises(Unavailable):
        gate.standing_sync("chat", "away")

    async def call() -> None:
        with pytest.raises(Unavailable):
            await gate.acquire("chat", "away", wait=1)

    asyncio.run(call())
    assert gate.acquire_sync("lenient", "away").degraded

    def works() -> bool:
        try:
            return not gate.acquire_sync("chat", "again").degraded
        except Unavailable:
            return False

    restore()
    eventually(works)
    # The settlement was kept until the server returned.
    eventually(lambda: used(gate, "chat", "away") == {"rpd": 2, "tpd": 11})


@pytest.mark.parametrize("kind", ["redis", "postgres", "dynamodb"])
def test_a_server_goes_away_and_returns(servers: Servers, table: str, kind: str) -> None:
    url = urllib.parse.urlsplit(place(kind, servers))
    assert url.hostname is not None and url.port is not None
    relay = Relay((url.hostname, url.port))
    through = url._replace(netloc=url.netloc.replace(str(url.port), str(relay.port))).geturl()
    gate = open_at(kind, through, table)
    check_absence(gate, relay.cut, relay.restore)
    gate.close()
    relay.cut()
    with pytest.raises(Unavailable):
        open_at(kind, through, table).acquire_sync("chat", "away")


def test_a_broker_goes_away_and_returns(tmp_path: Path) -> None:
    with Broker(tmp_path, as_toml(POLICIES)) as broker:
        gate = Gate.broker(broker.url, **PATIENT)
        check_absence(gate, broker.stop, broker.start)
        gate.close()
    with pytest.raises(Unavailable, match="cannot be reached"):
        Gate.broker(broker.url)


def test_a_broker_refuses_a_wrong_key(broker: Broker) -> None:
    for key in ("wrong", None):
        with pytest.raises(Unavailable, match="does not list its policies.*check the key"):
            Gate.broker(broker.url, key=key, **PATIENT)
        with pytest.raises(Unavailable, match="key"):
            Gate.broker(broker.url, POLICIES, key=key, **PATIENT).acquire_sync("chat", "key")
    # A key that may only ask needs the policies in code.
    with pytest.raises(Forbidden, match="scope inspect"):
        Gate.broker(broker.url, key="asking")
    gate = Gate.broker(broker.url, POLICIES, key="asking", **PATIENT)
    gate.acquire_sync("chat", "key").release()
    with pytest.raises(Unavailable, match="scope administer"):
        gate.reset_sync("chat", "key")
    gate.close()


def test_redis_and_postgres_refuse_a_wrong_user(servers: Servers) -> None:
    redis = servers.redis.replace("redis://", "redis://nobody:wrong@")
    with pytest.raises(Unavailable) as error:
        Gate.redis(redis, POLICIES)
    assert "wrong@" not in str(error.value)
    url = urllib.parse.urlsplit(servers.postgres)
    postgres = url._replace(netloc=f"nobody:wrong@{url.hostname}:{url.port}").geturl()
    with pytest.raises(Unavailable) as error:
        Gate.postgres(postgres, POLICIES)
    assert "nobody" in str(error.value) and "wrong@" not in str(error.value)


class Refusing(http.server.BaseHTTPRequestHandler):
    """Answers as DynamoDB answers keys that it does not know. dynoxide takes any."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        body = b'{"__type": "com.amazon.coral.service#UnrecognizedClientException", "message": "The security token is invalid."}'
        self.send_response(400)
        self.send_header("content-type", "application/x-amz-json-1.0")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: Any) -> None:
        pass


def test_dynamodb_refuses_wrong_credentials() -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with pytest.raises(Unavailable, match="does not accept the credentials"):
            open_at("dynamodb", f"http://127.0.0.1:{server.server_port}", "tollgate").acquire_sync("chat", "keys")
        server.shutdown()


def test_missing_credentials_say_where_to_put_them(servers: Servers, tmp_path: Path) -> None:
    """In a process of its own, because the environment is one of the places."""
    program = (
        "import sys; from tollgate_rs import Gate, Unavailable\n"
        "try:\n"
        "    gate = Gate.dynamodb('tollgate', eval(sys.argv[2]), endpoint=sys.argv[1], region='eu-central-1')\n"
        "    gate.acquire_sync('chat', 'keys')\n"
        "except Unavailable as error:\n"
        "    print(error)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {"AWS_EC2_METADATA_DISABLED": "true", "HOME": str(tmp_path)}
    command = [sys.executable, "-c", program, place("dynamodb", servers), repr(POLICIES)]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert "needs credentials" in said and "AWS_ACCESS_KEY_ID" in said, said
