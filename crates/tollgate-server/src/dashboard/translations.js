// Translation jobs. Hidden on a broker that keeps none.

import { bar, byId, caller, element, number, read, Refused, table, write } from "/dashboard/page.js";

const DOLLAR = 1_000_000; // costs are in millionths

const words = (state) => state.replaceAll("_", " ");

function stateCell(job) {
  const until = job.resume_at ? ` until ${new Date(job.resume_at).toLocaleString()}` : "";
  const why = job.why ? element("div", { className: "soft" }, `${job.why}${until}`) : "";
  return element("div", {}, words(job.state), why);
}

function progress(job) {
  const failed = job.failed ? `, ${number(job.failed)} given up` : "";
  return element("div", { className: "progress" }, `${number(job.done)} of ${number(job.chunks)}${failed}`, bar((100 * job.done) / Math.max(1, job.chunks), ""));
}

const COLUMNS = [
  ["job", "", (job) => caller(job.name)],
  ["state", "", stateCell],
  ["chunks", "", progress],
  ["languages", "", (job) => `${job.from} to ${job.to}`],
  ["model", "", (job) => job.model],
  ["charged to", "", (job) => element("span", {}, `${job.policy}:`, caller(job.subject))],
  ["cost", "number", (job) => `$${(job.cost_micros / DOLLAR).toFixed(2)}`],
  ["created", "number", (job) => new Date(job.created_at).toLocaleString([], { dateStyle: "short", timeStyle: "short" })],
];

let isKept = true; // whether the broker keeps jobs, as far as is known
let drawn = "";

export async function showTranslations(signal) {
  if (!isKept) return;
  let jobs;
  try {
    ({ jobs } = await read("/v1/translations", signal));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    isKept = error.status !== 404;
    byId("translations-section").hidden = !isKept;
    if (isKept) write("translations-note", `The jobs cannot be shown: ${error.message}.`);
    return;
  }
  byId("translations-section").hidden = false;
  write("translations-note", jobs.length ? "The newest jobs." : "There are no jobs.");
  byId("translations").hidden = !jobs.length;
  const now = JSON.stringify(jobs);
  if (now === drawn) return;
  drawn = now;
  byId("translations").replaceChildren(...table(COLUMNS, jobs));
}
