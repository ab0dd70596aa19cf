"""The engine. Its names are exported by `tollgate_rs`."""

from collections.abc import Callable, Generator, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, final, type_check_only

_T_co = TypeVar("_T_co", covariant=True)
_P = ParamSpec("_P")
_R = TypeVar("_R")

#: A policy as in `tollgate.toml`: `{"name": ..., "limits": [{"name": ..., "unit": ..., "rule": ...}]}`.
_Policies: TypeAlias = Sequence[Mapping[str, Any]]
#: A policy and a subject, and costs of its own if it has any.
_Charge: TypeAlias = tuple[str, str] | tuple[str, str, Mapping[str, int]]

__version__: str

@final
class Gate:
    """Answers asks: may this go through now, and if not, when? Safe to share between threads and tasks."""

    @staticmethod
    def open(path: str | PathLike[str] = "tollgate.toml", *, clock: ManualClock | None = None) -> Gate:
        """Opens the store, the strategy and the policies of a `tollgate.toml`."""

    @staticmethod
    def parse(text: str, *, clock: ManualClock | None = None) -> Gate:
        """Opens what `text` says, which is written like a `tollgate.toml`."""

    @staticmethod
    def memory(
        policies: _Policies, *, keys_max: int | None = None, ids_max: int | None = None, clock: ManualClock | None = None
    ) -> Gate:
        """Keeps the state in this process."""

    @staticmethod
    def embedded(
        path: str | PathLike[str],
        policies: _Policies,
        *,
        durability: Literal["strict", "relaxed"] | None = None,
        keys_max: int | None = None,
    ) -> Gate:
        """Keeps the state in a folder of this machine, which several processes may share."""

    @staticmethod
    def redis(
        url: str,
        policies: _Policies,
        *,
        strategy: Mapping[str, Any] | None = None,
        fallback: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Gate:
        """Keeps the state in Redis or Valkey. `options` are the other keys of `[store]`, such as `cluster=True`."""

    @staticmethod
    def postgres(
        url: str,
        policies: _Policies,
        *,
        strategy: Mapping[str, Any] | None = None,
        fallback: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Gate:
        """Keeps the state in PostgreSQL. `options` are the other keys of `[store]`, such as `schema="limits"`."""

    @staticmethod
    def dynamodb(
        table: str,
        policies: _Policies,
        *,
        strategy: Mapping[str, Any] | None = None,
        fallback: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Gate:
        """Keeps the state in a DynamoDB table. `options` are the other keys of `[store]`: `region`, `endpoint`."""

    @staticmethod
    def broker(
        url: str,
        policies: _Policies | None = None,
        *,
        key: str | None = None,
        fallback: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Gate:
        """Asks a broker over HTTP. Without `policies` the broker is asked for its own."""

    def acquire(
        self,
        policy: str | None = None,
        subject: str | None = None,
        *,
        charges: Sequence[_Charge] | None = None,
        costs: Mapping[str, int] | None = None,
        wait: float | None = None,
        id: str | None = None,
        tenant: str | None = None,
        **units: int,
    ) -> Acquire:
        """Asks for admission: `await` the result for a permit, or use it with `async with`.

        Costs are keyword arguments, as in `tokens=3750`, or `costs` for units whose name is taken. `charges` names up to
        eight (policy, subject) that are decided together instead of one. `wait` is the longest wait in seconds. An ask repeated
        with the same `id` is charged once. Raises `Denied` if it is not admitted. A cancelled ask takes nothing.
        """

    def acquire_sync(
        self,
        policy: str | None = None,
        subject: str | None = None,
        *,
        charges: Sequence[_Charge] | None = None,
        costs: Mapping[str, int] | None = None,
        wait: float | None = None,
        id: str | None = None,
        tenant: str | None = None,
        **units: int,
    ) -> SyncPermit:
        """As `acquire`, for threads: blocks, and returns a permit that is also a context manager."""

    def try_acquire(
        self,
        policy: str | None = None,
        subject: str | None = None,
        *,
        charges: Sequence[_Charge] | None = None,
        costs: Mapping[str, int] | None = None,
        id: str | None = None,
        tenant: str | None = None,
        **units: int,
    ) -> SyncPermit | None:
        """As `acquire_sync` without waiting for room; `None` if it is denied."""

    def charge(
        self,
        policy: str | None = None,
        subject: str | None = None,
        *,
        charges: Sequence[_Charge] | None = None,
        costs: Mapping[str, int] | None = None,
        id: str | None = None,
        **units: int,
    ) -> Call[Permit]:
        """Charges without deciding: a cost that is known only afterwards. Takes no slots."""

    def charge_sync(
        self,
        policy: str | None = None,
        subject: str | None = None,
        *,
        charges: Sequence[_Charge] | None = None,
        costs: Mapping[str, int] | None = None,
        id: str | None = None,
        **units: int,
    ) -> SyncPermit:
        """As `charge`, for threads."""

    def limit(
        self,
        policy: str,
        subject: str | Callable[..., str],
        *,
        costs: Mapping[str, int] | Callable[..., Mapping[str, int]] | None = None,
        wait: float | None = None,
        tenant: str | Callable[..., str] | None = None,
        permit: str | None = None,
        **units: int,
    ) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
        """Decorates a function, sync or async: it runs with a permit, and raises `Denied` without one.

        `subject`, `costs` and `tenant` may be functions of the arguments. `permit` names a keyword argument that gets the permit, to
        settle it.
        """

    def standing(self, policy: str, subject: str) -> Call[list[Standing]]:
        """Where a subject stands on each limit of a policy. Consumes nothing."""

    def standing_sync(self, policy: str, subject: str) -> list[Standing]:
        """As `standing`, for threads."""

    def violation(
        self, policy: str, subject: str, *, retry_after: float, limit: str | None = None
    ) -> Call[Incident]:
        """A provider refused an admitted call: closes `limit`, or the one with the least left, for `retry_after` seconds."""

    def violation_sync(self, policy: str, subject: str, *, retry_after: float, limit: str | None = None) -> Incident:
        """As `violation`, for threads."""

    def reset(self, policy: str, subject: str) -> Call[bool]:
        """Deletes what is counted for a subject. Returns whether there was anything."""

    def reset_sync(self, policy: str, subject: str) -> bool:
        """As `reset`, for threads."""

    def permit(self, token: str) -> Call[Permit]:
        """The permit of a token, also of another process on the same store."""

    def permit_sync(self, token: str) -> SyncPermit:
        """As `permit`, for threads."""

    def close(self) -> None:
        """Posts what is owed, returns leased tokens and closes the store. Later calls raise `Closed`."""

    def aclose(self) -> Call[None]:
        """As `close`, for tasks."""

    @property
    def policies(self) -> list[dict[str, Any]]:
        """The policies, as in `tollgate.toml`."""

    @property
    def store(self) -> str:
        """The kind of the store, such as "redis"."""

    @property
    def degraded(self) -> bool:
        """Whether the store is away and decisions are made without it."""

    @property
    def waiting(self) -> int:
        """How many asks wait in this process."""

    def __enter__(self) -> Gate: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def __aenter__(self) -> Call[Gate]: ...
    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Call[None]: ...

@final
class Call(Generic[_T_co]):
    """The result of an operation, to be awaited once. Nothing is lost if it is not: only its result is."""

    @classmethod
    def __class_getitem__(cls, key: Any) -> Any: ...
    def __await__(self) -> Generator[Any, Any, _T_co]: ...
    def __next__(self) -> Any: ...
    def send(self, value: Any) -> Any: ...
    def throw(self, kind: Any, error: Any = None, traceback: Any = None) -> Any: ...
    def close(self) -> None: ...

@final
class Acquire:
    """An ask that is decided when it is awaited or entered."""

    def __await__(self) -> Generator[Any, Any, Permit]: ...
    def __next__(self) -> Any: ...
    def send(self, value: Any) -> Any: ...
    def throw(self, kind: Any, error: Any = None, traceback: Any = None) -> Any: ...
    def close(self) -> None: ...
    def __aenter__(self) -> Acquire: ...
    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> Call[None]: ...

@type_check_only
class _PermitBase:
    @property
    def charges(self) -> list[tuple[str, str]]:
        """The policy and the subject of each charge."""

    @property
    def costs(self) -> list[dict[str, int]]:
        """What was charged, for each charge."""

    @property
    def limits(self) -> list[list[Standing]]:
        """The standing of each charge right after the decision."""

    @property
    def decided_at(self) -> float:
        """When it was decided, in Unix seconds of the deciding clock."""

    @property
    def use_by(self) -> float | None:
        """When the call should have reached the provider, in Unix seconds, if a limit has a margin."""

    @property
    def expires_at(self) -> float | None:
        """When its slots expire, in Unix seconds."""

    @property
    def degraded(self) -> bool:
        """Whether the decision was made without the store."""

    @property
    def shadow_denied(self) -> bool:
        """Whether a policy in shadow mode let it through."""

    @property
    def token(self) -> str:
        """The permit as text that another process on the same store can settle or release."""

@final
class Permit(_PermitBase):
    """Proof of admission, for tasks. Inside `async with`, settle and release are recorded and sent when the block ends."""

    def settle(
        self,
        *,
        costs: Mapping[str, int] | None = None,
        charges: Mapping[int, Mapping[str, int]] | None = None,
        **units: int,
    ) -> Call[bool]:
        """Replaces the estimate by the actual cost. A unit that is not named keeps its estimate.

        `charges` settles single charges by their index, with costs of their own.
        """

    def release(self) -> Call[bool]:
        """The call was not made: gives everything back."""

    def renew(self) -> Call[None]:
        """Keeps its slots for another time to live."""

    def violation(self, *, retry_after: float, limit: str | None = None) -> Call[Incident]:
        """The provider refused this call: closes `limit`, or the one with the least left, for `retry_after` seconds."""

@final
class SyncPermit(_PermitBase):
    """Proof of admission, for threads. Inside `with`, settle and release are recorded and sent when the block ends."""

    def settle(
        self,
        *,
        costs: Mapping[str, int] | None = None,
        charges: Mapping[int, Mapping[str, int]] | None = None,
        **units: int,
    ) -> bool:
        """Replaces the estimate by the actual cost. A unit that is not named keeps its estimate.

        `charges` settles single charges by their index, with costs of their own.
        """

    def release(self) -> bool:
        """The call was not made: gives everything back."""

    def renew(self) -> None:
        """Keeps its slots for another time to live."""

    def violation(self, *, retry_after: float, limit: str | None = None) -> Incident:
        """The provider refused this call: closes `limit`, or the one with the least left, for `retry_after` seconds."""

    def __enter__(self) -> SyncPermit: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

@final
class Standing:
    """Where a subject stands on one limit. Times are Unix seconds."""

    def __new__(
        cls,
        name: str,
        unit: str,
        limit: int,
        used: int,
        remaining: int,
        reset_at: float | None = None,
        full_at: float | None = None,
    ) -> Standing: ...
    def __getnewargs__(self) -> tuple[str, str, int, int, int, float | None, float | None]: ...
    @property
    def name(self) -> str: ...
    @property
    def unit(self) -> str: ...
    @property
    def limit(self) -> int: ...
    @property
    def used(self) -> int: ...
    @property
    def remaining(self) -> int: ...
    @property
    def reset_at(self) -> float | None:
        """When `remaining` next grows."""

    @property
    def full_at(self) -> float | None:
        """When nothing is used any more."""

@final
class Incident:
    """What is known about a refusal by a provider."""

    @property
    def id(self) -> str: ...
    @property
    def policy(self) -> str: ...
    @property
    def subject(self) -> str: ...
    @property
    def limit(self) -> str: ...
    @property
    def until(self) -> float: ...
    @property
    def closed(self) -> bool: ...
    @property
    def trouble(self) -> str | None: ...

@final
class ManualClock:
    """A clock that is moved by hand, for tests. Times are Unix seconds."""

    def __new__(cls, now: float | None = None) -> ManualClock: ...
    @property
    def now(self) -> float: ...
    def set(self, now: float) -> None:
        """Sets the time, forward or back."""

    def advance(self, seconds: float) -> None:
        """Moves the time forward, and wakes what waits until then."""

def shutdown() -> None:
    """Closes every gate. Called at exit."""

def before_fork() -> None: ...
def after_fork_in_parent() -> None: ...
def after_fork_in_child() -> None: ...

# For the adapters of this package.

@final
class Denial:
    """A denial with everything that is known about it."""

    def problem(self) -> bytes:
        """The problem document of the broker, as JSON."""

    def fields(self, gate: Gate, subjects: Sequence[str]) -> list[tuple[bytes, bytes]]:
        """`Retry-After`, `RateLimit` and `RateLimit-Policy` of the binding charge, as ASGI has them."""

def admitted_fields(gate: Gate, permit: Permit) -> list[tuple[bytes, bytes]]:
    """`RateLimit` and `RateLimit-Policy` of the first charge."""

@final
class Meter:
    """Meters one call to OpenAI, Anthropic or Gemini, from its request to the end of its response."""

    @staticmethod
    def read(method: str, path: str, query: str | None, body: bytes, usage: Mapping[str, str]) -> Meter | None:
        """The meter of a call; `None` for one that uses no tokens. `ValueError` if it cannot be metered."""

    @property
    def model(self) -> str: ...
    @property
    def dialect(self) -> str: ...
    def fit_output(self, limits: Sequence[tuple[str, int]]) -> None:
        """Charges an undeclared output with at most a quarter of each limit."""

    def estimate(self) -> dict[str, int]:
        """The costs to charge before the call."""

    def request_body(self, body: bytes) -> bytes:
        """The body to send: usage is asked for in a stream."""

    def begin(self, content_type: str, is_compressed: bool) -> bool:
        """Begins the response. Returns whether its length may change."""

    def feed(self, chunk: bytes) -> bytes:
        """Reads the next bytes of the response, and returns what the client gets of them."""

    def finish(self) -> bytes:
        """Returns what was held back, at the end of the body."""

    def end(self, how: str) -> dict[str, int]:
        """What the call used, if its response was "complete", "broken" or "abandoned"."""

@final
class ProviderRefusal:
    """A provider's refusal of a call."""

    @staticmethod
    def read(dialect: str, url: str, status: int, headers: Sequence[tuple[str, str]], body: bytes) -> ProviderRefusal: ...
    @property
    def is_quota(self) -> bool:
        """Whether a quota is exhausted that time refills."""

    @property
    def retry_after(self) -> float | None:
        """How long the provider wants to be left alone, in seconds."""

    @property
    def units(self) -> list[str]:
        """The units whose limit was exceeded."""

def llm_error_body(dialect: str, message: str, retry_after: float | None, is_denial: bool) -> bytes:
    """The body of an error in the shape of a dialect."""

@final
class Bucket:
    """A token bucket for AWS calls, first come first served, whose rate adapts to throttling."""

    def __new__(
        cls,
        service: str,
        account: str,
        region: str,
        refill: str,
        burst: int,
        is_adaptive: bool,
        gate: Gate | None,
    ) -> Bucket: ...
    def take(self, wait: float) -> bool:
        """Takes a token, waiting for it up to `wait` seconds. Returns whether there was one."""

    def answered(self, status: int, code: str, retry_after: str | None) -> bool:
        """Adapts the rate to a response. Returns whether it was throttled."""

    @property
    def percent(self) -> int: ...
    @property
    def available(self) -> int: ...

@final
class JobSlots:
    """The slots of AWS jobs that are being started."""

    def __new__(cls, account: str, region: str, threshold: int, ttl: float, gate: Gate | None) -> JobSlots: ...
    def acquire(self) -> JobSlot | None:
        """Takes a slot; `None` if all are taken."""

@final
class JobSlot:
    """The slot of one job. It expires if it is not released."""

    @property
    def used(self) -> int:
        """How many slots are taken, with this one."""

    def release(self) -> None:
        """Gives the slot back. Idempotent."""
def _wake(future: Any) -> None: ...
