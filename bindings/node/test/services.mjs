// The servers of every other test of the workspace, started and stopped by its testkit.
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import path from "node:path";

const workspace = path.join(import.meta.dirname, "../../..");
const target = process.env.CARGO_TARGET_DIR ?? path.join(workspace, "target");
const binaries = path.join(target, "debug");

/** Starts the servers. Returns the environment that leads to them, and a function that stops them. */
export function startServices() {
  const folder = mkdtempSync(path.join(target, "node-tests-"));
  const services = (word) => {
    const { status, stderr } = spawnSync(path.join(binaries, "services"), [word, path.join(folder, "services")], {
      cwd: workspace,
      encoding: "utf8",
    });
    if (status !== 0) throw new Error(`services ${word}: ${stderr}`);
  };
  const stop = () => {
    services("down");
    rmSync(folder, { recursive: true, force: true });
  };
  /** Returns the value of `key` in the configuration of a server. */
  const setting = (server, key) => {
    const text = readFileSync(path.join(folder, "services", `${server}.toml`), "utf8");
    return new RegExp(`^${key} = "(.*)"$`, "m").exec(text)?.[1];
  };
  services("up");
  const environment = {
    AWS_ACCESS_KEY_ID: "test",
    AWS_SECRET_ACCESS_KEY: "test",
    AWS_REGION: "us-east-1",
    TOLLGATE_BINARIES: binaries,
    TOLLGATE_DYNAMODB_ENDPOINT: setting("dynamodb", "endpoint"),
    TOLLGATE_FOLDER: folder,
    TOLLGATE_POSTGRES_URL: setting("postgres", "url"),
    TOLLGATE_REDIS_URL: setting("redis", "url"),
  };
  return { environment, stop };
}
