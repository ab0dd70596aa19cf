import { checkCosts, checkFields, checkText, checkWhole, show } from "./ask.js";
import { Denied, InvalidInput, TollgateError } from "./errors.js";
import type { Gate } from "./gate.js";
import { type NativeMeter, call, native } from "./native.js";
import { RunPermit } from "./permit.js";
import type { Ask, AskOptions, Charge, Costs } from "./types.js";

/** Whose API is called. */
export type Dialect = "openai" | "anthropic" | "gemini";

/** How an answer ended. */
type Ending = "complete" | "broken" | "abandoned";

/** What {@link FetchOptions.subject} is told about a call. */
export interface FetchedCall {
  url: URL;
  /** Null for a call that uses no tokens or is not known. */
  model: string | null;
}

/** Settings of {@link wrapFetch}. */
export interface FetchOptions {
  /** The policy that calls are charged to. */
  policy?: string;
  /** The subject that calls are charged to: a text, or a function of the call. */
  subject?: string | ((call: FetchedCall) => string);
  /** Several charges instead of one policy and subject. */
  charges?: readonly Charge[] | ((call: FetchedCall) => readonly Charge[]);
  /** Further costs, and replacements of the estimate. */
  costs?: Costs;
  /** Waits at most so long for room before a call is denied. */
  waitMs?: number;
  /** See {@link AskOptions.tenant}. */
  tenant?: string;
  /** Whose API is called, for compatible servers. The providers' own hosts are recognised. */
  dialect?: Dialect;
  /** Which usage fields count into which unit, such as `{ tokens: "promptTokenCount + candidatesTokenCount" }`. */
  usage?: Record<string, string>;
  /**
   * `"response"` (the default) answers a denied call as the provider would: 429 with `retry-after`, which SDKs obey. `"throw"`
   * throws {@link Denied}, which SDKs wrap in an error of their own.
   */
  onDenied?: "response" | "throw";
  /** What happens while the gate cannot decide: `"closed"` (the default) throws, `"open"` calls without a permit. */
  onUnavailable?: "closed" | "open";
  /** Replaces the global `fetch`. */
  fetch?: typeof fetch;
}

const OPTIONS = [
  "policy",
  "subject",
  "charges",
  "costs",
  "waitMs",
  "tenant",
  "dialect",
  "usage",
  "onDenied",
  "onUnavailable",
  "fetch",
];
const DIALECTS: readonly unknown[] = ["openai", "anthropic", "gemini"];

/** SDKs obey any wait. Longer ones are not worth a blocked caller. */
const RETRY_MAX_MS = 60_000;
/** The wait after a refusal that names none. */
const RETRY_DEFAULT_MS = 5_000;
const ERROR_BYTES_MAX = 1 << 20;

/**
 * Returns a `fetch` that takes a permit for every call to an LLM provider and settles it with the usage that the answer reports,
 * streamed or not. Give it to an SDK as its `fetch`.
 */
export function wrapFetch(gate: Gate, options: FetchOptions): typeof fetch {
  check(options);
  const send = options.fetch ?? fetch;
  return async (input, init) => {
    const request = new Request(input, init);
    // Models are listed without a permit: it costs nothing.
    if (request.method === "GET" || request.method === "HEAD") return send(input, init);
    const url = new URL(request.url);
    const dialect = options.dialect ?? (native.dialectOfHost(url.hostname) as Dialect | null);
    if (dialect === null) {
      throw new InvalidInput(
        `wrapFetch: ${url.host} is not the host of a known provider; set dialect to "openai", "anthropic" or "gemini"`,
      );
    }
    return new Exchange(gate, options, dialect, request, url).run(send, init);
  };
}

/** One call. */
class Exchange {
  readonly #gate: Gate;
  readonly #options: FetchOptions;
  readonly #dialect: Dialect;
  readonly #request: Request;
  readonly #url: URL;

  constructor(gate: Gate, options: FetchOptions, dialect: Dialect, request: Request, url: URL) {
    this.#gate = gate;
    this.#options = options;
    this.#dialect = dialect;
    this.#request = request;
    this.#url = url;
  }

