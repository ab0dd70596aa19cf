// Real SDKs with a wrapped fetch, against a fake of their providers that counts what it was asked for.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:net";
import { after, before, describe, test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";

import Anthropic from "@anthropic-ai/sdk";
import { GoogleGenAI } from "@google/genai";
import OpenAI from "openai";

import { Denied, Gate, wrapFetch } from "tollgate";

import { eventually, startProvider } from "./support.mjs";

const llm = (limits = {}) => ({
  name: "llm",
  limits: [
    { name: "rpm", unit: "requests", rule: "rolling-window", limit: limits.requests ?? 100, window: "24h" },
    { name: "tpm", unit: "tokens", rule: "rolling-window", limit: limits.tokens ?? 100_000, window: "24h" },
    { name: "itpm", unit: "input_tokens", rule: "rolling-window", limit: 100_000, window: "24h" },
    { name: "otpm", unit: "output_tokens", rule: "rolling-window", limit: 100_000, window: "24h" },
  ],
});

let provider;
before(async () => {
  provider = await startProvider("--rpm", "1000000");
});
after(() => provider.stop());

const MODELS = { openai: "gpt-4o", anthropic: "claude-sonnet-5", gemini: "gemini-2.0-flash" };
const QUESTION = "Say hello to everyone here.";

/** Calls each dialect by its SDK, and returns the text and the usage that the SDK shows. */
const SDKS = {
  openai: {
    client: (fetch) => new OpenAI({ apiKey: "k", baseURL: `${provider.url}/openai/v1`, fetch, maxRetries: 0 }),
    async call(client) {
      const reply = await client.chat.completions.create({ model: MODELS.openai, max_tokens: 50, messages: [{ role: "user", content: QUESTION }] });
      const { prompt_tokens, completion_tokens } = reply.usage;
      return { text: reply.choices[0].message.content, input: prompt_tokens, output: completion_tokens };
    },
    async stream(client, onChunk = () => {}) {
      const stream = await client.chat.completions.create({ model: MODELS.openai, stream: true, messages: [{ role: "user", content: QUESTION }] });
      let text = "";
      for await (const chunk of stream) {
        // It was not asked for, so it must not be seen.
        assert.equal(chunk.usage ?? null, null);
        assert.equal(chunk.choices.length, 1);
        text += chunk.choices[0].delta.content ?? "";
        if (onChunk() === "stop") break;
      }
      return text;
    },
  },
  anthropic: {
    client: (fetch) => new Anthropic({ apiKey: "k", baseURL: `${provider.url}/anthropic`, fetch, maxRetries: 0 }),
    async call(client) {
      const reply = await client.messages.create({ model: MODELS.anthropic, max_tokens: 50, messages: [{ role: "user", content: QUESTION }] });
      return { text: reply.content[0].text, input: reply.usage.input_tokens, output: reply.usage.output_tokens };
    },
    async stream(client, onChunk = () => {}) {
      const stream = await client.messages.create({ model: MODELS.anthropic, max_tokens: 400, stream: true, messages: [{ role: "user", content: QUESTION }] });
      let text = "";
      for await (const event of stream) {
        if (event.type === "content_block_delta") text += event.delta.text;
        if (onChunk() === "stop") break;
      }
      return text;
    },
  },
  gemini: {
    client: (fetch) => new GoogleGenAI({ apiKey: "k", httpOptions: { baseUrl: `${provider.url}/gemini`, fetch } }),
    async call(client) {
      const reply = await client.models.generateContent({ model: MODELS.gemini, contents: QUESTION, config: { maxOutputTokens: 50 } });
      const { promptTokenCount, candidatesTokenCount } = reply.usageMetadata;
      return { text: reply.text, input: promptTokenCount, output: candidatesTokenCount };
    },
    async stream(client, onChunk = () => {}) {
      const stream = await client.models.generateContentStream({ model: MODELS.gemini, contents: QUESTION });
      let text = "";
      for await (const chunk of stream) {
        text += chunk.text ?? "";
        if (onChunk() === "stop") break;
      }
      return text;
    },
  },
};

const realFetch = globalThis.fetch;
setFlagsFromString("--expose-gc");
const gc = runInNewContext("gc");

for (const [dialect, sdk] of Object.entries(SDKS)) {
  describe(dialect, () => {
    const options = { policy: "llm", subject: "p7", dialect, fetch: realFetch };
    const used = async (gate) => Object.fromEntries((await gate.standing("llm", "p7")).map(({ unit, used }) => [unit, used]));
    /** Settling ends after the answer, so wait for it. */
    const settled = async (gate, check) => {
      await eventually(async () => check(await used(gate)));
      return used(gate);
    };

    test("an answer is settled with the usage that it reports", async () => {
      const gate = await Gate.memory([llm()]);
      const { text, input, output } = await sdk.call(sdk.client(wrapFetch(gate, options)));
      assert.ok(text.length > 0 && input > 0 && output > 0);
      const now = await settled(gate, ({ output_tokens }) => output_tokens === output);
      // Gemini counts only input against its tokens per minute.
      const tokens = dialect === "gemini" ? input : input + output;
      assert.deepEqual(now, { requests: 1, tokens, input_tokens: input, output_tokens: output });
    });

    test("a stream is passed on as it arrives, and settled at its end", async () => {
      const gate = await Gate.memory([llm()]);
      const slow = await startProvider("--rpm", "1000000", "--pause", "30ms", "--length", "24");
      after(() => slow.stop());
      const saved = provider;
      provider = slow;
      const times = [];
      let chargedDuring;
      const client = sdk.client(wrapFetch(gate, options));
      provider = saved;
      const text = await sdk.stream(client, () => {
        times.push(performance.now());
        if (times.length === 2) void used(gate).then((now) => (chargedDuring = now));
      });
      assert.ok(text.length > 0);
      assert.ok(times.length >= 4, `${times.length} chunks`);
      assert.ok(times.at(-1) - times[0] > 60, "all chunks came at once");
      assert.ok(chargedDuring.output_tokens >= 400 || dialect !== "anthropic", "the estimate is charged meanwhile");
      const now = await settled(gate, ({ output_tokens }) => output_tokens === 24);
      assert.equal(now.output_tokens, 24);
      assert.equal(now.requests, 1);
    });

    test("a stream that is abandoned costs its input and what was streamed", async () => {
      const gate = await Gate.memory([llm()]);
      const slow = await startProvider("--rpm", "1000000", "--pause", "20ms", "--length", "200");
      after(() => slow.stop());
      const saved = provider;
      provider = slow;
      const client = sdk.client(wrapFetch(gate, options));
      provider = saved;
      let seen = 0;
      await sdk.stream(client, () => ((seen += 1) === 5 ? "stop" : undefined));
      const now = await settled(gate, ({ output_tokens }) => {
        // The SDK of Gemini does not cancel what it stops to read.
        gc();
        return output_tokens < 200;
      });
      assert.ok(now.output_tokens > 0 && now.output_tokens < 200, JSON.stringify(now));
    });

    test("a denial is the provider's 429, which the SDK understands", async () => {
      const gate = await Gate.memory([llm({ requests: 1 })]);
      const client = sdk.client(wrapFetch(gate, options));
      await sdk.call(client);
      await assert.rejects(sdk.call(client), (error) => {
        assert.equal(error.status, 429, `${error}`);
        assert.match(error.message, /rpm/);
        return true;
      });
      assert.equal((await used(gate)).requests, 1);
    });

    test("a refusal of the provider gives tokens back and closes the limit", async () => {
      const strict = await startProvider("--rpm", "1");
      after(() => strict.stop());
      const gate = await Gate.memory([llm()]);
      const saved = provider;
      provider = strict;
      const client = sdk.client(wrapFetch(gate, options));
      provider = saved;
      await sdk.call(client);
      const before = await settled(gate, ({ output_tokens }) => output_tokens < 50);
      await assert.rejects(sdk.call(client), { status: 429 });
      assert.deepEqual(await used(gate), { ...before, requests: 2 });
      const denied = await gate.tryAcquire({ policy: "llm", subject: "p7" });
      assert.equal(denied.limit, "rpm");
      assert.ok(denied.retryAfterMs > 0 && denied.retryAfterMs <= 61_000, `${denied.retryAfterMs}`);
    });
  });
}

describe("wrapFetch", () => {
  const body = JSON.stringify({ model: "gpt-4o", max_tokens: 50, messages: [{ role: "user", content: QUESTION }] });
  const headers = { authorization: "Bearer k", "content-type": "application/json" };
  const post = { method: "POST", headers, body };
  const url = () => `${provider.url}/openai/v1/chat/completions`;
  const options = { policy: "llm", subject: ({ model }) => `model:${model}`, dialect: "openai", fetch: realFetch };
  const used = async (gate) => (await gate.standing("llm", "model:gpt-4o")).map(({ used }) => used);

  test("charges a subject that depends on the call, and throws a denial if it is told to", async () => {
    const gate = await Gate.memory([llm({ requests: 1 })]);
    const wrapped = wrapFetch(gate, { ...options, onDenied: "throw" });
    const response = await wrapped(url(), post);
    assert.equal(response.url, url());
    await response.json();
    assert.equal((await used(gate))[0], 1);
    await assert.rejects(wrapped(url(), post), Denied);
  });

  test("releases what was never sent, and keeps what may have been", async () => {
    const gate = await Gate.memory([llm()]);
    const wrapped = wrapFetch(gate, options);
    const server = createServer().listen(0, "127.0.0.1");
    await once(server, "listening");
    const { port } = server.address();
    server.close();
    await once(server, "close");
    await assert.rejects(wrapped(`http://127.0.0.1:${port}/v1/chat/completions`, post), TypeError);
    assert.deepEqual(await used(gate), [0, 0, 0, 0]);
    const lost = wrapFetch(gate, { ...options, fetch: () => Promise.reject(new TypeError("socket hang up")) });
    await assert.rejects(lost(url(), post), TypeError);
    assert.equal((await used(gate))[0], 1);
    assert.ok((await used(gate))[1] > 50);
  });

  test("takes nothing for an aborted call that waits, and lists models for nothing", async () => {
    const gate = await Gate.memory([llm({ requests: 1 })]);
    const wrapped = wrapFetch(gate, { ...options, waitMs: 1000 });
    assert.equal((await wrapped(`${provider.url}/openai/v1/models`, { headers })).status, 200);
    await (await wrapped(url(), post)).text();
    await assert.rejects(wrapped(url(), { ...post, signal: AbortSignal.abort() }), { name: "AbortError" });
    assert.equal((await used(gate))[0], 1);
  });

  test("asks for no more output than a quarter of a limit if none is declared", async () => {
    const gate = await Gate.memory([llm({ tokens: 800 })]);
    const undeclared = { ...post, body: JSON.stringify({ model: "gpt-4o", messages: [] }) };
    const charged = wrapFetch(gate, { ...options, fetch: async () => ((seen = await used(gate)), new Response("{}")) });
    let seen;
    await (await charged(url(), undeclared)).text();
    assert.ok(seen[1] > 50 && seen[1] <= 210, `${seen}`);
  });

  test("takes a request for calls that it does not know", async () => {
    const gate = await Gate.memory([llm()]);
    const other = wrapFetch(gate, { ...options, subject: "p7", fetch: async () => new Response("ok") });
    assert.equal(await (await other(`${provider.url}/openai/v1/files`, { method: "POST", body: "x" })).text(), "ok");
    assert.deepEqual((await gate.standing("llm", "p7")).map(({ used }) => used), [1, 0, 0, 0]);
  });

  test("calls without a permit if it fails open, and does not call if it fails closed", async () => {
    const closed = await Gate.memory([llm()]);
    await closed.close();
    const open = wrapFetch(closed, { ...options, onUnavailable: "open" });
    assert.equal((await open(url(), post)).status, 200);
    await assert.rejects(wrapFetch(closed, options)(url(), post), { kind: "closed" });
  });

  test("counts other usage fields if it is told to", async () => {
    const gate = await Gate.memory([llm()]);
    const counting = wrapFetch(gate, { ...options, usage: { tokens: "completion_tokens" } });
    const reply = await (await counting(url(), post)).json();
    assert.equal((await used(gate))[1], reply.usage.completion_tokens);
    assert.throws(() => wrapFetch(gate, { ...options, usage: { tokens: "2 * x" } }), /"2 \* x" is not a field name/);
    assert.throws(() => wrapFetch(gate, { ...options, usage: { money: "x" } }), /unknown unit "money"/);
  });
});
