// The Node client of Gemini: URL KEY MODEL SCENARIO..., prints a JSON object with the result of each.
const { GoogleGenAI } = require("@google/genai");
const [url, key, model, ...scenarios] = process.argv.slice(1);
const IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const TOOLS = { tools: [{ functionDeclarations: [{ name: "get_weather", description: "The weather of a city.",
  parameters: { type: "OBJECT", properties: { city: { type: "STRING" } }, required: ["city"] } }] }] };

const client = (options = {}) => new GoogleGenAI({ apiKey: key, httpOptions: { baseUrl: `${url}/gemini`, ...options } });
const usageOf = ({ usageMetadata }) => [usageMetadata.promptTokenCount, usageMetadata.candidatesTokenCount];

const scenario = {
  async plain(text = "Say something.", options = {}) {
    const answer = await client(options).models.generateContent({ model, contents: text });
    return { text: answer.text, usage: usageOf(answer) };
  },
  async stream() {
    let [text, chunks, usage] = ["", 0, null];
    for await (const chunk of await client().models.generateContentStream({ model, contents: "Say something." })) {
      text += chunk.text ?? "";
      chunks += 1;
      if (chunk.usageMetadata) usage = usageOf(chunk);
    }
    return { text, chunks, usage };
  },
  async tools() {
    const contents = [{ role: "user", parts: [{ text: "What is the weather in Paris?" }] }];
    const first = await client().models.generateContent({ model, contents, config: TOOLS });
    const call = first.functionCalls[0];
    const functionResponse = { name: call.name, response: { result: "sunny" } };
    contents.push(first.candidates[0].content, { role: "user", parts: [{ functionResponse }] });
    const second = await client().models.generateContent({ model, contents, config: TOOLS });
    return { name: call.name, arguments: call.args, text: second.text };
  },
  async image() {
    const parts = [{ text: "What is this?" }, { inlineData: { mimeType: "image/png", data: IMAGE } }];
    return { text: (await client().models.generateContent({ model, contents: [{ role: "user", parts }] })).text };
  },
  async embeddings() {
    const answer = await client().models.embedContent({ model, contents: ["one", "two words"] });
    return { vectors: answer.embeddings.map((item) => item.values.length) };
  },
  async count_tokens() {
    return { usage: [(await client().models.countTokens({ model, contents: "Say something." })).totalTokens, 0] };
  },
  async models() {
    const names = [];
    for await (const item of await client().models.list()) names.push(item.name);
    return { models: names };
  },
  error: () => scenario.plain("Please fail with 400."),
  timeout: () => scenario.plain("Please be slow.", { timeout: 400 }),
  retry: () => scenario.plain("Please fail twice.", { retryOptions: { attempts: 5, initialDelayMs: 10 } }),
};

(async () => {
  const results = {};
  for (const name of scenarios) {
    try {
      results[name] = await scenario[name]();
    } catch (error) {
      results[name] = { error: error.constructor.name, status: error.status ?? null, message: error.message };
    }
  }
  console.log(JSON.stringify(results));
})();
