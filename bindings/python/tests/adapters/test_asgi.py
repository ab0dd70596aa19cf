"""The ASGI middleware, in front of real applications of FastAPI and Starlette."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import fastapi
import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket

from adapters.conftest import bucket, policy
from tollgate_rs import Denied, Gate, InvalidInput, ManualClock, UnknownPolicy
from tollgate_rs.asgi import RateLimitMiddleware

API = policy("api", bucket("burst", 3, "1/s"))


def app_of(gate: Gate, handler: Callable[[Request], Any] | None = None, **options: Any) -> Starlette:
    async def hello(_: Request) -> PlainTextResponse:
        return PlainTextResponse("hello", headers={"x-app": "1"})

    app = Starlette(routes=[Route("/", handler or hello, methods=["GET", "POST"])])
    app.add_middleware(RateLimitMiddleware, gate=gate, **{"policy": "api", **options})
    return app


def client_of(app: Any) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://app")


def run(work: Any) -> Any:
    return asyncio.run(work)


def test_a_denied_request_gets_the_problem_document_and_the_fields_of_the_broker() -> None:
    clock = ManualClock(1_000.0)
    gate = Gate.memory([API], clock=clock)

    async def calls() -> list[httpx.Response]:
        async with client_of(app_of(gate, subject="x-api-key")) as client:
            return [await client.get("/", headers={"x-api-key": "alice"}) for _ in range(4)]

    *admitted, denied = run(calls())
    assert [reply.status_code for reply in admitted] == [200] * 3
    assert admitted[0].headers["ratelimit"] == '"burst";r=2;t=1'
    assert admitted[0].headers["ratelimit-policy"] == '"burst";q=3;w=3'
    assert admitted[0].headers["x-app"] == "1"
    assert denied.status_code == 429
    assert denied.headers["content-type"] == "application/problem+json"
    assert denied.headers["retry-after"] == "1"
    assert denied.headers["ratelimit"] == '"burst";r=0;t=1'
    assert denied.headers["ratelimit-policy"] == '"burst";q=3;w=3'
    assert denied.headers["cache-control"] == "no-store"
    problem = denied.json()
    assert problem["type"] == "https://iana.org/assignments/http-problem-types#quota-exceeded"
    assert (problem["policy"], problem["limit"], problem["retry_after_ms"]) == ("api", "burst", 1000)
    assert problem["violated-policies"] == ["burst"]
    assert problem["limits"][0]["remaining"] == 0
    # Refusals are free: one second later there is room for exactly one more.
    clock.advance(1.0)
    assert [reply.status_code for reply in run(calls())] == [200, 429, 429, 429]


def test_a_cost_that_never_fits_has_no_retry_after() -> None:
    gate = Gate.memory([API])

    async def call() -> httpx.Response:
        async with client_of(app_of(gate, costs=lambda scope: {"requests": 4})) as client:
            return await client.get("/")

    denied = run(call())
    assert denied.status_code == 429 and denied.json()["never"] is True
    assert "retry-after" not in denied.headers


def test_subjects_are_apart_and_a_missing_header_is_a_bad_request() -> None:
    gate = Gate.memory([policy("api", bucket("burst", 1))])

    async def calls() -> list[httpx.Response]:
        async with client_of(app_of(gate, subject="x-api-key")) as client:
            return [await client.get("/", headers=headers) for headers in ({"x-api-key": "a"}, {"x-api-key": "b"}, {})]

    one, two, none = run(calls())
    assert (one.status_code, two.status_code, none.status_code) == (200, 200, 400)
    assert none.json()["kind"] == "invalid" and "x-api-key is missing" in none.json()["detail"]


def test_a_function_chooses_the_subject_and_exempts_requests() -> None:
    gate = Gate.memory([policy("api", bucket("burst", 1))])

    async def subject(scope: Any) -> str | None:
        return None if scope["method"] == "GET" else "writers"

    async def calls() -> list[int]:
        async with client_of(app_of(gate, subject=subject)) as client:
            return [(await client.request(method, "/")).status_code for method in ("GET", "POST", "POST", "GET")]

    assert run(calls()) == [200, 200, 429, 200]


def test_several_charges_are_decided_together_and_a_refusal_takes_none() -> None:
    gate = Gate.memory([policy("user", bucket("per-user", 5)), policy("team", bucket("per-team", 2))])

    def charges(scope: Any) -> list[tuple[str, str]]:
        return [("user", "u1"), ("team", "t7")]

    async def calls() -> list[httpx.Response]:
        async with client_of(app_of(gate, policy=None, charges=charges)) as client:
            return [await client.get("/") for _ in range(3)]

    replies = run(calls())
    assert [reply.status_code for reply in replies] == [200, 200, 429]
    assert replies[0].headers["ratelimit-policy"].startswith('"per-user"')
    assert replies[2].headers["ratelimit-policy"].startswith('"per-team"')
    assert replies[2].json()["charge"] == 1 and replies[2].json()["policy"] == "team"
    assert gate.standing_sync("user", "u1")[0].used == 2


def test_the_application_settles_and_an_error_keeps_the_charge() -> None:
    gate = Gate.memory([policy("llm", bucket("tpm", 1000, unit="tokens"))])

    async def handler(request: Request) -> PlainTextResponse:
        mode = request.query_params["mode"]
        if mode == "fails":
            raise RuntimeError("on purpose")
        if mode == "settles":
            request.state.permit.settle(tokens=30)
        if mode == "releases":
            request.state.permit.release()
        return PlainTextResponse("done")

    app = app_of(gate, handler, policy="llm", subject=lambda scope: "p7", costs={"tokens": 100})

    async def used(mode: str) -> int:
        await gate.reset("llm", "p7")
        async with client_of(app) as client:
            await client.get("/", params={"mode": mode})
        return (await gate.standing("llm", "p7"))[0].used

    async def all_of_them() -> list[int]:
        return [await used(mode) for mode in ("fails", "settles", "releases", "nothing")]

    assert run(all_of_them()) == [100, 30, 0, 100]


def test_slots_are_held_until_the_body_is_sent_and_given_back_after_an_error() -> None:
    slots = {"name": "slots", "unit": "requests", "rule": "concurrency", "limit": 1, "ttl": "1h"}
    gate = Gate.memory([policy("api", slots)])
    inside: list[int] = []

    async def handler(request: Request) -> StreamingResponse:
        async def body() -> AsyncIterator[bytes]:
            yield b"x"
            inside.append((await gate.standing("api", "s"))[0].used)
            if "fails" in request.query_params:
                raise RuntimeError("on purpose")

        return StreamingResponse(body())

    app = app_of(gate, handler, subject=lambda scope: "s")

    async def calls() -> list[int]:
        async with client_of(app) as client:
            await client.get("/")
            after = (await gate.standing("api", "s"))[0].used
            await client.get("/?fails")
            return [after, (await gate.standing("api", "s"))[0].used]

    assert run(calls()) == [0, 0]
    assert inside == [1, 1]


def test_a_denial_of_the_application_itself_is_not_answered_by_the_middleware() -> None:
    gate = Gate.memory([API, policy("inner", bucket("one", 1))])

    async def handler(_: Request) -> PlainTextResponse:
        try:
            await gate.acquire("inner", "s")
            await gate.acquire("inner", "s")
        except Denied:
            return PlainTextResponse("the application handles it", 409)
        raise AssertionError

    async def call() -> int:
        async with client_of(app_of(gate, handler)) as client:
            return (await client.get("/")).status_code

    assert run(call()) == 409

    async def unhandled(_: Request) -> PlainTextResponse:
        await gate.acquire("inner", "s")
        raise AssertionError

    async def call_unhandled() -> int:
        async with client_of(app_of(gate, unhandled)) as client:
            return (await client.get("/")).status_code

    assert run(call_unhandled()) == 500


@pytest.mark.parametrize(("mode", "status"), [("open", 200), ("closed", 503)])
def test_a_store_that_is_away_lets_requests_through_or_refuses_them(mode: str, status: int) -> None:
    gate = Gate.memory([API])
    app = app_of(gate, on_unavailable=mode)
    # A closed gate cannot decide, as a store that is away.
    gate.close()

    async def call() -> httpx.Response:
        async with client_of(app) as client:
            return await client.get("/")

    reply = run(call())
    assert reply.status_code == status
    assert "ratelimit" not in reply.headers
    if mode == "closed":
        assert reply.headers["content-type"] == "application/problem+json"
        assert reply.json()["kind"] == "unavailable"


def test_websockets_and_lifespan_pass() -> None:
    gate = Gate.memory([policy("api", bucket("none", 1))])
    started: list[str] = []

    async def echo(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text(await websocket.receive_text())
        await websocket.close()

    from contextlib import asynccontextmanager

    @asynccontextmanager
    async def lifespan(_: Any) -> AsyncIterator[None]:
        started.append("up")
        yield
        started.append("down")

    app = Starlette(routes=[WebSocketRoute("/ws", echo)], lifespan=lifespan)
    app.add_middleware(RateLimitMiddleware, gate=gate, policy="api", subject=lambda scope: "s")
    with TestClient(app) as client:
        for _ in range(3):
            with client.websocket_connect("/ws") as socket:
                socket.send_text("hi")
                assert socket.receive_text() == "hi"
    assert started == ["up", "down"]
    assert gate.standing_sync("api", "s")[0].used == 0


def test_wrong_settings_are_refused_when_the_application_is_built() -> None:
    gate = Gate.memory([API])

    async def app(*_: Any) -> None: ...

    with pytest.raises(UnknownPolicy, match="known: api"):
        RateLimitMiddleware(app, gate, policy="apy")
    with pytest.raises(InvalidInput, match="and not both"):
        RateLimitMiddleware(app, gate)
    with pytest.raises(InvalidInput, match="open"):
        RateLimitMiddleware(app, gate, policy="api", on_unavailable="maybe")  # type: ignore[arg-type]


def test_a_subject_that_is_too_long_is_a_bad_request() -> None:
    gate = Gate.memory([API])

    async def call() -> httpx.Response:
        async with client_of(app_of(gate, subject="x-api-key")) as client:
            return await client.get("/", headers={"x-api-key": "k" * 5000})

    reply = run(call())
    assert reply.status_code == 400 and reply.json()["kind"] == "invalid"


def test_concurrent_requests_under_uvicorn_get_exactly_the_limit() -> None:
    gate = Gate.memory([policy("api", bucket("burst", 20))])
    app = fastapi.FastAPI()
    app.add_middleware(RateLimitMiddleware, gate=gate, policy="api")

    @app.get("/")
    async def hello() -> str:
        await asyncio.sleep(0)
        return "hello"

    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]

        async def burst() -> list[httpx.Response]:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                return await asyncio.gather(*(client.get("/") for _ in range(100)))

        replies = run(burst())
    finally:
        server.should_exit = True
        thread.join()
    statuses = [reply.status_code for reply in replies]
    assert statuses.count(200) == 20 and statuses.count(429) == 80
    for reply in replies:
        assert reply.headers["ratelimit-policy"].startswith('"burst";q=20')
        if reply.status_code == 429:
            assert json.loads(reply.content)["status"] == 429


def test_a_request_waits_for_room() -> None:
    clock = ManualClock(1_000.0)
    gate = Gate.memory([policy("api", bucket("burst", 1, "1/s"))], clock=clock)

    async def calls() -> list[int]:
        async with client_of(app_of(gate, wait=5)) as client:
            first = (await client.get("/")).status_code
            second = asyncio.create_task(client.get("/"))
            while gate.waiting == 0:
                await asyncio.sleep(0)
            clock.advance(1.0)
            return [first, (await second).status_code]

    assert run(calls()) == [200, 200]
