// The package as its users get it: packed, installed into a clean folder, and used from there.
import assert from "node:assert/strict";
import { execFileSync, spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdirSync, readFileSync, readdirSync, symlinkSync, writeFileSync } from "node:fs";
import path from "node:path";
import { before, describe, test } from "node:test";
import { pathToFileURL } from "node:url";

import { createTable, env, eventually, folder, node, startBroker, startProvider, workspace } from "./support.mjs";

const root = path.join(import.meta.dirname, "..");
const tsc = path.join(root, "node_modules/typescript/bin/tsc");
let place;

/** Links the packages that an example names beside tollgate, which was installed from its tarball. */
function linkPackages() {
  const from = path.join(root, "node_modules");
  const to = path.join(place, "node_modules");
  for (const name of readdirSync(from)) {
    if (name.startsWith(".") || existsSync(path.join(to, name))) continue;
    symlinkSync(path.join(from, name), path.join(to, name));
  }
}

before(() => {
  place = folder("clean");
  // A release, or what is built.
  let tarball = process.env.TOLLGATE_TARBALL;
  if (tarball === undefined) {
    const packed = execFileSync("npm", ["pack", "--json", "--pack-destination", place], { cwd: root, encoding: "utf8" });
    const [{ filename }] = [Object.values(JSON.parse(packed))].flat();
    tarball = path.join(place, filename);
  }
  writeFileSync(path.join(place, "package.json"), '{ "private": true }');
  execFileSync("npm", ["install", "--no-audit", "--no-fund", "--silent", "--offline", tarball], { cwd: place });
  // Sources, tests and secrets stay at home.
  assert.deepEqual(
    readdirSync(path.join(place, "node_modules/tollgate"), { recursive: true, withFileTypes: true })
      .filter((entry) => entry.isFile())
      .map((entry) => path.relative(path.join(place, "node_modules/tollgate"), path.join(entry.parentPath, entry.name)))
      .filter((name) => !/^(dist\/|native\/.*\.node$|package\.json$|README\.md$)/.test(name)),
    [],
  );
  assert.ok(!existsSync(path.join(place, "node_modules/typescript")), "it has no dependencies");
});

const FIRST = `
const gate = await Gate.memory([{ name: "api", limits: [{ name: "burst", unit: "requests", rule: "token-bucket", capacity: 1, refill: "1/h" }] }]);
await gate.acquire({ policy: "api", subject: "alice" });
const denied = await gate.tryAcquire({ policy: "api", subject: "alice" });
console.log(denied instanceof Denied, denied.limit, typeof EdgeGate, typeof limit);
`;

