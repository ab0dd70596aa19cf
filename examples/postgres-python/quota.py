"""Five videos per user in any 24 hours, counted in the table that has them anyway, from psycopg.

The functions in the database decide (`tollgate postgres install --table video_requests --limit 5 --window 24h`). While the
database is away, requests are let through up to the same limit for each user in this process, and written down later.
"""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import psycopg
from tollgate_rs import Gate

log = logging.getLogger("quota")

#: The most requests that are kept while the database is away.
KEPT_MAX = 10_000

#: What is let through without the database: five per user, as the database would.
OUTAGE = {
    "name": "outage",
    "limits": [{"name": "daily", "unit": "requests", "rule": "rolling-window", "limit": 5, "window": "24h"}],
}


def is_away(error: psycopg.OperationalError) -> bool:
    """Whether the database cannot be used at all: no connection, no resources, or it is being stopped.

    A user whose row is locked by another transaction for too long (55P03) is no outage.
    """
    return error.sqlstate is None or error.sqlstate.startswith(("08", "53", "57P"))


@dataclass(frozen=True)
class Kept:
    """A request that was let through without the database."""

    user: str
    key: str
    at: datetime
    columns: dict[str, Any]


@dataclass
class Quota:
    """The quota over the rows of a table, which fails open."""

    connect: Callable[[], psycopg.Connection[Any]]
    schema: str = "video_requests_quota"
    outage: Gate = field(default_factory=lambda: Gate.memory([OUTAGE]))
    kept: deque[Kept] = field(default_factory=deque)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def consume(self, user: str, key: str | None = None, **columns: Any) -> dict[str, Any]:
        """Inserts a request if there is room: `{"allowed", "remaining", "resetTime", "waitSeconds"}`.

        A repeat with the same key is charged once. A row that the table does not take is an error, with or without room.
        """
        try:
            self._replay()
            answer: dict[str, Any] = self._call("consume", user, key, json.dumps(columns))
            return answer
        except psycopg.OperationalError as error:
            if not is_away(error):
                raise
            return self._without_database(user, key or str(uuid.uuid4()), columns, error)

    def check(self, user: str) -> dict[str, Any]:
        """Answers as `consume` would, and consumes nothing."""
        try:
            answer: dict[str, Any] = self._call("check", user)
            return answer
        except psycopg.OperationalError as error:
            if not is_away(error):
                raise
            log.error("the quota cannot be read: %s", error)
            allowed = self.outage.standing_sync("outage", user)[0].remaining > 0
            return {"allowed": allowed, "remaining": 0, "degraded": True}

    def info(self, user: str) -> dict[str, Any]:
        """Returns `{"quotaUsed", "quotaLimit", "resetTime", "resetIn"}`."""
        answer: dict[str, Any] = self._call("info", user)
        return answer

    def _call(self, function: str, *arguments: Any) -> Any:
        marks = ", ".join(["%s", "%s", "%s::jsonb"][: len(arguments)])
        # READ COMMITTED and one statement: the lock of the user ends with it.
        with self.connect() as connection:
            row = connection.execute(f'SELECT "{self.schema}".{function}({marks})', arguments).fetchone()
        assert row is not None
        return row[0]

    def _without_database(
        self, user: str, key: str, columns: dict[str, Any], error: Exception
    ) -> dict[str, Any]:
        log.error("the database is unavailable: %s", error)
        log.warning("Rate limiting degraded - database unavailable")
        with self._lock:
            if len(self.kept) >= KEPT_MAX or self.outage.try_acquire("outage", user) is None:
                return {"allowed": False, "remaining": 0, "degraded": True}
            self.kept.append(Kept(user, key, datetime.now(UTC), columns))
        return {"allowed": True, "remaining": 0, "degraded": True}

    def _replay(self) -> None:
        """Writes down what was let through, at the time it was made, also beyond the limit: it was made."""
        with self._lock:
            while self.kept:
                request = self.kept[0]
                with self.connect() as connection:
                    connection.execute(
                        f'SELECT "{self.schema}".replay(%s, %s, %s, %s::jsonb)',
                        (request.user, request.key, request.at, json.dumps(request.columns)),
                    )
                self.kept.popleft()
