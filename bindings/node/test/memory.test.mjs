import assert from "node:assert/strict";
import path from "node:path";
import { test } from "node:test";

import { node } from "./support.mjs";

test("memory stays flat over 1,000,000 decisions", async () => {
  const file = path.join(import.meta.dirname, "programs/many.mjs");
  const [before, after] = JSON.parse(await node("--expose-gc", [file, "1000000"]));
  assert.ok(after - before < 24, `${before} MiB before, ${after} MiB after`);
});

test("memory stays flat over 10,000 decisions of a store on a server", async () => {
  const file = path.join(import.meta.dirname, "programs/many.mjs");
  const [before, after] = JSON.parse(await node("--expose-gc", [file, "10000", "redis"]));
  assert.ok(after - before < 24, `${before} MiB before, ${after} MiB after`);
});
