// The client without native code, against a real broker and broken ones.
import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync, readdirSync } from "node:fs";
import { createServer } from "node:http";
import { createServer as createSocketServer } from "node:net";
import path from "node:path";
import { after, before, describe, test } from "node:test";

import { Denied, EdgeGate, InvalidInput, TollgateError, Unavailable } from "tollgate/edge";

import { startBroker } from "./support.mjs";

const POLICIES = `
[[policy]]
name = "api"
limits = [{ name = "burst", unit = "requests", rule = "token-bucket", capacity = 2, refill = "1/h" }]

[[policy]]
name = "llm"
limits = [
  { name = "rpm", unit = "requests", rule = "rolling-window", limit = 5, window = "24h" },
  { name = "tpm", unit = "tokens", rule = "rolling-window", limit = 1000, window = "24h" },
]

[[policy]]
name = "jobs"
limits = [{ name = "running", unit = "requests", rule = "concurrency", limit = 1, ttl = "10m" }]
`;

/** For answers that come, however slow the machine is. */
const PATIENT = { timeoutMs: 60_000 };

describe("with a broker", () => {
  let broker;
  let gate;
  before(async () => {
    broker = await startBroker(POLICIES);
    gate = new EdgeGate(broker.url, PATIENT);
  });
  after(() => broker.stop());

  test("it acquires, is denied, and knows where a subject is", async () => {
    const ask = { policy: "api", subject: "alice" };
    const permit = await gate.acquire(ask);
    assert.deepEqual([permit.admitted, permit.degraded, permit.limits[0].remaining], [true, false, 1]);
    await gate.acquire(ask);
    const denied = await gate.tryAcquire(ask);
    assert.ok(denied instanceof Denied && denied instanceof TollgateError);
    assert.deepEqual([denied.limit, denied.never, denied.policy], ["burst", false, "api"]);
    assert.ok(denied.retryAfterMs > 3_590_000 && denied.retryAfterMs <= 3_600_000, `${denied.retryAfterMs}`);
    assert.equal(denied.toJSON().status, 429);
    await assert.rejects(gate.acquire(ask), Denied);
    assert.equal((await gate.standing("api", "alice"))[0].used, 2);
  });

  test("it settles, releases, renews and reports violations", async () => {
    const used = async () => (await gate.standing("llm", "p7")).map(({ used }) => used);
    const permit = await gate.acquire({ policy: "llm", subject: "p7", costs: { tokens: 700 } });
    assert.equal(await permit.settle({ tokens: 300 }), true);
    assert.equal(await permit.settle({ tokens: 1 }), false);
    assert.deepEqual(await used(), [1, 300]);
    const other = await gate.acquire({ policy: "llm", subject: "p7", costs: { tokens: 500 } });
    // As another process would, that got the permit as text.
    assert.equal(await new EdgeGate(broker.url, PATIENT).permit(other.token).release(), true);
    assert.deepEqual(await used(), [1, 300]);
    const job = await gate.acquire({ policy: "jobs", subject: "x" });
    const expires = job.expiresAtMs;
    await job.renew();
    assert.ok(job.expiresAtMs >= expires);
    assert.equal(await job.settle(), true);
    const last = await gate.acquire({ policy: "llm", subject: "p8" });
    await last.violation({ retryAfterMs: 5000, limit: "tpm" });
    const denied = await gate.tryAcquire({ policy: "llm", subject: "p8", costs: { tokens: 1 } });
    assert.deepEqual([denied.limit, denied.retryAfterMs <= 5000], ["tpm", true]);
  });

  test("run sends what was recorded", async () => {
    const cost = { policy: "llm", subject: "p9", costs: { tokens: 700 } };
    assert.equal(await gate.run(cost, (permit) => (permit.settle({ tokens: 5 }), "reply")), "reply");
    await assert.rejects(gate.run({ ...cost, costs: { tokens: 20 } }, () => Promise.reject(new Error("no"))), /no/);
    await gate.run(cost, (permit) => permit.release());
    assert.deepEqual((await gate.standing("llm", "p9")).map(({ used }) => used), [2, 25]);
  });

  test("several charges are all or nothing", async () => {
    const charges = [
      { policy: "api", subject: "team" },
      { policy: "llm", subject: "team" },
    ];
    const permit = await gate.acquire({ charges, costs: { tokens: 900 } });
    assert.equal(permit.charges.length, 2);
    const denied = await gate.tryAcquire({ charges, costs: { tokens: 900 } });
    assert.deepEqual([denied.charge, denied.refused.length], [1, 1]);
    assert.equal((await gate.standing("api", "team"))[0].used, 1);
  });

  test("an abort while waiting takes nothing, and one that races an admission releases it", async () => {
    const held = await gate.acquire({ policy: "jobs", subject: "y" });
    const cleanups = [];
    const waiting = new EdgeGate(broker.url, { ...PATIENT, waitUntil: (work) => cleanups.push(work) });
    const controller = new AbortController();
    const asked = waiting.acquire({ policy: "jobs", subject: "y", waitMs: 60_000, signal: controller.signal });
    setTimeout(() => controller.abort(), 50);
    await assert.rejects(asked, { name: "AbortError" });
    await Promise.all(cleanups);
    await held.settle();
    // The slot is free: the waiter left.
    await (await gate.acquire({ policy: "jobs", subject: "y", waitMs: 5000 })).settle();

    // The answer is on its way when the caller gives up.
    const late = new AbortController();
    const slow = async (input, init) => {
      const response = await fetch(input, { ...init, signal: undefined });
      if (String(input).endsWith("/acquire") && init.body.includes("id_ttl_ms") && !late.signal.aborted) {
        late.abort();
        throw late.signal.reason;
      }
      return response;
    };
    const racing = new EdgeGate(broker.url, { ...PATIENT, fetch: slow, waitUntil: (work) => cleanups.push(work) });
    await assert.rejects(racing.acquire({ policy: "llm", subject: "race", signal: late.signal }), { name: "AbortError" });
    await Promise.all(cleanups);
    assert.deepEqual((await gate.standing("llm", "race")).map(({ used }) => used), [0, 0]);
  });

  test("mistakes are errors of input, also with onUnavailable open", async () => {
    const open = new EdgeGate(broker.url, { ...PATIENT, onUnavailable: "open" });
    await assert.rejects(open.acquire({ policy: "none", subject: "x" }), (error) => {
      assert.ok(error instanceof InvalidInput);
      assert.equal(error.kind, "unknown-policy");
      return true;
    });
    await assert.rejects(open.acquire({ policy: "api", subject: "x", costs: { tokens: 1 } }), InvalidInput);
    await assert.rejects(open.permit("nonsense").settle(), InvalidInput);
  });
});

