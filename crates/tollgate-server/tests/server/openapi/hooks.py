"""Makes calls that get further than "no such policy", and that do not wait. What is out of bounds stays so."""

import schemathesis

POLICIES = ["gemini", "trial", "jobs"]


def known(policy):
    is_valid = isinstance(policy, str) and 0 < len(policy) <= 64
    return POLICIES[len(policy) % 3] if is_valid else policy


def mend(ask):
    if not isinstance(ask, dict):
        return
    if "policy" in ask:
        ask["policy"] = known(ask["policy"])
    wait = ask.get("wait_ms")
    if isinstance(wait, (int, float)) and not isinstance(wait, bool) and 0 <= wait <= 300_000:
        ask["wait_ms"] = 0
    costs = ask.get("costs")
    if isinstance(costs, dict) and costs and ask.get("policy") == "gemini":
        # Where the units are any text, two of them become those of the policy.
        names = ["requests", "tokens"]
        values = list(costs.values())
        if len(values) <= 8:
            ask["costs"] = dict(zip(names, values))
    for name in ["asks", "charges"]:
        for inner in ask.get(name) if isinstance(ask.get(name), list) else []:
            mend(inner)


@schemathesis.hook
def before_call(context, case, kwargs):
    mend(case.body)
    if isinstance(case.query, dict) and "policy" in case.query:
        case.query["policy"] = known(case.query["policy"])
