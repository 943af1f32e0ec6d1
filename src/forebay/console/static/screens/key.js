// One key: its changes in log and lake, in order, who has its row now, and why.
import { Answer, Badge, Card, Empty, ErrorBox, Facts, Loading, apiPath, get, html, number, time, useApi, useEffect, useQuery, useState } from "../lib.js";

const KINDS = { insert: "good", update_after: "info", delete: "bad", has: "accent" };
const TEXTS = { insert: "insert", update_before: "before", update_after: "update", delete: "delete", has: "has the row", "has no row": "has no row" };

export default function Key({ database, table }) {
  const [query, setQuery] = useQuery();
  const about = useApi(apiPath("tables", database, table));
  return html`<div class="stack"><${Answer} of=${about}>${(info) => {
    if (!info.primary_key.length) {
      return html`<${Card}><${Empty} title="This table has no keys">It is a log table: filter it with a condition, under Rows.<//><//>`;
    }
    const given = Object.fromEntries(info.primary_key.map((name) => [name, query.get(`k.${name}`)]));
    const isComplete = info.primary_key.every((name) => given[name] !== null);
    const submit = (event) => {
      event.preventDefault();
      const form = new FormData(event.target);
      setQuery(Object.fromEntries(info.primary_key.map((name) => [`k.${name}`, form.get(name)])));
    };
    return html`
      <${Card} pad><form class="controls" onSubmit=${submit} aria-label="The key">
        ${info.primary_key.map((name, i) => html`<label class="field" key=${name}>${name}, ${info.columns.find((c) => c.name === name).type.replace(" NOT NULL", "")}<input name=${name} class="mono" data-key=${i ? undefined : "/"} required value=${given[name] ?? ""} spellcheck="false" autocomplete="off" /></label>`)}
        <button class="primary">Look up</button>
      </form><//>
      ${isComplete ? html`<${History} key=${JSON.stringify(given)} database=${database} table=${table} given=${given} />`
        : html`<${Card}><${Empty} title="Enter a key">Its changes, its current row and the explanation are shown here.<//><//>`}`;
  }}<//></div>`;
}

function History({ database, table, given }) {
  const [pages, setPages] = useState([]);
  const [state, setState] = useState({ error: null, loading: true });
  const [signal] = useState(() => new AbortController());
  const load = async (token) => {
    setState({ error: null, loading: true });
    try {
      const page = await get(apiPath("key", database, table), { key: JSON.stringify(given), page_token: token }, signal.signal);
      setPages((before) => [...before, page]);
      setState({ error: null, loading: false });
    } catch (error) {
      if (!signal.signal.aborted) setState({ error, loading: false });
    }
  };
  useEffect(() => {
    load(null);
    return () => signal.abort();
  }, []);
  const [first] = pages;
  const last = pages[pages.length - 1];
  if (!first) return state.error ? html`<${ErrorBox} error=${state.error} retry=${() => load(null)} />` : html`<${Card}><${Loading} /><//>`;
  const events = pages.flatMap((page) => page.events).sort((a, b) => b.position - a.position || (a.where === "lake" ? 1 : -1));
  // An update shows what it changed, so what was before it needs no line of its own.
  const lines = events.map((event, i) => [event, events[i + 1]]).filter(([event], i) => event.change !== "update_before" || events[i - 1]?.change !== "update_after");
  const place = `${first.partition ? `partition ${first.partition}, ` : ""}bucket ${first.bucket}`;
  return html`
    <div class="columns">
      <${Card} title="Current row" note=${first.why ? sentence(first.why) : "Its latest change has not been found yet: search further back."}>
        ${first.row ? html`<${Facts} all facts=${first.columns.map((c, i) => [html`<span class="mono">${c.name}</span>`, html`<span class="mono">${text(first.row[i])}</span>`])} />` : html`<${Empty} title="No row has this key" />`}
      <//>
      <${Card} title="Changes" actions=${html`<span class="small muted">${place}</span>`}>
        ${lines.length ? html`<ol class="events">${lines.map(([event, before]) => html`<${Event} key=${`${event.where}${event.snapshot_id}/${event.offset}`} event=${event} before=${before} columns=${first.columns} />`)}</ol>` : html`<${Empty} title="No changes found" />`}
        ${state.error && html`<${ErrorBox} error=${state.error} />`}
        <div class="pager">
          <span role="status">${last.complete ? `The whole log, from offset ${number(last.log_start)}` : `Searched back to offset ${number(last.searched_from)}; the log begins at ${number(last.log_start)}`}</span>
          ${!last.complete && html`<button disabled=${state.loading} onClick=${() => load(last.next)}>${state.loading ? "Searching…" : "Search further back"}</button>`}
        </div>
      <//>
    </div>`;
}

/** A change, the newest on top; of an update only what it changed. */
function Event({ event, before, columns }) {
  const compared = event.change === "update_after" && before?.change === "update_before" ? before.row : null;
  const changed = columns.map((c, i) => [c.name, event.row?.[i], compared?.[i]]).filter(([, now, then]) => compared === null || now !== then);
  return html`<li>
    <div class="row spread">
      <span class="row"><${Badge} kind=${KINDS[event.change] ?? ""}>${TEXTS[event.change] ?? event.change}<//><strong>${event.where === "lake" ? `Lake snapshot ${event.snapshot_id}` : `Offset ${number(event.offset)}`}</strong></span>
      <span class="small muted">${event.time ? time(event.time) : `holds the log up to ${number(event.position)}`}</span>
    </div>
    ${event.row && html`<div class="values">${changed.length ? changed.map(([name, now, then]) => html`<span key=${name}><span class="muted">${name}</span> ${compared !== null && html`<del>${text(then)}</del> `}<span class="mono">${text(now)}</span></span>`) : html`<span class="muted">the same values</span>`}</div>`}
  </li>`;
}

const text = (value) => (value === null || value === undefined ? "null" : String(value));
const sentence = (words) => `${words[0].toUpperCase()}${words.slice(1)}.`;
