// Beside rate-limiter-flexible, in one run: node bench/compare.mjs [--seconds N]
//
// Both are given a limit that is never reached, so that every decision is an admission, and are measured in turns, so that
// whatever else the machine does concerns both. Build the package with --release first.
import { Redis } from "ioredis";
import { RateLimiterMemory, RateLimiterRedis } from "rate-limiter-flexible";
import { Gate } from "tollgate";

import { startServices } from "../test/services.mjs";

const option = process.argv.indexOf("--seconds");
const seconds = option < 0 ? 1 : Number(process.argv[option + 1]);
const ROUNDS = 7;
const SUBJECTS = 1000;
const LIMIT = 1_000_000_000;

const policies = [
  { name: "api", limits: [{ name: "minute", unit: "requests", rule: "token-bucket", capacity: LIMIT, refill: `${LIMIT}/m` }] },
];
// Exact as well: blocks of tokens are taken in advance, and the store counts them as spent.
const leased = [{ ...policies[0], name: "leased", block_ttl: "1s" }];
const subjects = Array.from({ length: SUBJECTS }, (_, index) => `user-${index}`);

/** Decides for a while with `lanes` asks under way. Returns decisions per second, and processor time of this process for each. */
async function measure(decide, lanes, time = seconds) {
  const [start, cpu] = [performance.now(), process.cpuUsage()];
  const end = start + time * 1000;
  let count = 0;
  const lane = async () => {
    for (let index = 0; ; index += 1) {
      await decide(subjects[index % SUBJECTS]);
      count += 1;
      if ((index & 127) === 0 && performance.now() > end) return;
    }
  };
  await Promise.all(Array.from({ length: lanes }, lane));
  const { user, system } = process.cpuUsage(cpu);
  return { rate: count / ((performance.now() - start) / 1000), micros: (user + system) / count };
}

const median = (numbers) => numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length / 2)];

/** Measures both in turns. Prints the medians, and the median of the ratios of each turn. */
async function compare(name, ours, theirs, lanes) {
  await measure(ours, lanes, 0.3);
  await measure(theirs, lanes, 0.3);
  const [rates, peers] = [[], []];
  for (let round = 0; round < ROUNDS; round += 1) {
    rates.push(await measure(ours, lanes));
    peers.push(await measure(theirs, lanes));
  }
  const of = (rounds, field) => median(rounds.map((round) => round[field]));
  const shown = (rounds) => `${Math.round(of(rounds, "rate"))}/s`.padStart(11) + `${of(rounds, "micros").toFixed(2)} µs`.padStart(12);
  const ratio = median(rates.map(({ rate }, index) => rate / peers[index].rate));
  console.log(`${name.padEnd(32)} ${shown(rates)}  ${shown(peers)}  ${ratio.toFixed(2).padStart(6)} ×`);
}

/** Returns what a server has seen: reads of its sockets, and connections. */
async function seen(observer) {
  const info = await observer.info("stats");
  const clients = (await observer.client("LIST")).trim().split("\n").length;
  return { reads: Number(/total_reads_processed:(\d+)/.exec(info)[1]), clients };
}

/** Counts reads of the server per decision, with `lanes` decisions under way: round trips if it is one, batches otherwise. */
async function readsPerDecision(decide, observer, lanes = 1) {
  const times = 512;
  const before = await seen(observer);
  const lane = async (first) => {
    for (let index = first; index < times; index += lanes) await decide(subjects[index % SUBJECTS]);
  };
  await Promise.all(Array.from({ length: lanes }, (_, first) => lane(first)));
  const after = await seen(observer);
  // The observer itself reads twice between the counts.
  return ((after.reads - before.reads - 2) / times).toFixed(2);
}

const { environment, stop } = startServices();
try {
  console.log(`${"decisions, processor time of each".padEnd(32)} ${"tollgate".padStart(23)}  ${"rate-limiter-flexible".padStart(23)}     ratio`);
  const memory = await Gate.memory(policies);
  const peer = new RateLimiterMemory({ points: LIMIT, duration: 60 });
  const ask = (gate) => (subject) => gate.acquire({ policy: "api", subject });
  await compare("memory, one at a time", ask(memory), (key) => peer.consume(key), 1);

  const connection = new Redis(environment.TOLLGATE_REDIS_URL);
  const observer = new Redis(environment.TOLLGATE_REDIS_URL);
  await connection.ping();
  await observer.ping();
  const before = await seen(observer);
  const gate = await Gate.redis(environment.TOLLGATE_REDIS_URL, policies);
  const shared = new RateLimiterRedis({ storeClient: connection, points: LIMIT, duration: 60 });
  await ask(gate)("warm");
  await shared.consume("warm");
  const connections = (await seen(observer)).clients - before.clients;
  for (const lanes of [1, 16, 64]) {
    await compare(`redis, ${lanes} at a time`, ask(gate), (key) => shared.consume(key), lanes);
  }
  const blocks = await Gate.redis(environment.TOLLGATE_REDIS_URL, leased, { strategy: { kind: "leased" } });
  const lease = (subject) => blocks.acquire({ policy: "leased", subject });
  await compare("redis, leased, one at a time", lease, (key) => shared.consume(key), 1);
  const consume = (key) => shared.consume(key);
  console.log(`\nconnections: ${connections} and 1; reads of the server per decision, tollgate and rate-limiter-flexible`);
  for (const lanes of [1, 64]) {
    const counts = [await readsPerDecision(ask(gate), observer, lanes), await readsPerDecision(consume, observer, lanes)];
    console.log(`${lanes} at a time: ${counts.join(" and ")}`);
  }
  console.log(`leased, one at a time: ${await readsPerDecision(lease, observer)}`);
  await gate.close();
  await blocks.close();
  connection.disconnect();
  observer.disconnect();
} finally {
  stop();
}
