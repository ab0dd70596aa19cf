import { type AskJson, askJson, checkFields, checkText, checkWhole, show } from "./ask.js";
import { ManualClock } from "./clock.js";
import { Denied, InvalidInput, type TollgateError } from "./errors.js";
import { type NativeGate, type NativePermit, call, native, start } from "./native.js";
import { Permit, RunPermit, checkViolation } from "./permit.js";
import type { Ask, Costs, LimitStanding, PolicySpec, SingleAsk, Violation } from "./types.js";
import { type DeniedJson, type LimitJson, readLimits } from "./wire.js";

/** Settings of every gate that is opened in code. Names and values are those of `tollgate.toml`. */
export interface GateOptions {
  /** Further keys of `[store]`, such as `{ prefix: "shop:" }` or `{ attempt_timeout: "200ms" }`. */
  store?: Record<string, string | number | boolean | readonly string[]>;
  /** The section `[strategy]`, such as `{ kind: "leased" }`. */
  strategy?: Record<string, unknown>;
  /** The section `[fallback]`, such as `{ instances: 4 }`. */
  fallback?: Record<string, unknown>;
  /** Another clock than the machine's, for tests. */
  clock?: ManualClock;
  /** Is told of settlements of {@link Gate.run} and of middleware that failed. By default they are process warnings. */
  onSettleError?: (error: TollgateError) => void;
}

/** Settings of {@link Gate.broker}. */
export interface BrokerOptions extends GateOptions {
  /** The broker's API key. */
  key?: string;
  /** The policies that are used. Without them the broker is asked for its own. */
  policies?: readonly PolicySpec[];
}

const OPTIONS = ["store", "strategy", "fallback", "clock", "onSettleError"];

/** Answers asks: a store in this process or on a server, or a broker. */
export class Gate {
  readonly #native: NativeGate;
  readonly #onSettleError: (error: TollgateError) => void;
  readonly #hasPlaceholders: boolean;

  private constructor(gate: NativeGate, options: GateOptions, hasPlaceholders = false) {
    this.#native = gate;
    this.#onSettleError = options.onSettleError ?? warn;
    this.#hasPlaceholders = hasPlaceholders;
  }

  /** Opens the store of a `tollgate.toml`, with its policies. */
  static async open(
    file: string,
    options: Pick<GateOptions, "clock" | "onSettleError"> = {},
  ): Promise<Gate> {
    checkText("file", file);
    checkFields("options", options, ["clock", "onSettleError"]);
    return Gate.#open(file, true, options);
  }

  /** Opens a store in the memory of this process. */
  static async memory(policies: readonly PolicySpec[], options: GateOptions = {}): Promise<Gate> {
    return Gate.#openStore({ kind: "memory" }, policies, options);
  }

  /** Opens a durable store in a folder of this machine. Processes that share it take turns. */
  static async embedded(path: string, policies: readonly PolicySpec[], options: GateOptions = {}): Promise<Gate> {
    checkText("path", path);
    return Gate.#openStore({ kind: "embedded", path }, policies, options);
  }

  /** Opens a store on Redis or Valkey, at a URL such as `redis://127.0.0.1:6379/`. */
  static async redis(url: string, policies: readonly PolicySpec[], options: GateOptions = {}): Promise<Gate> {
    checkText("url", url);
    return Gate.#openStore({ kind: "redis", url }, policies, options);
  }

  /** Opens a store in PostgreSQL, at a URL such as `postgresql://user@host/database`. */
  static async postgres(url: string, policies: readonly PolicySpec[], options: GateOptions = {}): Promise<Gate> {
    checkText("url", url);
    return Gate.#openStore({ kind: "postgres", url }, policies, options);
  }

  /** Opens a store in a DynamoDB table. Credentials and region come from the environment, as in every AWS SDK. */
  static async dynamodb(table: string, policies: readonly PolicySpec[], options: GateOptions = {}): Promise<Gate> {
    checkText("table", table);
    return Gate.#openStore({ kind: "dynamodb", table }, policies, options);
  }

