// Takes permits until there are none, in 8 tasks at once: take.mjs KIND ADDRESS SUBJECT. Prints how many it got.
import { Denied, Gate } from "tollgate";

const [kind, address, subject] = process.argv.slice(2);
const policies = [
  { name: "shared", limits: [{ name: "daily", unit: "requests", rule: "rolling-window", limit: 300, window: "24h" }] },
];
const gate = await Gate[kind](address, policies);
let got = 0;
const task = async () => {
  for (;;) {
    try {
      await gate.acquire({ policy: "shared", subject });
      got += 1;
    } catch (error) {
      if (error instanceof Denied) return;
      // Another process has the row or the folder.
      if (error.kind !== "contended") throw error;
    }
  }
};
await Promise.all(Array.from({ length: 8 }, task));
await gate.close();
console.log(got);
