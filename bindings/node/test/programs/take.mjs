// Takes permits until there are none, in 8 tasks at once: take.mjs KIND ADDRESS SUBJECT OPTIONS. Prints how many it got, and of how many
// it does not know.
import { Denied, Gate } from "tollgate";

const [kind, address, subject, options] = process.argv.slice(2);
const policies = [
  { name: "shared", limits: [{ name: "daily", unit: "requests", rule: "rolling-window", limit: 300, window: "24h" }] },
];
const gate = await Gate[kind](address, policies, JSON.parse(options));
let [got, unknown] = [0, 0];
const task = async () => {
  for (;;) {
    try {
      await gate.acquire({ policy: "shared", subject });
      got += 1;
    } catch (error) {
      if (error instanceof Denied) return;
      // Another process has the row or the folder for too long: it may have been charged.
      if (error.kind !== "contended") throw error;
      unknown += 1;
    }
  }
};
await Promise.all(Array.from({ length: 8 }, task));
await gate.close();
console.log(JSON.stringify([got, unknown]));
