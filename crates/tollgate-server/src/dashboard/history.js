// The history of this broker's decisions, as the broker keeps it, in the range that is chosen.

import { read, remember, remembered } from "/dashboard/page.js";

const HOUR = 3600;

/** The ranges: how far back, and the buckets that the broker is asked for. */
export const RANGES = {
  "15m": { label: "15 min", title: "the last 15 minutes", secs: HOUR / 4, step: "10s" },
  "1h": { label: "1 h", title: "the last hour", secs: HOUR, step: "10s" },
  all: { label: "All", title: "the last day", secs: 24 * HOUR, step: "5m" },
};

const COUNTS = ["admitted", "refused", "failed", "shadow_denied", "degraded", "waiting"];
const LIMIT = "limit "; // before the name of a limit
const BUCKETS_MAX = { 10: 366, 300: 289 }; // by the seconds of a bucket, as many as the broker keeps
const PARTIAL_MIN = 0.3; // a bucket that has just begun says little

let range = RANGES[remembered("range")] ? remembered("range") : "1h";
const data = {}; // by step: { broker, step, first, length, since, now, policies }

export const chosenRange = () => range;

export function chooseRange(name) {
  range = name;
  remember("range", name);
}

const seconds = (time) => Date.parse(time) / 1000;

/** The buckets to show: those of an hour are exact enough for a broker that is not older. */
function stepOf(name) {
  const fine = data["10s"];
  return name === "all" && fine && fine.now - fine.since <= HOUR ? "10s" : RANGES[name].step;
}

/** The series of each policy by their kind; those of limits are called after them. */
function seriesOf({ policies }) {
  const all = new Map();
  for (const policy of policies) {
    const counts = COUNTS.filter((kind) => policy[kind]).map((kind) => [kind, policy[kind]]);
    const limits = (policy.limits ?? []).map((limit) => [LIMIT + limit.name, limit.refused]);
    all.set(policy.name, new Map([...counts, ...limits]));
  }
  return all;
}

/** Adds the buckets of `response` to those that are known. */
function merge(known, response) {
  const step = response.step_secs;
  const first = Math.round(seconds(response.start) / step);
  const fresh = { broker: response.broker, step, first, length: response.buckets, since: seconds(response.since), now: seconds(response.now), policies: seriesOf(response) };
  const offset = first - (known?.first ?? 0);
  if (!known || known.broker !== response.broker || offset < 0 || known.length < offset) return fresh;
  const length = offset + response.buckets;
  const drop = Math.max(0, length - BUCKETS_MAX[step]);
  const join = (before = [], after = []) => {
    const values = new Array(length).fill(0);
    before.slice(0, offset).forEach((value, place) => { values[place] = value; });
    after.forEach((value, place) => { values[offset + place] = value; });
    return values.slice(drop);
  };
  const policies = new Map();
  for (const name of new Set([...known.policies.keys(), ...fresh.policies.keys()])) {
    const [before, after] = [known.policies.get(name) ?? new Map(), fresh.policies.get(name) ?? new Map()];
    const kinds = new Set([...before.keys(), ...after.keys()]);
    policies.set(name, new Map([...kinds].map((kind) => [kind, join(before.get(kind), after.get(kind))])));
  }
  return { ...fresh, first: known.first + drop, length: length - drop, policies };
}

async function update(step, signal) {
  const known = data[step];
  const since = known ? `&since=${new Date((known.first + known.length - 1) * known.step * 1000).toISOString()}` : "";
  const response = await read(`/v1/history?step=${step}${since}`, signal);
  // Behind a load balancer another broker may answer; its history is another one.
  if (known && known.broker !== response.broker) return;
  data[step] = merge(known, response);
}

/** Reads what is new in the chosen range. */
export async function readHistory(signal) {
  await update("10s", signal);
  if (stepOf(range) === "5m") await update("5m", signal);
}

export function forgetHistory() {
  for (const step of Object.keys(data)) delete data[step];
}

/** The time that the chart spans, or null before the history is there. */
export function span() {
  const known = data[stepOf(range)];
  if (!known) return null;
  const { now, since } = known;
  const secs = range === "all" ? Math.min(RANGES.all.secs, Math.max(HOUR / 4, now - since)) : RANGES[range].secs;
  return { from: now - secs, to: now, since };
}

export const policyNames = () => [...(data[stepOf(range)]?.policies.keys() ?? [])];

/**
 * The points of a policy in the chosen range, oldest first: when a bucket began and ended, how much there was of each kind in it, and
 * for how long it counted.
 */
export function points(policy) {
  const known = data[stepOf(range)];
  const window = span();
  if (!known || !window) return [];
  const series = known.policies.get(policy) ?? new Map();
  const limits = [...series].filter(([kind]) => kind.startsWith(LIMIT)).map(([kind, values]) => [kind.slice(LIMIT.length), values]);
  const all = [];
  for (let place = 0; place < known.length; place += 1) {
    const start = (known.first + place) * known.step;
    const [from, to] = [Math.max(start, known.since), Math.min(start + known.step, known.now)];
    const isPartial = to - from < PARTIAL_MIN * known.step;
    if (to <= window.from || (isPartial && place === known.length - 1 && all.length)) continue;
    const counts = Object.fromEntries(COUNTS.map((kind) => [kind, series.get(kind)?.[place] ?? 0]));
    const refusedBy = limits.map(([name, values]) => [name, values[place] ?? 0]).filter(([, count]) => count);
    all.push({ from, to, secs: Math.max(1, to - from), counts, refusedBy });
  }
  return all;
}

/** How much there was of each kind in `all`, points of a policy. */
export function sums(all) {
  const totals = { admitted: 0, refused: 0, failed: 0, shadow_denied: 0, degraded: 0 };
  for (const { counts } of all) for (const kind of Object.keys(totals)) totals[kind] += counts[kind];
  return totals;
}

/** The refusals of each limit in `all`, points of a policy, by name. */
export function refusedByLimit(all) {
  const totals = new Map();
  for (const { refusedBy } of all) for (const [name, count] of refusedBy) totals.set(name, (totals.get(name) ?? 0) + count);
  return totals;
}
