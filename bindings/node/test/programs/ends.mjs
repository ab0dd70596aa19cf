// Ends by itself: nothing that is open keeps a process alive, and everything under way does.
import { Gate } from "tollgate";

const policies = [
  { name: "api", limits: [{ name: "burst", unit: "requests", rule: "token-bucket", capacity: 1, refill: "10/s" }] },
];
const kind = process.argv[2];
const gate = kind === "redis" ? await Gate.redis(process.env.TOLLGATE_REDIS_URL, policies, { store: { attempt_timeout: "5s" } }) : await Gate.memory(policies);
await gate.acquire({ policy: "api", subject: `ends-${process.pid}` });
if (kind === "waiting") {
  // Nothing but this wait keeps the process alive until its end.
  void gate.acquire({ policy: "api", subject: `ends-${process.pid}`, waitMs: 5000 }).then(() => console.log("done"));
} else {
  console.log("done");
}
