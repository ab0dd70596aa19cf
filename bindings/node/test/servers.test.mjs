// Every store on a server: asks, permits and faults, on the real servers.
import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { once } from "node:events";
import http from "node:http";
import path from "node:path";
import { after, before, describe, test } from "node:test";

import { Denied, Gate, TollgateError, Unavailable } from "tollgate";

import { Relay, bucket, createTable, daily, env, eventually, folder, node, random, startBroker } from "./support.mjs";

const policies = [
  {
    name: "chat",
    limits: [
      { name: "rpd", unit: "requests", rule: "rolling-window", limit: 10, window: "24h" },
      { name: "tpd", unit: "tokens", rule: "rolling-window", limit: 1000, window: "24h" },
    ],
  },
  daily("team", 500, "tokens"),
  bucket("slow", 1, "1/h"),
  { name: "jobs", limits: [{ name: "running", unit: "requests", rule: "concurrency", limit: 1, ttl: "10m" }] },
  daily("quota", 1_000_000_000, "tokens"),
  { ...bucket("lenient", 5, "1/h"), on_store_failure: "open" },
];
const table = `servers-${process.pid}`;
const toml = (value) => {
  if (Array.isArray(value)) return `[${value.map(toml).join(", ")}]`;
  if (typeof value === "object") return `{ ${Object.entries(value).map(([name, field]) => `${name} = ${toml(field)}`).join(", ")} }`;
  return JSON.stringify(value);
};
const sections = policies.map((policy) => `[[policy]]\n${Object.entries(policy).map(([name, value]) => `${name} = ${toml(value)}\n`).join("")}`);
const key = (name, scopes) =>
  `[[key]]\nname = "${name}"\nscopes = ${toml(scopes)}\nhash = "sha256:${createHash("sha256").update(name).digest("hex")}"\n`;
/** The longest that a gate may wait for its server: tests pass however slow the machine is. */
const attempt_timeout = "5s";

/** Opens a gate on the server at `url`. */
const openAt = {
  redis: (url) => Gate.redis(url, policies, { store: { prefix: table, attempt_timeout } }),
  postgres: (url) => Gate.postgres(url, policies, { store: { schema: `servers_${process.pid}`, attempt_timeout } }),
  dynamodb: (url) => Gate.dynamodb(table, policies, { store: { endpoint: url, region: "us-east-1", attempt_timeout } }),
};
const places = {
  redis: () => env("TOLLGATE_REDIS_URL"),
  postgres: () => env("TOLLGATE_POSTGRES_URL"),
  dynamodb: () => env("TOLLGATE_DYNAMODB_ENDPOINT"),
};

let broker;
before(async () => {
  createTable(table);
  const keys = key("everything", ["acquire", "inspect", "administer"]) + key("asking", ["acquire"]);
  broker = await startBroker(sections.join("") + keys);
});
after(() => broker.stop());

