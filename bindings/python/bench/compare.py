"""Decisions per second beside `limits` and `pyrate-limiter`, in one run.

    pip install limits pyrate-limiter redis
    python bench/compare.py [redis://127.0.0.1:6379]

Every contender decides for the same subjects, one after the other in one thread. Each case runs in rounds that take turns,
and the best round of each counts: the machine may be busy with something else, but never makes a round faster than it is.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable

import redis
import redis.asyncio
from limits import RateLimitItemPerMinute
from limits.aio.storage import RedisStorage
from limits.aio.strategies import MovingWindowRateLimiter as AsyncMovingWindow
from limits.storage import MemoryStorage, storage_from_string
from limits.strategies import MovingWindowRateLimiter
from pyrate_limiter import Duration, InMemoryBucket, Limiter, Rate

from tollgate_rs import Gate

LIMIT = 1_000_000
SUBJECTS = [f"user-{number}" for number in range(1_000)]
ROUNDS = 7

POLICY = {
    "name": "api",
    "limits": [{"name": "rpm", "unit": "requests", "rule": "rolling-window", "limit": LIMIT, "window": "1m"}],
}


def tollgate_sync(subjects: int) -> Callable[[int], None]:
    gate = Gate.memory([POLICY])

    def run(count: int) -> None:
        decide = gate.try_acquire
        for number in range(count):
            assert decide("api", SUBJECTS[number % subjects])

    return run


def tollgate_awaited(subjects: int) -> Callable[[int], None]:
    gate = Gate.memory([POLICY])

    async def calls(count: int) -> None:
        decide = gate.acquire
        for number in range(count):
            assert await decide("api", SUBJECTS[number % subjects])

    return lambda count: asyncio.run(calls(count))


def limits_memory(subjects: int) -> Callable[[int], None]:
    limiter, item = MovingWindowRateLimiter(MemoryStorage()), RateLimitItemPerMinute(LIMIT)

    def run(count: int) -> None:
        decide = limiter.hit
        for number in range(count):
            assert decide(item, SUBJECTS[number % subjects])

    return run


def pyrate_memory(subjects: int) -> Callable[[int], None]:
    limiter = Limiter(InMemoryBucket([Rate(LIMIT, Duration.MINUTE)]))

    def run(count: int) -> None:
        decide = limiter.try_acquire
        for number in range(count):
            assert decide(SUBJECTS[number % subjects])

    return run


def tollgate_redis(url: str) -> Callable[[int], None]:
    gate = Gate.redis(url, [POLICY], prefix="bench:")

    def run(count: int) -> None:
        for number in range(count):
            assert gate.try_acquire("api", SUBJECTS[number % 1_000])

    return run


def limits_redis(url: str) -> Callable[[int], None]:
    limiter, item = MovingWindowRateLimiter(storage_from_string(url)), RateLimitItemPerMinute(LIMIT)

    def run(count: int) -> None:
        for number in range(count):
            assert limiter.hit(item, SUBJECTS[number % 1_000])

    return run


TASKS = 32


def in_tasks(decide: Callable[[str], Awaitable[object]]) -> Callable[[int], None]:
    """Runs decisions from 32 tasks of one event loop, which is kept: a client belongs to its loop."""
    loop = asyncio.new_event_loop()

    async def calls(first: int, count: int) -> None:
        for number in range(first, count, TASKS):
            assert await decide(SUBJECTS[number % 1_000])

    async def all_calls(count: int) -> None:
        await asyncio.gather(*[calls(first, count) for first in range(TASKS)])

    return lambda count: loop.run_until_complete(all_calls(count))


def tollgate_redis_tasks(url: str) -> Callable[[int], None]:
    gate = Gate.redis(url, [POLICY], prefix="bench:")
    return in_tasks(lambda subject: gate.acquire("api", subject))


def limits_redis_tasks(url: str) -> Callable[[int], None]:
    pool = redis.asyncio.BlockingConnectionPool.from_url(url, max_connections=1)
    storage = RedisStorage(f"async+{url}", implementation="redispy", connection_pool=pool)
    limiter, item = AsyncMovingWindow(storage), RateLimitItemPerMinute(LIMIT)
    return in_tasks(lambda subject: limiter.hit(item, subject))


def measure(cases: dict[str, Callable[[int], None]], count: int) -> dict[str, float]:
    """The microseconds per decision of each case: the best of rounds that take turns."""
    best = dict.fromkeys(cases, float("inf"))
    for run in cases.values():
        run(count // 10)
    for _ in range(ROUNDS):
        for name, run in cases.items():
            start = time.perf_counter()
            run(count)
            best[name] = min(best[name], (time.perf_counter() - start) / count * 1e6)
    return best


def report(title: str, best: dict[str, float], ours: str) -> None:
    print(f"\n{title}")
    for name, micros in best.items():
        ratio = "" if name == ours else f"   {micros / best[ours]:5.1f} x"
        print(f"  {name:<34} {micros:8.2f} us{ratio}")


def round_trips(url: str, run: Callable[[int], None], count: int) -> float:
    """The commands that Redis processed per decision."""
    client = redis.Redis.from_url(url)

    def commands() -> int:
        stats = client.info("commandstats")
        return sum(stat["calls"] for name, stat in stats.items() if name in ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_fcall"))

    run(10)
    before = commands()
    run(count)
    return (commands() - before) / count


def main() -> None:
    for subjects in (1, 1_000):
        memory = {
            "tollgate-rs": tollgate_sync(subjects),
            "tollgate-rs, awaited": tollgate_awaited(subjects),
            "limits, moving window": limits_memory(subjects),
            "pyrate-limiter": pyrate_memory(subjects),
        }
        best = measure(memory, 20_000)
        report(f"in memory, {subjects} subjects, microseconds per decision", best, "tollgate-rs")
        more = best["tollgate-rs, awaited"] - best["tollgate-rs"]
        print(f"  an awaited permit costs {more:.2f} us more than the sync call")
    if len(sys.argv) < 2:
        return
    url = sys.argv[1]
    threads = {"tollgate-rs": tollgate_redis(url), "limits, moving window": limits_redis(url)}
    tasks = {"tollgate-rs": tollgate_redis_tasks(url), "limits, moving window": limits_redis_tasks(url)}
    for title, shared in (("one ask after the other", threads), (f"from {TASKS} tasks", tasks)):
        report(f"on one Redis, one connection, {title}", measure(shared, 2_000), "tollgate-rs")
        for name, run in shared.items():
            print(f"  {name:<34} {round_trips(url, run, 1_000):8.2f} round trips per decision")


if __name__ == "__main__":
    main()
