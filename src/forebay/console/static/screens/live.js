// What is written to a table now. The page keeps a few hundred rows; the server sends a few hundred a moment.
import { Badge, Card, Empty, ErrorBox, Rows, apiPath, html, number, tableUrl, time, useEffect, useQuery, useRef, useState } from "../lib.js";

const KEPT = 400;
const RETRY_SECONDS = 2;
const TRANSIENT = ["unavailable", "console_gone"];

export default function Live({ database, table }) {
  const [query, setQuery] = useQuery();
  const filter = query.get("filter") ?? "";
  const [columns, setColumns] = useState(null);
  const [rows, setRows] = useState([]);
  const [counts, setCounts] = useState({ shown: 0, skipped: 0 });
  const [error, setError] = useState(null);
  const [gap, setGap] = useState(null); // when the stream was interrupted, and when it went on
  const [paused, setPaused] = useState(false);
  const [round, setRound] = useState(0);
  const held = useRef([]);
  useEffect(() => {
    if (paused) return undefined;
    let timer;
    const interrupt = () => setGap((before) => (before && !before.until ? before : { from: Date.now(), until: null }));
    // A server that restarts is waited for; what cannot be read says so, and stops.
    const fail = (failure) => {
      setError(failure);
      if (!TRANSIENT.includes(failure.kind)) return;
      interrupt();
      timer = setTimeout(() => setRound((n) => n + 1), RETRY_SECONDS * 1000);
    };
    const source = new EventSource(`/api/${apiPath("tail", database, table)}${filter ? `?${new URLSearchParams({ filter })}` : ""}`);
    source.addEventListener("columns", (event) => {
      setColumns(JSON.parse(event.data));
      setError(null);
      setGap((before) => (before && !before.until ? { ...before, until: Date.now() } : before));
    });
    source.addEventListener("rows", (event) => {
      const moment = JSON.parse(event.data);
      setError(null);
      if (!moment.rows.length && !moment.skipped) return;
      held.current = [...moment.rows.reverse(), ...held.current].slice(0, KEPT);
      setRows(held.current);
      setCounts((c) => ({ shown: c.shown + moment.rows.length, skipped: c.skipped + moment.skipped }));
    });
    source.addEventListener("failed", (event) => {
      source.close();
      fail(JSON.parse(event.data));
    });
    source.onerror = () => {
      // A browser tries again after a lost connection, but not after a refusal, of which it does not show the reason.
      if (source.readyState !== EventSource.CLOSED) {
        setError({ kind: "console_gone", message: "The connection was lost." });
        interrupt();
      } else why(database, table, filter).then(fail);
    };
    return () => {
      clearTimeout(timer);
      source.close();
    };
  }, [database, table, filter, paused, round]);
  const submit = (event) => {
    event.preventDefault();
    clear();
    setQuery({ filter: new FormData(event.target).get("filter") });
    setPaused(false);
  };
  const clear = () => {
    held.current = [];
    setRows([]);
    setCounts({ shown: 0, skipped: 0 });
    setGap(null);
  };
  const isWaiting = error && TRANSIENT.includes(error.kind);
  return html`<div class="stack">
    <${Card} pad><form class="controls" onSubmit=${submit} aria-label="Which changes">
      <label class="field grow">Condition<input name="filter" data-key="/" class="mono" value=${filter} placeholder="all changes" spellcheck="false" autocomplete="off" /></label>
      <button>Apply</button>
      <button type="button" aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Go on" : "Pause"}</button>
      <button type="button" onClick=${clear}>Clear</button>
    </form><//>
    ${isWaiting ? html`<div class="box warn" role="status">${error.message} Reconnecting…</div>`
      : error && html`<${ErrorBox} error=${error} retry=${() => setRound((n) => n + 1)} />`}
    ${gap?.until && html`<div class="box info" role="status">The stream was interrupted from ${at(gap.from)} to ${at(gap.until)}. <a href=${`${tableUrl(database, table, "rows")}?place=time&time=${new Date(gap.from).toISOString().slice(0, 19)}Z`}>Rows</a> shows what was written meanwhile.</div>`}
    <${Card} title=${html`Changes ${paused ? html`<${Badge} kind="warn">paused<//>` : isWaiting ? html`<${Badge} kind="warn">reconnecting<//>` : error ? html`<${Badge} kind="bad">stopped<//>` : html`<${Badge} kind="good">live<//>`}`}
      actions=${html`<span class="small muted" role="status">${number(counts.shown)} rows${counts.skipped ? `, ${number(counts.skipped)} more were skipped` : ""}</span>`}>
      ${columns && rows.length ? html`<${Rows} columns=${columns} rows=${rows} label="Changes, the newest first" rowClass=${(row) => (columns[0].name === "_change" ? `change-${row[0]}` : "")} cellClass=${(c) => (c.name === "_change" ? "change" : "")} />`
        : html`<${Empty} title=${paused ? "Paused" : "Waiting for rows to be written"}>They appear here, the newest first.<//>`}
    <//>
  </div>`;
}

const at = (milliseconds) => time(new Date(milliseconds).toISOString());

/** Why a stream was refused: the same request, as one whose answer can be read. */
async function why(database, table, filter) {
  const gone = new AbortController();
  try {
    const response = await fetch(`/api/${apiPath("tail", database, table)}?${new URLSearchParams(filter ? { filter } : {})}`, { signal: gone.signal });
    const answer = response.ok ? null : await response.json();
    return answer ? answer.error : { kind: "console_gone", message: "The connection was lost." };
  } catch {
    return { kind: "console_gone", message: "The console does not respond. Is it still running?" };
  } finally {
    gone.abort();
  }
}