  async run(send: typeof fetch, init: RequestInit | undefined): Promise<Response> {
    const request = this.#request;
    const { signal } = request;
    let body = request.body === null ? null : new Uint8Array(await request.arrayBuffer());
    const meter = this.#meter(body ?? new Uint8Array());
    let permit: RunPermit | null;
    try {
      permit = new RunPermit(await this.#gate.acquire(this.#ask(meter, signal)));
    } catch (error) {
      if (error instanceof Denied && this.#options.onDenied !== "throw") return this.#denial(error);
      const isUndecided = error instanceof TollgateError && !(error instanceof Denied) && !(error instanceof InvalidInput);
      if (!isUndecided || this.#options.onUnavailable !== "open") throw error;
      permit = null;
    }
    if (meter !== null && body !== null) body = meter.requestBody(body);
    const { method, headers, redirect } = request;
    // A length that was set for the old body would be wrong.
    headers.delete("content-length");
    let response: Response;
    try {
      // What a Request does not show, such as the dispatcher of a proxy, is only in `init`.
      response = await send(this.#url.href, { ...init, method, headers, redirect, body, signal });
    } catch (error) {
      if (permit !== null) {
        if (isUnsent(error)) permit.release();
        await this.#gate.finish(permit);
      }
      throw error;
    }
    if (permit === null) return response;
    if (response.ok) return this.#relay(response, meter, permit);
    return this.#refused(response, meter, permit);
  }

  #charges(call: FetchedCall): readonly Charge[] {
    const { policy, subject, charges } = this.#options;
    if (charges !== undefined) return typeof charges === "function" ? charges(call) : charges;
    const named = typeof subject === "function" ? subject(call) : subject;
    return [{ policy: policy ?? "", subject: named ?? "" }];
  }

  /** Returns what reads usage; null for a call that has none, such as a count of tokens. */
  #meter(body: Uint8Array): NativeMeter | null {
    const meter = (limits: [string, number][]): NativeMeter | null =>
      call(() =>
        native.meter({
          dialect: this.#dialect,
          method: this.#request.method,
          path: this.#url.pathname,
          ...(this.#url.search !== "" && { query: this.#url.search.slice(1) }),
          body,
          limits: JSON.stringify(limits),
          ...(this.#options.usage && { usage: JSON.stringify(this.#options.usage) }),
        }),
      );
    try {
      const first = meter([]);
      if (first === null) return null;
      const charges = this.#charges({ url: this.#url, model: first.model() });
      return meter(charges.flatMap(({ policy, subject }) => this.#gate.mostOf(policy, subject)));
    } catch (error) {
      // A call that the dialect does not cover, such as a file: it costs a request, and reports no usage.
      if (error instanceof InvalidInput && error.kind === "invalid") return null;
      throw error;
    }
  }

  #ask(meter: NativeMeter | null, signal: AbortSignal): Ask {
    const charges = this.#charges({ url: this.#url, model: meter?.model() ?? null });
    const estimate: Record<string, number> = {};
    if (meter !== null) {
      const units = new Set(charges.flatMap(({ policy, subject }) => this.#gate.mostOf(policy, subject)).map(([unit]) => unit));
      for (const [unit, cost] of Object.entries(JSON.parse(meter.estimate()) as Costs)) {
        if (units.has(unit)) estimate[unit] = cost;
      }
    }
    const { waitMs, tenant } = this.#options;
    const options: AskOptions = { costs: { ...estimate, ...this.#options.costs }, signal };
    if (waitMs !== undefined) options.waitMs = waitMs;
    if (tenant !== undefined) options.tenant = tenant;
    return { charges, ...options };
  }

  /** Answers in the provider's place. */
  #denial(denied: Denied): Response {
    const { retryAfterMs } = denied;
    const headers = new Headers({ "content-type": "application/json", "x-tollgate-limit": denied.limit });
    if (retryAfterMs !== null) {
      headers.set("retry-after", String(Math.ceil(retryAfterMs / 1000)));
      headers.set("retry-after-ms", String(retryAfterMs));
    }
    if (retryAfterMs === null || retryAfterMs > RETRY_MAX_MS) headers.set("x-should-retry", "false");
    const body = call(() => native.denialBody(this.#dialect, denied.message, retryAfterMs));
    return new Response(body, { status: 429, statusText: "Too Many Requests", headers });
  }

  /** Passes an answer on as it arrives, and settles when it ends. */
  #relay(response: Response, meter: NativeMeter | null, permit: RunPermit): Response {
    const headers = new Headers(response.headers);
    if (meter?.begin(headers.get("content-type") ?? "")) headers.delete("content-length");
    const settle = async (ending: Ending): Promise<void> => {
      if (meter !== null) {
        const charged = permit.permit.costs;
        const used = Object.entries(JSON.parse(meter.end(ending)) as Costs);
        permit.settle(Object.fromEntries(used.filter(([unit]) => charged.some((costs) => unit in costs))));
      }
      await this.#gate.finish(permit);
    };
    if (response.body === null) {
      void settle("complete");
      return response;
    }
    return like(response, pass(response.body, meter, settle), headers);
  }

  /** Gives tokens back where the provider did nothing, and closes the limit that it named. */
  async #refused(response: Response, meter: NativeMeter | null, permit: RunPermit): Promise<Response> {
    const { status } = response;
    const body = await bounded(response);
    const isUnprocessed = [401, 403, 404, 429, 503, 529].includes(status);
    if (isUnprocessed && meter !== null) {
      const tokens = Object.keys(permit.permit.costs[0] ?? {}).filter((unit) => unit !== "requests");
      const estimated = JSON.parse(meter.estimate()) as Costs;
      permit.settle(Object.fromEntries(tokens.filter((unit) => unit in estimated).map((unit) => [unit, 0])));
    }
    if (status === 429) {
      const headers = JSON.stringify([...response.headers]);
      const refusal = call(() => native.refusal(this.#dialect, status, headers, body, this.#gate.nowMs));
      if (refusal.isQuota) {
        const limit = this.#limitOf(permit, refusal.units);
        const violation = { retryAfterMs: Math.max(1, refusal.retryAfterMs ?? RETRY_DEFAULT_MS), ...(limit && { limit }) };
        // The answer matters more than the record of it.
        await permit.violation(violation).catch((error: TollgateError) => this.#gate.report(error));
      }
    }
    await this.#gate.finish(permit);
    return like(response, body.byteLength === 0 ? null : body, response.headers);
  }

  /** The limit of the last charge, usually the provider's own, whose unit the refusal names. */
  #limitOf(permit: RunPermit, units: readonly string[]): string | undefined {
    const limits = permit.permit.charges.at(-1)?.limits ?? [];
    return limits.find(({ unit }) => units.includes(unit))?.name;
  }
}

/** A copy of `response` with another body. */
function like(
  response: Response,
  body: ReadableStream<Uint8Array> | Uint8Array<ArrayBuffer> | null,
  headers: Headers,
): Response {
  const { status, statusText, url, redirected } = response;
  const copy = new Response(body, { status, statusText, headers });
  Object.defineProperty(copy, "url", { value: url });
  Object.defineProperty(copy, "redirected", { value: redirected });
  return copy;
}

/** Some SDKs stop reading without cancelling. Then the stream is not used any more, and the collector of garbage ends the call. */
const forgotten = new FinalizationRegistry<() => void>((abandon) => abandon());

/** Copies `body` chunk by chunk through `meter`, and calls `end` once. */
function pass(
  body: ReadableStream<Uint8Array>,
  meter: NativeMeter | null,
  end: (ending: Ending) => Promise<void>,
): ReadableStream<Uint8Array> {
  const reader = body.getReader();
  const token = {};
  const finish = async (ending: Ending): Promise<void> => {
    forgotten.unregister(token);
    await end(ending);
  };
  const passed = new ReadableStream<Uint8Array>(
    {
      async pull(controller) {
        for (;;) {
          let read;
          try {
            read = await reader.read();
          } catch (error) {
            await finish("broken");
            throw error;
          }
          if (read.done) {
            const rest = meter?.finish();
            if (rest !== undefined && rest.byteLength > 0) controller.enqueue(rest);
            await finish("complete");
            controller.close();
            return;
          }
          const bytes = meter?.feed(read.value) ?? read.value;
          // A chunk of which nothing is left would end some readers; the next one has more.
          if (bytes.byteLength > 0) {
            controller.enqueue(bytes);
            return;
          }
        }
      },
      async cancel(reason) {
        await reader.cancel(reason);
        await finish("abandoned");
      },
    },
    // Nothing is read before the caller reads.
    { highWaterMark: 0 },
  );
  const abandon = (): void => {
    reader.cancel().catch(() => {});
    void end("abandoned");
  };
  forgotten.register(passed, abandon, token);
  return passed;
}

async function bounded(response: Response): Promise<Uint8Array<ArrayBuffer>> {
  const body = new Uint8Array(await response.arrayBuffer());
  return body.byteLength <= ERROR_BYTES_MAX ? body : body.slice(0, ERROR_BYTES_MAX);
}

/** Whether a request certainly never arrived. */
function isUnsent(error: unknown): boolean {
  const { cause } = error as { cause?: { code?: string; errors?: { code?: string }[] } };
  const codes = cause?.errors?.map(({ code }) => code) ?? [cause?.code];
  const unsent = ["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT"];
  return codes.length > 0 && codes.every((code) => unsent.includes(code ?? ""));
}

function check(options: FetchOptions): void {
  checkFields("options", options, OPTIONS);
  const { policy, subject, charges } = options;
  if (charges === undefined) {
    checkText("options.policy", policy);
    if (typeof subject !== "function") checkText("options.subject", subject);
  } else {
    if (policy !== undefined || subject !== undefined) {
      throw new InvalidInput("options: name a policy and a subject, or charges, not both");
    }
    if (typeof charges !== "function" && !Array.isArray(charges)) {
      throw new InvalidInput(`options.charges: expected a list or a function, not ${show(charges)}`);
    }
  }
  if (options.costs !== undefined) checkCosts("options.costs", options.costs);
  if (options.waitMs !== undefined) checkWhole("options.waitMs", options.waitMs);
  if (options.tenant !== undefined) checkText("options.tenant", options.tenant);
  if (options.dialect !== undefined && !DIALECTS.includes(options.dialect)) {
    throw new InvalidInput(`options.dialect: use "openai", "anthropic" or "gemini", not ${show(options.dialect)}`);
  }
  if (options.usage !== undefined) call(() => native.checkUsage(JSON.stringify(options.usage)));
  const choices = { onDenied: ["response", "throw"], onUnavailable: ["closed", "open"] } as const;
  for (const name of ["onDenied", "onUnavailable"] as const) {
    const [first, second] = choices[name];
    const value = options[name];
    if (value !== undefined && value !== first && value !== second) {
      throw new InvalidInput(`options.${name}: use "${first}" or "${second}", not ${show(value)}`);
    }
  }
  if (options.fetch !== undefined && typeof options.fetch !== "function") {
    throw new InvalidInput(`options.fetch: expected a function, not ${show(options.fetch)}`);
  }
}
