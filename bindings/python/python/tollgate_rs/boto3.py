"""Rate limits for clients of boto3: a token before every attempt of every call, pages and retries included.

    from tollgate_rs import Gate
    from tollgate_rs.boto3 import aws_policies, guard

    gate = Gate.dynamodb("limits", aws_policies("drs"))
    drs = guard(boto3.client("drs"), gate)
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from . import Gate, TollgateError
from ._native import Bucket, JobSlot, JobSlots

try:
    import botocore.client
    from botocore.exceptions import BotoCoreError, ClientError
except ImportError as error:
    raise ImportError("tollgate_rs.boto3 needs boto3; install tollgate-rs[boto3]") from error

__all__ = [
    "JobCapacityTimeout",
    "JobSettings",
    "JobStatus",
    "Rate",
    "RateLimitTimeout",
    "aws_policies",
    "guard",
    "guard_of",
]

_Client = TypeVar("_Client", bound=botocore.client.BaseClient)

_log = logging.getLogger("tollgate_rs.boto3")

#: The longest wait for a token.
WAIT_MAX = 60.0

#: Jobs that are older are not counted.
_LOOK_BACK = timedelta(hours=48)

#: Quotas of DRS that have room again when jobs end: concurrent jobs, and servers in all jobs.
_JOB_QUOTAS = frozenset({"L-D88FAC3A", "L-05AFA8C6"})

_SLOT = "tollgate_job_slot"
_BEGAN = "tollgate_job_began"
_SENT = "tollgate_sent"


@dataclass(frozen=True)
class Rate:
    """A token bucket: calls per time, such as ``"10/s"``, and how many at once.

    An adaptive rate is halved when the service throttles, at most once a second and down to a tenth, and grows by five
    percent a second while calls succeed.
    """

    refill: str = "10/s"
    burst: int = 20
    adaptive: bool = True


class RateLimitTimeout(TollgateError):
    """No token became available in time. The call did not go out."""

    def __init__(self, account: str, region: str, service: str, wait: float) -> None:
        super().__init__(
            f"no token for {service} in {region} of account {account} within {wait:g} s; the call did not go out"
        )
        self.account = account
        self.region = region
        #: The bucket: the service, or the service and an operation.
        self.service = service
        self.wait = wait


@dataclass(frozen=True)
class JobStatus:
    """The number of jobs in comparison with the quota."""

    current_jobs: int
    max_jobs: int
    available_slots: int
    throttling_active: bool
    at_capacity: bool
    #: How long a caller waited, in seconds, if one did.
    wait_time: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Returns the status with the names of the JSON API."""
        status: dict[str, Any] = {
            "currentJobs": self.current_jobs,
            "maxJobs": self.max_jobs,
            "availableSlots": self.available_slots,
            "throttlingActive": self.throttling_active,
            "atCapacity": self.at_capacity,
        }
        if self.wait_time is not None:
            status["waitTime"] = self.wait_time
        return status


class JobCapacityTimeout(TollgateError, TimeoutError):
    """Too many jobs ran until the timeout. The call did not go out, or the service refused it."""

    def __init__(self, current_jobs: int, max_jobs: int, waited: float) -> None:
        super().__init__(
            f"Timeout waiting for job capacity after {waited:.0f}s. Current jobs: {current_jobs}/{max_jobs}"
        )
        self.current_jobs = current_jobs
        self.max_jobs = max_jobs
        self.waited = waited

    def to_http_response(self) -> dict[str, Any]:
        """Returns a response of a Lambda function: status 429 and the error ``JOB_CAPACITY_TIMEOUT``."""
        body = {
            "error": "JOB_CAPACITY_TIMEOUT",
            "message": str(self),
            "currentJobs": self.current_jobs,
            "maxJobs": self.max_jobs,
            "waitTime": self.waited,
        }
        headers = {"content-type": "application/json"}
        return {"statusCode": 429, "headers": headers, "body": json.dumps(body)}


