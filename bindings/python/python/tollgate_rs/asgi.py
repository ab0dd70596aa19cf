"""Rate limits for ASGI applications, such as those of FastAPI and Starlette.

    app.add_middleware(RateLimitMiddleware, gate=gate, policy="api", subject="x-api-key")
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from . import Contended, Denied, Gate, InvalidInput, Permit, TollgateError, UnknownPolicy
from ._native import admitted_fields

__all__ = ["RateLimitMiddleware", "client_address", "header"]

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Charge: TypeAlias = tuple[str, str] | tuple[str, str, Mapping[str, int]]

_log = logging.getLogger("tollgate_rs.asgi")


class MissingHeader(Exception):
    """A request without the header that names its subject."""


def client_address(scope: Scope) -> str:
    """Returns the address of the client. Behind a proxy this is the proxy, unless the server reads its headers."""
    client = scope.get("client")
    return str(client[0]) if client else "unknown"


def header(name: str) -> Callable[[Scope], str]:
    """Returns a function that returns the value of the header ``name``. A request without it is answered with 400."""
    wanted = name.lower().encode("latin-1")

    def read(scope: Scope) -> str:
        for key, value in scope["headers"]:
            if key.lower() == wanted and value:
                return bytes(value).decode("latin-1")
        raise MissingHeader(f"the header {name} is missing; it says who is limited")

    return read


class RateLimitMiddleware:
    """Takes a permit before each HTTP request, and answers 429 with a problem document where there is none.

    ``policy`` and ``subject`` name one charge; ``charges`` is a function that returns several, which are decided together. A
    subject is the name of a header, or a function of the scope. A function, which may be async, returns ``None`` for requests
    that are not limited. ``costs`` are costs by unit, or a function that returns them.

    A request waits up to ``wait`` seconds for room. Where the store cannot decide, ``on_unavailable`` lets requests through
    (``"open"``) or answers them with 503 (``"closed"``).

    What a request was charged stays charged, whatever the application answers. The application finds the permit in
    ``scope["state"]["permit"]`` (``request.state.permit``), and may settle it with the actual cost or release it. Slots of
    concurrency limits are given back when the application is done. WebSocket connections and lifespan events pass.
    """

    def __init__(
        self,
        app: App,
        gate: Gate,
        *,
        policy: str | None = None,
        subject: str | Callable[[Scope], Any] = client_address,
        charges: Callable[[Scope], Any] | None = None,
        costs: Mapping[str, int] | Callable[[Scope], Mapping[str, int]] | None = None,
        wait: float | None = None,
        on_unavailable: Literal["open", "closed"] = "closed",
    ) -> None:
        if (policy is None) == (charges is None):
            raise InvalidInput("name a policy, or a function that returns charges, and not both")
        if on_unavailable not in ("open", "closed"):
            raise InvalidInput(f'unknown on_unavailable {on_unavailable!r}; use "open" or "closed"')
        if policy is not None and policy not in (known := [it["name"] for it in gate.policies]):
            raise UnknownPolicy(f"there is no policy {policy!r}; known: {', '.join(known)}")
        self._app = app
        self._gate = gate
        self._policy = policy
        self._subject = header(subject) if isinstance(subject, str) else subject
        self._charges = charges
        self._costs = costs
        self._wait = wait
        self._is_open = on_unavailable == "open"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        async with AsyncExitStack() as stack:
            admitted = await self._admit(stack, scope)
            if isinstance(admitted, _Refusal):
                return await admitted.send(send)
            if admitted is None:
                return await self._app(scope, receive, send)
            scope.setdefault("state", {})["permit"] = admitted
            fields = admitted_fields(self._gate, admitted)

            async def send_with_fields(message: Message) -> None:
                if message["type"] == "http.response.start":
                    message["headers"] = [*message.get("headers", ()), *fields]
                await send(message)

            await self._app(scope, receive, send_with_fields)

    async def _admit(self, stack: AsyncExitStack, scope: Scope) -> Permit | _Refusal | None:
        """Returns a permit that ``stack`` ends, a refusal, or ``None`` for a request that is let through without a permit."""
        charges: Sequence[Charge] | None = None
        try:
            charges = await self._read_charges(scope)
            if charges is None:
                return None
            costs = self._costs(scope) if callable(self._costs) else self._costs
            acquire = self._gate.acquire(charges=charges, costs=costs, wait=self._wait)
            return await stack.enter_async_context(acquire)
        except Denied as denied:
            denial = denied._denial
            if denial is None or charges is None:
                raise
            subjects = [charge[1] for charge in charges]
            return _Refusal(429, denial.problem(), denial.fields(self._gate, subjects))
        except UnknownPolicy:
            raise
        except (MissingHeader, InvalidInput) as error:
            return _Refusal.problem(400, "invalid", str(error))
        except Contended as error:
            return _Refusal.problem(503, "contended", str(error), [(b"retry-after", b"1")])
        except TollgateError as error:
            # The text may name hosts of the store, so it is not in the response.
            _log.error("could not decide on a request, which is %s: %s", "let through" if self._is_open else "refused", error)
            if self._is_open:
                return None
            return _Refusal.problem(503, "unavailable", "the rate limit of this request cannot be decided now")

    async def _read_charges(self, scope: Scope) -> Sequence[Charge] | None:
        if self._charges is not None:
            charges: Sequence[Charge] | None = await _value(self._charges(scope))
            return charges or None
        subject: str | None = await _value(self._subject(scope))
        return None if subject is None else [(self._policy or "", subject)]


async def _value(given: Any) -> Any:
    return await given if inspect.isawaitable(given) else given


@dataclass(frozen=True)
class _Refusal:
    """The response to a request that does not reach the application."""

    status: int
    body: bytes
    fields: Sequence[tuple[bytes, bytes]] = ()

    @classmethod
    def problem(
        cls, status: int, kind: str, detail: str, fields: Sequence[tuple[bytes, bytes]] = ()
    ) -> _Refusal:
        title = {400: "Bad Request", 503: "Service Unavailable"}[status]
        problem = {"type": "about:blank", "title": title, "status": status, "kind": kind, "detail": detail}
        return cls(status, json.dumps(problem).encode(), fields)

    async def send(self, send: Send) -> None:
        headers = [
            (b"content-type", b"application/problem+json"),
            (b"content-length", b"%d" % len(self.body)),
            # A standing is true only now.
            (b"cache-control", b"no-store"),
            *self.fields,
        ]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})
