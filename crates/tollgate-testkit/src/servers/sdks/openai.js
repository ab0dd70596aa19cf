// The Node client of OpenAI: URL KEY MODEL SCENARIO..., prints a JSON object with the result of each.
const { OpenAI } = require("openai");
const [url, key, model, ...scenarios] = process.argv.slice(1);
const IMAGE = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const TOOL = { type: "function", function: { name: "get_weather", description: "The weather of a city.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } } };

const client = (options = {}) => new OpenAI({ baseURL: `${url}/openai/v1`, apiKey: key, maxRetries: 0, ...options });
const say = (content) => [{ role: "user", content }];

const scenario = {
  async plain(text = "Say something.", options = {}) {
    const answer = await client(options).chat.completions.create({ model, messages: say(text) });
    return { text: answer.choices[0].message.content, usage: [answer.usage.prompt_tokens, answer.usage.completion_tokens] };
  },
  async stream(stream_options) {
    let [text, chunks, usage] = ["", 0, null];
    for await (const chunk of await client().chat.completions.create({ model, messages: say("Say something."), stream: true, stream_options })) {
      chunks += 1;
      if (chunk.usage) usage = [chunk.usage.prompt_tokens, chunk.usage.completion_tokens];
      if (chunk.choices.length || !stream_options) text += chunk.choices[0].delta.content ?? "";
    }
    return { text, chunks, usage };
  },
  stream_usage: () => scenario.stream({ include_usage: true }),
  async tools() {
    const messages = say("What is the weather in Paris?");
    const first = (await client().chat.completions.create({ model, messages, tools: [TOOL] })).choices[0].message;
    const call = first.tool_calls[0];
    messages.push(first, { role: "tool", tool_call_id: call.id, content: "sunny" });
    const second = await client().chat.completions.create({ model, messages, tools: [TOOL] });
    return { name: call.function.name, arguments: JSON.parse(call.function.arguments), text: second.choices[0].message.content };
  },
  async image() {
    const content = [{ type: "text", text: "What is this?" }, { type: "image_url", image_url: { url: IMAGE } }];
    return { text: (await client().chat.completions.create({ model, messages: say(content) })).choices[0].message.content };
  },
  async responses() {
    const answer = await client().responses.create({ model, input: "Say something." });
    let [streamed, usage] = ["", null];
    for await (const event of await client().responses.create({ model, input: "Say something.", stream: true })) {
      if (event.type === "response.output_text.delta") streamed += event.delta;
      if (event.type === "response.completed") usage = [event.response.usage.input_tokens, event.response.usage.output_tokens];
    }
    return { text: answer.output_text, streamed, usage };
  },
  async embeddings() {
    const answer = await client().embeddings.create({ model, input: ["one", "two words"] });
    return { vectors: answer.data.map((item) => item.embedding.length), usage: [answer.usage.prompt_tokens, 0] };
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
