// The dashboard: reads the server's own calls, and writes text only, never markup.
"use strict";

const POLL_MS = 1000;
const COLUMNS = [
  ["limit", "", (limit) => limit.name],
  ["rule", "wide", (limit) => `${limit.summary} (${limit.rule})`],
  ["unit", "", (limit) => limit.unit],
  ["configured", "number", (limit) => number(limit.limit)],
  ["effective", "number", (limit) => number(limit.effective)],
];

const byId = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");

function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

async function read(path, signal) {
  const response = await fetch(path, { headers: { accept: "application/json" }, signal });
  const body = await response.json();
  if (!response.ok) throw new Error(body.detail || response.statusText);
  return body;
}

// ---- policies and their counts

const shown = new Map(); // policy name -> the nodes that change every second
let before = null;       // the last counts, for rates
let listed = "";         // the policies on the page, to notice a change

function policyCard(policy) {
  const admitted = element("dd", {}, "0");
  const refused = element("dd", {}, "0");
  const failed = element("dd", {}, "0");
  shown.set(policy.name, { admitted, refused, failed });
  const tags = [];
  if (policy.shadow) tags.push("shadow: never refuses");
  if (policy.block_ttl) tags.push(`leased for ${policy.block_ttl}`);
  if (policy.overrides) tags.push(`${number(policy.overrides)} overrides`);
  tags.push(`without a store: ${policy.on_store_failure}`);
  return element("article", { className: "card" },
    element("div", { className: "top" }, element("h3", {}, policy.name),
      ...tags.map((tag) => element("span", { className: "tag" }, tag))),
    element("dl", { className: "counts" },
      element("div", {}, element("dt", {}, "admitted"), admitted),
      element("div", {}, element("dt", {}, "refused"), refused),
      element("div", {}, element("dt", {}, "failed"), failed)),
    element("div", { className: "scroll" }, limitTable(policy)));
}

function limitTable(policy) {
  const head = COLUMNS.map(([name, kind]) => element("th", { scope: "col", className: kind }, name));
  const rows = policy.limits.map((limit) => element("tr", {}, ...COLUMNS.map(([name, kind, value], place) => {
    const cell = element(place ? "td" : "th", { className: kind }, value(limit));
    if (place) cell.dataset.label = name; else cell.scope = "row";
    const held = [limit.headroom && `headroom ${limit.headroom}`, limit.margin && `margin ${limit.margin}`];
    if (name === "rule" && held.some(Boolean)) {
      cell.append(element("div", { className: "soft" }, held.filter(Boolean).join(", ")));
    }
    return cell;
  })));
  return element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...rows));
}

async function listPolicies(signal) {
  const { policies } = await read("/v1/policies", signal);
  const now = JSON.stringify(policies);
  if (now === listed) return;
  listed = now;
  shown.clear();
  const chosen = byId("policy").value;
  byId("policies").replaceChildren(...policies.map(policyCard));
  byId("policy").replaceChildren(...policies.map(({ name }) => element("option", { value: name, selected: name === chosen }, name)));
}

function count(node, kind, total, earlier, secs) {
  node.className = total ? kind : "";
  node.textContent = number(total);
  if (secs > 0 && earlier !== undefined && total > earlier) {
    const rate = (total - earlier) / secs;
    node.append(" ", element("small", {}, `+${rate < 10 ? rate.toFixed(1) : number(Math.round(rate))}/s`));
  }
}

function showCounts(stats) {
  const at = performance.now();
  const secs = before ? (at - before.at) / 1000 : 0;
  for (const counts of stats.policies) {
    const nodes = shown.get(counts.name);
    if (!nodes) { listed = ""; continue; }
    const last = before?.counts.get(counts.name) ?? {};
    count(nodes.admitted, "go", counts.admitted, last.admitted, secs);
    count(nodes.refused, "stop", counts.refused, last.refused, secs);
    count(nodes.failed, "stop", counts.failed, last.failed, secs);
    const notes = [
      counts.shadow_denied && `${number(counts.shadow_denied)} only in shadow`,
      counts.degraded && `${number(counts.degraded)} degraded`,
    ].filter(Boolean);
    if (notes.length) nodes.admitted.append(" ", element("small", {}, `(${notes.join(", ")})`));
  }
  before = { at, counts: new Map(stats.policies.map((counts) => [counts.name, counts])) };
  byId("since").textContent = `counting since ${new Date(stats.since).toLocaleString()}`;
}

// ---- the standing of a subject

let looked = null; // what is being watched: { policy, subject }

function limitStanding(limit) {
  const share = limit.limit ? Math.min(100, (100 * limit.used) / limit.limit) : 0;
  const bar = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  bar.setAttribute("viewBox", "0 0 100 1");
  bar.setAttribute("preserveAspectRatio", "none");
  bar.setAttribute("aria-hidden", "true");
  rect.setAttribute("width", String(share));
  rect.setAttribute("height", "1");
  bar.append(rect);
  const when = limit.reset_in ? `more in ${limit.reset_in}` : "nothing used";
  const line = element("div", { className: "soft" }, `${number(limit.remaining)} left, ${when}`);
  if (limit.full_at) line.title = `all of it at ${new Date(limit.full_at).toLocaleString()}`;
  return element("div", { className: "limit" },
    element("div", { className: "top" },
      element("strong", {}, limit.name),
      element("span", {}, `${number(limit.used)} of ${number(limit.limit)} ${limit.unit}`)),
    element("div", { className: limit.remaining ? "bar" : "bar full" }, bar), line);
}

async function showStanding(signal) {
  if (!looked) return;
  const asked = looked;
  const query = new URLSearchParams(asked);
  let card;
  try {
    const { subject, policy, limits } = await read(`/v1/standing?${query}`, signal);
    card = element("article", { className: "card" },
      element("h3", {}, `${subject} under ${policy}`), ...limits.map(limitStanding));
  } catch (error) {
    if (error.name === "TypeError" || error.name === "TimeoutError") throw error;
    card = element("article", { className: "card error" }, error.message);
  }
  // Another lookup may have started meanwhile.
  if (asked !== looked || byId("standing").textContent === card.textContent) return;
  byId("standing").replaceChildren(card);
}

byId("lookup").addEventListener("submit", (event) => {
  event.preventDefault();
  looked = Object.fromEntries(new FormData(event.target));
  history.replaceState(null, "", `#${new URLSearchParams(looked)}`);
  byId("standing").ariaLive = "polite";
  showStanding().catch(() => {});
});

// ---- the loop

function state(name, text) {
  if (byId("state-text").textContent === text) return;
  byId("state").className = name;
  byId("state-text").textContent = text;
}

async function tick() {
  const signal = AbortSignal.timeout(5 * POLL_MS);
  try {
    if (!listed) await listPolicies(signal);
    showCounts(await read("/v1/stats", signal));
    byId("standing").ariaLive = "off"; // a lookup is read out once, not every second
    await showStanding(signal);
    state("live", "live");
  } catch {
    state("lost", "no answer from the server, trying again");
    listed = "";
  }
  setTimeout(tick, POLL_MS);
}

// A link may carry a lookup, as in /#policy=api&subject=alice.
async function start() {
  try { await listPolicies(); } catch { /* the loop tries again */ }
  const link = new URLSearchParams(location.hash.slice(1));
  if (link.get("policy") && link.get("subject")) {
    byId("policy").value = link.get("policy");
    byId("subject").value = link.get("subject");
    looked = { policy: link.get("policy"), subject: link.get("subject") };
  }
  tick();
}

start();
