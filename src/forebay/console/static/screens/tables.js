// The tables of the cluster, a page at a time.
import { Ago, Badge, Card, Empty, Head, Missing, PagedTable, Search, UNKNOWN, bytes, html, number, short, tableUrl, useQuery } from "../lib.js";

const COLUMNS = [
  {
    name: "table", label: "Table", class: "name",
    cell: (t) => html`<a href=${tableUrl(t.database, t.table)}>${t.database}.${t.table}</a>
      ${(t.error || t.comment) && html`<div class="sub">${t.error ?? t.comment}</div>`}`,
  },
  {
    name: "kind", label: "Kind",
    cell: (t) => t.error ? html`<${Badge} kind="warn">not readable<//>` : html`<${Badge} kind=${t.kind === "log" ? "" : "info"}>${t.kind}<//>
      ${t.merge_engine && html` <${Badge}>${t.merge_engine}<//>`}${t.partitioned && html` <${Badge}>partitioned<//>`}`,
  },
  { name: "all_buckets", label: "Buckets", num: true, cell: (t) => number(t.all_buckets) },
  { name: "rows", label: "Rows", num: true, cell: (t) => html`<span title=${number(t.rows)}>${short(t.rows)}</span>` },
  { name: "bytes", label: "Size", num: true, cell: (t) => bytes(t.bytes) },
  { name: "last_write", label: "Last write", num: true, cell: (t) => html`<${Ago} at=${t.last_write} />` },
  { name: "lake", label: "Lake", cell: (t) => t.lake ? html`<${Badge} kind="accent">${t.lake}<//>` : html`<span class="muted">none</span>` },
  {
    name: "lag_records", label: "Records behind", num: true,
    cell: (t) => t.lag_records === null || t.lag_records === undefined ? UNKNOWN
      : html`<span title=${t.lake_snapshot === null ? "the lake has no snapshot yet" : `since lake snapshot ${t.lake_snapshot}`}>${short(t.lag_records)}</span>`,
  },
];

export default function Tables() {
  const [query, setQuery] = useQuery();
  const [search, database] = [query.get("search"), query.get("database")];
  return html`
    <${Head} title="Tables" />
    <${Card}>
      <${PagedTable} path="tables" params=${{ search, database }} columns=${COLUMNS} label="Tables" every=${5}
        keyOf=${(t) => `${t.database}.${t.table}`}
        above=${(data) => html`<div class="row body" style=${{ padding: "12px" }}>
          <div class="grow"><${Search} value=${search} label="Search tables" placeholder="Search tables by name" onSearch=${(text) => setQuery({ search: text })} /></div>
          <select aria-label="Database" value=${database ?? ""} onChange=${(e) => setQuery({ database: e.target.value })}>
            <option value="">all databases</option>
            ${data.databases.map((d) => html`<option key=${d.name} value=${d.name}>${d.name} (${number(d.tables)})</option>`)}
          </select>
        </div>`}
        empty=${search || database
          ? html`<${Empty} title="No table matches"><button onClick=${() => setQuery({ search: null, database: null })}>Show all tables</button><//>`
          : html`<${Empty} title="There are no tables yet"><code>forebay create "CREATE TABLE sales.orders (id BIGINT NOT NULL, …)"</code><//>`} />
    <//>
    <p class="small muted" style=${{ marginTop: "8px" }}>Rows are the current ones of a table with a primary key, and the records that a log still has.</p>`;
}
