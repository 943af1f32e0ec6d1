// Rows of a table: from the end or the start of its log, an offset, a time, or the current ones.
import { Answer, Card, Empty, ErrorBox, Facts, Loading, Rows, apiPath, get, html, number, tableUrl, useApi, useEffect, useQuery, useRef, useState } from "../lib.js";

const PLACES = [
  ["end", "the end of the log, newest first"], ["start", "the start of the log"], ["time", "a time"], ["offset", "an offset of a bucket"], ["current", "current rows, lake and stream"],
];
const FIELDS = ["place", "bucket", "partition", "offset", "time", "filter", "columns", "limit"];

export default function RowsScreen({ database, table }) {
  const [query, setQuery] = useQuery();
  const about = useApi(apiPath("tables", database, table));
  const [place, setPlace] = useState(query.get("place") ?? "end");
  const [shown, setShown] = useState(null);
  const wanted = Object.fromEntries(FIELDS.map((name) => [name, query.get(name)]));
  const key = JSON.stringify(wanted);
  const [round, setRound] = useState(0);
  const [tokens, setTokens] = useState([null]);
  const [state, setState] = useState({ data: null, error: null, loading: true });
  useEffect(() => setTokens([null]), [key]);
  useEffect(() => {
    const gone = new AbortController();
    setState((before) => ({ ...before, loading: true }));
    get(apiPath("peek", database, table), { ...wanted, page_token: tokens[tokens.length - 1] }, gone.signal).then(
      (data) => setState({ data, error: null, loading: false }),
      (error) => gone.signal.aborted || setState({ data: null, error, loading: false }),
    );
    return () => gone.abort();
  }, [key, round, tokens]);
  const submit = (event) => {
    event.preventDefault();
    const given = Object.fromEntries(new FormData(event.target));
    if (given.time) given.time = given.time.includes("Z") || /[+-]\d\d:?\d\d$/.test(given.time) ? given.time : `${given.time}Z`;
    setQuery(Object.fromEntries(FIELDS.map((name) => [name, given[name] ?? null])));
    setTokens([null]);
    setRound((n) => n + 1);
  };
  const info = about.data;
  const isLog = place !== "current";
  const { data, error, loading } = state;
  return html`<div class="stack">
    <${Card} pad>
      <form class="controls" onSubmit=${submit} aria-label="Which rows">
        <label class="field">Begin at<select name="place" value=${place} onChange=${(e) => setPlace(e.target.value)}>
          ${PLACES.map(([name, text]) => html`<option key=${name} value=${name} selected=${name === place}>${text}</option>`)}
        </select></label>
        ${place === "time" && html`<label class="field">Time, in UTC<input name="time" type="datetime-local" step="1" required value=${(query.get("time") ?? "").replace("Z", "")} /></label>`}
        ${isLog && (place === "offset" || info?.buckets > 1) && html`<label class="field">Bucket<input name="bucket" type="number" min="0" max=${info ? info.buckets - 1 : undefined} required=${place === "offset"} placeholder=${place === "offset" ? "" : "all"} value=${query.get("bucket") ?? ""} style=${{ width: "80px" }} /></label>`}
        ${place === "offset" && html`<label class="field">Offset<input name="offset" type="number" min="0" required value=${query.get("offset") ?? ""} style=${{ width: "130px" }} /></label>`}
        ${info?.partition_keys.length > 0 && html`<label class="field">Partition<input name="partition" required=${place === "offset"} placeholder="all" value=${query.get("partition") ?? ""} spellcheck="false" /></label>`}
        <label class="field grow">Condition<input name="filter" data-key="/" class="mono" placeholder="amount >= 100 AND status = 'paid'" value=${query.get("filter") ?? ""} spellcheck="false" autocomplete="off" /></label>
        <label class="field">Columns<input name="columns" class="mono" placeholder="all" value=${query.get("columns") ?? ""} spellcheck="false" autocomplete="off" /></label>
        <label class="field">Rows<select name="limit">${[50, 100, 500, 1000].map((n) => html`<option key=${n} value=${n} selected=${String(n) === (query.get("limit") ?? "100")}>${n}</option>`)}</select></label>
        <button class="primary" disabled=${loading}>${loading ? "Reading…" : "Read"}</button>
      </form>
    <//>
    ${error && html`<${ErrorBox} error=${error} retry=${error.kind === "invalid" ? null : () => setRound((n) => n + 1)} />`}
    ${!data && !error && html`<${Card}><${Loading} /><//>`}
    ${data && html`<${Card}>
      ${data.rows.length ? html`<${Rows} columns=${data.columns} rows=${data.rows} label="Rows" onRow=${setShown} rowClass=${(row) => changeClass(data.columns, row)} cellClass=${(c) => (c.name === "_change" ? "change" : "")} />`
        : html`<${Empty} title=${data.complete ? "No rows match" : "No match so far"}>${data.complete ? null : "To continue the search, choose Next."}<//>`}
      <div class="pager">
        <span role="status">${summary(data, tokens.length)}</span>
        <span class="row">
          <button data-key="[" disabled=${tokens.length < 2 || loading} onClick=${() => setTokens(tokens.slice(0, -1))}>Previous</button>
          <button data-key="]" disabled=${!data.next || loading} onClick=${() => setTokens([...tokens, data.next])}>Next</button>
        </span>
      </div>
    <//>`}
    ${shown && html`<${RowDialog} columns=${data.columns} row=${shown} info=${info} onClose=${() => setShown(null)} />`}
  </div>`;
}

function summary(data, page) {
  const rows = `${number(data.rows.length)} rows${page > 1 ? `, page ${page}` : ""}`;
  if (data.parts) return data.parts[0] < data.parts[1] ? `${rows}, from ${number(data.parts[0])} of ${number(data.parts[1])} parts` : rows;
  return `${rows}, ${number(data.searched)} log records searched${data.complete ? ", the whole log" : ""}`;
}

function changeClass(columns, row) {
  const index = columns.findIndex((c) => c.name === "_change");
  return index < 0 ? "" : `change-${row[index]}`;
}

/** All of one row, and the way to its key's history. */
function RowDialog({ columns, row, info, onClose }) {
  const dialog = useRef();
  useEffect(() => dialog.current.showModal(), []);
  const value = (name) => row[columns.findIndex((c) => c.name === name)];
  const hasKey = info?.primary_key.length > 0 && info.primary_key.every((name) => columns.some((c) => c.name === name));
  const query = hasKey ? new URLSearchParams(info.primary_key.map((name) => [`k.${name}`, String(value(name))])) : null;
  return html`<dialog ref=${dialog} onClose=${onClose} aria-label="Row" class="wide">
    <div class="stack">
      <${Facts} all facts=${columns.map((c, i) => [html`<span class="mono">${c.name}</span>`, row[i] === null ? html`<span class="muted">null</span>` : html`<span class="mono">${String(row[i])}</span>`])} />
      <div class="row">
        ${hasKey && html`<a class="button" href=${`${tableUrl(info.database, info.table, "key")}?${query}`} onClick=${() => dialog.current.close()}>History of this key</a>`}
        <button onClick=${() => dialog.current.close()}>Close</button>
      </div>
    </div>
  </dialog>`;
}
