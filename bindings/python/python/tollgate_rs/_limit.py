"""The decorator of a gate."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ._errors import InvalidInput

if TYPE_CHECKING:
    from ._native import Gate


def decorate(
    gate: Gate,
    policy: str,
    subject: str | Callable[..., str],
    *,
    costs: Mapping[str, int] | Callable[..., Mapping[str, int]] | None = None,
    wait: float | None = None,
    tenant: str | Callable[..., str] | None = None,
    permit: str | None = None,
    **units: int,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns a decorator: the function runs with a permit of `gate`. See `Gate.limit`."""
    if not isinstance(policy, str):
        raise InvalidInput(f"policy must be a string, not {type(policy).__name__}; call limit with a policy and a subject")

    def ask(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        def value(given: Any) -> Any:
            return given(*args, **kwargs) if callable(given) else given

        named = {**units, **(value(costs) or {})}
        return {"subject": value(subject), "costs": named, "wait": wait, "tenant": value(tenant)}

    def decorator(function: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            raise InvalidInput("a generator runs after its call has returned; acquire inside of it instead")
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def limited(*args: Any, **kwargs: Any) -> Any:
                asked = ask(args, kwargs)
                async with gate.acquire(policy, **asked) as held:
                    if permit is not None:
                        kwargs[permit] = held
                    return await function(*args, **kwargs)

            return limited

        @functools.wraps(function)
        def limited_sync(*args: Any, **kwargs: Any) -> Any:
            asked = ask(args, kwargs)
            with gate.acquire_sync(policy, **asked) as held:
                if permit is not None:
                    kwargs[permit] = held
                return function(*args, **kwargs)

        return limited_sync

    return decorator
