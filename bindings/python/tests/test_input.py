"""Bad input at every function: an error that says what was wrong and what would be right, and nothing changed."""

# mypy: disable-error-code="arg-type, call-arg, no-untyped-call"

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import bucket, policy, slots, window

from tollgate_rs import Denied, Gate, InvalidInput, ManualClock, Standing, TollgateError, Unavailable, UnknownPolicy

GOOD = [policy("llm", window("rpm", 10), window("tpm", 1000, "tokens"))]


@pytest.fixture
def gate() -> Gate:
    return Gate.memory(GOOD)


BAD_ASKS: list[tuple[dict[str, Any], str]] = [
    ({}, "name a policy and a subject"),
    ({"policy": "llm"}, "name a policy and a subject"),
    ({"subject": "p7"}, "name a policy and a subject"),
    ({"policy": 7, "subject": "p7"}, "policy must be a string, not int"),
    ({"policy": "llm", "subject": b"p7"}, "subject must be a string, not bytes"),
    ({"policy": "llm", "subject": ""}, "subject"),
    ({"policy": "llm", "subject": "x" * 10_000}, "subject"),
    ({"policy": "other", "subject": "p7"}, "no policy is called"),
    ({"policy": "llm", "subject": "p7", "tokens": -1}, "tokens must be a non-negative integer, not -1"),
    ({"policy": "llm", "subject": "p7", "tokens": 1.5}, "tokens must be a non-negative integer, not 1.5"),
    ({"policy": "llm", "subject": "p7", "tokens": True}, "tokens must be a non-negative integer, not True"),
    ({"policy": "llm", "subject": "p7", "tokens": "5"}, "tokens must be a non-negative integer, not '5'"),
    ({"policy": "llm", "subject": "p7", "tokens": 2**80}, "tokens must be a non-negative integer"),
    ({"policy": "llm", "subject": "p7", "tokens": 2**60}, "must be at most"),
    ({"policy": "llm", "subject": "p7", "words": 1}, "words"),
    ({"policy": "llm", "subject": "p7", "costs": 5}, "costs must be a mapping"),
    ({"policy": "llm", "subject": "p7", "costs": [("tokens", 1)]}, "costs must be a mapping"),
    ({"policy": "llm", "subject": "p7", "costs": {1: 1}}, "a unit must be a string"),
    ({"policy": "llm", "subject": "p7", "costs": {"tokens": 1}, "tokens": 1}, "tokens is given twice"),
    ({"policy": "llm", "subject": "p7", "wait": -1}, "wait must be 0 to"),
    ({"policy": "llm", "subject": "p7", "wait": float("nan")}, "wait must be 0 to"),
    ({"policy": "llm", "subject": "p7", "wait": float("inf")}, "wait must be 0 to"),
    ({"policy": "llm", "subject": "p7", "wait": 86_401}, "wait must be at most 86400 seconds"),
    ({"policy": "llm", "subject": "p7", "wait": "5s"}, "wait must be a number of seconds, not str"),
    ({"policy": "llm", "subject": "p7", "wait": True}, "wait must be a number of seconds, not bool"),
    ({"policy": "llm", "subject": "p7", "id": 5}, "id must be a string"),
    ({"policy": "llm", "subject": "p7", "id": ""}, "id"),
    ({"policy": "llm", "subject": "p7", "tenant": 5}, "tenant must be a string"),
    ({"policy": "llm", "subject": "p7", "tenant": ""}, "tenant"),
    ({"charges": []}, "charges is empty"),
    ({"charges": "llm"}, "charges must be a list"),
    ({"charges": 5}, "charges must be a list"),
    ({"charges": ["llm"]}, "charges must be a list"),
    ({"charges": [("llm",)]}, "a tuple of 1"),
    ({"charges": [("llm", 5)]}, "the subject of a charge must be a string"),
    ({"charges": [("llm", "p7", 5)]}, "costs must be a mapping"),
    ({"charges": [("llm", "p7"), ("llm", "p7")]}, "twice"),
    ({"charges": [("llm", f"p{n}") for n in range(9)]}, "at most 8"),
    ({"policy": "llm", "subject": "p7", "charges": [("llm", "p8")]}, "not both"),
]


