"""Transports that take a permit before each call to OpenAI, Anthropic or Gemini, and settle it with the usage of the answer.

The classes are in ``tollgate_rs.httpx2``, for the current SDKs of the providers, and in ``tollgate_rs.httpx``:

    transport = Transport(gate, policy="gpt-4o", subject="project-7", wait=30)
    client = openai.OpenAI(http_client=httpx2.Client(transport=transport))

This module has what both share. It knows requests and responses by their attributes only, which are the same in both.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar

from . import Denied, Gate, InvalidInput, Permit, SyncPermit, TollgateError, UnknownPolicy
from ._native import Meter, ProviderRefusal, llm_error_body

__all__ = ["AsyncMetering", "Metering"]

Charge: TypeAlias = tuple[str, str] | tuple[str, str, Mapping[str, int]]
Charges: TypeAlias = Sequence[Charge] | Callable[[str], Sequence[Charge]]

_P = TypeVar("_P", Permit, SyncPermit)

_log = logging.getLogger("tollgate_rs.transports")

#: How long a provider is left alone after a refusal that names no time, in seconds.
_PAUSE_DEFAULT = 5.0

#: SDKs sleep as long as they are told. Beyond this they are told not to retry.
_RETRY_MAX = 60.0

#: The least and the most of an error body that is read for the reason of a refusal, in bytes.
_ERROR_BYTES_MAX = 65_536


class _Settings:
    """What a transport charges."""

    def __init__(
        self,
        gate: Gate,
        *,
        policy: str | None,
        subject: str | None,
        charges: Charges | None,
        wait: float | None,
        usage: Mapping[str, str] | None,
        on_unavailable: Literal["open", "closed"],
    ) -> None:
        if (charges is None) == (policy is None or subject is None):
            raise InvalidInput("name a policy and a subject, or charges, and not both")
        if on_unavailable not in ("open", "closed"):
            raise InvalidInput(f'unknown on_unavailable {on_unavailable!r}; use "open" or "closed"')
        self.gate = gate
        self.wait = wait
        self.usage = dict(usage or {})
        self.is_open = on_unavailable == "open"
        fixed: Sequence[Charge] = [(policy, subject)] if policy is not None and subject is not None else []
        self._charges: Charges = charges if charges is not None else fixed
        self._limits = {known["name"]: _limits(known) for known in gate.policies}
        for charge in () if callable(self._charges) else self._charges:
            self._limits_of(charge)
        # Invalid expressions are errors here and not at the first call.
        body = b'{"model":"m","messages":[]}'
        Meter.read("POST", "/v1/chat/completions", None, body, self.usage)

    def charges(self, model: str) -> Sequence[Charge]:
        return self._charges(model) if callable(self._charges) else self._charges

    def limits(self, charges: Sequence[Charge]) -> list[tuple[str, int]]:
        return [limit for charge in charges for limit in self._limits_of(charge)]

    def _limits_of(self, charge: Charge) -> list[tuple[str, int]]:
        if charge[0] not in self._limits:
            known = ", ".join(self._limits)
            raise UnknownPolicy(f"there is no policy {charge[0]!r}; known: {known}")
        return self._limits[charge[0]]


def _limits(policy: Mapping[str, Any]) -> list[tuple[str, int]]:
    return [(limit["unit"], limit.get("limit") or limit.get("capacity") or 0) for limit in policy["limits"]]


class _Call(Generic[_P]):
    """One call: what it is charged, and what it used."""

    def __init__(self, settings: _Settings, request: Any, body: bytes) -> None:
        self._settings = settings
        self.body = body
        self.meter: Meter | None = None
        self.permit: _P | None = None
        #: Whether the call is charged nothing, as one that lists models.
        self.is_free = False
        url = request.url
        self._url = str(url.copy_with(query=None))
        try:
            query = url.query.decode("ascii") or None
            self.meter = Meter.read(request.method, url.path, query, body, settings.usage)
            self.is_free = self.meter is None
        except ValueError:
            # A call that is not covered costs one request.
            self.is_free = request.method != "POST"
        self.charges = settings.charges(self.meter.model if self.meter else "")
        self.costs: dict[str, int] = {}
        limits = settings.limits(self.charges)
        if self.meter is not None:
            self.meter.fit_output([(unit, most) for unit, most in limits if unit != "requests"])
            units = {unit for unit, _ in limits}
            self.costs = {unit: cost for unit, cost in self.meter.estimate().items() if unit in units}
            self.body = self.meter.request_body(body)

    @property
    def dialect(self) -> str:
        return self.meter.dialect if self.meter else "openai"

    def refusal(self, error: TollgateError) -> tuple[int, dict[str, str], bytes] | None:
        """Returns the response to a call without a permit, in the shape that the provider's SDK understands; `None` to let it through."""
        if isinstance(error, (InvalidInput, UnknownPolicy)):
            raise error
        is_denial = isinstance(error, Denied)
        if not is_denial:
            # The text may name hosts of the store.
            _log.error("could not decide on a call, which is %s: %s", "let through" if self._settings.is_open else "refused", error)
            if self._settings.is_open:
                return None
        retry_after = error.retry_after if isinstance(error, Denied) else 1.0
        message = str(error) if is_denial else "the limits of this call cannot be decided now, so it was not sent"
        headers = {"content-type": "application/json", "x-tollgate-refused": "denied" if is_denial else "unavailable"}
        if retry_after is not None:
            headers["retry-after"] = str(math.ceil(retry_after))
            headers["retry-after-ms"] = str(math.ceil(retry_after * 1000))
        if retry_after is None or _RETRY_MAX < retry_after:
            headers["x-should-retry"] = "false"
        body = llm_error_body(self.dialect, message, retry_after, is_denial)
        return (429 if is_denial else 503, headers, body)

    def begin(self, response: Any) -> bool:
        """Begins a successful response. Returns whether its body is to be metered."""
        if self.meter is None:
            return False
        headers = response.headers
        encoding = headers.get("content-encoding", "identity")
        if self.meter.begin(headers.get("content-type", ""), encoding != "identity"):
            headers.pop("content-length", None)
        return True

    def actual(self, how: Literal["complete", "broken", "abandoned"]) -> dict[str, int]:
        """Returns what to settle; empty to keep the estimate."""
        used = self.meter.end(how) if self.meter else {}
        return {unit: amount for unit, amount in used.items() if unit in self.costs}

    def refused(self, response: Any, body: bytes) -> tuple[dict[str, int], str | None, float | None]:
        """Returns what an error costs, and the limit to close for how long, if the provider's quota is exhausted."""
        status = response.status_code
        if status >= 500 and status not in (503, 529):
            # It may have been processed.
            return {}, None, None
        # Nothing was processed: the request counts, its tokens do not.
        actual = dict.fromkeys(self.costs, 0)
        if status != 429:
            return actual, None, None
        headers = [(str(name), str(value)) for name, value in response.headers.items()]
        why = ProviderRefusal.read(self.dialect, self._url, status, headers, body[:_ERROR_BYTES_MAX])
        if not why.is_quota:
            return actual, None, None
        pause = why.retry_after if why.retry_after is not None else _PAUSE_DEFAULT
        return actual, self._limit_of(why.units), pause

    def _limit_of(self, units: Sequence[str]) -> str | None:
        """Returns the limit of the last charge, the provider's, that counts one of `units`."""
        name = self.charges[-1][0]
        policy = next(known for known in self._settings.gate.policies if known["name"] == name)
        named = (limit["name"] for unit in units for limit in policy["limits"] if limit["unit"] == unit)
        return next(named, None)


