// Whatever is aborted or thrown, what the store counts is what callers hold.
import assert from "node:assert/strict";
import { test } from "node:test";

import { Denied, Gate } from "tollgate";

import { daily, env, eventually, folder, random } from "./support.mjs";

const LIMIT = 1_000_000;
const TIMES = 10_000;

/**
 * Asks, aborts, throws, settles and releases at random. Returns what callers should have used, and what the store counts.
 * `lie` is a mistake that the comparison must find.
 */
async function play(gate, subject, times, { seed, lie = () => false, waits = false, patienceMs }) {
  const next = random(seed);
  let held = 0;
  let aborted = 0;
  const one = async (index) => {
    const tokens = 1 + next(50);
    const controller = new AbortController();
    const ask = { policy: "quota", subject, costs: { tokens }, signal: controller.signal };
    const choice = next(6);
    const charges = [
      { policy: "quota", subject },
      { policy: "narrow", subject: `${subject}-${next(3)}` },
    ];
    const asked = waits && choice < 3 ? { charges, costs: { tokens }, waitMs: 20 + next(200), signal: controller.signal } : ask;
    if (next(3) === 0) {
      const abort = () => controller.abort();
      const when = next(4);
      if (when === 0) queueMicrotask(abort);
      else if (when === 1) setImmediate(abort);
      else setTimeout(abort, next(8));
    }
    const failure = new Error("on purpose");
    try {
      await gate.run(asked, async (permit) => {
        held += tokens;
        // As real calls do: some end at once, some later.
        if (next(2) === 0) await new Promise((resolve) => setTimeout(resolve, next(4)));
        switch (choice % 4) {
          case 0:
            permit.settle({ tokens: tokens - 1 });
            held -= 1;
            break;
          case 1:
            permit.release();
            held -= tokens;
            break;
          case 2:
            throw failure;
          default:
        }
        if (lie(index)) held += 1;
      });
    } catch (error) {
      if (error === failure || error instanceof Denied) return;
      if (error.name !== "AbortError") throw error;
      aborted += 1;
    }
  };
  const lanes = Array.from({ length: 16 }, async (_, lane) => {
    for (let index = lane; index < times; index += 16) await one(index);
  });
  await Promise.all(lanes);
  // What raced an abort is released in the background.
  const used = async () => (await gate.standing("quota", subject))[0].used;
  await eventually(async () => (await used()) === held, patienceMs).catch(() => {});
  return { held, used: await used(), aborted };
}

const policies = [
  daily("quota", LIMIT, "tokens"),
  // One call at a time, so that asks wait however slow the machine is.
  { name: "narrow", limits: [{ name: "running", unit: "requests", rule: "concurrency", limit: 1, ttl: "10m" }] },
];

test("10,000 random aborts and exceptions balance in memory", async () => {
  const gate = await Gate.memory(policies);
  const { held, used, aborted } = await play(gate, "m", TIMES, { seed: 7, waits: true });
  assert.equal(used, held);
  // Those that have to wait and are aborted before anything else happens are a fortieth.
  assert.ok(aborted > TIMES / 100, `${aborted} were aborted`);
});

test("and on Redis, where an abort races an answer on its way", async () => {
  const gate = await Gate.redis(env("TOLLGATE_REDIS_URL"), policies, { store: { prefix: "balance:", attempt_timeout: "5s" } });
  const { held, used, aborted } = await play(gate, "r", TIMES, { seed: 11 });
  assert.equal(used, held);
  assert.ok(aborted > TIMES / 50, `${aborted} were aborted`);
  await gate.close();
});

test("and in a folder", async () => {
  const gate = await Gate.embedded(folder("balance"), policies);
  const { held, used, aborted } = await play(gate, "e", 2_000, { seed: 13, waits: true });
  assert.equal(used, held);
  assert.ok(aborted > 100, `${aborted} were aborted`);
  await gate.close();
});

test("one wrong entry in the books is found", async () => {
  const gate = await Gate.memory(policies);
  let isTold = false;
  const lie = () => !isTold && (isTold = true);
  const { held, used } = await play(gate, "s", 500, { seed: 17, lie, patienceMs: 200 });
  assert.equal(used, held - 1);
});
