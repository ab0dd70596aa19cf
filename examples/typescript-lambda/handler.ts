// Answers questions with Gemini, within a quota that all instances of the function share in a DynamoDB table.
import { ApiError, GoogleGenAI } from "@google/genai";
import type { APIGatewayProxyEventV2, APIGatewayProxyStructuredResultV2 } from "aws-lambda";
import { Gate, type PolicySpec, wrapFetch } from "tollgate";

/** The limits of the provider's free tier. The margin covers the way from an admission to the provider. */
const GEMINI: PolicySpec = {
  name: "gemini-free",
  limits: [
    { name: "rpm", unit: "requests", rule: "rolling-window", limit: 5, window: "1m", margin: "2s" },
    { name: "tpm", unit: "tokens", rule: "rolling-window", limit: 250_000, window: "1m", margin: "2s" },
    { name: "rpd", unit: "requests", rule: "calendar-window", limit: 25, period: "day", time_zone: "America/Los_Angeles" },
  ],
};

/** API Gateway waits 30 seconds: a question waits for at most 10 of them. */
const WAIT_MS = 10_000;

const { GEMINI_API_KEY, GEMINI_MODEL = "gemini-2.5-flash", GEMINI_URL, TOLLGATE_ENDPOINT, TOLLGATE_TABLE = "tollgate" } = process.env;

// Opened once for each instance, not for each call. A failure is tried again by the next call.
let opened: Promise<{ gate: Gate; ai: GoogleGenAI }> | undefined;

async function open(): Promise<{ gate: Gate; ai: GoogleGenAI }> {
  const store = TOLLGATE_ENDPOINT === undefined ? {} : { store: { endpoint: TOLLGATE_ENDPOINT } };
  const gate = await Gate.dynamodb(TOLLGATE_TABLE, [GEMINI], store);
  const fetch = wrapFetch(gate, { policy: GEMINI.name, subject: "account", dialect: "gemini", waitMs: WAIT_MS });
  const httpOptions = { fetch, ...(GEMINI_URL !== undefined && { baseUrl: GEMINI_URL }) };
  return { gate, ai: new GoogleGenAI({ apiKey: GEMINI_API_KEY ?? "", httpOptions }) };
}

export async function handler(event: APIGatewayProxyEventV2): Promise<APIGatewayProxyStructuredResultV2> {
  const question = readQuestion(event.body);
  if (question === undefined) return reply(400, { error: 'send {"question": "…"}' });
  opened ??= open();
  const { ai } = await opened.catch((error: unknown) => {
    opened = undefined;
    throw error;
  });
  try {
    const answer = await ai.models.generateContent({ model: GEMINI_MODEL, contents: question, config: { maxOutputTokens: 1_000 } });
    return reply(200, { answer: answer.text });
  } catch (error) {
    if (error instanceof ApiError && error.status === 429) return reply(429, { error: error.message });
    throw error;
  }
}

function readQuestion(body: string | undefined): string | undefined {
  try {
    const { question } = JSON.parse(body ?? "") as { question?: unknown };
    return typeof question === "string" && question !== "" ? question : undefined;
  } catch {
    return undefined;
  }
}

function reply(statusCode: number, body: object): APIGatewayProxyStructuredResultV2 {
  return { statusCode, headers: { "content-type": "application/json" }, body: JSON.stringify(body) };
}
