"""The exceptions of the package. Every one of them is a `TollgateError`."""

from __future__ import annotations

from typing import Any, NamedTuple

from ._native import Denial, Standing


class Refusal(NamedTuple):
    """A limit that refuses one charge of an ask."""

    charge: int
    policy: str
    subject: str
    limit: str
    unit: str
    retry_after: float | None
    retry_at: float | None


class TollgateError(Exception):
    """The base of every exception of this package."""


class Denied(TollgateError):
    """Not now: a limit binds. Nothing was charged.

    `retry_after` is the number of seconds until the ask would go through; `None` if `never` is true, because it costs more than
    the limit has.
    """

    def __init__(
        self,
        message: str,
        *,
        policy: str = "",
        limit: str = "",
        unit: str = "",
        asked: int = 0,
        most: int = 0,
        retry_after: float | None = None,
        retry_at: float | None = None,
        never: bool = False,
        estimated: bool = False,
        waiting_ahead: int = 0,
        degraded: bool = False,
        limits: list[Standing] | None = None,
        refusals: list[Refusal] | None = None,
        charges: list[list[Standing]] | None = None,
    ) -> None:
        super().__init__(message)
        #: The policy of the binding limit.
        self.policy = policy
        #: The limit that binds.
        self.limit = limit
        #: The unit of that limit.
        self.unit = unit
        #: How much of that unit was asked for.
        self.asked = asked
        #: The most that could ever be asked for at once.
        self.most = most
        #: Seconds until the ask would go through.
        self.retry_after = retry_after
        #: When the ask would go through, in Unix seconds of the deciding clock.
        self.retry_at = retry_at
        #: Whether it never fits.
        self.never = never
        #: Whether the wait depends on when others release their slots.
        self.estimated = estimated
        #: How many asks wait in front.
        self.waiting_ahead = waiting_ahead
        #: Whether the decision was made without the store.
        self.degraded = degraded
        #: The standing on each limit of the binding charge.
        self.limits: list[Standing] = limits or []
        #: Every limit that refuses, if the ask has several charges.
        self.refusals: list[Refusal] = refusals or []
        #: The standing of each charge, if the ask has several.
        self.charges: list[list[Standing]] = charges or []

    #: The denial of the engine, for adapters. `None` in another process.
    _denial: Denial | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {name: value for name, value in self.__dict__.items() if not name.startswith("_")}
        return (_denied, (str(self), fields))


def _denied(message: str, fields: dict[str, Any]) -> Denied:
    return Denied(message, **fields)


class InvalidInput(TollgateError, ValueError):
    """An argument or the configuration is wrong. Nothing changed."""


class UnknownPolicy(InvalidInput):
    """No policy has this name."""


class Unavailable(TollgateError):
    """The store could not be reached, did not answer in time, or refuses to serve."""


class Contended(TollgateError):
    """A bound was reached that time lifts, such as the number of waiters. Ask again later."""


class Conflict(TollgateError):
    """The id was used before with another ask."""


class Expired(TollgateError):
    """The permit or its slot is too old."""


class Forbidden(TollgateError):
    """The broker does not allow this caller to do this."""


class Corrupt(TollgateError):
    """Stored state does not decode."""


class Closed(TollgateError):
    """The gate is closed."""


class Forked(TollgateError):
    """A permit or a memory store of the process that this one was forked from."""
