// One quota for many processes, on every store that processes can share.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";

import { Gate } from "tollgate";

import { daily, env, folder, node, startBroker } from "./support.mjs";

const program = path.join(import.meta.dirname, "programs/take.mjs");

/** Runs 8 processes of 8 tasks, which ask for more than there is. */
async function share(kind, address) {
  const subject = `all-${process.pid}`;
  const counts = await Promise.all(Array.from({ length: 8 }, () => node(program, [kind, address, subject])));
  const total = counts.map(Number).reduce((sum, count) => sum + count, 0);
  assert.equal(total, 300, `${kind}: ${counts.map((count) => count.trim())}`);
}

test("8 processes of 8 tasks take exactly the limit on Redis", () => share("redis", env("TOLLGATE_REDIS_URL")));
test("8 processes of 8 tasks take exactly the limit on PostgreSQL", () => share("postgres", env("TOLLGATE_POSTGRES_URL")));
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

test("DynamoDB decides, settles and shows where a subject is", async () => {
  const [table, endpoint] = [`node-${process.pid}`, env("TOLLGATE_DYNAMODB_ENDPOINT")];
  const file = path.join(folder("dynamodb"), "tollgate.toml");
  const limits = '[{ name = "daily", unit = "tokens", rule = "rolling-window", limit = 100, window = "24h" }]';
  const store = `kind = "dynamodb"\ntable = "${table}"\nendpoint = "${endpoint}"\nregion = "us-east-1"`;
  writeFileSync(file, `[store]\n${store}\n[[policy]]\nname = "llm"\nlimits = ${limits}\n`);
  execFileSync(path.join(env("TOLLGATE_BINARIES"), "tollgate"), ["--config", file, "dynamodb", "create-table"]);
  const gate = await Gate.dynamodb(table, [daily("llm", 100, "tokens")], { store: { endpoint, region: "us-east-1" } });
  assert.equal(gate.store, "dynamodb");
  const permit = await gate.acquire({ policy: "llm", subject: "p7", costs: { tokens: 80 } });
  const denied = await gate.tryAcquire({ policy: "llm", subject: "p7", costs: { tokens: 80 } });
  assert.equal(denied.limit, "daily");
  await permit.settle({ tokens: 10 });
  assert.equal((await gate.standing("llm", "p7"))[0].used, 10);
  await gate.close();
});
