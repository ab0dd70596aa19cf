import assert from "node:assert/strict";
import { once } from "node:events";
import { test } from "node:test";
import { Worker } from "node:worker_threads";

import { Gate } from "tollgate";

import { daily, env } from "./support.mjs";

const program = `
import { parentPort, workerData } from "node:worker_threads";
import { Denied, Gate } from ${JSON.stringify(import.meta.resolve("tollgate"))};
const gate = await Gate.redis(workerData.url, workerData.policies, { store: { attempt_timeout: "5s" } });
const ask = { policy: "shared", subject: workerData.subject };
if (workerData.waits) {
  await gate.acquire(ask);
  void gate.acquire({ ...ask, waitMs: 600_000 }).catch(() => {});
  while (gate.waiting === 0) await new Promise((resolve) => setImmediate(resolve));
  parentPort.postMessage("waiting");
  setInterval(() => {}, 1000);
} else {
  let got = 0;
  const task = async () => {
    for (;;) {
      const answer = await gate.tryAcquire(ask);
      if (!answer.admitted) return;
      got += 1;
    }
  };
  await Promise.all(Array.from({ length: 4 }, task));
  parentPort.postMessage(got);
}
`;
const url = new URL(`data:text/javascript,${encodeURIComponent(program)}`);

test("threads share a store, each with a gate of its own, and end by themselves", async () => {
  const workerData = { url: env("TOLLGATE_REDIS_URL"), policies: [daily("shared", 100)], subject: `threads-${process.pid}` };
  const counts = await Promise.all(
    Array.from({ length: 4 }, async () => {
      const worker = new Worker(url, { workerData });
      const ended = once(worker, "exit");
      const [got] = await once(worker, "message");
      assert.deepEqual(await ended, [0]);
      return got;
    }),
  );
  assert.equal(counts.reduce((sum, count) => sum + count, 0), 100, counts.join());
});

test("a thread that is terminated while it waits takes nothing with it", async () => {
  const slots = {
    name: "shared",
    limits: [{ name: "running", unit: "requests", rule: "concurrency", limit: 1, ttl: "10m" }],
  };
  const subject = `terminated-${process.pid}`;
  const workerData = { url: env("TOLLGATE_REDIS_URL"), policies: [slots], subject, waits: true };
  const worker = new Worker(url, { workerData });
  await once(worker, "message");
  await worker.terminate();
  const gate = await Gate.redis(env("TOLLGATE_REDIS_URL"), [slots], { store: { attempt_timeout: "5s" } });
  // Its slot is held until it expires, as after a crash. Its waiter has taken no second one.
  assert.equal((await gate.standing("shared", subject))[0].used, 1);
  await gate.close();
});
