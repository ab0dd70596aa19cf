import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { describe, test } from "node:test";

import * as tollgate from "tollgate";
import { Denied, Gate, InvalidInput, ManualClock, Permit, TollgateError, Unavailable, wrapFetch } from "tollgate";
import { EdgeGate, Denied as EdgeDenied } from "tollgate/edge";
import { limit } from "tollgate/express";

import { START, bucket, daily, folder, node } from "./support.mjs";

const slots = { name: "jobs", limits: [{ name: "slots", unit: "requests", rule: "concurrency", limit: 1, ttl: "1m" }] };
const llm = {
  name: "llm",
  limits: [
    { name: "rpm", unit: "requests", rule: "rolling-window", limit: 5, window: "1m" },
    { name: "tpm", unit: "tokens", rule: "rolling-window", limit: 1000, window: "1m" },
  ],
};
const ask = { policy: "api", subject: "alice" };
const turn = () => new Promise((resolve) => setImmediate(resolve));

describe("a gate", () => {
  test("admits, denies with the wait, and admits again at that time", async () => {
    const clock = new ManualClock(START);
    const gate = await Gate.memory([bucket("api", 2)], { clock });
    const permit = await gate.acquire(ask);
    assert.ok(permit instanceof Permit);
    assert.equal(permit.admitted, true);
    assert.deepEqual(permit.costs, [{ requests: 1 }]);
    assert.deepEqual(permit.limits, [
      {
        name: "burst",
        unit: "requests",
        limit: 2,
        used: 1,
        remaining: 1,
        resetAtMs: START + 1000,
        fullAtMs: START + 1000,
        refilledAtMs: START,
      },
    ]);
    await gate.acquire(ask);
    const denied = await gate.tryAcquire(ask);
    assert.ok(denied instanceof Denied && denied instanceof TollgateError && denied instanceof Error);
    assert.equal(denied.name, "Denied");
    const { limit, retryAfterMs, never, admitted, unit, asked, most, kind, message, degraded } = denied;
    assert.deepEqual(
      { limit, retryAfterMs, never, admitted, unit, asked, most, kind, degraded },
      { limit: "burst", retryAfterMs: 1000, never: false, admitted: false, unit: "requests", asked: 1, most: 2, kind: "denied", degraded: false },
    );
    assert.match(message, /"burst" has no room for 1 request now; ask again in 1s/);
    await assert.rejects(gate.acquire(ask), Denied);
    clock.advance(999.999);
    assert.equal((await gate.tryAcquire(ask)).admitted, false);
    clock.advance(0.001);
    assert.equal((await gate.tryAcquire(ask)).admitted, true);
    assert.equal(clock.now, START + 1000);
  });

  test("says never where waiting does not help", async () => {
    const gate = await Gate.memory([bucket("api", 2)]);
    const denied = await gate.tryAcquire({ ...ask, costs: { requests: 3 }, waitMs: 60_000 });
    assert.deepEqual([denied.never, denied.retryAfterMs, denied.resetAtMs], [true, null, null]);
  });

  test("settles, releases and renews, each once", async () => {
    const clock = new ManualClock(START);
    const gate = await Gate.memory([llm, slots], { clock });
    const used = async () => (await gate.standing("llm", "p7")).map(({ used }) => used);
    const permit = await gate.acquire({ policy: "llm", subject: "p7", costs: { tokens: 700 } });
    assert.deepEqual(await used(), [1, 700]);
    assert.equal(await permit.settle({ tokens: 300 }), true);
    assert.equal(await permit.settle({ tokens: 1 }), false);
    assert.deepEqual(await used(), [1, 300]);
    const other = await gate.acquire({ policy: "llm", subject: "p7", costs: { tokens: 500 } });
    assert.equal(await other.release(), true);
    assert.equal(await other.release(), false);
    assert.deepEqual(await used(), [1, 300]);
    const job = await gate.acquire({ policy: "jobs", subject: "p7" });
    assert.equal(job.expiresAtMs, START + 60_000);
    clock.advance(30_000);
    await job.renew();
    assert.equal(job.expiresAtMs, START + 90_000);
    assert.equal((await gate.tryAcquire({ policy: "jobs", subject: "p7" })).estimated, true);
    assert.equal(await job.settle(), true);
    assert.equal((await gate.tryAcquire({ policy: "jobs", subject: "p7" })).admitted, true);
  });

  test("decides several charges together, and settles one by its own cost", async () => {
    const gate = await Gate.memory([daily("user", 10), daily("team", 100, "tokens"), daily("account", 100, "tokens")]);
    const charges = [
      { policy: "user", subject: "u1" },
      { policy: "team", subject: "t7" },
      { policy: "account", subject: "main", costs: { tokens: 25 } },
    ];
    const permit = await gate.acquire({ charges, costs: { tokens: 40 } });
    assert.deepEqual(permit.charges.map(({ policy, subject, limits }) => [policy, subject, limits[0].used]), [
      ["user", "u1", 1],
      ["team", "t7", 40],
      ["account", "main", 25],
    ]);
    await permit.settle({ tokens: 30 }, [{ charge: 2, actual: { tokens: 5 } }]);
    const used = async (policy, subject) => (await gate.standing(policy, subject))[0].used;
    assert.deepEqual([await used("team", "t7"), await used("account", "main")], [30, 5]);
    const denied = await gate.tryAcquire({ charges, costs: { tokens: 80 } });
    assert.equal(denied.charge, 1);
    assert.deepEqual(denied.refused.map(({ policy, limit }) => [policy, limit]), [["team", "daily"]]);
    assert.equal(denied.charges.length, 3);
    assert.equal(await used("user", "u1"), 1, "a refusal is free");
  });

  test("recognises a repeat, and a conflict", async () => {
    const gate = await Gate.memory([daily("api", 10)]);
    const [first, again] = [await gate.acquire({ ...ask, id: "r1" }), await gate.acquire({ ...ask, id: "r1" })];
    assert.equal(again.token, first.token);
    assert.equal((await gate.standing("api", "alice"))[0].used, 1);
    await assert.rejects(gate.acquire({ ...ask, id: "r1", costs: { requests: 2 } }), { name: "InvalidInput", kind: "conflict" });
  });

  test("settles a permit of another gate on the same folder by its token", async () => {
    const place = folder("token");
    const gate = await Gate.embedded(place, [llm]);
    const { token } = await gate.acquire({ policy: "llm", subject: "p7", costs: { tokens: 10 } });
    await gate.close();
    const other = await Gate.embedded(place, [llm]);
    assert.equal(await (await other.permit(token)).settle({ tokens: 4 }), true);
    assert.deepEqual((await other.standing("llm", "p7")).map(({ used }) => used), [1, 4]);
    await assert.rejects(other.permit(token.slice(0, -2)), InvalidInput);
    await other.close();
  });

  test("reports a violation, and closes the limit", async () => {
    const clock = new ManualClock(START);
    const gate = await Gate.memory([llm], { clock });
    const permit = await gate.acquire({ policy: "llm", subject: "p7" });
    await permit.violation({ retryAfterMs: 5_000, limit: "tpm" });
    const denied = await gate.tryAcquire({ policy: "llm", subject: "p7", costs: { tokens: 1 } });
    assert.deepEqual([denied.limit, denied.retryAfterMs], ["tpm", 5_000]);
    await gate.violation("llm", "other", { retryAfterMs: 7_000 });
    assert.equal((await gate.tryAcquire({ policy: "llm", subject: "other" })).retryAfterMs, 7_000);
  });

  test("charges without deciding, and resets", async () => {
    const gate = await Gate.memory([daily("api", 3)]);
    await gate.charge({ ...ask, costs: { requests: 5 } });
    assert.equal((await gate.tryAcquire(ask)).admitted, false);
    assert.equal(await gate.reset("api", "alice"), true);
    assert.equal((await gate.tryAcquire(ask)).admitted, true);
  });

  test("lets a policy in shadow mode through, and says so", async () => {
    const gate = await Gate.memory([{ ...daily("api", 1), shadow: true }]);
    assert.equal((await gate.acquire(ask)).shadowDenied, false);
    assert.equal((await gate.acquire(ask)).shadowDenied, true);
  });

  test("opens a tollgate.toml, and points at a mistake in one", async () => {
    const place = folder("toml");
    const file = path.join(place, "tollgate.toml");
    const limits = '[{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 2, refill = "1/s" }]';
    writeFileSync(file, `[store]\nkind = "memory"\n[[policy]]\nname = "api"\nlimits = ${limits}\n`);
    const gate = await Gate.open(file);
    assert.deepEqual([gate.store, gate.policies[0].name, gate.degraded, gate.waiting], ["memory", "api", false, 0]);
    assert.equal((await gate.acquire(ask)).limits[0].remaining, 1);
    writeFileSync(file, `[[policy]]\nname = "api"\nlimits = ${limits.replace("bucket", "bukket")}\n`);
    await assert.rejects(Gate.open(file), (error) => {
      assert.ok(error instanceof InvalidInput);
      assert.match(error.message, /tollgate\.toml:3/);
      assert.match(error.message, /token-bukket/);
      return true;
    });
    await assert.rejects(Gate.open(path.join(place, "missing.toml")), /there is no such file; check the path/);
  });

  test("is closed once and for all", async () => {
    const gate = await Gate.memory([bucket("api", 2)]);
    await gate.close();
    await gate.close();
    await assert.rejects(gate.acquire(ask), { kind: "closed", message: "the gate is closed; open another one" });
  });

  test("says which server cannot be reached", async () => {
    for (const open of [
      () => Gate.redis("redis://127.0.0.1:1/", [bucket("api", 2)]),
      () => Gate.postgres("postgresql://nobody@127.0.0.1:1/none", [bucket("api", 2)]),
      () => Gate.broker("http://127.0.0.1:1", { policies: [bucket("api", 2)] }),
    ]) {
      const asked = open().then((gate) => gate.acquire(ask).finally(() => gate.close()));
      await assert.rejects(asked, Unavailable);
    }
    await assert.rejects(Gate.broker("http://127.0.0.1:1"), Unavailable);
  });
});

