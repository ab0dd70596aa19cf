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

/** A number with its noun, as in "1 call" and "1,200 calls". */
export const counted = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;

export const rate = (value) => (value > 0 && value < 10 ? value.toFixed(1) : number(Math.round(value)));

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

/** The server answered, and said no. Anything else that is thrown means that it did not answer. */
export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

export async function read(path, signal) {
  const headers = { accept: "application/json" };
  const key = sessionStorage.getItem(KEY);
  if (key) headers.authorization = `Bearer ${key}`;
  const response = await fetch(path, { headers, signal });
  const body = await response.json();
  if (!response.ok) throw new Refused(response.status, body.detail || response.statusText);
  return body;
}

export const useKey = (key) => sessionStorage.setItem(KEY, key);
