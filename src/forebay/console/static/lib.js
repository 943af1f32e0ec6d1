// What all screens share: requests, formats, components. A screen imports from here, and from nowhere else.
import {
  html, render, Component, createContext, useCallback, useContext, useEffect, useMemo, useRef, useState,
} from "./vendor/preact-htm.js";

export { html, render, Component, createContext, useCallback, useContext, useEffect, useMemo, useRef, useState };

// ---- requests -------------------------------------------------------------------------------------------------------

export class ApiError extends Error {
  constructor(message, kind, status) {
    super(message);
    this.kind = kind;
    this.status = status;
  }
}

const login = new EventTarget();
export const onLoginNeeded = (call) => login.addEventListener("needed", call);

/** The answer to a GET; `params` without null and empty values. Throws ApiError. */
export function get(path, params, signal) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params ?? {})) {
    if (value !== null && value !== undefined && value !== "") query.set(name, value);
  }
  return send(`/api/${path}${query.size ? `?${query}` : ""}`, { signal });
}

/** The answer to a POST of an object. Throws ApiError. */
export function post(path, body, signal) {
  return send(`/api/${path}`, {
    method: "POST", signal, body: JSON.stringify(body ?? {}),
    headers: { "Content-Type": "application/json", "X-Forebay-Console": "1" },
  });
}

export function remove(path) {
  return send(`/api/${path}`, { method: "DELETE", headers: { "X-Forebay-Console": "1" } });
}

async function send(url, options) {
  let response;
  try {
    response = await fetch(url, { credentials: "same-origin", ...options });
  } catch (e) {
    if (e.name === "AbortError") throw e;
    throw new ApiError("The console does not respond. Is it still running?", "console_gone", 0);
  }
  let answer;
  try {
    answer = await response.json();
  } catch {
    throw new ApiError(`The console answered with status ${response.status}, and no JSON.`, "internal", response.status);
  }
  if (response.ok) return answer;
  if (response.status === 401) login.dispatchEvent(new Event("needed"));
  throw new ApiError(answer.error?.message ?? response.statusText, answer.error?.kind ?? "internal", response.status);
}

const LATE_SECONDS = 5;

/**
 * What a path answers: {data, error, loading, reload, at, isStale}. It asks again when path or params change, and each
 * `every` seconds while the page is visible. Data stay while it asks again, or if that fails; `at` is when they came, in
 * milliseconds, and `isStale` says that the last request failed or has had no answer for some seconds. A path of null
 * asks nothing.
 */
export function useApi(path, params = {}, { every = 0 } = {}) {
  const key = path === null ? null : `${path}?${JSON.stringify(params)}`;
  const [state, setState] = useState({ key, data: null, error: null, loading: path !== null, late: false, at: null });
  const [round, setRound] = useState(0);
  const reload = useCallback(() => setRound((n) => n + 1), []);
  useEffect(() => {
    if (key === null) return undefined;
    const gone = new AbortController();
    let timer;
    const ask = async () => {
      setState((before) => ({ ...(before.key === key ? before : { data: null, error: null, at: null }), key, loading: true, late: false }));
      const late = setTimeout(() => setState((before) => ({ ...before, late: true })), LATE_SECONDS * 1000);
      gone.signal.addEventListener("abort", () => clearTimeout(late));
      try {
        const data = await get(path, params, gone.signal);
        setState({ key, data, error: null, loading: false, late: false, at: Date.now() });
      } catch (error) {
        if (gone.signal.aborted) return;
        setState((before) => ({ ...before, error, loading: false, late: false }));
      } finally {
        clearTimeout(late);
      }
      if (every && !gone.signal.aborted) timer = setTimeout(again, every * 1000);
    };
    const again = () => {
      if (document.hidden) timer = setTimeout(again, 1000);
      else ask();
    };
    ask();
    return () => {
      gone.abort();
      clearTimeout(timer);
    };
  }, [key, round, every]);
  const fits = state.key === key;
  const data = fits ? state.data : null;
  const error = fits ? state.error : null;
  return { data, error, loading: !fits || state.loading, reload, at: state.at, isStale: data !== null && (error !== null || state.late) };
}

// ---- places ---------------------------------------------------------------------------------------------------------

const moves = new EventTarget();

