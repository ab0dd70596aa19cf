// The policies in force, with what is admitted and refused under each: a row for each, which opens.

import { chart, sparkline } from "/dashboard/chart.js";
import { chooseRange, chosenRange, points, RANGES, refusedByLimit, span, sums } from "/dashboard/history.js";
import { byId, caller, choice, counted, element, number, rate, read, remember, remembered, separated, table, write } from "/dashboard/page.js";
import { lookUp } from "/dashboard/subject.js";

// Stores outside of the broker: several brokers share one, and decide without it while it is away.
export const STORES_APART = new Map([["redis", "Redis"], ["postgres", "PostgreSQL"], ["dynamodb", "DynamoDB"], ["broker", "broker"]]);

const OPEN_MAX = 4; // more policies than these are shown closed
const CARRIED = "cl.throttle"; // its calls carry their numbers
const RATE_SECS = 5; // rates are means of this time, so that they can be read

const COLUMNS = [
  ["limit", "", (limit) => limit.name],
  ["rule", "wide", (limit) => separated(limit.summary)],
  ["unit", "", (limit) => limit.unit],
  ["configured", "number", (limit) => number(limit.limit)],
  ["effective", "number", (limit) => number(limit.effective)],
];

const SORTS = {
  order: ["As configured", (one, other) => one.place - other.place],
  name: ["By name", (one, other) => one.name.localeCompare(other.name)],
  refused: ["Most refused", (one, other) => other.sums.refused + other.sums.shadow_denied - one.sums.refused - one.sums.shadow_denied || one.place - other.place],
  admitted: ["Most admitted", (one, other) => other.sums.admitted - one.sums.admitted || one.place - other.place],
};

const rows = new Map(); // policy name -> its row
let policies = [];
let storeKind = "";
let listed = ""; // the policies on the page, to notice a change
let sortedBy = SORTS[remembered("sort")] ? remembered("sort") : "order";
let filter = "";

export const policyNamed = (name) => policies.find((policy) => policy.name === name);

function limitTable(policy, refused) {
  const isCounted = policy.limits.length > 1;
  const columns = isCounted ? [...COLUMNS, ["refused", "number", (limit) => number(refused.get(limit.name) ?? 0)]] : COLUMNS;
  return table(columns, policy.limits, (cell, name, limit) => {
    const held = [limit.headroom && `headroom ${limit.headroom}`, limit.margin && `margin ${limit.margin}`].filter(Boolean);
    if (name === "rule" && held.length) cell.append(element("div", { className: "soft" }, held.join(", ")));
  });
}

function overrideTable(policy) {
  const button = ({ subject }) => {
    const node = element("button", { type: "button", className: "link", title: "Look up its standing" }, caller(subject));
    node.addEventListener("click", () => lookUp(policy.name, subject));
    return node;
  };
  const numbers = ({ limits, unfit }) => (unfit ? `no effect: ${unfit}` : limits.map(({ name, summary }) => `${name}: ${separated(summary)}`).join("; "));
  const columns = [["subject", "", button], ["limits", "", numbers], ["from", "", ({ source }) => source]];
  return element("table", {}, ...table(columns, policy.overridden, (cell, name, { unfit }) => cell.classList.toggle("stop", Boolean(unfit) && name !== "subject")));
}

function overrides(policy) {
  const { length } = policy.overridden;
  if (!length) return [];
  const more = length < policy.overrides ? `, the first ${number(length)}` : "";
  const title = element("summary", {}, `${counted(Math.max(policy.overrides, length), "subject")} with other numbers${more}`);
  return [element("details", { className: "overrides", open: length <= 4 }, title, overrideTable(policy))];
}

function tagsOf(policy) {
  const tags = [];
  if (policy.shadow) tags.push("shadow: never refuses");
  if (policy.block_ttl) tags.push(`leased for ${policy.block_ttl}`);
  if (policy.overrides) tags.push(counted(policy.overrides, "override"));
  if (STORES_APART.has(storeKind)) tags.push(`without its store: ${policy.on_store_failure}`);
  return tags;
}