describe("run", () => {
  const opened = () => Gate.memory([llm, slots]);
  const used = async (gate) => (await gate.standing("llm", "p7")).map(({ used }) => used);
  const cost = { policy: "llm", subject: "p7", costs: { tokens: 700 } };

  test("sends what was recorded, and returns the result", async () => {
    const gate = await opened();
    const result = await gate.run(cost, async (permit) => {
      permit.settle({ tokens: 900 });
      permit.settle({ tokens: 300 });
      assert.deepEqual(await used(gate), [1, 700], "sent at the end");
      return "reply";
    });
    assert.equal(result, "reply");
    assert.deepEqual(await used(gate), [1, 300]);
    await gate.run(cost, (permit) => permit.release());
    assert.deepEqual(await used(gate), [1, 300]);
  });

  test("keeps the estimate if nothing was recorded or the function throws", async () => {
    const gate = await opened();
    await gate.run(cost, () => {});
    assert.deepEqual(await used(gate), [1, 700]);
    const failure = new Error("provider");
    await assert.rejects(gate.run({ ...cost, costs: { tokens: 100 } }, () => Promise.reject(failure)), failure);
    assert.deepEqual(await used(gate), [2, 800]);
  });

  test("frees slots also after an exception", async () => {
    const gate = await opened();
    for (let time = 0; time < 3; time += 1) {
      await assert.rejects(gate.run({ policy: "jobs", subject: "x" }, () => Promise.reject(new Error("no"))), /no/);
    }
  });

  test("does not call the function without a permit", async () => {
    const gate = await opened();
    const called = [];
    await assert.rejects(gate.run({ ...cost, costs: { tokens: 1001 } }, () => called.push(1)), { name: "Denied", never: true });
    assert.deepEqual(called, []);
  });

  test("does not lose the result when the store is away at the end", async () => {
    const told = [];
    const gate = await Gate.memory([llm], { onSettleError: (error) => told.push(error.kind) });
    const result = await gate.run(cost, (permit) => {
      permit.settle({ tokens: 1 });
      permit.permit.settle = () => Promise.reject(new Unavailable("the store is away"));
      return 42;
    });
    assert.equal(result, 42);
    assert.deepEqual(told, ["unavailable"]);
  });

  test("refuses a unit that no limit counts, where it is recorded", async () => {
    const gate = await opened();
    await assert.rejects(gate.run(cost, (permit) => permit.settle({ token: 3 })), (error) => {
      assert.ok(error instanceof InvalidInput);
      assert.match(error.message, /no policy of the permit has a limit on "token"; they count requests, tokens/);
      return true;
    });
  });
});

