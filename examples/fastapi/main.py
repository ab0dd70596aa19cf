"""An API that gives each key ten requests at once and two per second, and each team a budget of tokens per day."""

from __future__ import annotations

import os
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request
from tollgate_rs import Denied, Gate, Permit
from tollgate_rs.asgi import RateLimitMiddleware

TEAMS = {"key-alice": ("alice", "research"), "key-bob": ("bob", "research"), "key-carol": ("carol", "sales")}

gate = Gate.open(os.environ.get("TOLLGATE_CONFIG", "tollgate.toml"))
app = FastAPI()


def charges(scope: Any) -> list[tuple[str, str]] | None:
    """The middleware decides over all of these together. Requests to other paths are not limited."""
    if not scope["path"].startswith("/v1/"):
        return None
    key = dict(scope["headers"]).get(b"x-api-key", b"").decode("latin-1")
    user, team = TEAMS.get(key, ("anonymous", "anonymous"))
    return [("user", user), ("team", team)]


app.add_middleware(RateLimitMiddleware, gate=gate, charges=charges, on_unavailable="open")


def permit(request: Request) -> Permit | None:
    """The permit of this request; `None` if the store was away and it was let through."""
    return getattr(request.state, "permit", None)


@app.get("/health")
async def health() -> dict[str, bool]:
    return {"degraded": gate.degraded}


@app.post("/v1/summaries")
async def summarise(text: str, held: Permit | None = Depends(permit)) -> dict[str, Any]:
    """Its cost is known when the work is done, so the team is charged then, and a team in debt is refused before the next."""
    summary = text[:40]
    tokens = len(text) // 4 + len(summary) // 4
    if held is not None:
        await gate.charge("team-tokens", held.charges[1][1], tokens=tokens)
    return {"summary": summary, "tokens": tokens}


@app.post("/v1/reports")
async def report(pages: int) -> dict[str, Any]:
    """At most two reports are made at once, and a third waits for up to a second."""
    try:
        async with gate.acquire("reports", "all", wait=1):
            return {"pages": pages}
    except Denied as denied:
        raise HTTPException(429, f"{denied.limit} is full", {"retry-after": str(int(denied.retry_after or 1))}) from denied