/** A number of a row, with what it is for those who do not see the column. */
function figure(className, label) {
  const value = element("span", { className: "value" }, "–");
  return { value, node: element("span", { className: `figure ${className}` }, value, element("span", { className: "unit" }, ` ${label}`)) };
}

function totalsText(counts) {
  const text = [`${number(counts.admitted)} admitted`, `${number(counts.refused)} refused`];
  if (counts.failed) text.push(`${number(counts.failed)} failed`);
  if (counts.shadow_denied) text.push(`${number(counts.shadow_denied)} let through in shadow`);
  if (counts.degraded) text.push(`${number(counts.degraded)} without the store`);
  return `Since the broker started: ${text.join(", ")}.`;
}

/** The row of a policy, whose contents are made when it is opened for the first time. */
function row(name, place, policy) {
  const small = sparkline();
  const admitted = figure("admitted", "admitted/s");
  const refused = figure("refused", policy?.shadow ? "in shadow/s" : "refused/s");
  const notes = element("span", { className: "notes" }, ...(policy?.shadow ? [element("span", { className: "tag shade" }, "shadow")] : []));
  const summary = element("summary", { className: "policy-row" },
    element("span", { className: "name" }, element("h3", {}, name), notes), small.svg, admitted.node, refused.node);
  const node = element("details", { className: "policy" }, summary);
  node.dataset.name = name;
  const it = { name, place, policy, node, small, admitted, refused, sums: sums([]), counts: null, body: null };
  node.addEventListener("toggle", () => {
    if (node.open && !it.body) open(it);
    if (node.open) drawRow(it);
  });
  return it;
}

function open(it) {
  const { name, policy } = it;
  const large = chart(name);
  const totals = element("p", { className: "soft totals" }, it.counts ? totalsText(it.counts) : "");
  const legend = element("div", { className: "legend soft" });
  const limits = element("table", {});
  const tags = policy ? tagsOf(policy) : ["each call brings its own numbers"];
  it.body = { large, totals, legend, limits };
  it.node.append(element("div", { className: "policy-body" }, large.node, legend, totals,
    element("div", { className: "tags" }, ...tags.map((tag) => element("span", { className: "tag" }, tag))),
    ...(policy ? [limits, ...overrides(policy)] : [])));
}

function drawRow(it) {
  const window = span();
  if (!window) return;
  const all = points(it.name);
  it.sums = sums(all);
  it.small.draw(all, window);
  if (!it.node.open || !it.body) return;
  it.body.large.draw(all, window);
  const legend = it.body.large.kinds().map(({ mark, label, kind }) => element("span", {}, element("span", { className: `mark ${mark}` }), `${number(it.sums[kind] ?? 0)} ${label}`));
  it.body.legend.replaceChildren(...(legend.length ? legend : ["nothing"]), ` in ${RANGES[chosenRange()].title}`);
  if (it.policy) it.body.limits.replaceChildren(...limitTable(it.policy, refusedByLimit(all)));
}

/** Puts the rows in order and hides those that do not match, unless somebody is about to use them. */
function arrange(isAsked) {
  const list = byId("policies");
  const all = [...rows.values()];
  const words = filter.toLowerCase().split(/\s+/).filter(Boolean);
  const text = ({ name, policy }) => [name, ...(policy?.limits ?? []).flatMap((limit) => [limit.name, limit.unit]), policy?.shadow ? "shadow" : ""].join(" ").toLowerCase();
  for (const it of all) it.node.hidden = !words.every((word) => text(it).includes(word));
  const shown = all.filter((it) => !it.node.hidden).length;
  write("policies-count", shown === all.length ? counted(all.length, "policy", "policies") : `${number(shown)} of ${counted(all.length, "policy", "policies")}`);
  byId("policies-empty").hidden = shown > 0;
  write("policies-empty", all.length ? "No policy matches." : "There are no policies. Add a [[policy]] to the configuration.");
  if (!isAsked && (list.matches(":hover") || list.contains(document.activeElement))) return;
  const sorted = [...all].sort(SORTS[sortedBy][1]);
  if (list.children.length !== sorted.length || sorted.some((it, place) => list.children[place] !== it.node)) list.replaceChildren(...sorted.map((it) => it.node));
}