@pytest.mark.parametrize(("ask", "message"), BAD_ASKS, ids=[str(ask)[:60] for ask, _ in BAD_ASKS])
def test_a_bad_ask_is_refused_by_every_function(gate: Gate, ask: dict[str, Any], message: str) -> None:
    async def awaited(call: Callable[..., Any], asked: dict[str, Any]) -> None:
        await call(**asked)

    functions: list[tuple[Callable[..., Any], set[str], bool]] = [
        (gate.acquire, set(), True),
        (gate.acquire_sync, set(), False),
        (gate.try_acquire, {"wait"}, False),
        (gate.charge, {"wait", "tenant"}, True),
        (gate.charge_sync, {"wait", "tenant"}, False),
    ]
    for function, missing, is_async in functions:
        if missing & ask.keys():
            continue
        with pytest.raises(InvalidInput) as error:
            if is_async:
                asyncio.run(awaited(function, ask))
            else:
                function(**ask)
        assert message in str(error.value), (function, str(error.value))
    assert [standing.used for standing in gate.standing_sync("llm", "p7")] == [0, 0]


BAD_POLICIES: list[tuple[Any, str]] = [
    (None, "policies must be a list of dicts"),
    ("llm", "policies must be a list of dicts"),
    (5, "policies must be a list of dicts"),
    ([], "no policy"),
    (["llm"], "policies must be a list of dicts"),
    ([{}], "a policy needs name"),
    ([{"name": "llm"}], "needs limits"),
    ([{"name": "llm", "limits": []}], "needs limits"),
    ([{"name": "llm", "limits": [{"name": "rpm"}]}], "rpm"),
    ([{"name": "llm", "limits": [window("rpm", -5)]}], "5"),
    ([{"name": "llm", "limits": [{**window("rpm", 5), "window": "soon"}]}], "soon"),
    ([{"name": "llm", "limits": [{**window("rpm", 5), "rule": "leaky"}]}], "leaky"),
    ([{"name": "llm", "limits": [window("rpm", 5)], "colour": "red"}], "colour"),
    ([policy("llm", window("rpm", 5)), policy("llm", window("rpm", 5))], "two policies"),
    ([{"name": "llm", "limits": [{**window("rpm", 5), "limit": 2**70}]}], "too large"),
    ([{"name": "llm", "limits": [{**window("rpm", 5), "limit": object()}]}], "no place for a value of type object"),
    ([{7: "llm"}], "a key of configuration must be a string"),
]


