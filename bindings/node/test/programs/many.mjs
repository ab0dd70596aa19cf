// Makes decisions of every kind and prints the resident memory, in MiB, after a warm-up and at the end.
import { Gate } from "tollgate";

const times = Number(process.argv[2]);
const policies = [
  { name: "api", limits: [{ name: "burst", unit: "requests", rule: "token-bucket", capacity: 100, refill: "1000/s" }] },
];
const gate = process.argv[3] === "redis" ? await Gate.redis(process.env.TOLLGATE_REDIS_URL, policies, { store: { attempt_timeout: "5s" } }) : await Gate.memory(policies);

async function decide(count) {
  for (let index = 0; index < count; index += 1) {
    const ask = { policy: "api", subject: `many-${index % 100}` };
    if (index % 10 === 9) ask.waitMs = 0;
    if (index % 10 === 8) ask.signal = new AbortController().signal;
    const answer = await gate.tryAcquire(ask);
    if (answer.admitted && index % 10 === 0) await answer.settle({ requests: 1 });
    if (answer.admitted && index % 10 === 1) await answer.release();
    // Lets finalizers run, as every program that does anything else would.
    if (index % 1000 === 0) await new Promise((resolve) => setImmediate(resolve));
  }
}

async function resident() {
  for (let round = 0; round < 5; round += 1) {
    globalThis.gc();
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
  return process.memoryUsage().rss / 2 ** 20;
}

await decide(times / 10);
const before = await resident();
await decide(times);
console.log(JSON.stringify([before, await resident()]));