describe("with a broker that is broken", () => {
  const ask = { policy: "api", subject: "alice" };

  /** Serves `respond` and asks with both settings. */
  async function asked(respond, check, options = PATIENT) {
    const server = createServer(respond).listen(0, "127.0.0.1");
    await once(server, "listening");
    const url = `http://127.0.0.1:${server.address().port}`;
    try {
      await assert.rejects(new EdgeGate(url, options).acquire(ask), (error) => {
        assert.ok(error instanceof Unavailable, `${error}`);
        check(error);
        return true;
      });
      const told = [];
      const open = new EdgeGate(url, { ...options, onUnavailable: "open", onError: (error) => told.push(error.kind) });
      const permit = await open.acquire(ask);
      assert.deepEqual([permit.degraded, permit.token, permit.limits], [true, null, []]);
      assert.deepEqual([await permit.settle({ requests: 1 }), await permit.release(), await permit.renew()], [false, false, undefined]);
      assert.equal(told.length, 1);
    } finally {
      server.closeAllConnections();
      server.close();
    }
  }

  const answering = (status, body, type = "application/json") => (request, response) =>
    request.resume().on("end", () => response.writeHead(status, { "content-type": type }).end(body));

  test("one that never answers is a time-out", () =>
    asked(
      () => {},
      (error) => {
        assert.equal(error.kind, "timed-out");
        assert.match(error.message, /did not answer within 300 ms/);
      },
      { timeoutMs: 300 },
    ));

  test("one that stops in the middle is a time-out", () =>
    asked(
      (request, response) => response.writeHead(200, { "content-type": "application/json" }).write('{"admitted":'),
      (error) => assert.equal(error.kind, "timed-out"),
      { timeoutMs: 300 },
    ));

  test("503 is unavailable, with the broker's reason", () => {
    const problem = { type: "about:blank", title: "Service Unavailable", status: 503, kind: "unavailable", detail: "the store is away" };
    return asked(answering(503, JSON.stringify(problem)), (error) => assert.equal(error.message, "the store is away"));
  });

  for (const [name, status, body] of [
    ["a page", 502, "<html>bad gateway</html>"],
    ["nonsense", 200, "\u0000\u0001{{"],
    ["other JSON", 200, '{"hello":"world"}'],
    ["nothing", 200, ""],
    ["a bare 429 of something in between", 429, '{"message":"slow down"}'],
    ["a redirect", 302, ""],
    ["an array", 200, "[1]"],
    ["null", 200, "null"],
  ]) {
    test(`${name} is not taken for an answer`, () =>
      asked(answering(status, body), (error) => {
        assert.equal(error.kind, "misconfigured");
        assert.match(error.message, /check the URL and what is in front of it/);
      }));
  }

  test("an answer without an end is cut off", () =>
    asked(
      (request, response) => {
        response.writeHead(200, { "content-type": "application/json" });
        const more = () => response.write("x".repeat(65536), () => !response.destroyed && setImmediate(more));
        more();
      },
      (error) => assert.match(error.message, /more than 1048576 bytes/),
    ));

  test("a connection that is refused or reset is unavailable", async () => {
    await assert.rejects(new EdgeGate("http://127.0.0.1:1", PATIENT).acquire(ask), { name: "Unavailable", kind: "unavailable" });
    const server = createSocketServer((socket) => socket.destroy()).listen(0, "127.0.0.1");
    await once(server, "listening");
    const url = `http://127.0.0.1:${server.address().port}`;
    await assert.rejects(new EdgeGate(url, PATIENT).acquire(ask), { name: "Unavailable", kind: "unavailable" });
    server.close();
  });

  test("401 is an error of its own that nothing hides", async () => {
    const problem = { type: "about:blank", title: "Unauthorized", status: 401, kind: "unauthorized", detail: "no key" };
    const server = createServer(answering(401, JSON.stringify(problem))).listen(0, "127.0.0.1");
    await once(server, "listening");
    const url = `http://127.0.0.1:${server.address().port}`;
    const asked = new EdgeGate(url, { ...PATIENT, onUnavailable: "open" }).acquire(ask);
    await assert.rejects(asked, (error) => error instanceof TollgateError && !(error instanceof Unavailable) && error.message === "no key");
    server.close();
  });
});

test("it uses nothing of Node", () => {
  const folder = path.join(import.meta.dirname, "../dist/esm");
  const files = readdirSync(folder).filter((name) => name.endsWith(".js"));
  assert.ok(files.includes("edge.js") && !files.includes("native.js"), files.join());
  for (const file of files) {
    const text = readFileSync(path.join(folder, file), "utf8");
    assert.doesNotMatch(text, /\brequire\(|from "node:|\bprocess\.|\bBuffer\b|__dirname/, file);
  }
});