@dataclass(frozen=True)
class JobSettings:
    """When a new job waits for others to end."""

    #: From this many jobs on, a new one waits.
    threshold: int = 18
    #: The quota of the service.
    max_jobs: int = 20
    #: Seconds between two counts.
    poll_interval: float = 30.0
    #: Seconds until :class:`JobCapacityTimeout`.
    timeout: float = 600.0
    #: Seconds for which a place outlives a process that crashed.
    slot_ttl: float = 900.0

    def __post_init__(self) -> None:
        if not 1 <= self.threshold <= self.max_jobs:
            raise ValueError(f"threshold must be 1 to {self.max_jobs}, the quota, not {self.threshold}")
        for name in ("poll_interval", "slot_ttl"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, not {getattr(self, name)}")
        if self.timeout < 0:
            raise ValueError(f"timeout must not be negative, not {self.timeout}")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> JobSettings:
        """Reads ``JOB_THROTTLE_THRESHOLD``, ``JOB_POLL_INTERVAL`` and ``JOB_THROTTLE_TIMEOUT``, with defaults."""

        def number(name: str, default: float) -> int:
            text = environment.get(name, "").strip()
            if not text:
                return int(default)
            if not text.isdecimal():
                raise ValueError(f"{name}={text} is not a non-negative integer; leave it out for {default:g}")
            return int(text)

        return cls(
            threshold=number("JOB_THROTTLE_THRESHOLD", cls.threshold),
            poll_interval=number("JOB_POLL_INTERVAL", cls.poll_interval),
            timeout=number("JOB_THROTTLE_TIMEOUT", cls.timeout),
        )


def aws_policies(
    service: str, *, rate: Rate = Rate(), rates: Mapping[str, Rate] | None = None, threshold: int = JobSettings.threshold
) -> list[dict[str, Any]]:
    """Returns the policies that a guard asks for, for the gate to be opened with, or a broker to be configured with.

    Their subject is account and region, as in ``gate.standing("aws.drs", "current/eu-central-1")``.
    """

    def bucket(name: str, rate: Rate) -> dict[str, Any]:
        limit = {"unit": "requests", "rule": "token-bucket", "capacity": rate.burst, "refill": rate.refill}
        return {"name": f"aws.{name}", "limits": [{"name": "rate", **limit}]}

    policies = [bucket(service, rate)]
    policies += [bucket(f"{service}.{operation}", own) for operation, own in (rates or {}).items()]
    if service == "drs":
        slots = {"name": "jobs", "unit": "jobs", "rule": "concurrency", "limit": threshold, "ttl": "15m"}
        policies.append({"name": "aws.drs.jobs", "limits": [slots]})
    return policies


def guard(
    client: _Client,
    gate: Gate | None = None,
    *,
    rate: Rate = Rate(),
    rates: Mapping[str, Rate] | None = None,
    wait: float = 30.0,
    account: str = "current",
    jobs: JobSettings | None = None,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> _Client:
    """Takes a token before every attempt of every call of ``client``, and returns the client.

    Tokens are taken before a request is signed, so that a wait does not make the signature old. Clients of one account,
    region and service share a bucket in this process; with a ``gate`` on a shared store, all processes do.

    ``rates`` gives operations, such as ``"StartRecovery"``, a bucket of their own. A call that gets no token within ``wait``
    seconds does not go out: :class:`RateLimitTimeout`, which botocore does not retry.

    A client of Elastic Disaster Recovery also counts jobs: ``start_recovery`` waits while there are 18 of 20. ``jobs`` sets
    the numbers; without it they come from the environment. ``sleep`` and ``clock`` replace those of the machine while it waits
    for jobs, for tests.
    """
    if client in _guards:
        raise ValueError("the client is guarded already; make another one")
    if not 0 <= wait <= WAIT_MAX:
        raise ValueError(f"wait must be 0 to {WAIT_MAX:g} seconds, not {wait}")
    _guards[client] = Guard(client, gate, rate, rates or {}, wait, account, jobs, sleep, clock)
    return client


def guard_of(client: botocore.client.BaseClient) -> Guard:
    """Returns the guard of a guarded client, which knows the state of its buckets and counts jobs."""
    try:
        return _guards[client]
    except KeyError:
        raise ValueError("the client is not guarded; call guard(client) first") from None


class Guard:
    """The hooks of one client. Made by :func:`guard`."""

    def __init__(
        self,
        client: botocore.client.BaseClient,
        gate: Gate | None,
        rate: Rate,
        rates: Mapping[str, Rate],
        wait: float,
        account: str,
        jobs: JobSettings | None,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._service = client.meta.service_model.service_id.hyphenize()
        self._region = client.meta.region_name or "global"
        self._account = account
        self._gate = gate
        self._wait = wait
        unknown = sorted(set(rates) - set(client.meta.service_model.operation_names))
        if unknown:
            raise ValueError(f"{self._service} has no operation {unknown[0]}; rates are by operation, as in StartRecovery")
        self._rates: dict[str | None, Rate] = {None: rate}
        self._rates.update(rates)
        # Made at once, so that invalid rates are errors here.
        for operation in self._rates:
            self._bucket(operation)
        events = client.meta.events
        # Before the signer, which is registered for the same event.
        events.register_first(f"request-created.{self._service}", self._take)
        events.register_first(f"response-received.{self._service}", self._adapt)
        self._jobs: _JobThrottle | None = None
        if self._service == "drs":
            settings = jobs or JobSettings.from_environment()
            self._jobs = _JobThrottle(client, gate, settings, account, self._region, sleep, clock)
        elif jobs is not None:
            raise ValueError(f"jobs are counted for drs, not for {self._service}")

    def percent(self, operation: str | None = None) -> int:
        """Returns the current rate of a bucket, in percent of the configured one."""
        return self._bucket(operation).percent

    def available(self, operation: str | None = None) -> int:
        """Returns the whole tokens that are available in this process."""
        return self._bucket(operation).available

    def job_status(self) -> JobStatus:
        """Counts jobs, without waiting."""
        if self._jobs is None:
            raise ValueError(f"jobs are counted for drs, not for {self._service}")
        return self._jobs.status(self._jobs.count())

    def _bucket(self, operation: str | None) -> Bucket:
        own = operation if operation in self._rates else None
        name = self._service if own is None else f"{self._service}.{own}"
        return _bucket(name, self._account, self._region, self._rates[own], self._gate)

    def _take(self, request: Any, operation_name: str, **_: Any) -> None:
        if not self._bucket(operation_name).take(self._wait):
            own = operation_name in self._rates
            service = f"{self._service}.{operation_name}" if own else self._service
            raise RateLimitTimeout(self._account, self._region, service, self._wait)
        request.context[_SENT] = True

    def _adapt(self, parsed_response: Any, event_name: str, **_: Any) -> None:
        if parsed_response is None:
            return
        operation = event_name.rpartition(".")[2]
        metadata = parsed_response.get("ResponseMetadata", {})
        status = metadata.get("HTTPStatusCode", 0)
        code = str(parsed_response.get("Error", {}).get("Code", ""))
        retry_after = metadata.get("HTTPHeaders", {}).get("retry-after")
        bucket = self._bucket(operation)
        if bucket.answered(status, code, retry_after):
            _log.warning(
                "%s %s in %s was throttled (%s); the rate is %d percent",
                *(self._service, operation, self._region, code or status, bucket.percent),
            )


class _JobThrottle:
    """Keeps concurrent jobs within their quota.

    Counting first and starting later is a race: two callers both see the last free place. So each takes a slot of a shared
    concurrency limit before it counts, and starts only if the jobs that it counts, the slots that were taken before, and
    its own fit below the threshold. A slot is held until its job appears in the count.
    """

    def __init__(
        self,
        client: Any,
        gate: Gate | None,
        settings: JobSettings,
        account: str,
        region: str,
        sleep: Callable[[float], None],
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._settings = settings
        self._slots = JobSlots(account, region, settings.threshold, settings.slot_ttl, gate)
        self._sleep = sleep
        self._clock = clock
        events = client.meta.events
        events.register_first("before-call.drs.StartRecovery", self._before)
        events.register_first("needs-retry.drs.StartRecovery", self._refused)
        events.register("after-call.drs.StartRecovery", self._after)
        events.register("after-call-error.drs.StartRecovery", self._failed)

    def count(self) -> int:
        """Counts the jobs of the last two days that are not completed, up to the quota."""
        since = (datetime.now(UTC) - _LOOK_BACK).strftime("%Y-%m-%dT%H:%M:%SZ")
        pages = self._client.get_paginator("describe_jobs").paginate(filters={"fromDate": since})
        active = 0
        for page in pages:
            active += sum(job.get("status") in ("PENDING", "STARTED") for job in page["items"])
            if self._settings.max_jobs <= active:
                break
        return active

    def status(self, current_jobs: int, wait_time: float | None = None) -> JobStatus:
        most = self._settings.max_jobs
        return JobStatus(
            current_jobs=current_jobs,
            max_jobs=most,
            available_slots=max(0, most - current_jobs),
            throttling_active=self._settings.threshold <= current_jobs,
            at_capacity=most <= current_jobs,
            wait_time=wait_time,
        )

    def _before(self, context: dict[str, Any], **_: Any) -> None:
        context[_BEGAN] = self._clock()
        context[_SLOT] = self._wait(context[_BEGAN])

    def _wait(self, began: float) -> JobSlot | None:
        """Returns a slot, or ``None`` where slots cannot be taken: a recovery must not fail because of its throttle."""
        while True:
            try:
                slot = self._slots.acquire()
            except TollgateError as error:
                _log.error("job slots cannot be taken; the job is started without one: %s", error)
                return None
            starting = self._settings.threshold if slot is None else slot.used - 1
            try:
                current = self.count()
            except (TollgateError, BotoCoreError, ClientError) as error:
                _log.error("jobs cannot be counted; the job is started anyway: %s", error)
                return slot
            except BaseException:
                if slot is not None:
                    slot.release()
                raise
            if slot is not None and current + slot.used <= self._settings.threshold:
                return slot
            if slot is not None:
                slot.release()
            self._pause(began, current, starting)

    def _pause(self, began: float, current: int, starting: int) -> None:
        waited = self._clock() - began
        left = self._settings.timeout - waited
        if left <= 0:
            raise JobCapacityTimeout(current, self._settings.max_jobs, waited)
        pause = min(self._settings.poll_interval, left)
        _log.info("%d jobs run and %d are being started; looking again in %.0f s", current, starting, pause)
        self._sleep(pause)

    def _refused(self, response: Any, request_dict: dict[str, Any], **_: Any) -> float | None:
        """The service says that the quota is full, whatever was counted: waits and lets botocore send the call again."""
        parsed = response[1] if response is not None else {}
        if parsed.get("quotaCode") not in _JOB_QUOTAS:
            return None
        context = request_dict["context"]
        self._release(context)
        try:
            current = self.count()
        except (TollgateError, BotoCoreError, ClientError):
            current = self._settings.max_jobs
        self._pause(context[_BEGAN], current, 0)
        context[_SLOT] = self._wait(context[_BEGAN])
        return 0.0

    def _after(self, http_response: Any, parsed: dict[str, Any], context: dict[str, Any], **_: Any) -> None:
        status = http_response.status_code
        if status < 300:
            self._release_if_listed(context, parsed.get("job", {}).get("jobID", ""))
        elif status < 500:
            self._release(context)
        # There may be a job after a 5xx, so the slot is held until it expires.

    def _failed(self, context: dict[str, Any], **_: Any) -> None:
        if not context.get(_SENT):
            self._release(context)

    def _release_if_listed(self, context: dict[str, Any], job: str) -> None:
        if context.get(_SLOT) is None:
            return
        try:
            listed = self._client.describe_jobs(filters={"jobIDs": [job]})["items"]
        except (TollgateError, BotoCoreError, ClientError) as error:
            _log.warning("job %s cannot be seen yet, so its slot is held until it expires: %s", job, error)
            return
        if listed:
            self._release(context)

    @staticmethod
    def _release(context: dict[str, Any]) -> None:
        slot: JobSlot | None = context.pop(_SLOT, None)
        if slot is None:
            return
        try:
            slot.release()
        except TollgateError as error:
            _log.warning("a job slot was not released and will expire: %s", error)


_guards: WeakKeyDictionary[botocore.client.BaseClient, Guard] = WeakKeyDictionary()
_buckets: dict[tuple[str, str, str], tuple[Rate, Gate | None, Bucket]] = {}
_buckets_lock = threading.Lock()


def _bucket(name: str, account: str, region: str, rate: Rate, gate: Gate | None) -> Bucket:
    """Returns the bucket that all clients of this process share."""
    key = (name, account, region)
    with _buckets_lock:
        known = _buckets.get(key)
        if known is None:
            bucket = Bucket(name, account, region, rate.refill, rate.burst, rate.adaptive, gate)
            _buckets[key] = (rate, gate, bucket)
            return bucket
    if known[:2] != (rate, gate):
        raise ValueError(
            f"{name} in {region} of account {account} has a bucket with another rate or gate already ({known[0]}); the service"
            " counts both clients together, so give both the same"
        )
    return known[2]


def _forget_buckets() -> None:
    """A forked process starts with its own buckets: a thread of its parent may have held their locks."""
    global _buckets_lock
    _buckets_lock = threading.Lock()
    _buckets.clear()


os.register_at_fork(after_in_child=_forget_buckets)
