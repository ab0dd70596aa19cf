// Takes permits of a broker until there are none, in 8 tasks at once. Its policies are the broker's.
import { Gate } from "tollgate";

const gate = await Gate.broker(process.argv[2], { store: { attempt_timeout: "5s" } });
let got = 0;
const task = async () => {
  while ((await gate.tryAcquire({ policy: "shared", subject: "all" })).admitted) got += 1;
};
await Promise.all(Array.from({ length: 8 }, task));
await gate.close();
console.log(got);
