// The tables of all lakes: those of live tables, and those of the lakes that the console was started with.
import { Badge, Card, Empty, Head, PagedTable, Search, html, tableUrl, useQuery } from "../lib.js";
import { lakeUrl } from "./lake.js";

const COLUMNS = [
  {
    name: "table", label: "Table", class: "name",
    cell: (t) => html`<a href=${t.lake === null ? tableUrl(t.database, t.table, "lake") : lakeUrl(t)}>${t.database}.${t.table}</a>`,
  },
  { name: "lake", label: "Lake", cell: (t) => (t.lake === null ? html`<${Badge} kind="info">of the live table<//>` : html`<${Badge} kind="accent">${t.lake}<//>`) },
];

export default function Lakes() {
  const [query, setQuery] = useQuery();
  const search = query.get("search");
  return html`
    <${Head} title="Lakes" sub="Tables in Paimon and Iceberg: files, snapshots, tags, and planned compaction" />
    <${Card}>
      <${PagedTable} path="lakes" params=${{ search }} columns=${COLUMNS} label="Lake tables"
        keyOf=${(t) => `${t.lake} ${t.database}.${t.table}`}
        above=${(data) => html`<div class="tools"><div class="grow"><${Search} value=${search} label="Search lake tables" placeholder="Search lake tables by name" onSearch=${(text) => setQuery({ search: text })} /></div>
          ${data.missing.map((sentence) => html`<div class="box warn" key=${sentence}>${sentence}</div>`)}</div>`}
        empty=${search
          ? html`<${Empty} title="No lake table matches"><button onClick=${() => setQuery({ search: null })}>Show all</button><//>`
          : html`<${Empty} title="There are no lake tables"><span>Enable the lake of a live table with <code>'table.datalake.enabled' = 'true'</code>; other lakes are shown with <code>forebay console --warehouse</code>.</span><//>`} />
    <//>`;
}
