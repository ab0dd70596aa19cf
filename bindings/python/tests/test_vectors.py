"""The golden decisions of `vectors/`, through the package and with a clock that is moved by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from tollgate_rs import Conflict, Denied, Expired, Gate, InvalidInput, ManualClock, Standing, SyncPermit

FOLDER = ROOT / "vectors"
ERRORS = {"invalid": InvalidInput, "conflict": Conflict, "expired": Expired}


def changes_numbers(vector: dict[str, Any]) -> bool:
    """The package opens a gate with its policies and does not replace them."""
    return any("policy" in step for step in vector["steps"])


def load(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


SINGLE = [vector for vector in load(FOLDER) if not changes_numbers(vector)]
JOINT = [vector for vector in load(FOLDER / "joint") if not changes_numbers(vector)]


def as_configured(policy: dict[str, Any]) -> dict[str, Any]:
    """The notation of `tollgate.toml` for that of the vectors."""
    limits = []
    for form in policy["limits"]:
        limit = {name: form[name] for name in form if not name.endswith("_us") and name != "headroom_percent"}
        for name in ("window", "ttl", "margin"):
            if form.get(f"{name}_us"):
                limit[name] = f"{form[f'{name}_us']}us"
        if "period_us" in form:
            limit["refill"] = f"{form['refill']}/{form['period_us']}us"
        if form.get("headroom_percent"):
            limit["headroom"] = f"{form['headroom_percent']}%"
        limits.append(limit)
    configured = {"name": policy["name"], "limits": limits, "shadow": policy.get("shadow", False)}
    if policy.get("block_ttl_us"):
        configured["block_ttl"] = f"{policy['block_ttl_us']}us"
    return configured


def micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)


def shown(standing: Standing) -> dict[str, Any]:
    return {
        "name": standing.name,
        "limit": standing.limit,
        "used": standing.used,
        "remaining": standing.remaining,
        "reset_at_us": micros(standing.reset_at),
        "full_at_us": micros(standing.full_at),
    }


def expected_standing(form: dict[str, Any]) -> dict[str, Any]:
    return {name: form.get(name) for name in ("name", "limit", "used", "remaining", "reset_at_us", "full_at_us")}


class Story:
    """Plays the steps of a vector."""

    def __init__(self, parties: list[tuple[str, dict[str, Any]]]) -> None:
        self.clock = ManualClock(0.0)
        policies = {policy["name"]: as_configured(policy) for _, policy in parties}
        self.gate = Gate.memory(list(policies.values()), clock=self.clock)
        self.charges = [(policy["name"], subject) for subject, policy in parties]
        self.permits: dict[int, SyncPermit] = {}

    def play(self, place: int, step: dict[str, Any]) -> dict[str, Any]:
        self.clock.set(step["at_us"] / 1e6)
        try:
            return self.answer(place, step)
        except Denied as denied:
            return {"answer": "denied", "limit": denied.limit, "until_us": micros(denied.retry_at), "denied": denied}
        except tuple(ERRORS.values()) as error:
            kind = next(kind for kind, form in ERRORS.items() if isinstance(error, form))
            return {"answer": "error", "kind": kind}

    def ask(self, step: dict[str, Any]) -> dict[str, Any]:
        parties = step.get("parties", [0])
        own = dict(step.get("own_costs", []))
        charges = [self.charges[party] + ((own[index],) if index in own else ()) for index, party in enumerate(parties)]
        ask: dict[str, Any] = {"costs": step.get("costs"), "id": step.get("id")}
        if len(charges) == 1 and 0 not in own:
            return {"policy": charges[0][0], "subject": charges[0][1], **ask}
        return {"charges": charges, **ask}

    def answer(self, place: int, step: dict[str, Any]) -> dict[str, Any]:
        match step["op"]:
            case "acquire":
                return self.admitted(place, self.gate.acquire_sync(**self.ask(step)), "admitted")
            case "charge":
                return self.admitted(place, self.gate.charge_sync(**self.ask(step)), "charged")
            case "settle":
                return {"answer": "settled", "done": self.permits[step["permit"]].settle(costs=step["actual"])}
            case "settle-part":
                actual = {step["charge"]: step["actual"]}
                return {"answer": "settled", "done": self.permits[step["permit"]].settle(charges=actual)}
            case "release":
                return {"answer": "settled", "done": self.permits[step["permit"]].release()}
            case "renew":
                self.permits[step["permit"]].renew()
                return {"answer": "renewed", "expires_at_us": micros(self.permits[step["permit"]].expires_at)}
            case "close":
                policy, subject = self.charges[step.get("party", 0)]
                left = max(0, step["until_us"] - step["at_us"]) / 1e6
                incident = self.gate.violation_sync(policy, subject, retry_after=left, limit=step["limit"])
                assert incident.closed, incident.trouble
                return {"answer": "done"}
            case "reset":
                return {"answer": "done", "done": self.gate.reset_sync(*self.charges[step.get("party", 0)])}
            case "standing":
                return {"answer": "seen"}
            case other:
                raise AssertionError(f"unknown operation {other}")

    def admitted(self, place: int, permit: SyncPermit, answer: str) -> dict[str, Any]:
        self.permits[place] = permit
        if permit.shadow_denied:
            answer = "shadow-denied"
        return {
            "answer": answer,
            "charged_at_us": micros(permit.decided_at),
            "use_by_us": micros(permit.use_by),
            "expires_at_us": micros(permit.expires_at),
        }

    def standings(self, party: int) -> list[dict[str, Any]]:
        return [shown(standing) for standing in self.gate.standing_sync(*self.charges[party])]


def is_repeat(permits: dict[int, SyncPermit], place: int, giver: int) -> bool:
    """The permit of an earlier step. That nothing was charged again, the standings show."""
    permit, earlier = permits[place], permits[giver]
    return permit.decided_at == earlier.decided_at and permit.charges == earlier.charges


def compare(story: Story, place: int, expected: dict[str, Any], answer: dict[str, Any]) -> None:
    if expected["answer"] == "repeated":
        assert is_repeat(story.permits, place, expected["permit"])
        return
    assert answer["answer"] == expected["answer"]
    for name in ("limit", "kind", "charged_at_us", "use_by_us", "expires_at_us", "done"):
        if name in answer and name in expected:
            assert answer[name] == expected[name], name
    denied = answer.get("denied")
    if denied is not None and not denied.estimated:
        assert answer["until_us"] == expected.get("until_us")


@pytest.mark.parametrize("vector", SINGLE, ids=[vector["name"] for vector in SINGLE])
def test_a_vector_of_one_charge(vector: dict[str, Any]) -> None:
    story = Story([("subject", vector["policy"])])
    for place, step in enumerate(vector["steps"]):
        answer = story.play(place, step)
        compare(story, place, step["expect"], answer)
        assert story.standings(0) == [expected_standing(form) for form in step["standings"]]


@pytest.mark.parametrize("vector", JOINT, ids=[vector["name"] for vector in JOINT])
def test_a_vector_of_several_charges(vector: dict[str, Any]) -> None:
    story = Story([(party["subject"], party["policy"]) for party in vector["parties"]])
    for place, step in enumerate(vector["steps"]):
        answer, expected = story.play(place, step), step["expect"]
        compare_jointly(story, place, expected, answer)
        for party, standings in enumerate(step["standings"]):
            assert story.standings(party) == [expected_standing(form) for form in standings]


def compare_jointly(story: Story, place: int, expected: dict[str, Any], answer: dict[str, Any]) -> None:
    kinds = {"permitted": ("admitted", "charged", "shadow-denied"), "changed": ("settled", "done")}
    if expected["answer"] == "repeated":
        assert is_repeat(story.permits, place, expected["permit"])
        return
    assert answer["answer"] in kinds.get(expected["answer"], (expected["answer"],))
    match expected["answer"]:
        case "permitted":
            permit = story.permits[place]
            assert len(permit.charges) == len(expected["charges"])
            first = expected["charges"][0]
            assert answer["charged_at_us"] == first["charged_at_us"]
            assert permit.shadow_denied == any("shadow_denied" in charge for charge in expected["charges"])
        case "changed":
            assert answer.get("done", expected["changed"]) == expected["changed"]
        case "renewed":
            assert answer["expires_at_us"] == expected["expires_at_us"]
        case "error":
            assert answer["kind"] == expected["kind"]
        case "denied":
            denied = answer["denied"]
            assert denied.limit == expected["binding"]["limit"]
            found = [(each.charge, each.limit, micros(each.retry_at)) for each in denied.refusals]
            wanted = [(each["charge"], each["limit"], each.get("until_us")) for each in expected["refused"]]
            # An ask of one charge has only the limit that binds.
            assert found == wanted or not found


def test_the_vectors_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    total = len(list(FOLDER.glob("*.json"))) + len(list((FOLDER / "joint").glob("*.json")))
    played = len(SINGLE) + len(JOINT)
    with capsys.disabled():
        print(f"\n{played} of {total} vectors; {total - played} replace a policy, which a gate does not do")
    assert 60 < played and total - played < 15