def _is_unsent(module: Any, error: BaseException) -> bool:
    """Returns whether no byte of the request was sent."""
    return isinstance(error, (module.ConnectError, module.ConnectTimeout, module.PoolTimeout, module.UnsupportedProtocol))


def _warn(error: TollgateError) -> None:
    _log.warning("a call could not be settled; its estimate stays charged: %s", error)


def _outgoing(module: Any, request: Any, body: bytes) -> Any:
    """Returns the request to send: usage is readable only in a response that is not compressed."""
    headers = request.headers.copy()
    headers["accept-encoding"] = "identity"
    if "content-length" in headers:
        headers["content-length"] = str(len(body))
    headers.pop("transfer-encoding", None)
    return module.Request(request.method, request.url, headers=headers, content=body, extensions=request.extensions)


class Metering:
    """The synchronous transport; mixed into a class of an HTTP library."""

    _module: ClassVar[Any]
    _stream: ClassVar[Any]

    def __init__(
        self,
        gate: Gate,
        *,
        policy: str | None = None,
        subject: str | None = None,
        charges: Charges | None = None,
        wait: float | None = None,
        usage: Mapping[str, str] | None = None,
        on_unavailable: Literal["open", "closed"] = "closed",
        transport: Any = None,
    ) -> None:
        self._settings = _Settings(
            gate,
            policy=policy,
            subject=subject,
            charges=charges,
            wait=wait,
            usage=usage,
            on_unavailable=on_unavailable,
        )
        self._inner = transport if transport is not None else self._module.HTTPTransport()

    def handle_request(self, request: Any) -> Any:
        """Takes a permit, sends the request, and settles the permit at the end of the response."""
        call: _Call[SyncPermit] = _Call(self._settings, request, request.read())
        if call.is_free:
            return self._inner.handle_request(request)
        try:
            call.permit = self._settings.gate.acquire_sync(
                charges=call.charges, costs=call.costs, wait=self._settings.wait
            )
        except TollgateError as error:
            refusal = call.refusal(error)
            if refusal is not None:
                status, headers, body = refusal
                return self._module.Response(status, headers=headers, content=body, request=request)
        try:
            response = self._inner.handle_request(_outgoing(self._module, request, call.body))
        except BaseException as error:
            self._end(call, "release" if _is_unsent(self._module, error) else {})
            raise
        if response.status_code >= 400:
            self._refused(call, response)
        elif call.begin(response):
            response.stream = self._stream(self, call, response.stream)
        else:
            self._end(call, {})
        return response

    def _refused(self, call: _Call[SyncPermit], response: Any) -> None:
        try:
            body = response.read()
        except BaseException:
            self._end(call, {})
            raise
        actual, limit, pause = call.refused(response, body)
        if pause is not None and call.permit is not None:
            try:
                call.permit.violation(retry_after=pause, limit=limit)
            except TollgateError as error:
                _warn(error)
        self._end(call, actual)

    def _end(self, call: _Call[SyncPermit], actual: dict[str, int] | Literal["release"]) -> None:
        permit, call.permit = call.permit, None
        if permit is None:
            return
        try:
            if actual == "release":
                permit.release()
            else:
                permit.settle(costs=actual)
        except TollgateError as error:
            _warn(error)

    def close(self) -> None:
        self._inner.close()


