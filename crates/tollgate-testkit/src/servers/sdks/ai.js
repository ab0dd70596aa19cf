// The AI SDK with its provider of OpenAI: URL KEY MODEL SCENARIO..., prints a JSON object with the result of each.
const { generateText, streamText, embedMany, tool, stepCountIs } = require("ai");
const { createOpenAI } = require("@ai-sdk/openai");
const { z } = require("zod");
const [url, key, model, ...scenarios] = process.argv.slice(1);
const IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

const openai = createOpenAI({ baseURL: `${url}/openai/v1`, apiKey: key });
const usageOf = (usage) => [usage.inputTokens, usage.outputTokens];

const scenario = {
  // The default model of the provider calls the responses API.
  async plain(prompt = "Say something.", options = {}) {
    const { text, usage } = await generateText({ model: openai(model), prompt, maxRetries: 0, ...options });
    return { text, usage: usageOf(usage) };
  },
  async stream(chosen = openai(model)) {
    let [text, chunks] = ["", 0];
    const result = streamText({ model: chosen, prompt: "Say something.", maxRetries: 0 });
    for await (const part of result.textStream) { text += part; chunks += 1; }
    return { text, chunks, usage: usageOf(await result.usage) };
  },
  chat_stream: () => scenario.stream(openai.chat(model)),
  async tools() {
    const calls = [];
    const get_weather = tool({ description: "The weather of a city.", inputSchema: z.object({ city: z.string() }),
      execute: async (input) => { calls.push(input); return "sunny"; } });
    const { text } = await generateText({ model: openai.chat(model), prompt: "What is the weather in Paris?", tools: { get_weather }, stopWhen: stepCountIs(3), maxRetries: 0 });
    return { name: "get_weather", arguments: calls[0], text };
  },
  async image() {
    const content = [{ type: "text", text: "What is this?" }, { type: "image", image: IMAGE }];
    return { text: (await generateText({ model: openai(model), messages: [{ role: "user", content }], maxRetries: 0 })).text };
  },
  async embeddings() {
    const { embeddings, usage } = await embedMany({ model: openai.textEmbedding(model), values: ["one", "two words"], maxRetries: 0 });
    return { vectors: embeddings.map((vector) => vector.length), usage: [usage.tokens, 0] };
  },
  error: () => scenario.plain("Please fail with 400."),
  timeout: () => scenario.plain("Please be slow.", { abortSignal: AbortSignal.timeout(400) }),
  retry: () => scenario.plain("Please fail twice.", { maxRetries: 4 }),
};

(async () => {
  const results = {};
  for (const name of scenarios) {
    try {
      results[name] = await scenario[name]();
    } catch (error) {
      results[name] = { error: error.name, status: error.statusCode ?? null, message: error.message };
    }
  }
  console.log(JSON.stringify(results));
})();
