// The policies in force, with what is admitted and refused under each.

import { chart } from "/dashboard/chart.js";
import { byId, caller, counted, element, number, rate, read } from "/dashboard/page.js";

const COLUMNS = [
  ["limit", "", (limit) => limit.name],
  ["rule", "wide", (limit) => limit.summary],
  ["unit", "", (limit) => limit.unit],
  ["configured", "number", (limit) => number(limit.limit)],
  ["effective", "number", (limit) => number(limit.effective)],
];

// Stores outside of the broker, which decides without them while they are away.
const STORES_APART = new Set(["redis", "postgres", "dynamodb", "broker"]);

let storeKind = "";
const shown = new Map(); // policy name -> the nodes that change every second
let listed = ""; // the policies on the page, to notice a change

function limitTable(policy) {
  const head = COLUMNS.map(([name, kind]) => element("th", { scope: "col", className: kind }, name));
  const rows = policy.limits.map((limit) => element("tr", {}, ...COLUMNS.map(([name, kind, value], place) => {
    const cell = element(place ? "td" : "th", { className: kind }, value(limit));
    if (place) cell.dataset.label = name; else cell.scope = "row";
    const held = [limit.headroom && `headroom ${limit.headroom}`, limit.margin && `margin ${limit.margin}`].filter(Boolean);
    if (name === "rule" && held.length) cell.append(element("div", { className: "soft" }, held.join(", ")));
    return cell;
  })));
  return element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}

function overrideTable(policy) {
  const head = ["subject", "limits", "from"].map((name) => element("th", { scope: "col" }, name));
  const rows = policy.overridden.map(({ subject, source, limits, unfit }) => {
    const numbers = unfit ? `no effect: ${unfit}` : limits.map(({ name, summary }) => `${name}: ${summary}`).join("; ");
    const cells = [["limits", numbers], ["from", source]].map(([label, text]) => {
      const cell = element("td", unfit ? { className: "stop" } : {}, text);
      cell.dataset.label = label;
      return cell;
    });
    return element("tr", {}, element("th", { scope: "row" }, caller(subject)), ...cells);
  });
  return element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}

function overrides(policy) {
  const { length } = policy.overridden;
  if (!length) return [];
  const more = length < policy.overrides ? `, the first ${number(length)}` : "";
  const title = element("summary", {}, `${counted(Math.max(policy.overrides, length), "subject")} with other numbers${more}`);
  return [element("details", { className: "overrides", open: length <= 4 }, title, overrideTable(policy))];
}

function card(name, tags, more) {
  const drawing = chart(name);
  const nodes = {
    drawing,
    scale: element("span", { className: "scale" }),
    admitted: element("span", { className: "rate go" }, "–"),
    refused: element("span", { className: "rate" }, "–"),
    totals: element("p", { className: "soft totals" }),
  };
  shown.set(name, nodes);
  const legend = (kind, word, value) => element("span", { className: "legend" }, element("span", { className: `mark ${kind}` }), value, ` ${word}/s`);
  return element("article", { className: "card policy" },
    element("div", { className: "top" }, element("h3", {}, name),
      element("div", { className: "rates" }, legend("go", "admitted", nodes.admitted), legend("stop", "refused", nodes.refused))),
    element("div", { className: "plot" }, drawing.svg, nodes.scale),
    nodes.totals,
    element("div", { className: "tags" }, ...tags.map((tag) => element("span", { className: "tag" }, tag))),
    ...more);
}

function policyCard(policy) {
  const tags = [];
  if (policy.shadow) tags.push("shadow: never refuses");
  if (policy.block_ttl) tags.push(`leased for ${policy.block_ttl}`);
  if (policy.overrides) tags.push(counted(policy.overrides, "override"));
  if (STORES_APART.has(storeKind)) tags.push(`without its store: ${policy.on_store_failure}`);
  const limits = counted(policy.limits.length, "limit");
  const isWide = matchMedia("(min-width: 40.01rem)").matches;
  const details = element("details", { open: isWide && policy.limits.length <= 4 }, element("summary", {}, limits), limitTable(policy));
  return card(policy.name, tags, [details, ...overrides(policy)]);
}

export async function listPolicies(signal) {
  const [{ policies }, { store }] = await Promise.all([read("/v1/policies", signal), read("/v1/stats", signal)]);
  storeKind = store.kind;
  const now = JSON.stringify([policies, storeKind]);
  if (now === listed) return;
  listed = now;
  shown.clear();
  const chosen = byId("policy").value;
  byId("policies").replaceChildren(...policies.map(policyCard));
  byId("policy").replaceChildren(...policies.map(({ name }) => element("option", { value: name, selected: name === chosen }, name)));
}

function totals(counts) {
  const text = [`${number(counts.admitted)} admitted`, `${number(counts.refused)} refused`];
  if (counts.failed) text.push(`${number(counts.failed)} failed`);
  if (counts.shadow_denied) text.push(`${number(counts.shadow_denied)} let through in shadow`);
  if (counts.degraded) text.push(`${number(counts.degraded)} degraded`);
  return text.join(" · ");
}

let before = null; // the last counts, for rates

/** Shows `stats`; returns the rates of all policies together, or nothing the first time. */
export function showCounts(stats) {
  const at = performance.now();
  const secs = before ? (at - before.at) / 1000 : 0;
  const sum = { admitted: 0, refused: 0 };
  for (const counts of stats.policies) {
    if (!shown.has(counts.name)) {
      byId("policies").append(card(counts.name, ["each call brings its own numbers"], []));
    }
    const nodes = shown.get(counts.name);
    nodes.totals.textContent = totals(counts);
    if (!secs) continue;
    // A policy that was not there a second ago had nothing; a server that started anew counts from nothing.
    const last = before.counts.get(counts.name) ?? { admitted: 0, refused: 0 };
    const per = (kind) => Math.max(0, counts[kind] - last[kind]) / secs;
    const [admitted, refused] = [per("admitted"), per("refused")];
    sum.admitted += admitted;
    sum.refused += refused;
    nodes.admitted.textContent = rate(admitted);
    nodes.refused.textContent = rate(refused);
    nodes.refused.classList.toggle("stop", refused > 0);
    nodes.scale.textContent = `${number(nodes.drawing.add(admitted, refused))}/s`;
  }
  before = { at, counts: new Map(stats.policies.map((counts) => [counts.name, counts])) };
  return secs ? sum : null;
}

/** After a gap the next counts are a start, and the policies may be others. */
export function forget() {
  before = null;
  listed = "";
}
