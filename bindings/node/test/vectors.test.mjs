// Every golden decision of the workspace, through the package, on a clock that the test moves.
import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import path from "node:path";
import { after, describe, test } from "node:test";

import { Denied, Gate, ManualClock, Permit } from "tollgate";

import { folder, workspace } from "./support.mjs";

const vectors = path.join(workspace, "vectors");
const load = (place) =>
  readdirSync(place)
    .filter((name) => name.endsWith(".json"))
    .map((name) => JSON.parse(readFileSync(path.join(place, name), "utf8")));

const us = (ms) => (ms === null ? undefined : Math.round(ms * 1000));

/** Returns a policy as users write it. */
function spec(form) {
  const span = (micros) => `${micros}us`;
  const limits = form.limits.map(
    ({ period_us, window_us, ttl_us, margin_us, headroom_percent, refill, ...limit }) => ({
      ...limit,
      ...(period_us && { refill: `${refill}/${period_us}us` }),
      ...(window_us && { window: span(window_us) }),
      ...(ttl_us && { ttl: span(ttl_us) }),
      ...(margin_us && { margin: span(margin_us) }),
      ...(headroom_percent && { headroom: `${headroom_percent}%` }),
    }),
  );
  const { block_ttl_us, ...policy } = form;
  return { ...policy, limits, ...(block_ttl_us && { block_ttl: span(block_ttl_us) }) };
}

function standing(limits) {
  return limits.map(({ name, limit, used, remaining, resetAtMs, fullAtMs, refilledAtMs }) => ({
    name,
    limit,
    used,
    remaining,
    reset_at_us: us(resetAtMs),
    full_at_us: us(fullAtMs),
    refilled_at_us: us(refilledAtMs),
  }));
}

const expectedStanding = (limits) =>
  limits.map((limit) => ({ reset_at_us: undefined, full_at_us: undefined, refilled_at_us: undefined, ...limit }));

/** Plays steps on a gate. After a change of the policies a second gate shares its folder, as in a rolling deployment. */
class Player {
  constructor(policies, clock, path) {
    this.policies = policies;
    this.clock = clock;
    this.path = path;
    this.gates = [];
    /** By step. */
    this.permits = new Map();
  }

  async open() {
    const options = { clock: this.clock };
    this.gate = this.path
      ? await Gate.embedded(this.path, this.policies, options)
      : await Gate.memory(this.policies, options);
    this.gates.push(this.gate);
  }

  async close() {
    for (const gate of this.gates) await gate.close();
  }

  async change(policy) {
    this.policies = this.policies.map((known) => (known.name === policy.name ? policy : known));
    await this.open();
  }

  /** Half of the permits take the way of one that another process settles. */
  async permit(step) {
    const permit = this.permits.get(step);
    return this.gates.length === 1 && step % 2 === 0 ? this.gate.permit(permit.token) : permit;
  }

  /** Runs one step; returns a permit, a denial, a value or the kind of an error. */
  async play(place, step, ask) {
    try {
      switch (step.op) {
        case "acquire":
        case "charge": {
          const answer = step.op === "acquire" ? await this.gate.tryAcquire(ask) : await this.gate.charge(ask);
          if (answer instanceof Permit) this.permits.set(place, answer);
          return answer;
        }
        case "settle":
          return await (await this.permit(step.permit)).settle(step.actual);
        case "settle-part":
          return await (await this.permit(step.permit)).settle({}, [{ charge: step.charge, actual: step.actual }]);
        case "release":
          return await (await this.permit(step.permit)).release();
        case "renew": {
          const permit = await this.permit(step.permit);
          await permit.renew();
          return permit;
        }
        case "close": {
          const retryAfterMs = (step.until_us - step.at_us) / 1000;
          // A provider that asks for no wait closes nothing.
          if (retryAfterMs === 0) return false;
          return await this.gate.violation(...this.closes(step), { retryAfterMs, limit: step.limit });
        }
        case "reset":
          return await this.gate.reset(...this.closes(step));
        case "standing":
          return undefined;
        default:
          throw new Error(`unknown operation ${step.op}`);
      }
    } catch (error) {
      if (typeof error.kind !== "string") throw error;
      return { kind: error.kind };
    }
  }
}

/** When slots come back is up to their holders: beside the estimate there is the bound that a vector states. */
const until = (denied) => us(denied.estimated ? denied.expiresAtMs : denied.resetAtMs);

function checkDenied(answer, { limit, until_us }) {
  assert.ok(answer instanceof Denied, `${answer?.kind ?? "admitted"}`);
  assert.equal(answer.limit, limit);
  assert.equal(until(answer), until_us);
  assert.equal(answer.never, until_us === undefined);
}

function checkGrant(permit, { charged_at_us, use_by_us, expires_at_us }) {
  assert.ok(permit instanceof Permit, `not admitted: ${permit?.kind ?? permit?.message}`);
  assert.equal(us(permit.decidedAtMs), charged_at_us);
  assert.equal(us(permit.useByMs), use_by_us);
  assert.equal(us(permit.expiresAtMs), expires_at_us);
}

/** What makes a permit the same: a token names the numbers of the policy, too, which may have changed since. */
const identity = (permit) => JSON.stringify([permit.decidedAtMs, permit.expiresAtMs]);

