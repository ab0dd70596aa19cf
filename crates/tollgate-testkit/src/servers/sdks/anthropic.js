// The Node client of Anthropic: URL KEY MODEL SCENARIO..., prints a JSON object with the result of each.
const { Anthropic } = require("@anthropic-ai/sdk");
const [url, key, model, ...scenarios] = process.argv.slice(1);
const IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const TOOL = { name: "get_weather", description: "The weather of a city.",
  input_schema: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } };

const client = (options = {}) => new Anthropic({ baseURL: `${url}/anthropic`, apiKey: key, maxRetries: 0, ...options });
const say = (content) => [{ role: "user", content }];
const ask = (messages, rest = {}, options = {}) => client(options).messages.create({ model, max_tokens: 100, messages, ...rest });

const scenario = {
  async plain(text = "Say something.", options = {}) {
    const answer = await ask(say(text), {}, options);
    return { text: answer.content[0].text, usage: [answer.usage.input_tokens, answer.usage.output_tokens] };
  },
  async stream() {
    let [text, chunks] = ["", 0];
    const events = client().messages.stream({ model, max_tokens: 100, messages: say("Say something.") });
    events.on("text", (part) => { text += part; chunks += 1; });
    const { usage } = await events.finalMessage();
    return { text, chunks, usage: [usage.input_tokens, usage.output_tokens] };
  },
  async tools() {
    const messages = say("What is the weather in Paris?");
    const first = await ask(messages, { tools: [TOOL] });
    const call = first.content[0];
    const result = { type: "tool_result", tool_use_id: call.id, content: "sunny" };
    messages.push({ role: "assistant", content: first.content }, { role: "user", content: [result] });
    const second = await ask(messages, { tools: [TOOL] });
    return { name: call.name, arguments: call.input, text: second.content[0].text };
  },
  async image() {
    const source = { type: "base64", media_type: "image/png", data: IMAGE };
    return { text: (await ask(say([{ type: "image", source }, { type: "text", text: "What is this?" }]))).content[0].text };
  },
  async count_tokens() {
    return { usage: [(await client().messages.countTokens({ model, messages: say("Say something.") })).input_tokens, 0] };
  },
  async models() {
    return { models: (await client().models.list()).data.map((item) => item.id) };
  },
  error: () => scenario.plain("Please fail with 400."),
  timeout: () => scenario.plain("Please be slow.", { timeout: 400 }),
  retry: () => scenario.plain("Please fail twice.", { maxRetries: 4 }),
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