export function navigate(url, { replace = false } = {}) {
  if (replace) history.replaceState(null, "", url);
  else history.pushState(null, "", url);
  moves.dispatchEvent(new Event("moved"));
}

/** The address of this page, kept up to date. */
export function useLocation() {
  const [, moved] = useState(0);
  useEffect(() => {
    const call = () => moved((n) => n + 1);
    moves.addEventListener("moved", call);
    addEventListener("popstate", call);
    return () => {
      moves.removeEventListener("moved", call);
      removeEventListener("popstate", call);
    };
  }, []);
  return new URL(location.href);
}

/** Values in the address's query, and a function that changes some: {search: "x"}; empty ones are left out. */
export function useQuery() {
  const url = useLocation();
  const set = (changes, options) => {
    const next = new URL(location.href);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === undefined || value === "") next.searchParams.delete(name);
      else next.searchParams.set(name, value);
    }
    navigate(next.pathname + next.search, { replace: true, ...options });
  };
  return [url.searchParams, set];
}

export const tableUrl = (database, table, tab) =>
  `/tables/${encodeURIComponent(database)}/${encodeURIComponent(table)}${tab ? `/${tab}` : ""}`;

export const apiPath = (...parts) => parts.map(encodeURIComponent).join("/");

/** Follow links of this page without loading it again. */
export function followLinks(event) {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  if (link.target || link.hasAttribute("download") || link.origin !== location.origin || link.getAttribute("href").startsWith("#")) return;
  event.preventDefault();
  navigate(link.pathname + link.search);
}

// ---- formats --------------------------------------------------------------------------------------------------------

const grouped = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
export const UNKNOWN = "–";

export const number = (value) => (value === null || value === undefined ? UNKNOWN : grouped.format(value));

/** A number in few characters: 0.25, 17.5, 1,234, 5.6M. */
export function short(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (value >= 1_000_000) return compact.format(value);
  return grouped.format(value < 1 ? Number(value.toPrecision(2)) : value < 100 ? Math.round(value * 10) / 10 : Math.round(value));
}

export function bytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) [value, unit] = [value / 1024, unit + 1];
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

