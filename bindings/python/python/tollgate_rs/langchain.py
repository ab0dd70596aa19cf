"""A rate limiter for LangChain that many processes share.

    limiter = RateLimiter(Gate.redis(url, policies), "gpt-4o", "project-7")
    model = init_chat_model("gpt-4o", rate_limiter=limiter)
"""

from __future__ import annotations

from collections.abc import Mapping

from . import Denied, Gate, InvalidInput

try:
    from langchain_core.rate_limiters import BaseRateLimiter
except ImportError as error:
    raise ImportError("tollgate_rs.langchain needs langchain-core; install tollgate-rs[langchain]") from error

__all__ = ["RateLimiter"]

#: How long one ask waits. A caller that waits without a bound asks again.
_WAIT_PART = 3600.0


class RateLimiter(BaseRateLimiter):
    """Takes a permit before each call of a chat model.

    LangChain ignores the result of a blocking ask and calls the model, so an ask that is not admitted within ``wait`` seconds
    raises ``Denied``; without ``wait`` it waits as long as it takes. LangChain passes no sizes: each call costs ``costs``, one
    request if there are none. A cost that is larger than its limit is always ``Denied``.

    LangChain does not say when a call ends. So a policy with a concurrency limit is refused: its slots would be held until
    they expire.
    """

    def __init__(
        self,
        gate: Gate,
        policy: str,
        subject: str,
        *,
        costs: Mapping[str, int] | None = None,
        wait: float | None = None,
        tenant: str | None = None,
    ) -> None:
        for known in gate.policies:
            if known["name"] == policy and any(limit["rule"] == "concurrency" for limit in known["limits"]):
                raise InvalidInput(
                    f"policy {policy!r} has a concurrency limit, and LangChain does not say when a call ends; "
                    "use a policy without one, or acquire around the call"
                )
        self._gate = gate
        self._policy = policy
        self._subject = subject
        self._costs = dict(costs or {})
        self._wait = wait
        self._tenant = tenant

    def _part(self) -> float:
        return _WAIT_PART if self._wait is None else self._wait

    def _gives_up(self, denied: Denied) -> bool:
        return self._wait is not None or denied.never

    def acquire(self, *, blocking: bool = True) -> bool:
        """Takes a permit. Without ``blocking``, returns at once whether there was one."""
        if not blocking:
            return self._gate.try_acquire(self._policy, self._subject, costs=self._costs, tenant=self._tenant) is not None
        while True:
            try:
                self._gate.acquire_sync(self._policy, self._subject, costs=self._costs, tenant=self._tenant, wait=self._part())
                return True
            except Denied as denied:
                if self._gives_up(denied):
                    raise

    async def aacquire(self, *, blocking: bool = True) -> bool:
        """As :meth:`acquire`, for tasks."""
        while True:
            wait = self._part() if blocking else None
            try:
                await self._gate.acquire(self._policy, self._subject, costs=self._costs, tenant=self._tenant, wait=wait)
                return True
            except Denied as denied:
                if not blocking:
                    return False
                if self._gives_up(denied):
                    raise