for (const kind of ["redis", "postgres", "dynamodb", "broker"]) {
  describe(kind, () => {
    let gate;
    const used = async (policy, subject) => (await gate.standing(policy, subject)).map(({ used }) => used);
    before(async () => {
      gate = await (kind === "broker" ? Gate.broker(broker.url, { key: "everything", store: { attempt_timeout } }) : openAt[kind](places[kind]()));
      assert.equal(gate.store, kind);
    });
    after(() => gate.close());

    test("settles and releases", async () => {
      const ask = { policy: "chat", subject: "settled", costs: { tokens: 100 } };
      const permit = await gate.acquire(ask);
      assert.deepEqual(permit.limits.map(({ remaining }) => remaining), [9, 900]);
      assert.deepEqual([permit.degraded, await permit.settle({ tokens: 40 }), await permit.settle({ tokens: 1 })], [false, true, false]);
      const other = await gate.acquire(ask);
      assert.deepEqual([await other.release(), await other.release()], [true, false]);
      await gate.run(ask, (permit) => permit.settle({ tokens: 7 }));
      const failure = new Error("on purpose");
      await assert.rejects(gate.run(ask, () => Promise.reject(failure)), failure);
      assert.deepEqual(await used("chat", "settled"), [3, 147]);
    });

    test("takes several charges together or not at all", async () => {
      const charges = [
        { policy: "chat", subject: "several" },
        { policy: "team", subject: "t7", costs: { tokens: 25 } },
      ];
      const permit = await gate.acquire({ charges, costs: { tokens: 400 } });
      assert.deepEqual([await used("chat", "several"), await used("team", "t7")], [[1, 400], [25]]);
      const denied = await gate.tryAcquire({ charges: [charges[0], { policy: "team", subject: "t7" }], costs: { tokens: 480 } });
      assert.deepEqual([denied.policy, denied.limit, await used("chat", "several")], ["team", "daily", [1, 400]]);
      assert.equal(await permit.settle({ tokens: 300 }, [{ charge: 1, actual: { tokens: 5 } }]), true);
      assert.deepEqual([await used("chat", "several"), await used("team", "t7")], [[1, 300], [5]]);
    });

    test("denies with the wait, and changes nothing", async () => {
      const ask = { policy: "slow", subject: "denied" };
      await gate.acquire(ask);
      const denied = await gate.tryAcquire(ask);
      assert.deepEqual([denied.limit, denied.never, denied.degraded], ["burst", false, false]);
      assert.ok(denied.retryAfterMs > 3_000_000 && denied.retryAfterMs <= 3_600_000, `${denied.retryAfterMs}`);
      // It cannot come in that time, so the denial does not take that long.
      await assert.rejects(gate.acquire({ ...ask, waitMs: 600_000 }), Denied);
      assert.equal((await gate.tryAcquire({ ...ask, costs: { requests: 2 } })).never, true);
      assert.deepEqual(await used("slow", "denied"), [1]);
    });

    test("serves an ask that waits for a slot", async () => {
      const first = await gate.acquire({ policy: "jobs", subject: "waiting" });
      const waiting = gate.acquire({ policy: "jobs", subject: "waiting", waitMs: 3_600_000 });
      await eventually(() => gate.waiting === 1);
      assert.equal(await first.release(), true);
      assert.equal(await (await waiting).release(), true);
      assert.deepEqual(await used("jobs", "waiting"), [0]);
    });

    test("charges an id once, and settles by a token", async () => {
      const ask = { policy: "chat", subject: "ids", costs: { tokens: 100 }, id: "a" };
      const permit = await gate.acquire(ask);
      await gate.acquire(ask);
      assert.deepEqual(await used("chat", "ids"), [1, 100]);
      await assert.rejects(gate.acquire({ ...ask, costs: { tokens: 101 } }), { kind: "conflict" });
      assert.equal(await (await gate.permit(permit.token)).settle({ tokens: 1 }), true);
      assert.equal(await permit.settle({ tokens: 50 }), false);
      assert.deepEqual(await used("chat", "ids"), [1, 1]);
    });

    test("closes a limit after a violation, charges and resets", async () => {
      const permit = await gate.acquire({ policy: "chat", subject: "closed" });
      await permit.violation({ retryAfterMs: 600_000, limit: "rpd" });
      const denied = await gate.tryAcquire({ policy: "chat", subject: "closed" });
      assert.ok(denied.limit === "rpd" && denied.retryAfterMs <= 600_000);
      await gate.charge({ policy: "chat", subject: "charged", costs: { tokens: 1500 } });
      assert.deepEqual((await used("chat", "charged"))[1], 1500);
      assert.equal(await gate.reset("chat", "charged"), true);
      assert.deepEqual(await used("chat", "charged"), [0, 0]);
    });

    test("balances after aborts during round trips", async () => {
      const next = random(23);
      let [held, aborted] = [0, 0];
      const lane = async () => {
        for (let time = 0; time < 100; time += 1) {
          const tokens = 1 + next(50);
          const controller = new AbortController();
          const when = next(4);
          if (when === 0) queueMicrotask(() => controller.abort());
          if (when === 1) setTimeout(() => controller.abort(), next(5));
          const ask = { policy: "quota", subject: "aborts", costs: { tokens }, signal: controller.signal };
          try {
            const permit = await gate.acquire(ask);
            if (next(2) === 0) await permit.release();
            else held += tokens;
          } catch (error) {
            if (error.name !== "AbortError") throw error;
            aborted += 1;
          }
        }
      };
      // Few at once: they change one row, and a store gives up on a row that others have for too long.
      await Promise.all(Array.from({ length: 4 }, lane));
      // Those that are aborted before anything else happens are a quarter.
      assert.ok(aborted > 40, `${aborted} were aborted`);
      await eventually(async () => (await used("quota", "aborts"))[0] === held);
    });
  });
}