/** A time as local date and time, in the form of ISO. */
export function time(iso) {
  if (!iso) return UNKNOWN;
  const t = new Date(iso);
  const two = (n) => String(n).padStart(2, "0");
  return `${t.getFullYear()}-${two(t.getMonth() + 1)}-${two(t.getDate())} ${two(t.getHours())}:${two(t.getMinutes())}:${two(t.getSeconds())}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 2 * 86_400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}

/** How long ago, with the time as a tooltip. */
export function Ago({ at }) {
  if (!at) return html`<span class="muted">${UNKNOWN}</span>`;
  const seconds = (Date.now() - new Date(at)) / 1000;
  return html`<time datetime=${at} title=${time(at)}>${seconds < 1 ? "now" : `${duration(seconds)} ago`}</time>`;
}

// ---- components -----------------------------------------------------------------------------------------------------

/** The top of a screen: title, a line below it, actions; `crumbs` are [text, href] pairs above. */
export function Head({ title, sub, crumbs, actions }) {
  useEffect(() => {
    document.title = `${title} · Forebay`;
  }, [title]);
  return html`<header class="head">
    <div class="titles">
      ${crumbs && html`<nav class="crumbs" aria-label="Breadcrumbs">${crumbs.map(([text, href], i) => html`${i > 0 && " / "}<a href=${href}>${text}</a>`)}</nav>`}
      <h1>${title}</h1>
      ${sub && html`<div class="sub">${sub}</div>`}
    </div>
    ${actions && html`<div class="row">${actions}</div>`}
  </header>`;
}

export const Badge = ({ kind = "", children, title }) => html`<span class="badge ${kind}" title=${title}>${children}</span>`;

export const Card = ({ title, actions, note, children, pad = false }) => html`<section class="card">
  ${(title || actions) && html`<header><h2>${title}</h2>${actions && html`<div class="row">${actions}</div>`}</header>`}
  ${pad ? html`<div class="body">${children}</div>` : children}
  ${note && html`<p class="note">${note}</p>`}
</section>`;

export const Empty = ({ title, children }) => html`<div class="state"><strong>${title}</strong>${children && html`<div>${children}</div>`}</div>`;

export const Loading = ({ lines = 5 }) => html`<div class="skeleton" role="status" aria-label="Loading">
  ${Array.from({ length: lines }, (_, i) => html`<span style=${{ width: `${92 - ((i * 17) % 40)}%` }}></span>`)}
</div>`;

const TITLES = {
  unavailable: "The server does not respond", console_gone: "The console does not respond", not_found: "Not found",
  access_denied: "Not allowed", unsupported: "Not supported", limit: "Too many requests",
};

export const ErrorBox = ({ error, retry }) => html`<div class="box bad row spread" role="alert">
  <div class="grow"><strong>${TITLES[error.kind] ?? "The request failed"}</strong><div class=${error.message.includes("\n") ? "lines" : ""}>${error.message}</div></div>
  ${retry && html`<button onClick=${retry}>Try again</button>`}
</div>`;

/** What a cluster does not tell. */
export const Missing = ({ missing }) => missing?.length
  ? html`<p class="small muted">${missing.map((sentence) => `${sentence[0].toUpperCase()}${sentence.slice(1)}`).join(". ")}.</p>` : null;

/** Says of data that are not current why that is, and of when they are. */
export const Stale = ({ of }) => html`
  ${of.error && html`<${ErrorBox} error=${of.error} retry=${of.reload} />`}
  ${of.isStale && html`<div class="box warn" role="status">${of.error ? "" : "The server has not answered for some seconds. "}This page shows its state at ${time(new Date(of.at).toISOString())}.</div>`}`;

/** The usual frame around what `useApi` has: loading, an error, or the children for data (with an error above them). */
export function Answer({ of, children, lines }) {
  if (of.data === null) {
    if (of.error) return html`<${ErrorBox} error=${of.error} retry=${of.reload} />`;
    return html`<${Loading} lines=${lines} />`;
  }
  return html`<${Stale} of=${of} />${children(of.data)}`;
}

/** Names with values; values of null are left out unless `all`. */
export const Facts = ({ facts, all = false }) => html`<dl class="facts">
  ${facts.filter(([, value]) => all || (value !== null && value !== undefined && value !== "")).map(
    ([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value ?? UNKNOWN}</dd></div>`)}
</dl>`;

export const Tile = ({ label, value, sub, children }) => html`<div class="tile">
  <span class="label">${label}</span><span class="value">${value}</span>${sub && html`<span class="sub">${sub}</span>`}${children}
</div>`;

export const Bar = ({ share, label, kind = "" }) => html`<span class="bar ${kind}" role="img" aria-label=${label}><span style=${{ width: `${Math.min(Math.max(share, 0), 1) * 100}%` }}></span></span>`;

/**
 * A table of objects. `columns`: {name, label, num, cell: (item) => content, class}; without `cell` the item's value.
 * On a small screen each row is a block, with the labels in it.
 */
export const List = ({ columns, items, label, keyOf }) => html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table class="list" aria-label=${label}>
  <thead><tr>${columns.map((c) => html`<th key=${c.name} scope="col" class=${c.num ? "num" : ""}>${c.label}</th>`)}</tr></thead>
  <tbody>${items.map((item, i) => html`<tr key=${keyOf ? keyOf(item) : i}>
    ${columns.map((c) => html`<td key=${c.name} class="${c.num ? "num" : ""} ${c.class ?? ""}" data-label=${c.class?.includes("name") ? undefined : c.label}>${c.cell ? c.cell(item) : item[c.name] ?? UNKNOWN}</td>`)}
  </tr>`)}</tbody>
</table></div>`;

/**
 * A list that the server pages: asks `path` with `params`, page_token and limit, and shows {items, next, total}.
 * `empty` is what stands in place of no items. `above(data)` is shown above it.
 */
export function PagedTable({ path, params = {}, columns, label, keyOf, empty, every = 0, limit = 50, above }) {
  const key = JSON.stringify([path, params]);
  const [place, setPlace] = useState({ key, tokens: [null] });
  const tokens = place.key === key ? place.tokens : [null];
  const answer = useApi(path, { ...params, page_token: tokens[tokens.length - 1], limit }, { every });
  const kept = useRef(null);
  if (answer.data) kept.current = answer.data;
  const data = answer.data ?? (answer.error ? null : kept.current);
  if (data === null) return html`<${Answer} of=${answer} />`;
  const first = (tokens.length - 1) * limit;
  const turn = (next) => setPlace({ key, tokens: next });
  const hasPages = tokens.length > 1 || data.next;
  return html`<div aria-busy=${answer.loading}>
    <${Stale} of=${answer} />
    ${above?.(data)}
    ${data.items.length ? html`<${List} columns=${columns} items=${data.items} label=${label} keyOf=${keyOf} />` : empty ?? html`<${Empty} title="Not found" />`}
    ${(hasPages || data.items.length > 0) && html`<div class="pager">
      <span role="status">${data.items.length ? `${number(first + 1)}–${number(first + data.items.length)}` : "0"}${data.total !== null && data.total !== undefined ? ` of ${number(data.total)}` : ""}</span>
      ${hasPages && html`<span class="row">
        <button data-key="[" disabled=${tokens.length < 2} onClick=${() => turn(tokens.slice(0, -1))}>Previous</button>
        <button data-key="]" disabled=${!data.next} onClick=${() => turn([...tokens, data.next])}>Next</button>
      </span>`}
    </div>`}
  </div>`;
}

/** A search field that reports what is typed after a moment. */
export function Search({ value, onSearch, label, placeholder }) {
  const [text, setText] = useState(value ?? "");
  const timer = useRef();
  const typed = (event) => {
    const next = event.target.value;
    setText(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onSearch(next), 180);
  };
  return html`<input type="search" class="wide" data-key="/" aria-label=${label} placeholder=${placeholder ?? label} value=${text} onInput=${typed} spellcheck="false" autocomplete="off" />`;
}

export function CopyButton({ text }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied");
    } catch {
      setSaid("Not allowed");
    }
    setTimeout(() => setSaid(""), 1500);
  };
  return html`<button class="quiet" onClick=${copy}>${said || "Copy"}</button>`;
}

/**
 * Rows: `columns` are {name, type, numeric}, `rows` are arrays of cells. A cell is null, a boolean, a number or text.
 * `rowClass(row)` is a class of a row; `onRow(row)` shows all of it, by a button in front.
 */
export function Rows({ columns, rows, label, rowClass, cellClass, onRow }) {
  return html`<div class="data-box" tabindex="0" role="region" aria-label=${label}><table class="data">
    <thead><tr>${onRow && html`<th class="open"><span class="hidden-text">Show</span></th>`}${columns.map((c) => html`<th scope="col" class=${c.numeric ? "num" : ""}>${c.name}<span class="type">${c.type}</span></th>`)}</tr></thead>
    <tbody>${rows.map((row) => html`<tr class=${rowClass?.(row) ?? ""}>${onRow && html`<td class="open"><button class="quiet" aria-label="Show this row" title="Show this row" onClick=${() => onRow(row)}>⋯</button></td>`}${row.map((cell, i) => html`<td class="${columns[i].numeric ? "num" : ""} ${cellClass?.(columns[i]) ?? ""}" title=${typeof cell === "string" && cell.length > 40 ? cell : undefined}>${cell === null ? html`<span class="null">null</span>` : String(cell)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

/** A line of values over time, without axes: [numbers], oldest first. */
export function Spark({ values, height = 36, label }) {
  const known = values.filter((v) => v !== null && v !== undefined);
  if (known.length < 2) return html`<svg class="spark" height=${height} role="img" aria-label=${`${label}: not enough values yet`}></svg>`;
  const top = Math.max(...known, 1e-9);
  const x = (i) => (i * 100) / (values.length - 1);
  const y = (v) => 34 - (v / top) * 32;
  const points = values.map((v, i) => (v === null || v === undefined ? null : `${x(i).toFixed(2)},${y(v).toFixed(2)}`)).filter(Boolean);
  return html`<svg class="spark" height=${height} viewBox="0 0 100 36" preserveAspectRatio="none" role="img" aria-label=${`${label}, from ${short(known[0])} to ${short(known[known.length - 1])}, at most ${short(top)}`}>
    <path class="area" d=${`M${points[0].split(",")[0]},36 L${points.join(" L")} L${points[points.length - 1].split(",")[0]},36 Z`} />
    <path class="line" d=${`M${points.join(" L")}`} />
  </svg>`;
}
