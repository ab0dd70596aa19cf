// What several tests need.
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, writeFileSync } from "node:fs";
import path from "node:path";
import net from "node:net";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";

export const workspace = fileURLToPath(new URL("../../../", import.meta.url));
export const START = 1_700_006_400_000;

/** Returns an environment variable that run.mjs sets. */
export function env(name) {
  const value = process.env[name];
  if (!value) throw new Error(`${name} is not set; run the tests by node test/run.mjs`);
  return value;
}

/** Returns a new folder that is removed after the run. */
export function folder(name) {
  const root = path.join(env("TOLLGATE_FOLDER"), "folders");
  mkdirSync(root, { recursive: true });
  return mkdtempSync(path.join(root, `${name}-`));
}

export const bucket = (name, capacity, refill = "1/s") => ({
  name,
  limits: [{ name: "burst", unit: "requests", rule: "token-bucket", capacity, refill }],
});

/** A limit that does not refill during a test: what is left at its end is what was not charged. */
export const daily = (name, limit, unit = "requests") => ({
  name,
  limits: [{ name: "daily", unit, rule: "rolling-window", limit, window: "24h" }],
});

/** A binary of the workspace that prints its address in the first line that matches `address`. */
export class Server {
  /** @internal */
  constructor(child, url) {
    this.child = child;
    this.url = url;
  }

  static async start(program, args, address, options = {}) {
    const child = spawn(path.join(env("TOLLGATE_BINARIES"), program), args, {
      stdio: ["ignore", "pipe", "pipe"],
      ...options,
    });
    const said = [];
    const found = new Promise((resolve, reject) => {
      for (const stream of [child.stdout, child.stderr]) {
        createInterface({ input: stream }).on("line", (line) => {
          said.push(line);
          const match = address.exec(line);
          if (match) resolve(match[1]);
        });
      }
      child.once("error", reject);
      child.once("exit", (code) => reject(new Error(`${program} ended with ${code}:\n${said.join("\n")}`)));
    });
    return new Server(child, await found);
  }

  async stop() {
    if (this.child.exitCode !== null || this.child.signalCode !== null) return;
    this.child.removeAllListeners("exit");
    const ended = once(this.child, "exit");
    this.child.kill("SIGINT");
    await ended;
  }
}

/** Starts a broker on `port`, or a free one, with the policies of `toml`. */
export function startBroker(toml, store = '[store]\nkind = "memory"\n', port = 0) {
  const file = path.join(folder("broker"), "tollgate.toml");
  writeFileSync(file, `[server]\nhttp = "127.0.0.1:${port}"\ngrpc = "127.0.0.1:0"\nresp = "127.0.0.1:0"\n${store}\n${toml}`);
  return Server.start("tollgate", ["--config", file, "serve"], /(http:\/\/127\.0\.0\.1:\d+)/);
}

/** A relay in front of a server, which can be cut off and restored at the same address. */
export class Relay {
  #sockets = new Set();
  #server;
  #target;

  static async start(host, port) {
    const relay = new Relay();
    relay.#target = { host, port };
    await relay.restore();
    return relay;
  }

  async restore() {
    this.#server = net.createServer((client) => {
      const server = net.connect(this.#target);
      for (const [from, to] of [[client, server], [server, client]]) {
        this.#sockets.add(from);
        from.on("error", () => {}).on("close", () => (this.#sockets.delete(from), to.destroy()));
        from.pipe(to);
      }
    });
    await once(this.#server.listen(this.port ?? 0, "127.0.0.1"), "listening");
    this.port = this.#server.address().port;
  }

  async cut() {
    const closed = once(this.#server, "close");
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }
}

/** Creates a table of DynamoDB with the command that users have. */
export function createTable(table) {
  const file = path.join(folder("dynamodb"), "tollgate.toml");
  const store = `kind = "dynamodb"\ntable = "${table}"\nendpoint = "${env("TOLLGATE_DYNAMODB_ENDPOINT")}"\nregion = "us-east-1"`;
  const limits = '[{ name = "a", unit = "requests", rule = "token-bucket", capacity = 1, refill = "1/s" }]';
  writeFileSync(file, `[store]\n${store}\n[[policy]]\nname = "x"\nlimits = ${limits}\n`);
  const create = () => spawnSync(path.join(env("TOLLGATE_BINARIES"), "tollgate"), ["--config", file, "dynamodb", "create-table"]);
  // Idempotent, and repeated: the command gives a server half a second.
  const created = Array.from({ length: 20 }).some(() => create().status === 0);
  if (!created) throw new Error(`${table} was not created: ${create().stderr}`);
}

/** Starts the fake of every LLM provider. */
export function startProvider(...args) {
  return Server.start("fake-llm", args, /^(http:\/\/\S+)$/);
}

/** Runs `program` of Node with `args`, and returns its standard output. */
export async function node(file, args = [], options = {}) {
  const child = spawn(process.execPath, [file, ...args], { stdio: ["ignore", "pipe", "pipe"], ...options });
  let out = "";
  let err = "";
  child.stdout.on("data", (chunk) => (out += chunk));
  child.stderr.on("data", (chunk) => (err += chunk));
  const [code, signal] = await once(child, "exit");
  if (code !== 0) throw new Error(`${file} ended with ${code ?? signal}:\n${out}${err}`);
  return out;
}

/** Waits for another process or thread. */
export async function eventually(condition, patienceMs = 60_000) {
  const deadline = performance.now() + patienceMs;
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error("it did not happen in time");
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

/** Deterministic random numbers: a failure can be repeated. */
export function random(seed) {
  let state = seed >>> 0;
  return (below) => {
    // xorshift32
    state ^= state << 13;
    state >>>= 0;
    state ^= state >>> 17;
    state ^= state << 5;
    state >>>= 0;
    return state % below;
  };
}