/** What a gate does while its server is away, and afterwards. */
async function checkAbsence(gate, cut, restore) {
  const ask = { policy: "chat", subject: "away", costs: { tokens: 10 } };
  await gate.acquire(ask);
  const reply = await gate.run({ ...ask, costs: { tokens: 20 } }, async (permit) => {
    permit.settle({ tokens: 1 });
    await cut();
    return "reply";
  });
  assert.equal(reply, "reply", "the result is not lost");
  await assert.rejects(gate.acquire(ask), Unavailable);
  await assert.rejects(gate.acquire({ ...ask, waitMs: 1000 }), Unavailable);
  await assert.rejects(gate.standing("chat", "away"), Unavailable);
  assert.equal((await gate.acquire({ policy: "lenient", subject: "away" })).degraded, true);
  await restore();
  await eventually(async () => {
    const answer = await gate.tryAcquire({ policy: "chat", subject: "again" }).catch((error) => error);
    if (answer instanceof TollgateError && !(answer instanceof Unavailable)) throw answer;
    return answer.degraded === false;
  });
  // The settlement was kept until the server returned.
  await eventually(async () => (await gate.standing("chat", "away"))[1].used === 11);
}

describe("a server that goes away and returns", () => {
  for (const kind of ["redis", "postgres", "dynamodb"]) {
    test(kind, async () => {
      const url = new URL(places[kind]());
      const relay = await Relay.start(url.hostname, Number(url.port));
      url.port = String(relay.port);
      const gate = await openAt[kind](url.href);
      await checkAbsence(gate, () => relay.cut(), () => relay.restore());
      await gate.close();
      await relay.cut();
      await assert.rejects(openAt[kind](url.href).then((gate) => gate.acquire({ policy: "chat", subject: "x" })), Unavailable);
    });
  }

  test("broker", async () => {
    const data = `[store]\nkind = "embedded"\npath = ${toml(path.join(folder("data"), "data"))}\n`;
    let server = await startBroker(sections.join(""), data);
    const port = Number(new URL(server.url).port);
    const gate = await Gate.broker(server.url, { store: { attempt_timeout } });
    const restore = async () => (server = await startBroker(sections.join(""), data, port));
    await checkAbsence(gate, () => server.stop(), restore);
    await gate.close();
    await server.stop();
    await assert.rejects(Gate.broker(server.url), /cannot be reached/);
  });
});

describe("wrong credentials", () => {
  test("a key that the broker does not know, and one that may only ask", async () => {
    for (const key of ["wrong", undefined]) {
      const options = { ...(key !== undefined && { key }), store: { attempt_timeout } };
      await assert.rejects(Gate.broker(broker.url, options), { name: "Unavailable", message: /does not list its policies.*check the key/ });
      const gate = await Gate.broker(broker.url, { ...options, policies });
      await assert.rejects(gate.acquire({ policy: "chat", subject: "key" }), { name: "Unavailable", message: /key/ });
      await gate.close();
    }
    await assert.rejects(Gate.broker(broker.url, { key: "asking" }), /scope inspect/);
    const gate = await Gate.broker(broker.url, { key: "asking", policies, store: { attempt_timeout } });
    await (await gate.acquire({ policy: "chat", subject: "key" })).release();
    await assert.rejects(gate.reset("chat", "key"), { name: "Unavailable", message: /scope administer/ });
    await gate.close();
  });

  test("a user that Redis and PostgreSQL do not know", async () => {
    for (const kind of ["redis", "postgres"]) {
      const url = new URL(places[kind]());
      [url.username, url.password] = ["nobody", "wrong"];
      await assert.rejects(openAt[kind](url.href), (error) => {
        assert.ok(error instanceof Unavailable && !error.message.includes("wrong@"), error.message);
        return true;
      });
    }
  });

  test("keys that DynamoDB refuses; dynoxide takes any", async () => {
    const server = http.createServer((request, response) => {
      request.resume().on("end", () => {
        response.writeHead(400, { "content-type": "application/x-amz-json-1.0" });
        response.end('{"__type": "com.amazon.coral.service#UnrecognizedClientException", "message": "The security token is invalid."}');
      });
    });
    await once(server.listen(0, "127.0.0.1"), "listening");
    const opened = openAt.dynamodb(`http://127.0.0.1:${server.address().port}`);
    await assert.rejects(opened.then((gate) => gate.acquire({ policy: "chat", subject: "x" })), /does not accept the credentials/);
    server.closeAllConnections();
    server.close();
  });

  test("no keys at all", async () => {
    const program = path.join(import.meta.dirname, "programs/no-credentials.mjs");
    const environment = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("AWS_")));
    const said = await node(program, [places.dynamodb()], {
      env: { ...environment, AWS_EC2_METADATA_DISABLED: "true", HOME: folder("home") },
    });
    assert.match(said, /needs credentials.*AWS_ACCESS_KEY_ID/);
  });
});