describe("the tarball", () => {
  test("works with import", async () => {
    const file = path.join(place, "first.mjs");
    const imports = 'import { Denied, Gate } from "tollgate";\nimport { EdgeGate } from "tollgate/edge";\nimport { limit } from "tollgate/express";\n';
    writeFileSync(file, imports + FIRST);
    assert.equal(await node(file, [], { cwd: place }), "true burst function function\n");
  });

  test("works with require", async () => {
    const file = path.join(place, "first.cjs");
    const imports = 'const { Denied, Gate } = require("tollgate");\nconst { EdgeGate } = require("tollgate/edge");\nconst { limit } = require("tollgate/express");\n';
    writeFileSync(file, `${imports}(async () => {${FIRST}})();`);
    assert.equal(await node(file, [], { cwd: place }), "true burst function function\n");
  });

  test("needs no newer glibc than it says", () => {
    const native = path.join(place, "node_modules/tollgate/native");
    const [module] = readdirSync(native);
    const versions = [...readFileSync(path.join(native, module), "latin1").matchAll(/\0GLIBC_([\d.]+)(?=\0)/g)];
    const numbers = (version) => version.split(".").map(Number);
    const isNewer = ([a, b = 0, c = 0], [d, e = 0, f = 0]) => a - d || b - e || c - f;
    assert.ok(versions.length > 0);
    process.report.excludeNetwork = true;
    const most = process.env.TOLLGATE_GLIBC ?? process.report.getReport().header.glibcVersionRuntime;
    const newer = versions.map(([, version]) => version).filter((version) => isNewer(numbers(version), numbers(most)) > 0);
    assert.deepEqual(newer, [], `newer than ${most}`);
  });

  test("says what to do on a platform that it was not built for", async () => {
    const file = path.join(place, "other.cjs");
    writeFileSync(file, 'Object.defineProperty(process, "arch", { value: "mips" });\ntry { require("tollgate"); } catch (error) { console.log(error.message); }');
    assert.match(await node(file, [], { cwd: place }), /for linux-mips; this package has tollgate\.linux-x64-gnu\.node\. Install the package .* or use tollgate\/edge/);
  });

  test("says why a module does not load", async () => {
    const copy = path.join(folder("broken"), "tollgate");
    cpSync(path.join(place, "node_modules/tollgate"), copy, { recursive: true });
    const [module] = readdirSync(path.join(copy, "native"));
    writeFileSync(path.join(copy, "native", module), "nonsense");
    const file = path.join(copy, "broken.cjs");
    writeFileSync(file, 'try { require("./dist/index.js"); } catch (error) { console.log(error.kind, error.message); }');
    assert.match(await node(file), /^misconfigured .*this package has tollgate\.\S+ \(.*file too short.*\)\. Install/);
  });

  test("has types that are strict, for modules, CommonJS, and runtimes without Node", () => {
    linkPackages();
    const ts = (name, text, options) => {
      writeFileSync(path.join(place, name), text);
      const args = [tsc, "--noEmit", "--strict", "--target", "es2022", ...options, path.join(place, name)];
      return spawnSync(process.execPath, args, { cwd: place, encoding: "utf8" });
    };
    const good = `
import { type Ask, Denied, Gate, type LimitStanding, Permit, type PolicySpec } from "tollgate";
import { EdgeGate } from "tollgate/edge";
import { limit, permitOf } from "tollgate/express";
export async function use(gate: Gate, policies: PolicySpec[]): Promise<LimitStanding[]> {
  const ask: Ask = { policy: "a", subject: "b", costs: { tokens: 1 }, waitMs: 5, signal: AbortSignal.timeout(1) };
  const answer: Permit | Denied = await gate.tryAcquire(ask);
  if (!answer.admitted) return answer.limits;
  const number: number = await gate.run({ charges: [{ policy: "a", subject: "b" }] }, (permit) => (permit.settle({ tokens: 1 }), 5));
  void [number, policies, EdgeGate, limit, permitOf];
  return answer.limits;
}
`;
    const node = ["--module", "node20", "--types", "node"];
    for (const [name, options] of [["good.mts", node], ["good.cts", node]]) {
      const { status, stdout } = ts(name, good, options);
      assert.equal(status, 0, stdout);
    }
    const edge = `
import { EdgeGate } from "tollgate/edge";
export default { async fetch(_: Request): Promise<Response> {
  const permit = await new EdgeGate("https://broker.example").acquire({ policy: "a", subject: "b" });
  await permit.settle({ tokens: 5 });
  return new Response(String(permit.degraded));
} };
`;
    const worker = ["--module", "esnext", "--moduleResolution", "bundler", "--lib", "es2022,webworker", "--types", ""];
    assert.equal(ts("worker.ts", edge, worker.filter((option) => option !== "" && option !== "--types")).status, 0);
    for (const wrong of [
      'import { Gate } from "tollgate"; export const f = (gate: Gate) => gate.acquire({ policy: "a" });',
      'import { Gate } from "tollgate"; export const f = (gate: Gate) => gate.acquire({ policy: "a", subject: "b", cost: 1 });',
      'import { Gate } from "tollgate"; export const f = async (gate: Gate) => (await gate.tryAcquire({ policy: "a", subject: "b" })).settle({});',
      'import { Gate } from "tollgate"; export const f = () => Gate.memory([{ name: "a", limits: [{ name: "b", rule: "bucket" }] }]);',
      'import { Gate } from "tollgate"; export const f = () => new Gate();',
    ]) {
      const { status, stdout } = ts("wrong.mts", wrong, node);
      assert.ok(status !== 0 && /wrong\.mts\(1,/.test(stdout), `${wrong}\n${stdout}`);
    }
  });
});

describe("docs/node.md", () => {
  const page = readFileSync(path.join(workspace, "docs/node.md"), "utf8");
  const blocks = (language) => [...page.matchAll(new RegExp(`^\`\`\`${language}\\n([\\s\\S]*?)^\`\`\``, "gm"))].map(([, code]) => code);

  test("its JavaScript runs and prints what it says", async () => {
    linkPackages();
    const policies = `
[[policy]]
name = "gemini-free"
limits = [
  { name = "rpm", unit = "requests", rule = "rolling-window", limit = 5, window = "1m" },
  { name = "tpm", unit = "tokens", rule = "rolling-window", limit = 250_000, window = "1m" },
]
`;
    const broker = await startBroker(policies);
    try {
      const imports = new Set();
      let code = "";
      const examples = blocks("js");
      for (const block of examples) {
        const body = block.replace(/^import .*$/gm, (line) => (imports.add(line), ""));
        // Each block sees those before it, and may use their names again.
        code += `{\n${body}\n`;
      }
      const file = path.join(place, "page.mjs");
      writeFileSync(file, `${[...imports].join("\n")}\n${code}${"}".repeat(examples.length)}\n`);
      const printed = await node(file, [], {
        cwd: place,
        env: { ...process.env, REDIS_URL: env("TOLLGATE_REDIS_URL"), DATABASE_URL: env("TOLLGATE_POSTGRES_URL"), TOLLGATE_URL: broker.url },
      });
      const promised = [...examples.join("").matchAll(/^\/\/ → (.*)$/gm)].map(([, line]) => line);
      assert.ok(promised.length > 10);
      assert.deepEqual(printed.trimEnd().split("\n"), promised);
    } finally {
      await broker.stop();
    }
  });

  test("its TypeScript compiles", () => {
    linkPackages();
    const files = blocks("ts").map((code, index) => {
      const file = path.join(place, `page-${index}.mts`);
      writeFileSync(file, code);
      return file;
    });
    assert.ok(files.length >= 4);
    const args = [tsc, "--noEmit", "--strict", "--target", "es2022", "--module", "node20", "--skipLibCheck", "--types", "node", ...files];
    const { status, stdout } = spawnSync(process.execPath, args, { cwd: place, encoding: "utf8" });
    assert.equal(status, 0, stdout);
  });

  test("its links lead somewhere", () => {
    for (const [, link] of page.matchAll(/\]\(([^)#:]+)(#[^)]*)?\)/g)) {
      assert.ok(existsSync(path.join(workspace, "docs", link)), link);
    }
  });
});

describe("examples", () => {
  /** Copies an example beside the installed packages. */
  const copied = (name) => {
    linkPackages();
    const to = path.join(place, name);
    cpSync(path.join(workspace, "examples", name), to, { recursive: true });
    return to;
  };

  test("express", async () => {
    const example = copied("express");
    const { Gate } = await import(pathToFileURL(path.join(place, "node_modules/tollgate/dist/index.mjs")));
    const { createApp } = await import(pathToFileURL(path.join(example, "server.mjs")));
    process.env.REDIS_URL = env("TOLLGATE_REDIS_URL");
    // Nothing comes back during the test, however slow the machine is.
    const config = path.join(example, "tollgate.toml");
    writeFileSync(config, readFileSync(config, "utf8").replace('"10/s"', '"10/h"').replace("[store]", '[store]\nattempt_timeout = "5s"'));
    const gate = await Gate.open(config);
    const server = createApp(gate, async (question) => ({ text: question.toUpperCase(), tokens: 7 })).listen(0, "127.0.0.1");
    try {
      await new Promise((resolve) => server.once("listening", resolve));
      const url = `http://127.0.0.1:${server.address().port}`;
      const headers = { "x-user": `u${process.pid}`, "x-team": `t${process.pid}`, "content-type": "application/json" };
      const hello = await fetch(`${url}/hello`, { headers });
      assert.equal(await hello.text(), `hello, u${process.pid}`);
      assert.match(hello.headers.get("ratelimit"), /^"burst";r=19/);
      const answer = await fetch(`${url}/answer`, { method: "POST", headers, body: '{"question":"why?"}' });
      assert.deepEqual(await answer.json(), { text: "WHY?" });
      await eventually(async () => (await gate.standing("team", `t${process.pid}`))[0].used === 7);
      const statuses = await Promise.all(Array.from({ length: 40 }, async () => (await fetch(`${url}/hello`, { headers })).status));
      // Two of the twenty went to the requests before.
      assert.deepEqual([200, 429].map((status) => statuses.filter((one) => one === status).length), [18, 22]);
    } finally {
      server.closeAllConnections();
      server.close();
      await gate.close();
    }
  });

  test("postgres-node: five in any 24 hours, in rows of its own table (R004.1, R004.2, R004.6, R004.7, R004.8)", async () => {
    const example = copied("postgres-node");
    const { default: pg } = await import(pathToFileURL(path.join(root, "node_modules/pg/esm/index.mjs")));
    const { Quota } = await import(pathToFileURL(path.join(example, "quota.mjs")));
    const url = env("TOLLGATE_POSTGRES_URL");
    const table = `video_requests_${process.pid}`;
    const pool = new pg.Pool({ connectionString: url, connectionTimeoutMillis: 1000 });
    try {
      await pool.query(`CREATE TABLE ${table} (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, user_id text NOT NULL, title text, created_at timestamptz NOT NULL DEFAULT now())`);
      const install = ["postgres", "install", "--url-env", "DATABASE_URL", "--table", table, "--limit", "5", "--window", "24h"];
      execFileSync(path.join(env("TOLLGATE_BINARIES"), "tollgate"), install, { env: { ...process.env, DATABASE_URL: url } });
      const said = [];
      const log = { error: (...text) => said.push(`error ${text.join(" ")}`), warn: (text) => said.push(`warn ${text}`) };
      const quota = await Quota.open(pool, { log, schema: `${table}_quota` });
      for (let left = 4; left >= 0; left -= 1) {
        const { allowed, remaining } = await quota.consume("alice", { title: `video ${left}` });
        assert.deepEqual([allowed, remaining], [true, left]);
      }
      const refused = await quota.consume("alice");
      assert.equal(refused.allowed, false);
      assert.ok(refused.waitSeconds > 86_000 && refused.resetTime !== null);
      assert.equal((await quota.check("alice")).allowed, false);
      assert.deepEqual([(await quota.info("alice")).quotaUsed, (await quota.info("bob")).quotaUsed], [5, 0]);
      const count = async () => Number((await pool.query(`SELECT count(*) FROM ${table}`)).rows[0].count);
      assert.equal(await count(), 5, "a refusal makes no row");
      assert.equal((await quota.consume("bob", { key: "k1" })).remaining, 4);
      assert.equal((await quota.consume("bob", { key: "k1" })).duplicate, true);
      await assert.rejects(quota.consume("bob", { nothing: 1 }), /nothing/, "a mistake is no outage");
      assert.deepEqual(said, []);

      // The database goes away: the same requests reach a port at which nothing listens.
      const away = new pg.Pool({ connectionString: "postgresql://nobody@127.0.0.1:1/none", connectionTimeoutMillis: 1000 });
      let current = away;
      const switching = { query: (...args) => current.query(...args), on: () => {} };
      const degraded = await Quota.open(switching, { log, schema: `${table}_quota` });
      for (let time = 0; time < 5; time += 1) {
        assert.deepEqual(await degraded.consume("carol", { title: "away" }), { allowed: true, remaining: 0, degraded: true });
      }
      assert.deepEqual(await degraded.consume("carol"), { allowed: false, remaining: 0, degraded: true });
      assert.equal((await degraded.check("carol")).allowed, false);
      assert.ok(said.some((line) => line.startsWith("error the database is unavailable")));
      assert.ok(said.includes("warn Rate limiting degraded - database unavailable"));
      assert.equal(degraded.kept, 5);
      current = pool;
      assert.equal((await degraded.consume("carol")).allowed, false, "what was let through counts");
      assert.equal(degraded.kept, 0);
      assert.equal((await quota.info("carol")).quotaUsed, 5);
      await away.end();
    } finally {
      await pool.end();
    }
  });

  test("typescript-lambda: Gemini within a quota on DynamoDB, and its template", async () => {
    const example = copied("typescript-lambda");
    const { status, stdout } = spawnSync(process.execPath, [tsc, "-p", example], { cwd: example, encoding: "utf8" });
    assert.equal(status, 0, stdout);

    const provider = await startProvider("--rpm", "5");
    const table = `lambda-${process.pid}`;
    const endpoint = env("TOLLGATE_DYNAMODB_ENDPOINT");
    createTable(table);
    try {
      // Three instances of the function share the five requests of a minute.
      const program = path.join(example, "calls.cjs");
      writeFileSync(
        program,
        `const { handler } = require("./dist/handler.js");
(async () => {
  const call = (index) => handler({ body: JSON.stringify({ question: "Why " + index + "?" }) });
  const replies = process.argv[2] === "together" ? await Promise.all([0, 1, 2, 3, 4].map(call)) : [];
  for (let index = 0; process.argv[2] !== "together" && index < 5; index += 1) replies.push(await call(index));
  console.log(JSON.stringify([(await handler({ body: "nonsense" })).statusCode, ...replies.map(({ statusCode, body }) => ({ statusCode, body }))]));
  process.exit(0);
})();`,
      );
      const variables = { TOLLGATE_TABLE: table, TOLLGATE_ENDPOINT: endpoint, GEMINI_API_KEY: "k", GEMINI_URL: `${provider.url}/gemini` };
      const run = (how) => node(program, [how], { cwd: example, env: { ...process.env, ...variables } });
      const answers = (await Promise.all([run("together"), run("together")])).map((text) => JSON.parse(text));
      // Asks that wait side by side make room for each other, so one may be denied too early. A third instance takes what is left.
      answers.push(JSON.parse(await run("in turn")));
      assert.deepEqual(answers.map(([nonsense]) => nonsense), [400, 400, 400]);
      const replies = answers.flatMap(([, ...replies]) => replies);
      const count = (status) => replies.filter(({ statusCode }) => statusCode === status).length;
      assert.deepEqual([count(200), count(429)], [5, 10], JSON.stringify(replies, null, 1));
      const tally = await (await fetch(`${provider.url}/tally`)).json();
      assert.ok(!JSON.stringify(tally).includes('"429"'), "the provider refused nothing");
    } finally {
      await provider.stop();
    }

    const synthesised = path.join(example, "synth.cjs");
    mkdirSync(path.join(example, "bundle"));
    writeFileSync(path.join(example, "bundle/handler.js"), "");
    writeFileSync(
      synthesised,
      `const { App } = require("aws-cdk-lib");
const { Template, Match } = require("aws-cdk-lib/assertions");
const { stackOf } = require("./dist/app.js");
const template = Template.fromStack(stackOf(new App({ outdir: "cdk.out" }), "bundle"));
template.hasResource("AWS::DynamoDB::Table", {
  DeletionPolicy: "Retain",
  Properties: {
    BillingMode: "PAY_PER_REQUEST",
    KeySchema: [{ AttributeName: "pk", KeyType: "HASH" }],
    TimeToLiveSpecification: { AttributeName: "ttl", Enabled: true },
    SSESpecification: { SSEEnabled: true },
  },
});
template.resourceCountIs("AWS::CloudWatch::Alarm", 3);
for (const MetricName of ["ThrottledRequests", "SystemErrors", "Errors"]) {
  template.hasResourceProperties("AWS::CloudWatch::Alarm", { MetricName, AlarmActions: Match.anyValue() });
}
template.hasResourceProperties("AWS::IAM::Policy", {
  PolicyDocument: {
    Statement: [Match.objectLike({
      Action: ["dynamodb:BatchGetItem", "dynamodb:DeleteItem", "dynamodb:GetItem", "dynamodb:PutItem", "dynamodb:UpdateItem"],
      Resource: Match.not("*"),
    })],
  },
});
template.hasResourceProperties("AWS::Lambda::Function", { Environment: { Variables: { TOLLGATE_TABLE: Match.anyValue() } } });
console.log("synthesised");`,
    );
    assert.match(await node(synthesised, [], { cwd: example }), /synthesised/);
  });
});

