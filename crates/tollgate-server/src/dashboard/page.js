// What every part of the page uses: elements, numbers, and calls of the server. Text is written as text, never as markup.

const KEY = "tollgate-key";
const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

export function drawn(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, String(value));
  node.append(...children);
  return node;
}

/** Changes the text of a node only if it is another one, so that nothing is read out or selected anew. */
export function write(id, text) {
  const node = byId(id);
  if (node.textContent !== text) node.textContent = text;
}

// Characters that change how the text around them is read: controls, directions, and those without a width.
const INVISIBLE = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;

const escaped = (character) => `\\u{${character.charCodeAt(0).toString(16)}}`;

/** A subject, tenant or other text of a caller: isolated, so that its direction ends with it, and with invisible characters escaped. */
export const caller = (text) => element("bdi", {}, text.replace(INVISIBLE, escaped));

export const number = (value) => value.toLocaleString("en");

/** A text of the broker with separators in its large numbers, as in "250,000 in any 1m". */
export const separated = (text) => text.replace(/\d{4,}/g, (digits) => number(Number(digits)));

/** A number with its noun, as in "1 call" and "1,200 calls". */
export const counted = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;

/** A rate: two digits where it is small, so that what happens once in a minute is not shown as nothing. */
export function rate(value) {
  if (value <= 0) return "0";
  if (value < 0.01) return "< 0.01";
  return value < 0.1 ? value.toFixed(2) : value < 10 ? value.toFixed(1) : number(Math.round(value));
}

export function micros(value) {
  if (value < 1000) return `${number(value)} µs`;
  if (value < 1_000_000) return `${(value / 1000).toFixed(value < 10_000 ? 1 : 0)} ms`;
  return `${(value / 1_000_000).toFixed(1)} s`;
}

export function millis(value) {
  if (value < 1000) return `${number(value)} ms`;
  const secs = Math.ceil(value / 1000);
  if (secs < 60) return `${secs} s`;
  if (secs < 3600) return `${Math.floor(secs / 60)}m ${secs % 60}s`;
  if (secs < 172_800) return `${Math.floor(secs / 3600)}h ${Math.floor((secs % 3600) / 60)}m`;
  return `${Math.floor(secs / 86_400)} d`;
}

export const clock = (at) => new Date(at).toLocaleTimeString();

/** A share of a hundred as a bar. */
export function bar(share, kind) {
  const svg = drawn("svg", { viewBox: "0 0 100 1", preserveAspectRatio: "none", "aria-hidden": "true" });
  svg.append(drawn("rect", { width: Math.min(100, share), height: 1 }));
  return element("div", { className: `bar ${kind}` }, svg);
}

/** The head and the body of a table. A column is its name, its class, and what it shows of an item. */
export function table(columns, items, more) {
  const head = columns.map(([name, kind]) => element("th", { scope: "col", className: kind }, name));
  return [element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...items.map((item) => tableRow(columns, item, more)))];
}

/** A row: a cell that names it, and cells with the name of their column for narrow screens. `more` adds to a cell. */
function tableRow(columns, item, more = () => {}) {
  return element("tr", {}, ...columns.map(([name, kind, value], place) => {
    const cell = element(place ? "td" : "th", { className: kind }, value(item));
    if (place) cell.dataset.label = name; else cell.scope = "row";
    more(cell, name, item);
    return cell;
  }));
}

/** The server answered, and said no. Anything else that is thrown means that it did not answer. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function call(method, path, { body, key, signal } = {}) {
  const headers = { accept: "application/json" };
  const bearer = key ?? sessionStorage.getItem(KEY);
  if (bearer) headers.authorization = `Bearer ${bearer}`;
  if (body) headers["content-type"] = "application/json";
  const response = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
  const answer = await response.json();
  if (!response.ok) throw new Refused(response.status, answer.detail || response.statusText);
  return answer;
}

export const read = (path, signal) => call("GET", path, { signal });

/** Changes something at the broker. */
export const send = (method, path, body) => call(method, path, { body });

/** What `key` may do; throws if the broker does not accept it. */
export const accessOf = (key) => call("GET", "/v1/access", { key });

export const useKey = (key) => sessionStorage.setItem(KEY, key);

// What was chosen on the page, until the tab is closed.
export const remembered = (name) => sessionStorage.getItem(`tollgate-${name}`);
export const remember = (name, value) => sessionStorage.setItem(`tollgate-${name}`, value);

/** A group of buttons of which one is pressed. */
export function choice(label, options, chosen, choose) {
  const buttons = options.map(([value, text, title]) => {
    const button = element("button", { type: "button", title: title ?? "" }, text);
    button.dataset.value = value;
    button.addEventListener("click", () => {
      show(value);
      choose(value);
    });
    return button;
  });
  const show = (value) => buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.value === value)));
  show(chosen);
  const group = element("div", { className: "choice" }, ...buttons);
  group.setAttribute("role", "group");
  group.setAttribute("aria-label", label);
  return group;
}
