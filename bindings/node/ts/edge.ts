/**
 * A client of a broker that needs nothing but `fetch`: for Workers, Lambda@Edge, Deno and browsers' service workers.
 *
 * @module
 */

import { askJson, checkCosts, checkFields, checkText, checkWhole, show } from "./ask.js";
import { Denied, InvalidInput, TollgateError, Unavailable, errorOfKind } from "./errors.js";
import type { ActualCosts, Ask, ChargeStanding, Costs, LimitStanding, Violation } from "./types.js";
import { type AdmittedJson, type DeniedJson, type LimitJson, readCharges, readLimits, readTime } from "./wire.js";

export { Denied, InvalidInput, TollgateError, Unavailable };
export type * from "./types.js";

/** Settings of an {@link EdgeGate}. */
export interface EdgeOptions {
  /** The broker's API key. */
  key?: string;
  /** How long a call may take, on top of the wait that an ask names. 2000 by default. */
  timeoutMs?: number;
  /**
   * What happens while the broker cannot decide: `"closed"` (the default) throws {@link Unavailable}, `"open"` admits without a
   * charge and marks the permit `degraded`.
   */
  onUnavailable?: "closed" | "open";
  /** Is told of every failure that `"open"` hides. */
  onError?: (error: TollgateError) => void;
  /** Replaces the global `fetch`. */
  fetch?: typeof fetch;
  /** Keeps the runtime alive for a clean-up after an abort, as `ctx.waitUntil` of Workers does. */
  waitUntil?: (work: Promise<unknown>) => void;
}

const OPTIONS = ["key", "timeoutMs", "onUnavailable", "onError", "fetch", "waitUntil"];
const TIMEOUT_MS = 2_000;
/** How long the broker remembers an ask that may have to be undone. */
const UNDO_TTL_MS = 60_000;
/** The most bytes of an answer that are read. */
const ANSWER_BYTES_MAX = 1 << 20;

/** A permit of a broker. */
export class EdgePermit {
  /** Distinguishes a permit from a denial. */
  readonly admitted = true as const;
  /** Whether this was decided without the store, or without the broker. */
  readonly degraded: boolean;
  readonly limits: LimitStanding[];
  /** Where the subject of every charge is, for an ask with several. */
  readonly charges: ChargeStanding[];
  /** Until when the call should reach the provider. */
  readonly useByMs: number | null;
  /** The denial that a policy in shadow mode did not enforce. */
  readonly shadowDenied: Denied | null;
  #gate: EdgeGate;
  #token: string | null;
  #expiresAtMs: number | null;

  /** @internal */
  constructor(gate: EdgeGate, admitted: AdmittedJson | null) {
    this.#gate = gate;
    this.#token = admitted?.permit ?? null;
    this.degraded = admitted?.degraded ?? true;
    this.limits = readLimits(admitted?.limits ?? []);
    this.charges = readCharges(admitted?.charges);
    this.useByMs = readTime(admitted?.use_by);
    this.#expiresAtMs = readTime(admitted?.expires_at);
    this.shadowDenied = admitted?.shadow_denied ? new Denied(admitted.shadow_denied) : null;
  }

  /** The permit as text, for another process that settles it; null if the broker was away and charged nothing. */
  get token(): string | null {
    return this.#token;
  }

  /** When the slots that it holds expire, unless they are renewed. */
  get expiresAtMs(): number | null {
    return this.#expiresAtMs;
  }

