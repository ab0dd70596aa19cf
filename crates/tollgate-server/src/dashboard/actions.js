// What a key that may administer can do about a subject: other limits, a closed limit, and a reset, each after a confirmation. The
// broker decides whether it may, and records it in the audit.

import { accessOf, byId, caller, clock, element, read, send, separated, useKey, write } from "/dashboard/page.js";
import { policyNamed } from "/dashboard/policies.js";

const CLOSE_FOR = [["60", "1 minute"], ["300", "5 minutes"], ["900", "15 minutes"], ["3600", "1 hour"], ["86400", "24 hours"]];

let mayAct = false;
let standing = null; // of the subject that is shown
let changed = () => {};

/** Shows the actions for the subject with `now`, its standing; none without one. */
export function offerActions(now) {
  standing = now;
  byId("actions").hidden = !now;
  byId("actions-offered").hidden = !mayAct;
  byId("actions-locked").hidden = mayAct;
  if (!now) return;
  byId("restore").hidden = overrideOf(now)?.source !== "api";
}

const overrideOf = ({ policy, subject }) => policyNamed(policy)?.overridden.find((override) => override.subject === subject);

/** Asks the broker what the key of this page may do. */
export async function readAccess() {
  const { scopes } = await read("/v1/access");
  mayAct = scopes.includes("administer");
  offerActions(standing);
}

// ---- the dialog

/** The subject and the policy, in a sentence. */
const who = () => [element("strong", {}, caller(standing.subject)), " under ", element("strong", {}, standing.policy)];

/**
 * Opens the dialog. `fields` are shown above the buttons; `run` is called when it is confirmed, and returns what to say afterwards. An
 * error of the broker is shown, and the dialog stays.
 */
function confirm({ title, text, fields = [], verb, isDangerous, run }) {
  const dialog = byId("dialog");
  const button = element("button", { type: "submit", className: isDangerous ? "danger" : "" }, verb);
  const cancel = element("button", { type: "button", className: "quiet" }, "Cancel");
  const error = element("p", { className: "error", role: "alert" });
  const form = element("form", {}, element("h2", { id: "dialog-title" }, title), element("p", {}, ...text), ...fields, error,
    element("div", { className: "buttons" }, cancel, button));
  cancel.addEventListener("click", () => dialog.close());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    try {
      const done = await run(form);
      dialog.close();
      say(done);
    } catch (fault) {
      error.textContent = fault.message;
    }
    button.disabled = false;
  });
  dialog.replaceChildren(form);
  dialog.showModal();
  (form.querySelector("input, select") ?? cancel).focus();
}

function say(text) {
  write("action-done", text);
  byId("action-done").hidden = !text;
  changed();
}

// ---- the actions

const where = ({ policy, subject }) => `/v1/policies/${encodeURIComponent(policy)}/overrides/${encodeURIComponent(subject)}`;

function changeLimits() {
  const { policy, subject } = standing;
  const base = policyNamed(policy);
  if (!base) return;
  const known = overrideOf(standing);
  const inputs = base.limits.map((limit) => {
    const now = known?.limits.find(({ name }) => name === limit.name) ?? limit;
    const input = element("input", { type: "number", min: "1", step: "1", required: true, value: String(now.limit), name: limit.name });
    const hint = element("span", { className: "soft" }, `${limit.unit}; the policy has ${separated(limit.summary)}`);
    return { limit, input, node: element("label", { className: "field" }, limit.name, input, hint) };
  });
  confirm({
    title: "Change limits",
    text: ["Gives ", ...who(), " numbers of its own, at every broker on the store, until they are removed.",
      known ? " Everything else that its present override changes is replaced by what the policy says." : ""],
    fields: inputs.map(({ node }) => node),
    verb: "Change limits",
    async run() {
      const limits = inputs.filter(({ limit, input }) => Number(input.value) !== limit.limit)
        .map(({ limit, input }) => ({ name: limit.name, [limit.rule === "token-bucket" ? "capacity" : "limit"]: Number(input.value) }));
      if (!limits.length) throw new Error("These are the numbers of the policy. Change at least one.");
      const weight = known && known.weight !== base.weight ? { weight: known.weight ?? 1 } : {};
      await send("PUT", where({ policy, subject }), { limits, ...weight });
      return "The limits are changed.";
    },
  });
}

function restoreLimits() {
  const asked = standing;
  confirm({
    title: "Remove the override",
    text: ["Gives ", ...who(), " the numbers of the configuration again."],
    verb: "Remove",
    async run() {
      const done = await send("DELETE", where(asked));
      return done.changed ? "The override is removed." : "There was no override by API.";
    },
  });
}

function closeLimit() {
  const { policy, subject, limits } = standing;
  const limit = element("select", { name: "limit" }, ...limits.map(({ name }) => element("option", { value: name }, name)));
  const time = element("select", { name: "for" }, ...CLOSE_FOR.map(([value, label]) => element("option", { value }, label)));
  confirm({
    title: "Close a limit",
    text: ["Refuses every ask of ", ...who(), " that costs something in the unit of the limit, until the time is over. A reset opens it before."],
    fields: [element("label", { className: "field" }, "Limit", limit), element("label", { className: "field" }, "For", time)],
    verb: "Close",
    isDangerous: true,
    async run() {
      // The time of the broker, which may not be that of this machine.
      const { now } = await read("/v1/stats");
      const until = new Date(Date.parse(now) + 1000 * Number(time.value));
      const done = await send("POST", "/v1/close", { policy, subject, limit: limit.value, until: until.toISOString() });
      return done.changed ? `${limit.value} is closed until ${clock(until)}.` : `${limit.value} was closed for longer already.`;
    },
  });
}

function reset() {
  const { policy, subject } = standing;
  confirm({
    title: "Reset",
    text: ["Forgets everything that ", ...who(), " used: it can use all of its limits at once again, and permits that it holds cannot be settled."],
    verb: "Reset",
    isDangerous: true,
    async run() {
      const done = await send("DELETE", `/v1/standing?${new URLSearchParams({ policy, subject })}`);
      return done.changed ? "The subject is reset." : "There was nothing to reset.";
    },
  });
}

function enterKey() {
  const input = element("input", { type: "password", autocomplete: "off", required: true });
  confirm({
    title: "Use another key",
    text: ["Actions need a key with the scopes inspect and administer. It is kept until this tab is closed, and sent to this broker alone."],
    fields: [element("label", { className: "field" }, "Key", input)],
    verb: "Use it",
    async run() {
      const { key, scopes } = await accessOf(input.value);
      const missing = ["inspect", "administer"].filter((scope) => !scopes.includes(scope));
      if (missing.length) throw new Error(`The key ${key ?? ""} lacks the scope ${missing.join(" and ")}. The key of before stays in use.`);
      useKey(input.value);
      await readAccess();
      return `Using the key ${key}.`;
    },
  });
}

/** Connects the buttons. `done` is called after each action. */
export function startActions(done) {
  changed = done;
  for (const [id, action] of [["override", changeLimits], ["restore", restoreLimits], ["close-limit", closeLimit], ["reset", reset], ["unlock", enterKey]]) {
    byId(id).addEventListener("click", action);
  }
  const dialog = byId("dialog");
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
}
