// One subject: how much of each limit it used, now and in the last hour, its last records, and what a key that may can do about it.

import { startActions, offerActions } from "/dashboard/actions.js";
import { columns } from "/dashboard/chart.js";
import { bar, byId, caller, clock, element, millis, number, read, Refused } from "/dashboard/page.js";

const RECORDS = 30; // how many records are read
const LINES = 6; // and shown, equal ones together
const COLUMNS_MAX = 90; // of the history: 15 minutes

const OUTCOMES = {
  admitted: "admitted", denied: "refused", shadow_denied: "refused in shadow", violated: "refused by the provider",
  reset: "reset", overridden: "limits changed", restored: "limits restored", closed: "closed", charged: "charged",
};

let looked = null; // what is being watched: { policy, subject }
let usage = new Map(); // limit name -> how much was used in each bucket

export const lookedUp = () => looked;

function limitStanding(limit) {
  const share = limit.limit ? (100 * limit.used) / limit.limit : 0;
  const when = limit.reset_in ? `more in ${limit.reset_in}` : "nothing used";
  const line = element("div", { className: "soft" }, `${number(limit.remaining)} left, ${when}`);
  if (limit.full_at) line.title = `all of it at ${new Date(limit.full_at).toLocaleString()}`;
  const used = (usage.get(limit.name) ?? []).slice(-COLUMNS_MAX);
  const most = Math.max(0, ...used.map((value) => value ?? 0));
  const past = used.some((value) => value !== null)
    ? [columns([...new Array(COLUMNS_MAX - used.length).fill(null), ...used], limit.limit, `${limit.name} in the last 15 minutes: at most ${number(most)} of ${number(limit.limit)} used`)] : [];
  return element("div", { className: "limit" },
    element("div", { className: "top" },
      element("strong", {}, limit.name),
      element("span", {}, `${number(limit.used)} of ${number(limit.limit)} ${limit.unit}`)),
    bar(share, limit.remaining ? "" : "full"), line, ...past);
}

/** Replaces the children of a node only if they say something else, so that nothing is read out or selected anew. */
function replaceIfNew(id, nodes) {
  const now = nodes.map((node) => node.outerHTML).join("");
  if (byId(id).dataset.shown === now) return;
  byId(id).dataset.shown = now;
  byId(id).replaceChildren(...nodes);
}

export async function showStanding(signal) {
  if (!looked) return;
  const asked = looked;
  let shown;
  let standing = null;
  try {
    standing = await read(`/v1/standing?${new URLSearchParams(asked)}`, signal);
    const { subject, policy, limits } = standing;
    shown = [element("h3", {}, caller(subject), element("span", { className: "soft" }, ` under ${policy}`)), ...limits.map(limitStanding)];
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    shown = [element("p", { className: "error" }, error.message)];
  }
  // Another lookup may have started meanwhile.
  if (asked !== looked) return;
  replaceIfNew("standing", shown);
  offerActions(standing);
}

function recordText(record) {
  const what = OUTCOMES[record.outcome] ?? record.outcome;
  const limit = record.limit ? ` by ${record.limit}` : "";
  const wait = record.retry_after_ms === undefined ? "" : `, retry after ${millis(record.retry_after_ms)}`;
  const by = record.by ? `, key ${record.by}` : "";
  return `${what}${limit}${wait}${by}`;
}

/** The first lines of the records, newest first; neighbours that say the same are one line, with the time of the newest. */
function linesOf(records) {
  const lines = [];
  for (const record of records) {
    const text = recordText(record);
    const last = lines.at(-1);
    if (last?.text === text) last.count += 1;
    else lines.push({ at: record.at, text, count: 1 });
  }
  return lines.slice(0, LINES);
}

/** Reads what changes seldom: the history, for which the broker watches the subject, and the last records. */
export async function showSubjectPast(signal) {
  if (!looked) return;
  const asked = looked;
  try {
    const query = new URLSearchParams(asked);
    const [past, { records }] = await Promise.all([read(`/v1/history/subject?${query}`, signal), read(`/v1/audit?${query}&limit=${RECORDS}`, signal)]);
    if (asked !== looked) return;
    usage = new Map(past.limits.map((limit) => [limit.name, limit.used]));
    const rows = linesOf(records).map(({ at, text, count }) => element("li", {}, element("span", { className: "soft" }, clock(at)), ` ${text}${count > 1 ? `, ${number(count)} times` : ""}`));
    byId("subject-records").hidden = !rows.length;
    replaceIfNew("subject-records", rows);
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    usage = new Map();
    byId("subject-records").hidden = true;
  }
}

/** Shows `subject` under `policy`; `isMoved` also moves there, from another part of the page. */
export function lookUp(policy, subject, isMoved = false) {
  looked = { policy, subject };
  usage = new Map();
  byId("policy").value = policy;
  byId("subject").value = subject;
  history.replaceState(null, "", `#${new URLSearchParams(looked)}`);
  byId("subject-records").hidden = true;
  byId("standing").ariaLive = "polite";
  refresh();
  const title = byId("standing-title");
  if (isMoved && title.getBoundingClientRect().top > innerHeight / 2) title.scrollIntoView({ block: "start" });
}

function refresh() {
  showSubjectPast().then(() => showStanding()).catch(() => {});
}

/** Connects the form. `changed` is called after an action, before the subject is shown again. */
export function startSubject(changed) {
  byId("lookup").addEventListener("submit", (event) => {
    event.preventDefault();
    lookUp(byId("policy").value, byId("subject").value);
  });
  startActions(() => changed().catch(() => {}).then(refresh));
}