async function playSingle(vector) {
  const clock = new ManualClock(vector.steps[0].at_us / 1000);
  const changes = vector.steps.some(({ policy }) => policy !== undefined);
  const player = new Player([spec(vector.policy)], clock, changes ? folder("vector") : undefined);
  player.closes = () => [vector.policy.name, "subject"];
  await player.open();
  after(() => player.close());
  for (const [place, step] of vector.steps.entries()) {
    // A folder that one gate hands over to another does not let time go back.
    if (step.policy !== undefined && step.at_us / 1000 < clock.now) return;
    clock.set(step.at_us / 1000);
    if (step.policy !== undefined) await player.change(spec(step.policy));
    const ask = { policy: vector.policy.name, subject: "subject", costs: step.costs };
    if (step.id !== undefined) ask.id = step.id;
    const answer = await player.play(place, step, ask);
    const { expect } = step;
    switch (expect.answer) {
      case "admitted":
        checkGrant(answer, expect);
        break;
      case "charged":
        assert.equal(us(answer.decidedAtMs), expect.charged_at_us);
        break;
      case "repeated":
        assert.equal(identity(answer), identity(player.permits.get(expect.permit)));
        break;
      case "denied":
        checkDenied(answer, expect);
        break;
      case "shadow-denied":
        assert.equal(answer.shadowDenied, true);
        break;
      case "settled":
        assert.equal(answer, expect.done, `step ${place}`);
        break;
      case "renewed":
        assert.equal(us(answer.expiresAtMs), expect.expires_at_us);
        break;
      case "error":
        assert.equal(answer.kind, expect.kind, `step ${place}: ${answer?.constructor?.name}`);
        break;
      case "done":
      case "seen":
        assert.equal(answer?.kind, undefined);
        break;
      default:
        assert.fail(`unknown answer ${expect.answer}`);
    }
    const got = standing(await player.gate.standing(vector.policy.name, "subject"));
    assert.deepEqual(got, expectedStanding(step.standings), `step ${place} (${step.op})`);
    if (answer instanceof Denied) assert.deepEqual(standing(answer.limits), got, "what a denial shows");
  }
}

async function playJoint(vector) {
  const clock = new ManualClock(vector.steps[0].at_us / 1000);
  const changes = vector.steps.some(({ policy }) => policy !== undefined);
  const policies = [...new Map(vector.parties.map(({ policy }) => [policy.name, spec(policy)])).values()];
  const player = new Player(policies, clock, changes ? folder("vector") : undefined);
  const party = (index) => [vector.parties[index].policy.name, vector.parties[index].subject];
  player.closes = (step) => party(step.party);
  await player.open();
  after(() => player.close());
  for (const [place, step] of vector.steps.entries()) {
    clock.set(step.at_us / 1000);
    if (step.policy !== undefined) await player.change(spec(step.policy));
    const own = new Map(step.own_costs ?? []);
    const ask = {
      charges: (step.parties ?? []).map((index, position) => {
        const [policy, subject] = party(index);
        return { policy, subject, ...(own.has(position) && { costs: own.get(position) }) };
      }),
      costs: step.costs ?? {},
    };
    if (step.id !== undefined) ask.id = step.id;
    const answer = await player.play(place, step, ask);
    const { expect } = step;
    switch (expect.answer) {
      case "permitted":
        assert.ok(answer instanceof Permit, `step ${place}: ${answer?.kind ?? answer?.message}`);
        assert.equal(us(answer.decidedAtMs), expect.charges[0].charged_at_us);
        break;
      case "repeated":
        assert.equal(identity(answer), identity(player.permits.get(expect.permit)));
        break;
      case "denied":
        assert.ok(answer instanceof Denied, `step ${place}: ${answer?.kind ?? "admitted"}`);
        assert.deepEqual(
          { charge: answer.charge ?? 0, limit: answer.limit, until_us: until(answer) },
          { until_us: undefined, ...expect.binding },
        );
        assert.deepEqual(
          answer.refused.map(({ charge, limit, resetAtMs }) => ({ charge, limit, until_us: us(resetAtMs) })),
          // An ask with one charge has nothing to tell apart.
          (step.parties.length > 1 ? expect.refused : []).map((refused) => ({ until_us: undefined, ...refused })),
        );
        break;
      case "changed":
        if (step.op !== "close") assert.equal(answer, expect.changed, `step ${place}`);
        break;
      case "renewed":
        assert.equal(us(answer.expiresAtMs), expect.expires_at_us);
        break;
      case "error":
        assert.equal(answer.kind, expect.kind, `step ${place}`);
        break;
      default:
        assert.fail(`unknown answer ${expect.answer}`);
    }
    for (const [index, limits] of step.standings.entries()) {
      const got = standing(await player.gate.standing(...party(index)));
      assert.deepEqual(got, expectedStanding(limits), `step ${place} (${step.op}), party ${index}`);
    }
  }
}

describe("vectors", () => {
  for (const vector of load(vectors)) test(vector.name, () => playSingle(vector));
});

describe("vectors of several charges", () => {
  for (const vector of load(path.join(vectors, "joint"))) test(vector.name, () => playJoint(vector));
});
