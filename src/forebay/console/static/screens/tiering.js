// Tables with a lake: what waits, the last rounds, and how far the lakes are behind their streams.
import { Badge, Card, Empty, Head, Missing, PagedTable, Search, Tile, UNKNOWN, bytes, duration, html, number, short, tableUrl, useApi, useQuery } from "../lib.js";

const STATES = {
  Tiering: ["info", "tiering", "a worker is tiering it"],
  Pending: ["warn", "waiting", "it is due, and waits for a worker"],
  Scheduled: ["", "scheduled", "its next round starts when its freshness interval has passed"],
  Failed: ["bad", "failed", "its last round failed"],
};
const ORDERS = { behind: "largest lag first", last: "longest without a round first", failures: "most failures first", name: "by name" };

const COLUMNS = [
  {
    name: "table", label: "Table", class: "name",
    cell: (t) => html`<a href=${tableUrl(t.database, t.table, "lake")}>${t.database}.${t.table}</a>${t.lag_error && html`<div class="sub bad-text">${t.lag_error}</div>`}`,
  },
  {
    name: "state", label: "State",
    cell: (t) => {
      if (!t.state) return UNKNOWN;
      const [kind, word, why] = STATES[t.state] ?? ["", t.state, ""];
      const due = t.freshness_seconds - t.last_round_seconds;
      return html`<span class="nowrap"><${Badge} kind=${kind} title=${why}>${word}<//>${t.is_late && html` <${Badge} kind="bad" title="the lake lacks records, and no round has run for three freshness intervals">late<//>`}</span>
        ${t.state === "Scheduled" && due > 0 ? html`<div class="sub">due in ${duration(due)}</div>` : t.state !== "Scheduled" && html`<div class="sub">for ${duration(t.state_seconds)}</div>`}`;
    },
  },
  { name: "lag_records", label: "Records behind", num: true, cell: (t) => html`<span title=${number(t.lag_records)}>${short(t.lag_records)}</span>` },
  { name: "lag_seconds", label: "Time behind", num: true, cell: (t) => html`<span title="age of the oldest record that is not in the lake">${t.lag_seconds === 0 ? "0" : duration(t.lag_seconds)}</span>` },
  { name: "last_round", label: "Since last round", num: true, cell: (t) => html`<span title="or since the table was created, before the first one">${duration(t.last_round_seconds)}</span>` },
  { name: "round_seconds", label: "It took", num: true, cell: (t) => duration(t.round_seconds) },
  { name: "freshness", label: "Freshness", num: true, cell: (t) => duration(t.freshness_seconds) },
  { name: "failures", label: "Failures", num: true, cell: (t) => (t.failures ? html`<${Badge} kind="bad" title="failed rounds since the server started">${number(t.failures)}<//>` : t.failures === 0 ? "0" : UNKNOWN) },
  { name: "lake_bytes", label: "Lake", num: true, cell: (t) => html`<span title=${t.lake_rows === null || t.lake_rows === undefined ? "" : `${number(t.lake_rows)} rows`}>${bytes(t.lake_bytes)}</span>` },
];

function Summary() {
  const { data } = useApi("tiering", { limit: 1 }, { every: 5 });
  const sum = data?.summary;
  if (!sum) return null;
  return html`<div class="tiles">
    <${Tile} label="Records behind" value=${short(sum.untiered)} sub="in all logs" />
    <${Tile} label="Late" value=${number(sum.late)} sub=${sum.late ? "no round for three freshness intervals" : "no table is late"} />
    <${Tile} label="Waiting" value=${number(sum.waiting)} sub="due, without a worker" />
    <${Tile} label="Being tiered" value=${number(sum.tiering)} sub=${`of ${number(sum.tables)} tables`} />
    <${Tile} label="Failed rounds" value=${number(sum.failures)} sub="since the server started" />
  </div>`;
}

export default function Tiering() {
  const [query, setQuery] = useQuery();
  const [search, sort] = [query.get("search"), query.get("sort") ?? "behind"];
  return html`
    <${Head} title="Tiering and lag" sub="How far each lake lags behind its stream, and which tables wait for a worker" />
    <div class="stack">
      <${Summary} />
      <${Card}>
        <${PagedTable} path="tiering" params=${{ search, sort }} columns=${COLUMNS} label="Tables with a lake" every=${5}
          keyOf=${(t) => `${t.database}.${t.table}`}
          above=${(data) => html`<div class="tools">
            <div class="grow"><${Search} value=${search} label="Search tables" placeholder="Search tables by name" onSearch=${(text) => setQuery({ search: text })} /></div>
            ${data.summary && html`<select aria-label="Order" value=${sort} onChange=${(e) => setQuery({ sort: e.target.value })}>
              ${Object.entries(ORDERS).map(([name, label]) => html`<option key=${name} value=${name}>${label}</option>`)}
            </select>`}
            <${Missing} missing=${data.missing} />
          </div>`}
          empty=${search
            ? html`<${Empty} title="No table with a lake matches"><button onClick=${() => setQuery({ search: null })}>Show all</button><//>`
            : html`<${Empty} title="No table has a lake"><span>Enable it with <code>'table.datalake.enabled' = 'true'</code>, on a server with <code>datalake.enabled</code>.</span><//>`} />
      <//>
    </div>`;
}