describe("waiting", () => {
  test("ends with a permit at the promised time, first come, first served", async () => {
    const clock = new ManualClock(START);
    const gate = await Gate.memory([bucket("api", 1)], { clock });
    await gate.acquire(ask);
    const order = [];
    const waiters = [1, 2].map((name) => gate.acquire({ ...ask, waitMs: 10_000 }).then(() => order.push(name)));
    while (gate.waiting < 2) await turn();
    clock.advance(1000);
    await waiters[0];
    clock.advance(1000);
    await waiters[1];
    assert.deepEqual(order, [1, 2]);
  });

  test("that is hopeless is denied at once", async () => {
    const gate = await Gate.memory([daily("api", 1)]);
    await gate.acquire(ask);
    await assert.rejects(gate.acquire({ ...ask, waitMs: 1000 }), Denied);
  });

  test("takes nothing when it is aborted", async () => {
    const clock = new ManualClock(START);
    const gate = await Gate.memory([bucket("api", 1)], { clock });
    await gate.acquire(ask);
    const controller = new AbortController();
    const waiting = gate.acquire({ ...ask, waitMs: 60_000, signal: controller.signal });
    while (gate.waiting === 0) await turn();
    const reason = new Error("changed my mind");
    controller.abort(reason);
    await assert.rejects(waiting, reason);
    while (gate.waiting > 0) await turn();
    clock.advance(1000);
    assert.equal((await gate.standing("api", "alice"))[0].remaining, 1);
  });

  test("is not begun with a signal that is aborted", async () => {
    const gate = await Gate.memory([bucket("api", 1)]);
    await assert.rejects(gate.acquire({ ...ask, signal: AbortSignal.abort() }), { name: "AbortError" });
    assert.equal((await gate.standing("api", "alice"))[0].remaining, 1);
  });
});