@pytest.mark.parametrize(("policies", "message"), BAD_POLICIES, ids=[str(each)[:60] for each, _ in BAD_POLICIES])
def test_bad_policies_are_refused(policies: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        Gate.memory(policies)
    assert message in str(error.value)


def test_bad_stores_are_refused(tmp_path: Path) -> None:
    def refused(open_gate: Callable[[], Gate], message: str, kind: type[TollgateError] = InvalidInput) -> None:
        with pytest.raises(kind) as error:
            open_gate()
        assert message in str(error.value)

    refused(lambda: Gate.open(tmp_path / "missing.toml"), "there is no such file")
    refused(lambda: Gate.open(tmp_path), "is not a regular file")
    refused(lambda: Gate.parse("kind ="), "configuration:1")
    refused(lambda: Gate.parse("[store]\nkind = \"tape\""), "there is no store")
    refused(lambda: Gate.memory(GOOD, keys_max=0), "keys_max must be 1 to")
    refused(lambda: Gate.redis("localhost", GOOD), "url")
    refused(lambda: Gate.redis("redis://127.0.0.1:1", GOOD, colour="red"), "colour")
    refused(lambda: Gate.redis("redis://127.0.0.1:1", GOOD, strategy={"kind": "psychic"}), "there is no strategy")
    refused(lambda: Gate.redis("redis://127.0.0.1:1", GOOD, strategy="leased"), "strategy must be a dict")
    refused(lambda: Gate.embedded(tmp_path / "d", GOOD, durability="lax"), "durability")
    (tmp_path / "file").write_text("")
    refused(lambda: Gate.embedded(tmp_path / "file", GOOD), "folder", Unavailable)
    refused(lambda: Gate.redis("redis://127.0.0.1:1", GOOD), "", Unavailable)
    refused(lambda: Gate.postgres("postgres://127.0.0.1:1/x", GOOD), "", Unavailable)
    refused(lambda: Gate.broker("http://127.0.0.1:1"), "cannot be reached", Unavailable)
    secret = "redis://:hush@127.0.0.1:1"
    with pytest.raises(InvalidInput) as error:
        Gate.redis(secret, [{"name": "llm"}])
    assert "hush" not in str(error.value)


def test_bad_settlements_are_refused(gate: Gate) -> None:
    permit = gate.acquire_sync("llm", "p7", tokens=5)
    for call, message in [
        (lambda: permit.settle(words=1), "they count requests, tokens"),
        (lambda: permit.settle(tokens=-1), "non-negative"),
        (lambda: permit.settle(costs="tokens"), "costs must be a mapping"),
        (lambda: permit.settle(charges={1: {"tokens": 1}}), "there is no charge 1"),
        (lambda: permit.settle(charges=[1]), "charges must be a mapping"),
        (lambda: permit.settle(charges={0: {"words": 1}}), "they count"),
        (lambda: permit.violation(retry_after=-1), "retry_after must be 0 to"),
        (lambda: permit.violation(retry_after="soon"), "retry_after must be a number"),
        (lambda: permit.violation(retry_after=1, limit="rps"), "has no limit"),
        (lambda: permit.violation(retry_after=1, limit=5), "limit must be a string"),
        (lambda: permit.violation(retry_after=10**9), "must be at most"),
    ]:
        with pytest.raises(InvalidInput) as error:
            call()
        assert message in str(error.value)

    async def block() -> None:
        async with gate.acquire("llm", "p7") as held:
            held.settle(words=1)

    with pytest.raises(InvalidInput):
        asyncio.run(block())
    assert gate.standing_sync("llm", "p7")[1].used == 5


def test_bad_reads_are_refused(gate: Gate) -> None:
    for call, message in [
        (lambda: gate.standing_sync("llm", 5), "subject must be a string"),
        (lambda: gate.standing_sync(5, "p7"), "policy must be a string"),
        (lambda: gate.standing_sync("llm", ""), "subject"),
        (lambda: gate.standing_sync("lm", "p7"), "did you mean llm"),
        (lambda: gate.reset_sync("llm", None), "subject must be a string"),
        (lambda: gate.permit_sync("nonsense"), "permit"),
        (lambda: gate.permit_sync(5), "token must be a string"),
        (lambda: gate.violation_sync("llm", "p7", retry_after=1, limit="x"), "has no limit"),
        (lambda: gate.violation_sync("lm", "p7", retry_after=1), "did you mean llm"),
        (lambda: gate.limit(5, "p7"), "policy must be a string"),
    ]:
        with pytest.raises(InvalidInput) as error:
            call()
        assert message in str(error.value)

    async def standing() -> None:
        with pytest.raises(UnknownPolicy):
            await gate.standing("lm", "p7")

    asyncio.run(standing())


def test_wrong_types_of_python_are_type_errors(gate: Gate) -> None:
    for call in (
        lambda: Gate(),
        lambda: gate.acquire("llm", "p7", "extra"),
        lambda: Gate.memory(GOOD, clock="now"),
        lambda: Gate.memory(GOOD, keys_max="many"),
        lambda: Gate.open(5),
        lambda: ManualClock("now"),
        lambda: Standing(),
    ):
        with pytest.raises(TypeError):
            call()
    with pytest.raises(InvalidInput, match="now must be 0 to"):
        ManualClock(-1.0)
    with pytest.raises(InvalidInput, match="seconds must be 0 to"):
        ManualClock().advance(-1.0)


def test_an_ask_is_awaited_in_a_loop(gate: Gate) -> None:
    """Without a loop nothing can wait; what is decided at once needs none."""
    full = Gate.memory([policy("jobs", slots("running", 1))])
    full.acquire_sync("jobs", "p7")
    iterator = full.acquire("jobs", "p7", wait=5).__await__()
    with pytest.raises(RuntimeError, match="no running event loop"):
        next(iterator)
    with pytest.raises(StopIteration):
        next(gate.acquire("llm", "p7").__await__())


def test_denials_are_not_input_errors() -> None:
    gate = Gate.memory([policy("api", bucket("burst", 1, "1/h"))])
    with pytest.raises(Denied) as denied:
        gate.acquire_sync("api", "alice", requests=2)
    assert not isinstance(denied.value, InvalidInput) and denied.value.never