export function drawPolicies() {
  for (const it of rows.values()) drawRow(it);
  arrange(false);
}

export async function listPolicies(signal) {
  const [answer, { store }] = await Promise.all([read("/v1/policies", signal), read("/v1/stats", signal)]);
  const now = JSON.stringify([answer.policies, store.kind]);
  if (now === listed) return;
  listed = now;
  ({ policies } = answer);
  storeKind = store.kind;
  const isWide = matchMedia("(min-width: 40.01rem)").matches;
  const wasOpen = new Map([...rows.values()].map((it) => [it.name, it.node.open]));
  rows.clear();
  policies.forEach((policy, place) => {
    const it = row(policy.name, place, policy);
    rows.set(policy.name, it);
    it.node.open = wasOpen.get(policy.name) ?? (isWide && policies.length <= OPEN_MAX);
  });
  const chosen = byId("policy").value;
  byId("policy").replaceChildren(...policies.map(({ name }) => element("option", { value: name, selected: name === chosen }, name)));
  byId("policies-tools").hidden = policies.length < 2;
  for (const id of ["range", "policies-count"]) byId(id).hidden = !policies.length;
  arrange(true);
  drawPolicies();
}

const seen = []; // the last counts, oldest first

/** Shows `stats`; returns the rates of all policies together, or nothing the first time. */
export function showCounts(stats) {
  const at = performance.now();
  seen.push({ at, counts: new Map(stats.policies.map((counts) => [counts.name, counts])) });
  while (seen.length > 2 && at - seen[0].at > RATE_SECS * 1000) seen.shift();
  const before = seen[0];
  const secs = (at - before.at) / 1000;
  const sum = { admitted: 0, refused: 0 };
  for (const counts of stats.policies) {
    if (!rows.has(counts.name)) {
      rows.set(counts.name, row(counts.name, counts.name === CARRIED ? Infinity : rows.size, policyNamed(counts.name)));
      arrange(true);
    }
    const it = rows.get(counts.name);
    it.counts = counts;
    if (it.body) it.body.totals.textContent = totalsText(counts);
    if (!secs) continue;
    // A policy that was not there before had nothing.
    const last = before.counts.get(counts.name) ?? { admitted: 0, refused: 0, shadow_denied: 0 };
    const per = (kind) => Math.max(0, counts[kind] - last[kind]) / secs;
    const [admitted, refused] = [per("admitted"), per("refused")];
    sum.admitted += admitted;
    sum.refused += refused;
    const shown = it.policy?.shadow ? per("shadow_denied") : refused;
    it.admitted.value.textContent = rate(admitted);
    it.admitted.node.classList.toggle("zero", admitted === 0);
    it.refused.node.classList.toggle("zero", shown === 0);
    it.refused.value.textContent = rate(shown);
    it.refused.node.classList.toggle(it.policy?.shadow ? "shade" : "stop", shown > 0);
  }
  return secs ? sum : null;
}

/** After a gap the next counts are a start. */
export function forget() {
  seen.length = 0;
}

function setAll(isOpen) {
  for (const it of rows.values()) if (!it.node.hidden) it.node.open = isOpen;
}

/** Connects the tools above the list. `changed` is called when another range is chosen. */
export function startPolicies(changed) {
  const ranges = Object.entries(RANGES).map(([name, { label, title }]) => [name, label, title]);
  byId("range").replaceChildren(choice("Range of the charts", ranges, chosenRange(), (name) => {
    chooseRange(name);
    changed();
  }));
  byId("sort").replaceChildren(...Object.entries(SORTS).map(([value, [label]]) => element("option", { value, selected: value === sortedBy }, label)));
  byId("sort").addEventListener("change", () => {
    sortedBy = byId("sort").value;
    remember("sort", sortedBy);
    arrange(true);
  });
  byId("filter").addEventListener("input", () => {
    filter = byId("filter").value;
    arrange(true);
  });
  byId("open-all").addEventListener("click", () => setAll(true));
  byId("close-all").addEventListener("click", () => setAll(false));
}
