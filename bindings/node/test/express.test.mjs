import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { after, describe, test } from "node:test";

import express from "express";

import { Gate, ManualClock, Unavailable } from "tollgate";
import { limit, permitOf } from "tollgate/express";

import { START, bucket, daily, eventually, startBroker } from "./support.mjs";

/** Serves `app` until the test ends. */
async function serve(app) {
  const server = createServer(app).listen(0, "127.0.0.1");
  await once(server, "listening");
  after(() => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${server.address().port}`;
}

const subject = (request) => request.get("x-user") ?? "anonymous";
const forUser = (policy, more) => ({ ask: (request) => ({ policy, subject: subject(request), ...more }) });

describe("the middleware", () => {
  test("answers 429 as a broker does, with the same fields", async () => {
    const toml = `[[policy]]\nname = "api"\nlimits = [
      { name = "burst", unit = "requests", rule = "rolling-window", limit = 2, window = "1h" },
      { name = "tokens", unit = "tokens", rule = "token-bucket", capacity = 100, refill = "100/h" },
    ]\n`;
    const broker = await startBroker(toml);
    after(() => broker.stop());
    const gate = await Gate.memory([
      {
        name: "api",
        limits: [
          { name: "burst", unit: "requests", rule: "rolling-window", limit: 2, window: "1h" },
          { name: "tokens", unit: "tokens", rule: "token-bucket", capacity: 100, refill: "100/h" },
        ],
      },
    ]);
    const app = express();
    app.use(limit(gate, forUser("api")));
    app.get("/", (request, response) => response.send("hello"));
    const url = await serve(app);
    const ours = () => fetch(url, { headers: { "x-user": "alice" } });
    const theirs = () =>
      fetch(`${broker.url}/v1/acquire`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ policy: "api", subject: "alice" }),
      });
    // Seconds may differ by one: the two were not asked at the same instant.
    const shape = (field) => field?.replace(/t=\d+/g, "t=N");
    for (let time = 0; time < 3; time += 1) {
      const [mine, brokers] = [await ours(), await theirs()];
      assert.equal(mine.status, brokers.status);
      assert.equal(shape(mine.headers.get("ratelimit")), shape(brokers.headers.get("ratelimit")));
      assert.equal(mine.headers.get("ratelimit-policy"), brokers.headers.get("ratelimit-policy"));
      assert.ok(mine.headers.get("ratelimit-policy").includes('"burst";q=2;w=3600'));
      if (time < 2) {
        assert.equal(await mine.text(), "hello");
        await brokers.text();
        continue;
      }
      assert.equal(mine.headers.get("content-type"), "application/problem+json");
      assert.equal(mine.headers.get("cache-control"), "no-store");
      assert.ok(Math.abs(mine.headers.get("retry-after") - brokers.headers.get("retry-after")) <= 5);
      const [problem, expected] = [await mine.json(), await brokers.json()];
      assert.deepEqual(Object.keys(problem).sort(), Object.keys(expected).sort());
      for (const field of ["type", "title", "status", "policy", "limit", "violated-policies", "admitted"]) {
        assert.deepEqual(problem[field], expected[field], field);
      }
    }
  });

  test("counts the seconds to the promised time without rounding errors", async () => {
    const clock = new ManualClock(START);
    const gate = await Gate.memory([bucket("api", 1, "1/7s")], { clock });
    const app = express();
    app.use(limit(gate, forUser("api")));
    app.get("/", (request, response) => response.end());
    const url = await serve(app);
    assert.equal((await fetch(url)).headers.get("ratelimit"), '"burst";r=0;t=7');
    for (const [advance, seconds] of [[0, "7"], [0.001, "7"], [999.999, "6"], [5000, "1"], [999.999, "1"]]) {
      clock.advance(advance);
      const denied = await fetch(url);
      assert.equal(denied.headers.get("ratelimit"), `"burst";r=0;t=${seconds}`);
      assert.equal(denied.headers.get("retry-after"), seconds);
    }
  });

  test("sends what a handler recorded when the response has ended, and frees slots", async () => {
    const policies = [
      daily("llm", 1000, "tokens"),
      { name: "slots", limits: [{ name: "running", unit: "requests", rule: "concurrency", limit: 1, ttl: "10m" }] },
    ];
    const gate = await Gate.memory(policies);
    const app = express();
    app.use(limit(gate, { ask: () => ({ charges: [{ policy: "llm", subject: "x" }, { policy: "slots", subject: "x" }], costs: { tokens: 500 } }) }));
    app.get("/settle", (request, response) => {
      permitOf(request).settle({ tokens: 20 });
      response.end();
    });
    const url = await serve(app);
    const used = async () => (await gate.standing("llm", "x"))[0].used;
    assert.equal((await fetch(`${url}/settle`)).status, 200);
    // It is sent after the response, which arrived here already.
    await eventually(async () => (await used()) === 20 && (await gate.standing("slots", "x"))[0].used === 0);
  });

  test("lets requests through that ask for nothing", async () => {
    const gate = await Gate.memory([bucket("api", 1, "1/h")]);
    const app = express();
    app.use(limit(gate, { ask: (request) => (request.path === "/healthz" ? undefined : { policy: "api", subject: "x" }) }));
    app.use((request, response) => response.end());
    const url = await serve(app);
    for (let time = 0; time < 3; time += 1) assert.equal((await fetch(`${url}/healthz`)).headers.get("ratelimit"), null);
    assert.deepEqual([(await fetch(url)).status, (await fetch(url)).status], [200, 429]);
  });

  test("waits, and takes nothing if the client leaves", async () => {
    const clock = new ManualClock(START);
    const gate = await Gate.memory([bucket("api", 1, "1/s")], { clock });
    const app = express();
    app.use(limit(gate, forUser("api", { waitMs: 60_000 })));
    app.get("/", (request, response) => response.send("hello"));
    const url = await serve(app);
    await fetch(url);
    const controller = new AbortController();
    const left = fetch(url, { signal: controller.signal }).catch((error) => error.name);
    while (gate.waiting === 0) await new Promise((resolve) => setImmediate(resolve));
    controller.abort();
    assert.equal(await left, "AbortError");
    while (gate.waiting > 0) await new Promise((resolve) => setImmediate(resolve));
    clock.advance(1000);
    assert.equal(await (await fetch(url)).text(), "hello");
    const waiting = fetch(url);
    while (gate.waiting === 0) await new Promise((resolve) => setImmediate(resolve));
    clock.advance(1000);
    assert.equal(await (await waiting).text(), "hello");
  });

  test("answers 503 while the gate cannot decide, or lets through if it fails open", async () => {
    const gate = await Gate.redis("redis://127.0.0.1:1/", [bucket("api", 1)], { store: { attempt_timeout: "100ms" } }).catch((error) => error);
    // Some stores are opened only when they answer; then there is nothing to serve.
    if (gate instanceof Unavailable) return;
    after(() => gate.close().catch(() => {}));
    const told = [];
    const app = express();
    app.get("/closed", limit(gate, forUser("api")), (request, response) => response.end());
    app.get("/open", limit(gate, { ...forUser("api"), onUnavailable: "open", onError: (error) => told.push(error) }), (request, response) =>
      response.end(),
    );
    const url = await serve(app);
    const closed = await fetch(`${url}/closed`);
    assert.deepEqual([closed.status, closed.headers.get("retry-after"), (await closed.json()).status], [503, "1", 503]);
    assert.equal((await fetch(`${url}/open`)).status, 200);
    assert.ok(told[0] instanceof Unavailable);
  });

  test("passes mistakes in the ask to the error handler", async () => {
    const gate = await Gate.memory([bucket("api", 1)]);
    const app = express();
    app.use(limit(gate, { ask: () => ({ policy: "none", subject: "x" }), onUnavailable: "open" }));
    app.use((error, request, response, _next) => response.status(500).send(error.kind));
    assert.equal(await (await fetch(await serve(app))).text(), "unknown-policy");
  });

  test("lets the application answer a denial itself, and works without Express", async () => {
    const gate = await Gate.memory([bucket("api", 1, "1/h")]);
    const middleware = limit(gate, {
      ask: () => ({ policy: "api", subject: "x" }),
      onDenied: (denied, request, response) => {
        response.statusCode = 420;
        response.end(denied.limit);
      },
    });
    const url = await serve((request, response) => middleware(request, response, () => response.end("hello")));
    assert.equal(await (await fetch(url)).text(), "hello");
    const denied = await fetch(url);
    assert.deepEqual([denied.status, await denied.text(), denied.headers.has("retry-after")], [420, "burst", true]);
  });
});
