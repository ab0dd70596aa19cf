// Runs the tests with real servers behind them: node test/run.mjs [FILE]...
import { spawnSync } from "node:child_process";
import { readdirSync } from "node:fs";
import path from "node:path";

import { startServices } from "./services.mjs";

const named = process.argv.slice(2);
const all = readdirSync(import.meta.dirname).filter((name) => name.endsWith(".test.mjs"));
const files = named.length > 0 ? named : all.map((name) => path.join(import.meta.dirname, name));

const { environment, stop } = startServices();
let status = 1;
try {
  const run = spawnSync(process.execPath, ["--test", "--test-concurrency=2", "--test-reporter=spec", ...files], {
    stdio: "inherit",
    env: { ...process.env, ...environment },
  });
  status = run.status ?? 1;
} finally {
  stop();
}
process.exit(status);