  /** Asks a broker, at a URL such as `http://127.0.0.1:8080`. */
  static async broker(url: string, options: BrokerOptions = {}): Promise<Gate> {
    checkText("url", url);
    checkFields("options", options, [...OPTIONS, "key", "policies"]);
    const { key, policies, ...others } = options;
    if (key !== undefined) checkText("options.key", key);
    const store = { kind: "broker", url, ...(key !== undefined && { key }) };
    if (policies !== undefined) return Gate.#openStore(store, policies, others);
    const listed = await start<string>((completions) => native.brokerPolicies(completions, url, key ?? null));
    return Gate.#openStore(store, JSON.parse(listed) as PolicySpec[], others, true);
  }

  static async #openStore(
    store: object,
    policies: readonly PolicySpec[],
    options: GateOptions,
    hasPlaceholders = false,
  ): Promise<Gate> {
    checkFields("options", options, OPTIONS);
    if (!Array.isArray(policies) || policies.length === 0) {
      throw new InvalidInput(
        `policies: expected a list of policies such as [{ name: "api", limits: [{ name: "burst", unit: "requests", ` +
          `rule: "token-bucket", capacity: 20, refill: "10/s" }] }], not ${show(policies)}`,
      );
    }
    if (options.store !== undefined) checkFields("options.store", options.store, Object.keys(options.store ?? {}));
    const { strategy, fallback } = options;
    const source = { store: { ...options.store, ...store }, strategy, fallback, policy: policies };
    return Gate.#open(JSON.stringify(source), false, options, hasPlaceholders);
  }

  static async #open(
    source: string,
    isFile: boolean,
    options: Pick<GateOptions, "clock" | "onSettleError">,
    hasPlaceholders = false,
  ): Promise<Gate> {
    const { clock, onSettleError } = options;
    if (clock !== undefined && !(clock instanceof ManualClock)) {
      throw new InvalidInput(`options.clock: expected a ManualClock, not ${show(clock)}`);
    }
    if (onSettleError !== undefined && typeof onSettleError !== "function") {
      throw new InvalidInput(`options.onSettleError: expected a function, not ${show(onSettleError)}`);
    }
    const gate = await start<NativeGate>((completions) =>
      native.openGate(completions, source, isFile, clock?.native ?? null),
    );
    return new Gate(gate, options, hasPlaceholders);
  }

  /** Takes a permit, or throws {@link Denied}. */
  async acquire(ask: Ask): Promise<Permit> {
    const answer = await this.#decide(ask);
    if (typeof answer === "string") throw denied(answer);
    return new Permit(answer);
  }

  /** As {@link acquire}, but returns the denial instead of throwing it. */
  async tryAcquire(ask: Ask): Promise<Permit | Denied> {
    const answer = await this.#decide(ask);
    return typeof answer === "string" ? denied(answer) : new Permit(answer);
  }

  /** A permit or the JSON of a denial; at once where the store is the memory of this process. */
  #decide(ask: Ask): NativePermit | string | Promise<NativePermit | string> {
    if (isPlain(ask)) {
      const { unit, cost } = onlyCost(ask.costs);
      if (unit !== undefined || ask.costs === undefined) {
        return start((completions) => this.#native.acquirePlain(completions, ask.policy, ask.subject, unit, cost));
      }
    }
    const json: AskJson = askJson(ask);
    const { signal, waitMs } = ask;
    signal?.throwIfAborted();
    if (waitMs !== undefined && waitMs > 0) json.wait_ms = waitMs;
    return start((completions) => this.#native.acquire(completions, JSON.stringify(json)), signal);
  }

  /**
   * Takes a permit, calls `work`, and sends what it recorded: the actual cost, or a release. If it recorded nothing, or
   * throws, the estimate stays charged and slots are freed.
   */
  async run<T>(ask: Ask, work: (permit: RunPermit) => Promise<T> | T): Promise<T> {
    if (typeof work !== "function") throw new InvalidInput(`run: expected a function, not ${show(work)}`);
    const permit = new RunPermit(await this.acquire(ask));
    try {
      return await work(permit);
    } finally {
      await this.finish(permit);
    }
  }

  /** @internal Sends what was recorded. The call was made, so its result must not be lost because the store is away now. */
  async finish(permit: RunPermit): Promise<void> {
    try {
      await permit.finish();
    } catch (error) {
      this.report(error as TollgateError);
    }
  }

  /** @internal */
  report(error: TollgateError): void {
    this.#onSettleError(error);
  }

  /** Charges without deciding, for a cost that is known only afterwards. Later asks wait until it is paid off. */
  async charge(ask: Omit<Ask, "waitMs" | "signal" | "tenant">): Promise<Permit> {
    checkFields("ask", ask, ["policy", "subject", "charges", "costs", "id"]);
    const json = JSON.stringify(askJson(ask as Ask));
    return new Permit(await start<NativePermit>((completions) => this.#native.charge(completions, json)));
  }

  /** Returns where `subject` is on every limit of `policy`, consuming nothing. */
  async standing(policy: string, subject: string): Promise<LimitStanding[]> {
    checkText("policy", policy);
    checkText("subject", subject);
    const json = await start<string>((completions) => this.#native.standing(completions, policy, subject));
    return readLimits(JSON.parse(json) as LimitJson[]);
  }

  /** Deletes what is counted for `subject` under `policy`. Returns whether there was anything. */
  async reset(policy: string, subject: string): Promise<boolean> {
    checkText("policy", policy);
    checkText("subject", subject);
    return start((completions) => this.#native.reset(completions, policy, subject));
  }

  /** Reports that a provider refused a call of `subject`, and closes the limit for as long as it asked to wait. */
  async violation(policy: string, subject: string, violation: Violation): Promise<void> {
    checkText("policy", policy);
    checkText("subject", subject);
    const { limit, retryAfterMs } = checkViolation(violation);
    await start((completions) => this.#native.violation(completions, policy, subject, limit, retryAfterMs));
  }

  /** Returns the permit of a token, also of another process on the same store. */
  async permit(token: string): Promise<Permit> {
    checkText("token", token);
    return new Permit(await start<NativePermit>((completions) => this.#native.permit(completions, token)));
  }

  /** Posts what a strategy owes, returns leased tokens and unlocks a folder. Later calls are errors. */
  async close(): Promise<void> {
    await start((completions) => this.#native.close(completions));
  }

  /** The policies in force. */
  get policies(): PolicySpec[] {
    return JSON.parse(this.#native.policies()) as PolicySpec[];
  }

  /** The kind of the store, such as `"redis"`. */
  get store(): string {
    return this.#native.storeKind();
  }

  /** Whether the store is away and decisions are made without it. */
  get degraded(): boolean {
    return this.#native.isDegraded();
  }

  /** How many asks wait in this process. */
  get waiting(): number {
    return this.#native.waiting();
  }

  /** The time of the gate's clock, in milliseconds since 1970. */
  get nowMs(): number {
    return this.#native.now();
  }

  /** The value of the header field `RateLimit-Policy`; null for a broker that was not told its policies. */
  rateLimitPolicy(policy: string, subject: string): string | null {
    checkText("policy", policy);
    checkText("subject", subject);
    if (this.#hasPlaceholders) return null;
    return call(() => this.#native.rateLimitPolicy(policy, subject));
  }

  /** @internal Units with the most that one ask can cost, for a policy as it is in force for `subject`. */
  mostOf(policy: string, subject: string): [unit: string, most: number][] {
    const { limits } = JSON.parse(call(() => this.#native.policy(policy, subject))) as {
      limits: { unit: string; effective: number }[];
    };
    return limits.map(({ unit, effective }) => [unit, effective]);
  }
}

/** Whether an ask may go to the fast path: it names a policy and a subject, and nothing that has to be checked or waited for. */
function isPlain(ask: Ask): ask is SingleAsk {
  for (const field in ask) {
    if (field === "policy" || field === "subject" || field === "costs") continue;
    return false;
  }
  return typeof ask?.policy === "string" && typeof ask.subject === "string" && ask.policy !== "" && ask.subject !== "";
}

/** The unit and the cost of costs with one unit. */
function onlyCost(costs: Costs | undefined): { unit?: string; cost?: number } {
  if (costs === undefined || costs === null || typeof costs !== "object") return {};
  let only: string | undefined;
  for (const unit in costs) {
    if (only !== undefined) return {};
    only = unit;
  }
  if (only === undefined) return {};
  const cost = costs[only];
  checkWhole(`ask.costs.${only}`, cost);
  return { unit: only, cost };
}

function denied(json: string): Denied {
  return new Denied(JSON.parse(json) as DeniedJson);
}

function warn(error: TollgateError): void {
  process.emitWarning(`a permit could not be settled; its estimate stays charged: ${error.message}`, "TollgateWarning");
}