class MeteredStream:
    """The body of a response, copied while its usage is read; mixed into a class of an HTTP library."""

    def __init__(self, transport: Metering, call: _Call[SyncPermit], stream: Any) -> None:
        self._transport = transport
        self._call = call
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        meter = self._call.meter
        assert meter is not None
        try:
            for chunk in self._stream:
                passed = meter.feed(chunk)
                if passed:
                    yield passed
            rest = meter.finish()
            if rest:
                yield rest
        except GeneratorExit:
            self._end("abandoned")
            raise
        except BaseException:
            self._end("broken")
            raise
        self._end("complete")

    def _end(self, how: Literal["complete", "broken", "abandoned"]) -> None:
        self._transport._end(self._call, self._call.actual(how))

    def close(self) -> None:
        # Without effect if the body was read to its end.
        self._end("abandoned")
        self._stream.close()


class AsyncMetering:
    """The asynchronous transport; mixed into a class of an HTTP library."""

    _module: ClassVar[Any]
    _stream: ClassVar[Any]

    def __init__(
        self,
        gate: Gate,
        *,
        policy: str | None = None,
        subject: str | None = None,
        charges: Charges | None = None,
        wait: float | None = None,
        usage: Mapping[str, str] | None = None,
        on_unavailable: Literal["open", "closed"] = "closed",
        transport: Any = None,
    ) -> None:
        self._settings = _Settings(
            gate,
            policy=policy,
            subject=subject,
            charges=charges,
            wait=wait,
            usage=usage,
            on_unavailable=on_unavailable,
        )
        self._inner = transport if transport is not None else self._module.AsyncHTTPTransport()

    async def handle_async_request(self, request: Any) -> Any:
        """Takes a permit, sends the request, and settles the permit at the end of the response."""
        call: _Call[Permit] = _Call(self._settings, request, await request.aread())
        if call.is_free:
            return await self._inner.handle_async_request(request)
        try:
            call.permit = await self._settings.gate.acquire(
                charges=call.charges, costs=call.costs, wait=self._settings.wait
            )
        except TollgateError as error:
            refusal = call.refusal(error)
            if refusal is not None:
                status, headers, body = refusal
                return self._module.Response(status, headers=headers, content=body, request=request)
        try:
            response = await self._inner.handle_async_request(_outgoing(self._module, request, call.body))
        except BaseException as error:
            await self._end(call, "release" if _is_unsent(self._module, error) else {})
            raise
        if response.status_code >= 400:
            await self._refused(call, response)
        elif call.begin(response):
            response.stream = self._stream(self, call, response.stream)
        else:
            await self._end(call, {})
        return response

    async def _refused(self, call: _Call[Permit], response: Any) -> None:
        try:
            body = await response.aread()
        except BaseException:
            await self._end(call, {})
            raise
        actual, limit, pause = call.refused(response, body)
        if pause is not None and call.permit is not None:
            try:
                await call.permit.violation(retry_after=pause, limit=limit)
            except TollgateError as error:
                _warn(error)
        await self._end(call, actual)

    async def _end(self, call: _Call[Permit], actual: dict[str, int] | Literal["release"]) -> None:
        permit, call.permit = call.permit, None
        if permit is None:
            return
        # Started before it is awaited, so that a cancellation does not lose it.
        ending = permit.release() if actual == "release" else permit.settle(costs=actual)
        try:
            await ending
        except TollgateError as error:
            _warn(error)

    async def aclose(self) -> None:
        await self._inner.aclose()


class AsyncMeteredStream:
    """As :class:`MeteredStream`, for tasks."""

    def __init__(self, transport: AsyncMetering, call: _Call[Permit], stream: Any) -> None:
        self._transport = transport
        self._call = call
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        meter = self._call.meter
        assert meter is not None
        try:
            async for chunk in self._stream:
                passed = meter.feed(chunk)
                if passed:
                    yield passed
            rest = meter.finish()
            if rest:
                yield rest
        except GeneratorExit:
            # A generator that is closed must not await; `aclose` settles.
            raise
        except asyncio.CancelledError:
            await self._end("abandoned")
            raise
        except BaseException:
            await self._end("broken")
            raise
        await self._end("complete")

    async def _end(self, how: Literal["complete", "broken", "abandoned"]) -> None:
        await self._transport._end(self._call, self._call.actual(how))

    async def aclose(self) -> None:
        # Without effect if the body was read to its end.
        await self._end("abandoned")
        await self._stream.aclose()
