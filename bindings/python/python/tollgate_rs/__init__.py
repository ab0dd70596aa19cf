"""Rate limits and quotas that hold: several limits decided together, exactly, in process or on a shared store.

    from tollgate_rs import Gate

    gate = Gate.open("tollgate.toml")
    async with gate.acquire("gemini-free", "p7", tokens=3750, wait=30) as permit:
        reply = await call()
        permit.settle(tokens=reply.usage.total_tokens)
"""

import atexit
import os

from . import _native
from ._errors import (
    Closed,
    Conflict,
    Contended,
    Corrupt,
    Denied,
    Expired,
    Forbidden,
    Forked,
    InvalidInput,
    Refusal,
    TollgateError,
    Unavailable,
    UnknownPolicy,
)
from ._native import Acquire, Call, Gate, Incident, ManualClock, Permit, Standing, SyncPermit, __version__

__all__ = [
    "Acquire",
    "Call",
    "Closed",
    "Conflict",
    "Contended",
    "Corrupt",
    "Denied",
    "Expired",
    "Forbidden",
    "Forked",
    "Gate",
    "Incident",
    "InvalidInput",
    "ManualClock",
    "Permit",
    "Refusal",
    "Standing",
    "SyncPermit",
    "TollgateError",
    "Unavailable",
    "UnknownPolicy",
    "__version__",
]

os.register_at_fork(
    before=_native.before_fork,
    after_in_parent=_native.after_fork_in_parent,
    after_in_child=_native.after_fork_in_child,
)
atexit.register(_native.shutdown)