  /** Replaces the estimate by what the call really cost. Idempotent; returns whether anything changed. */
  async settle(actual: Costs = {}, own: ActualCosts["charges"] = []): Promise<boolean> {
    checkCosts("actual", actual);
    if (this.#token === null) return false;
    const body = { permit: this.#token, actual, ...(own.length > 0 && { charges: own }) };
    return this.#gate.change("/v1/settle", body);
  }

  /** Gives everything back: the call was not made. Idempotent; returns whether anything changed. */
  async release(): Promise<boolean> {
    if (this.#token === null) return false;
    return this.#gate.change("/v1/release", { permit: this.#token });
  }

  /** Extends the slots by another time to live. */
  async renew(): Promise<void> {
    if (this.#token === null) return;
    const renewed = await this.#gate.renewal(this.#token);
    this.#token = renewed.permit;
    this.#expiresAtMs = readTime(renewed.expires_at);
  }

  /** Reports that the provider refused the call, and closes the limit for as long as it asked to wait. */
  async violation(violation: Violation): Promise<void> {
    const body = violationJson(violation);
    if (this.#token === null) return;
    await this.#gate.change("/v1/violations", { ...body, permit: this.#token });
  }
}

/** What a function given to {@link EdgeGate.run} may say about its call. */
export interface EdgeRunPermit {
  readonly permit: EdgePermit;
  readonly degraded: boolean;
  readonly limits: LimitStanding[];
  /** Records the real cost; it is sent when the function ends. */
  settle(actual: Costs): void;
  /** Records that the call was not made; sent when the function ends. */
  release(): void;
}

/** A broker, reached with `fetch` alone. */
export class EdgeGate {
  readonly #url: string;
  readonly #options: EdgeOptions;
  readonly #fetch: typeof fetch;
  readonly #timeoutMs: number;

  /** Talks to the broker at `url`, such as `https://broker.example:8080`. Connects to nothing yet. */
  constructor(url: string, options: EdgeOptions = {}) {
    checkFields("options", options, OPTIONS);
    let parsed: URL | undefined;
    try {
      parsed = new URL(url);
    } catch {
      // Reported below, with the others.
    }
    if (parsed === undefined || !/^https?:$/.test(parsed.protocol) || parsed.search !== "" || parsed.hash !== "") {
      throw new InvalidInput(`url: expected the http or https URL of a broker, not ${show(url)}`);
    }
    if (parsed.username !== "" || parsed.password !== "") {
      throw new InvalidInput("url: must not contain credentials; pass the key as options.key");
    }
    if (options.key !== undefined && !/^[\x21-\x7e]+$/.test(options.key)) {
      throw new InvalidInput("options.key: expected visible ASCII characters without spaces");
    }
    if (options.timeoutMs !== undefined) checkWhole("options.timeoutMs", options.timeoutMs);
    if (options.timeoutMs === 0) throw new InvalidInput("options.timeoutMs: must be at least 1");
    if (options.onUnavailable !== undefined && !["open", "closed"].includes(options.onUnavailable)) {
      throw new InvalidInput(`options.onUnavailable: use "open" or "closed", not ${show(options.onUnavailable)}`);
    }
    for (const name of ["onError", "fetch", "waitUntil"] as const) {
      if (options[name] !== undefined && typeof options[name] !== "function") {
        throw new InvalidInput(`options.${name}: expected a function, not ${show(options[name])}`);
      }
    }
    this.#url = parsed.href.replace(/\/+$/, "");
    this.#options = options;
    // Called as a method of anything else, `fetch` of Workers throws "Illegal invocation".
    this.#fetch = options.fetch ?? ((input, init) => fetch(input, init));
    this.#timeoutMs = options.timeoutMs ?? TIMEOUT_MS;
  }

  /** Takes a permit, or throws {@link Denied}. */
  async acquire(ask: Ask): Promise<EdgePermit> {
    const answer = await this.tryAcquire(ask);
    if (!answer.admitted) throw answer;
    return answer;
  }

  /** As {@link acquire}, but returns the denial instead of throwing it. */
  async tryAcquire(ask: Ask): Promise<EdgePermit | Denied> {
    const json = askJson(ask);
    const { signal, waitMs = 0 } = ask;
    signal?.throwIfAborted();
    if (waitMs > 0) json.wait_ms = waitMs;
    // An ask that may be given up has an id: only so can an admission whose answer is lost be found and undone.
    if (json.id === undefined && (waitMs > 0 || signal !== undefined)) {
      json.id = crypto.randomUUID();
      json.id_ttl_ms = UNDO_TTL_MS;
    }
    try {
      const { status, body } = await this.#call("POST", "/v1/acquire", json, this.#timeoutMs + waitMs, signal);
      if (status === 429) return new Denied(body as DeniedJson);
      const permit = new EdgePermit(this, body as AdmittedJson);
      if (signal?.aborted) {
        this.#inBackground(permit.release());
        signal.throwIfAborted();
      }
      return permit;
    } catch (error) {
      if (signal?.aborted) {
        this.#inBackground(this.#undo(json));
        throw signal.reason;
      }
      if (this.#options.onUnavailable === "open" && error instanceof Unavailable) {
        this.#options.onError?.(error);
        return new EdgePermit(this, null);
      }
      throw error;
    }
  }

  /**
   * Takes a permit, calls `call`, and settles or releases as it recorded. If nothing was recorded, or `call` throws, the
   * estimate stays charged and slots are freed.
   */
  async run<T>(ask: Ask, call: (permit: EdgeRunPermit) => Promise<T> | T): Promise<T> {
    if (typeof call !== "function") throw new InvalidInput(`run: expected a function, not ${show(call)}`);
    const permit = await this.acquire(ask);
    let record = (): Promise<boolean> => permit.settle({});
    try {
      return await call({
        permit,
        degraded: permit.degraded,
        limits: permit.limits,
        settle: (actual) => {
          checkCosts("actual", actual);
          record = () => permit.settle(actual);
        },
        release: () => {
          record = () => permit.release();
        },
      });
    } finally {
      // The call was made: its result must not be lost because the broker is away now.
      await record().catch((error: TollgateError) => this.#options.onError?.(error));
    }
  }

  /** Returns where `subject` is on every limit of `policy`, consuming nothing. */
  async standing(policy: string, subject: string): Promise<LimitStanding[]> {
    checkText("policy", policy);
    checkText("subject", subject);
    const query = new URLSearchParams({ policy, subject });
    const { body } = await this.#call("GET", `/v1/standing?${query}`, undefined, this.#timeoutMs);
    return readLimits((body as { limits: LimitJson[] }).limits);
  }

  /** Reports that the provider refused a call of `subject`. The key needs the scope `administer`; a permit's own report does not. */
  async violation(policy: string, subject: string, violation: Violation): Promise<void> {
    checkText("policy", policy);
    checkText("subject", subject);
    await this.change("/v1/violations", { ...violationJson(violation), policy, subject });
  }

  /** Returns the permit that was encoded as `token`, so that another process can settle it. */
  permit(token: string): EdgePermit {
    checkText("token", token);
    return new EdgePermit(this, { admitted: true, permit: token, limits: [], degraded: false });
  }

  /** @internal */
  async change(path: string, body: object): Promise<boolean> {
    const answer = await this.#call("POST", path, body, this.#timeoutMs);
    return (answer.body as { changed?: boolean }).changed ?? true;
  }

  /** @internal */
  async renewal(permit: string): Promise<AdmittedJson> {
    const answer = await this.#call("POST", "/v1/renew", { permit }, this.#timeoutMs);
    return answer.body as AdmittedJson;
  }

  /** Takes back what an ask may have been given whose answer never came: the same ask gets the same permit. */
  async #undo(json: ReturnType<typeof askJson>): Promise<void> {
    const { wait_ms: _, ...again } = json;
    const { status, body } = await this.#call("POST", "/v1/acquire", again, this.#timeoutMs);
    if (status === 200) await this.change("/v1/release", { permit: (body as AdmittedJson).permit });
  }

  #inBackground(work: Promise<unknown>): void {
    const done = work.catch((error: TollgateError) => this.#options.onError?.(error));
    this.#options.waitUntil?.(done);
  }

  /** Sends a request and returns a decision or a success; throws for every other answer. */
  async #call(
    method: string,
    path: string,
    body: object | undefined,
    timeoutMs: number,
    signal?: AbortSignal,
  ): Promise<{ status: number; body: unknown }> {
    const headers: Record<string, string> = { accept: "application/json, application/problem+json" };
    if (body !== undefined) headers["content-type"] = "application/json";
    if (this.#options.key !== undefined) headers.authorization = `Bearer ${this.#options.key}`;
    const timer = AbortSignal.timeout(timeoutMs);
    let status: number;
    let text: string;
    try {
      const response = await this.#fetch(this.#url + path, {
        method,
        headers,
        body: body === undefined ? undefined : JSON.stringify(body),
        signal: signal === undefined ? timer : AbortSignal.any([timer, signal]),
        redirect: "manual",
      });
      status = response.status;
      text = await readText(response);
    } catch (error) {
      if (error instanceof TollgateError) throw error;
      const why = timer.aborted ? `did not answer within ${timeoutMs} ms` : `cannot be reached: ${cause(error)}`;
      const kind = timer.aborted ? "timed-out" : "unavailable";
      throw new Unavailable(`the broker ${this.#url} ${why}`, kind, { cause: error });
    }
    const json = parse(text);
    const isOk = status === 200 && typeof json === "object" && json !== null;
    if (isOk && isExpected(path, json)) return { status, body: json };
    if (status === 429 && isDenial(json)) return { status, body: json };
    const problem = (json ?? {}) as { kind?: unknown; detail?: unknown };
    if (typeof problem.kind === "string" && typeof problem.detail === "string") {
      throw errorOfKind(problem.kind, problem.detail);
    }
    // Whatever is at that address, it is not a broker that decided.
    throw new Unavailable(
      `${this.#url}${path.replace(/\?.*/, "")} answered ${status}${isOk ? "" : " without a broker's JSON"}; check the URL and what is in front of it`,
      "misconfigured",
    );
  }
}

function violationJson(violation: Violation): { retry_after_ms: number; limit?: string } {
  checkFields("violation", violation, ["retryAfterMs", "limit"]);
  checkWhole("violation.retryAfterMs", violation.retryAfterMs);
  if (violation.limit !== undefined) checkText("violation.limit", violation.limit);
  return { retry_after_ms: violation.retryAfterMs, ...(violation.limit !== undefined && { limit: violation.limit }) };
}

async function readText(response: Response): Promise<string> {
  const reader = response.body?.getReader();
  if (reader === undefined) return "";
  const decoder = new TextDecoder();
  let text = "";
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return text + decoder.decode();
    size += value.byteLength;
    if (size > ANSWER_BYTES_MAX) {
      await reader.cancel();
      throw new Unavailable(`the broker's answer has more than ${ANSWER_BYTES_MAX} bytes`, "misconfigured");
    }
    text += decoder.decode(value, { stream: true });
  }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

/** Whether an answer with status 200 is one that the path can have. */
function isExpected(path: string, json: object): boolean {
  const { admitted, permit, limits } = json as Partial<AdmittedJson>;
  if (path === "/v1/acquire") return admitted === true && typeof permit === "string" && Array.isArray(limits);
  if (path === "/v1/renew") return typeof permit === "string";
  if (path.startsWith("/v1/standing")) return Array.isArray(limits);
  return true;
}

function isDenial(json: unknown): json is DeniedJson {
  const { limit, detail, limits } = (json ?? {}) as Partial<DeniedJson>;
  return typeof limit === "string" && typeof detail === "string" && Array.isArray(limits);
}

function cause(error: unknown): string {
  const { message, cause } = error as { message?: string; cause?: { code?: string; message?: string } };
  return cause?.code ?? cause?.message ?? message ?? "unknown reason";
}