describe("bad input", () => {
  test("is an error that says what would be right, at every function", async () => {
    const gate = await Gate.memory([llm]);
    const permit = await gate.acquire({ policy: "llm", subject: "p7" });
    const good = { policy: "llm", subject: "p7" };
    const wrong = [
      [() => gate.acquire(), /ask: expected an object with policy/],
      [() => gate.acquire(null), /ask: expected an object/],
      [() => gate.acquire("llm"), /not "llm"/],
      [() => gate.acquire({ subject: "p7" }), /ask\.policy: expected a non-empty string, not undefined/],
      [() => gate.acquire({ policy: "llm", subject: "" }), /ask\.subject: expected a non-empty string, not ""/],
      [() => gate.acquire({ policy: "llm", subject: 7 }), /ask\.subject/],
      [() => gate.acquire({ ...good, cost: 1 }), /ask: unknown field "cost"; use policy, subject/],
      [() => gate.acquire({ ...good, policy: "lmm" }), /"lmm"/],
      [() => gate.acquire({ ...good, costs: 5 }), /ask\.costs: expected an object such as/],
      [() => gate.acquire({ ...good, costs: { tokens: -1 } }), /ask\.costs\.tokens: expected a non-negative integer, not -1/],
      [() => gate.acquire({ ...good, costs: { tokens: 1.5 } }), /not 1\.5/],
      [() => gate.acquire({ ...good, costs: { tokens: "5" } }), /not "5"/],
      [() => gate.acquire({ ...good, costs: { tokens: NaN, requests: 1 } }), /not NaN/],
      [() => gate.acquire({ ...good, costs: { tokens: 2 ** 60 } }), /ask\.costs\.tokens/],
      [() => gate.acquire({ ...good, costs: { token: 5 } }), /"token"/],
      [() => gate.acquire({ ...good, waitMs: -1 }), /ask\.waitMs/],
      [() => gate.acquire({ ...good, waitMs: 90_000_000 }), /a wait of 25h is too long; at most 1d/],
      [() => gate.acquire({ ...good, id: 5 }), /ask\.id/],
      [() => gate.acquire({ ...good, tenant: "" }), /ask\.tenant/],
      [() => gate.acquire({ ...good, signal: {} }), /ask\.signal: expected an AbortSignal/],
      [() => gate.acquire({ ...good, charges: [good] }), /a policy and a subject, or charges, not both/],
      [() => gate.acquire({ charges: [] }), /ask\.charges: expected a list/],
      [() => gate.acquire({ charges: [good, good] }), /twice/],
      [() => gate.acquire({ charges: [{ policy: "llm" }] }), /ask\.charges\[0\]\.subject/],
      [() => gate.acquire({ charges: Array.from({ length: 9 }, (_, index) => ({ policy: "llm", subject: `${index}` })) }), /at most 8/],
      [() => gate.tryAcquire({}), /ask\.policy/],
      [() => gate.run(good), /run: expected a function, not undefined/],
      [() => gate.charge({ ...good, waitMs: 5 }), /unknown field "waitMs"/],
      [() => gate.standing("llm"), /subject/],
      [() => gate.standing("lmm", "p7"), /"lmm"/],
      [() => gate.reset("", "p7"), /policy/],
      [() => gate.violation("llm", "p7", {}), /violation\.retryAfterMs/],
      [() => gate.violation("llm", "p7", { retryAfterMs: 1, limit: "rpx" }), /"rpx"/],
      [() => gate.permit("nonsense"), /permit/],
      [() => gate.permit(5), /token: expected a non-empty string/],
      [() => permit.settle(5), /actual/],
      [() => permit.settle({ tokens: -1 }), /actual\.tokens/],
      [() => permit.settle({ token: 1 }), /they count requests, tokens/],
      [() => permit.settle({}, 5), /own: expected a list/],
      [() => permit.settle({}, [{ charge: 3, actual: {} }]), /no charge 3/],
      [() => permit.violation(), /violation/],
      [() => Gate.open(), /file/],
      [() => Gate.open("x", { strategy: {} }), /unknown field "strategy"/],
      [() => Gate.memory(), /policies: expected a list of policies such as/],
      [() => Gate.memory([]), /policies/],
      [() => Gate.memory([{ name: "x", limits: [] }]), /x/],
      [() => Gate.memory([{ name: "x", limits: [{ name: "a", unit: "requests", rule: "bucket" }] }]), /bucket/],
      [() => Gate.memory([llm, llm]), /two policies are called "llm"/],
      [() => Gate.memory([llm], { stores: {} }), /options: unknown field "stores"/],
      [() => Gate.memory([llm], { store: { urll: "x" } }), /urll/],
      [() => Gate.memory([llm], { clock: 5 }), /options\.clock: expected a ManualClock/],
      [() => Gate.memory([llm], { onSettleError: 5 }), /options\.onSettleError/],
      [() => Gate.memory([llm], { strategy: { kind: "lazy" } }), /lazy/],
      [() => Gate.embedded("", [llm]), /path/],
      [() => Gate.redis("http://x/", [llm]), /./],
      [() => Gate.redis(5, [llm]), /url/],
      [() => Gate.postgres("", [llm]), /url/],
      [() => Gate.dynamodb("", [llm]), /table/],
      [() => Gate.broker("ftp://x", { policies: [llm] }), /./],
      [() => Gate.broker("http://127.0.0.1:1", { kay: "x" }), /unknown field "kay"/],
      [async () => new ManualClock("now"), /nowMs: expected milliseconds, not "now"/],
      [async () => new ManualClock(5).advance(-1), /ms/],
      [async () => wrapFetch(gate, {}), /options\.policy/],
      [async () => wrapFetch(gate, { policy: "llm", subject: "p7", dialect: "azure" }), /use "openai", "anthropic" or "gemini", not "azure"/],
      [async () => wrapFetch(gate, { policy: "llm", subject: "p7", onDenied: "wait" }), /use "response" or "throw"/],
      [async () => wrapFetch(gate, { policy: "llm", subject: "p7", charges: [] }), /not both/],
      [() => wrapFetch(gate, { policy: "llm", subject: "p7" })("https://example.com/v1/x", { method: "POST" }), /set dialect/],
      [async () => limit({}, { ask: () => good }), /expected a Gate/],
      [async () => limit(gate, {}), /options\.ask: expected a function/],
      [async () => limit(gate, { ask: () => good, onUnavailable: "maybe" }), /use "open" or "closed"/],
      [async () => new EdgeGate("broker"), /expected the http or https URL of a broker, not "broker"/],
      [async () => new EdgeGate("http://k:s@x/"), /pass the key as options\.key/],
      [async () => new EdgeGate("http://x/", { timeoutMs: 0 }), /at least 1/],
      [async () => new EdgeGate("http://x/", { onUnavailable: "no" }), /use "open" or "closed"/],
      [async () => new EdgeGate("http://x/", { key: "a b" }), /options\.key/],
      [async () => new EdgeGate("http://x/", { fetch: 5 }), /options\.fetch/],
      [() => new EdgeGate("http://x/").acquire({}), /ask\.policy/],
      [() => new EdgeGate("http://x/").run(good, 5), /expected a function/],
    ];
    for (const [attempt, message] of wrong) {
      await assert.rejects(attempt(), (error) => {
        assert.ok(error instanceof InvalidInput, `${attempt}: ${error}`);
        assert.match(error.message, message, `${attempt}`);
        return true;
      });
    }
    assert.deepEqual((await gate.standing("llm", "p7")).map(({ used }) => used), [1, 0], "nothing was charged");
  });
});

describe("the package", () => {
  test("has the same classes for import, require and the edge client", () => {
    const required = createRequire(import.meta.url)("tollgate");
    assert.equal(required.Denied, Denied);
    assert.equal(EdgeDenied, Denied);
    assert.deepEqual(Object.keys(tollgate).sort(), Object.keys(required).sort());
  });

  test("lets the process end by itself, also with an open gate and an abandoned permit", async () => {
    const file = path.join(import.meta.dirname, "programs/ends.mjs");
    for (const store of ["memory", "redis", "waiting"]) assert.equal(await node(file, [store]), "done\n", store);
  });
});
