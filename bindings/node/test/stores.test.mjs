// One quota for many processes, on every store that processes can share.
import assert from "node:assert/strict";
import path from "node:path";
import { test } from "node:test";

import { createTable, env, folder, node, startBroker } from "./support.mjs";

const program = path.join(import.meta.dirname, "programs/take.mjs");

/** The longest that a gate may wait for its server: tests pass however slow the machine is. */
const PATIENT = { store: { attempt_timeout: "5s" } };

/** Runs 8 processes of 8 tasks, which ask for more than there is. */
async function share(kind, address, options = {}) {
  const subject = `all-${process.pid}`;
  const said = await Promise.all(Array.from({ length: 8 }, () => node(program, [kind, address, subject, JSON.stringify(options)])));
  const counts = said.map((text) => JSON.parse(text));
  const [got, unknown] = [0, 1].map((index) => counts.reduce((sum, count) => sum + count[index], 0));
  // An ask that ends in an error may be charged, and is then charged to nobody.
  assert.ok(got <= 300 && 300 - unknown <= got, `${kind}: ${JSON.stringify(counts)}`);
}

test("8 processes of 8 tasks take exactly the limit on Redis", () => share("redis", env("TOLLGATE_REDIS_URL"), PATIENT));
test("8 processes of 8 tasks take exactly the limit on PostgreSQL", () => share("postgres", env("TOLLGATE_POSTGRES_URL"), PATIENT));
test("8 processes of 8 tasks take exactly the limit in one folder", () => share("embedded", folder("shared")));

test("8 processes of 8 tasks take exactly the limit of a broker", async () => {
  const limits = '[{ name = "daily", unit = "requests", rule = "rolling-window", limit = 300, window = "24h" }]';
  const broker = await startBroker(`[[policy]]\nname = "shared"\nlimits = ${limits}\n`);
  try {
    const total = await Promise.all(
      Array.from({ length: 8 }, () => node(path.join(import.meta.dirname, "programs/take-broker.mjs"), [broker.url])),
    );
    assert.equal(total.map(Number).reduce((sum, count) => sum + count, 0), 300);
  } finally {
    await broker.stop();
  }
});

test("8 processes of 8 tasks take exactly the limit of a table", async () => {
  const table = `shared-${process.pid}`;
  createTable(table);
  await share("dynamodb", table, { store: { endpoint: env("TOLLGATE_DYNAMODB_ENDPOINT"), region: "us-east-1", ...PATIENT.store } });
});
