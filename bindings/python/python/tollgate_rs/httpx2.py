"""Transports for httpx2: a permit before each call to an LLM provider, settled with the usage of the answer.

    client = httpx2.Client(transport=Transport(gate, policy="gpt-4o", subject="project-7", wait=30))
"""

from __future__ import annotations

from typing import ClassVar

from . import transports

try:
    import httpx2 as _httpx2
except ImportError as error:
    raise ImportError("tollgate_rs.httpx2 needs httpx2; install tollgate-rs[httpx2]") from error

__all__ = ["AsyncTransport", "Transport"]


class _Stream(transports.MeteredStream, _httpx2.SyncByteStream):
    pass


class _AsyncStream(transports.AsyncMeteredStream, _httpx2.AsyncByteStream):
    pass


class Transport(transports.Metering, _httpx2.BaseTransport):
    """A transport for ``httpx2.Client``.

    ``policy`` and ``subject`` name one charge; ``charges`` is a list of several, or a function of the model that returns one.
    The provider's own quota is the last of them: a 429 of the provider closes it. A call waits up to ``wait`` seconds, and
    gets a 429 in the shape of the provider otherwise, which its SDK raises as its own error. ``usage`` says which usage fields
    count into which unit, where that differs from the provider's API. ``transport`` is the one that sends.
    """

    _module: ClassVar = _httpx2
    _stream: ClassVar = _Stream


class AsyncTransport(transports.AsyncMetering, _httpx2.AsyncBaseTransport):
    """As :class:`Transport`, for ``httpx2.AsyncClient``."""

    _module: ClassVar = _httpx2
    _stream: ClassVar = _AsyncStream
