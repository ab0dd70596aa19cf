// Limited subjects: most often, most recently, and the standing of one subject.

import { bar, byId, caller, clock, element, millis, number, read, Refused, write } from "/dashboard/page.js";

const RECENT = 12;
const TOP = 8;

// ---- the standing of a subject

let looked = null; // what is being watched: { policy, subject }

function limitStanding(limit) {
  const share = limit.limit ? (100 * limit.used) / limit.limit : 0;
  const when = limit.reset_in ? `more in ${limit.reset_in}` : "nothing used";
  const line = element("div", { className: "soft" }, `${number(limit.remaining)} left, ${when}`);
  if (limit.full_at) line.title = `all of it at ${new Date(limit.full_at).toLocaleString()}`;
  return element("div", { className: "limit" },
    element("div", { className: "top" },
      element("strong", {}, limit.name),
      element("span", {}, `${number(limit.used)} of ${number(limit.limit)} ${limit.unit}`)),
    bar(share, limit.remaining ? "" : "full"), line);
}

export async function showStanding(signal) {
  if (!looked) return;
  const asked = looked;
  let shown;
  try {
    const { subject, policy, limits } = await read(`/v1/standing?${new URLSearchParams(asked)}`, signal);
    shown = [element("h3", {}, caller(subject), element("span", { className: "soft" }, ` under ${policy}`)), ...limits.map(limitStanding)];
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    shown = [element("p", { className: "error" }, error.message)];
  }
  // Another lookup may have started meanwhile.
  if (asked !== looked) return;
  const text = shown.map((node) => node.textContent).join("");
  if (byId("standing").textContent !== text) byId("standing").replaceChildren(...shown);
}

export function lookUp(policy, subject) {
  looked = { policy, subject };
  byId("policy").value = policy;
  byId("subject").value = subject;
  history.replaceState(null, "", `#${new URLSearchParams(looked)}`);
  byId("standing").ariaLive = "polite";
  showStanding().catch(() => {});
}

// ---- most limited

// What a call of CL.THROTTLE carries is no policy that could be looked up.
const CARRIED = "cl.throttle";

function topRow(limited, most) {
  const sure = limited.error ? ` (at least ${number(limited.count - limited.error)})` : "";
  const row = [
    element("span", { className: "who" }, element("strong", {}, caller(limited.subject)), element("span", { className: "soft" }, limited.policy)),
    element("span", { className: "count" }, number(limited.count), element("span", { className: "soft" }, sure)),
    bar((100 * limited.count) / most, "stop")];
  if (limited.policy === CARRIED) {
    const title = "CL.THROTTLE with a quantity of 0 shows its standing";
    return element("li", {}, element("div", { className: "row-button plain", title }, ...row));
  }
  const button = element("button", { type: "button", className: "row-button", title: "Look up its standing" }, ...row);
  button.dataset.who = JSON.stringify([limited.policy, limited.subject]);
  button.addEventListener("click", () => lookUp(limited.policy, limited.subject));
  return element("li", {}, button);
}

let topShown = "";

async function showTop(signal) {
  const top = await read(`/v1/audit/top?limit=${TOP}`, signal);
  write("top-since", top.subjects.length ? `times limited since ${clock(top.since)}` : `No subject was limited since ${clock(top.since)}.`);
  const now = JSON.stringify(top.subjects);
  if (now === topShown) return;
  topShown = now;
  // The row with the keyboard focus keeps it.
  const focused = document.activeElement?.dataset?.who;
  byId("top").replaceChildren(...top.subjects.map((limited) => topRow(limited, top.subjects[0].count)));
  if (focused) [...byId("top").querySelectorAll("button")].find((button) => button.dataset.who === focused)?.focus();
}

// ---- recent refusals and incidents

const COLUMNS = [
  ["when", "", (record) => clock(record.at)],
  ["subject", "who", (record) => caller(record.subject)],
  ["policy", "", (record) => record.policy],
  ["limit", "", (record) => record.limit ?? "–"],
  ["asked", "number", (record) => (record.asked ? `${number(record.asked)} ${record.unit}` : "–")],
  ["retry after", "number", (record) => (record.never ? "never" : record.retry_after_ms === undefined ? "–" : millis(record.retry_after_ms))],
];

/** The other charges of an ask with several: those that refused it as well say by which limit. */
function otherCharges(record) {
  const isBinding = ({ policy, subject }) => policy === record.policy && subject === record.subject;
  const name = ({ policy, subject, refused }) => [`${policy}:`, caller(subject), refused?.length ? ` (${refused.join(", ")} refused, too)` : ""];
  return (record.charges ?? []).filter((charge) => !isBinding(charge)).flatMap((charge, place) => [place ? ", " : "with ", ...name(charge)]);
}

function recordRow(record) {
  const cells = COLUMNS.map(([name, kind, value], place) => {
    const cell = element(place ? "td" : "th", { className: kind }, value(record));
    if (place) cell.dataset.label = name; else cell.scope = "row";
    if (name === "subject") {
      const notes = [record.outcome === "shadow_denied" && "only in shadow", record.outcome === "admitted" && "admitted", record.degraded && "degraded"];
      for (const note of notes.filter(Boolean)) cell.append(" ", element("span", { className: "tag" }, note));
      const others = otherCharges(record);
      if (others.length) cell.append(element("div", { className: "soft charges" }, ...others));
    }
    return cell;
  });
  return element("tr", {}, ...cells);
}

const drawnRows = new Map(); // table id -> the number of its newest record

function table(id, records) {
  const newest = `${records.length} ${records[0]?.number}`;
  if (drawnRows.get(id) === newest) return;
  drawnRows.set(id, newest);
  const head = COLUMNS.map(([name, kind]) => element("th", { scope: "col", className: kind }, name));
  byId(id).replaceChildren(element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...records.map(recordRow)));
}

async function showRecent(signal) {
  const [recent, incidents] = await Promise.all([
    read(`/v1/audit?limit=${RECENT}`, signal),
    read(`/v1/audit?outcome=violated&limit=${RECENT}`, signal),
  ]);
  const records = recent.records.filter((record) => record.outcome !== "violated");
  byId("recent").hidden = !records.length;
  table("recent", records);
  write("recent-note", recent.partial ? "The audit log does not answer; these are only this broker's own."
    : records.length ? "" : "Nothing was refused yet.");
  byId("recent-note").hidden = !byId("recent-note").textContent;
  byId("incidents-section").hidden = !incidents.records.length;
  table("incidents", incidents.records);
}

export async function showAudit(signal) {
  await Promise.all([showTop(signal), showRecent(signal)]);
}
