// One table: its columns, where it is, and how it came to be so.
import { Ago, Answer, Badge, Card, CopyButton, Empty, Facts, List, Missing, PagedTable, Tile, UNKNOWN, apiPath, bytes, html, number, short, tableUrl, time, useApi } from "../lib.js";

const COLUMNS = [
  { name: "name", label: "Column", class: "name", cell: (c) => html`<span class="mono">${c.name}</span>${c.comment && html`<div class="sub">${c.comment}</div>`}` },
  { name: "type", label: "Type", cell: (c) => html`<span class="mono">${c.type}</span>` },
  { name: "role", label: "Role", cell: (c) => html`${c.role && html`<${Badge} kind="info">${c.role}<//>`}${c.aggregate && html` <${Badge}>${c.aggregate}<//>`}` },
];

const BUCKETS = (partitioned, lake) => [
  { name: "bucket", label: "Bucket", class: "name", cell: (b) => partitioned ? html`${b.partition} <span class="muted">bucket</span> ${b.bucket}` : `Bucket ${b.bucket}` },
  { name: "rows", label: "Rows", num: true, cell: (b) => number(b.rows) },
  { name: "bytes", label: "Log", num: true, cell: (b) => bytes(b.bytes) },
  { name: "start", label: "From offset", num: true, cell: (b) => number(b.start) },
  { name: "end", label: "To offset", num: true, cell: (b) => number(b.end) },
  ...(lake ? [{ name: "lake_offset", label: "Lake end offset", num: true, cell: (b) => number(b.lake_offset) }] : []),
  { name: "last_write", label: "Last write", num: true, cell: (b) => html`<${Ago} at=${b.last_write} />` },
  { name: "leader", label: "Server", cell: (b) => html`<span class="mono">${b.leader}</span>` },
];

const PARTITIONS = (table) => [
  { name: "partition", label: "Partition", class: "name", cell: (p) => html`<a href=${`${tableUrl(table.database, table.table, "rows")}?partition=${encodeURIComponent(p.partition)}`}>${p.partition}</a>` },
  { name: "buckets", label: "Buckets", num: true, cell: (p) => number(p.buckets) },
  { name: "rows", label: "Rows", num: true, cell: (p) => number(p.rows) },
  { name: "bytes", label: "Log", num: true, cell: (p) => bytes(p.bytes) },
  { name: "last_write", label: "Last write", num: true, cell: (p) => html`<${Ago} at=${p.last_write} />` },
];

const HISTORY = [
  { name: "schema_id", label: "Version", class: "name", cell: (v) => `Version ${v.schema_id}` },
  { name: "columns", label: "Columns", num: true, cell: (v) => number(v.columns) },
  { name: "changes", label: "Changes", class: "wide", cell: (v) => v.changes.length ? v.changes.map((text) => html`<div>${text}</div>`) : html`<span class="muted">${v.schema_id === 1 ? "created" : "no column changes"}</span>` },
];

const COMMITS = [
  { name: "number", label: "Commit", class: "name", cell: (c) => html`<a href=${`/sql?q=${encodeURIComponent(c.statement)}`} title="Read the table as of this commit">Commit ${number(c.number)}</a>` },
  { name: "committed_at", label: "Time", cell: (c) => html`<${Ago} at=${c.committed_at} />` },
  { name: "operation", label: "Operation" },
  { name: "rows", label: "Rows", num: true, cell: (c) => number(c.rows) },
  { name: "user", label: "User" },
  { name: "application", label: "Application", class: "wide", cell: (c) => c.application === null ? UNKNOWN : html`${c.application} <span class="muted">version</span> ${c.version}` },
  { name: "transaction_id", label: "Transaction", num: true, cell: (c) => number(c.transaction_id) },
];

const NO_COMMITS = html`<${Empty} title="No commits">A transaction is a commit: a statement or micro-batch of Spark, conn.transaction(), forebay ingest. Rows that are written without one are only in the log.<//>`;

export default function Table({ database, table }) {
  const path = apiPath("tables", database, table);
  const answer = useApi(path, {}, { every: 5 });
  return html`<div class="stack"><${Answer} of=${answer}>${(t) => html`
    ${t.comment && html`<p>${t.comment}</p>`}
    <section class="tiles" aria-label="Figures">
      <${Tile} label="Rows" value=${short(t.rows)} sub=${t.rows >= 1_000_000 ? number(t.rows) : t.kind === "log" ? "records in the log" : "now"} />
      <${Tile} label="Log" value=${bytes(t.bytes)} sub="on the servers" />
      <${Tile} label="Last write" value=${html`<${Ago} at=${t.last_write} />`} sub=${t.last_write ? time(t.last_write) : ""} />
      <${Tile} label="Lake" value=${t.lake ?? "none"} sub=${t.lake ? (t.lake_snapshot === null ? "no snapshot yet" : `snapshot ${t.lake_snapshot}`) : "not tiered"} />
      ${t.lake && html`<${Tile} label="Lake lag" value=${short(t.lag_records)} sub="records" />`}
    </section>
    <${Missing} missing=${t.missing} />
    <div class="columns">
      <${Card} title="Columns"><${List} columns=${COLUMNS} items=${t.columns} label="Columns" keyOf=${(c) => c.name} /><//>
      <${Card} title="Definition"><${Facts} facts=${[
        ["Kind", html`<${Badge} kind=${t.kind === "log" ? "" : "info"}>${t.kind}<//>${t.merge_engine && html` <${Badge}>${t.merge_engine}<//>`}`],
        ["Primary key", t.primary_key.join(", ")], ["Partitioned by", t.partition_keys.join(", ")], ["Bucket key", t.bucket_keys.join(", ")],
        ["Buckets", t.partitions === null ? number(t.buckets) : `${number(t.buckets)} in each of ${number(t.partitions)} partitions`],
        ["Auto-increment column", t.auto_increment], ["Created", t.created === null ? null : html`${time(t.created)} (<${Ago} at=${t.created} />)`],
        ["Changed", t.changed && t.changed !== t.created ? html`${time(t.changed)} (<${Ago} at=${t.changed} />)` : null],
        ["Table id", number(t.id)], ["Schema version", number(t.schema_id)],
      ]} /><//>
    </div>
    ${t.partitions !== null && html`<${Card} title="Partitions"><${PagedTable} path=${`${path}/partitions`} columns=${PARTITIONS(t)} label="Partitions" limit=${20} every=${10} keyOf=${(p) => p.id} empty=${html`<${Empty} title="There are no partitions yet">Writers create them.<//>`} /><//>`}
    <${Card} title="Buckets"><${PagedTable} path=${`${path}/buckets`} columns=${BUCKETS(t.partitions !== null, t.lake)} label="Buckets" limit=${20} every=${5} keyOf=${(b) => `${b.partition}/${b.bucket}`} empty=${html`<${Empty} title="There are no buckets yet" />`} /><//>
    <${Card} title="Commits"><${PagedTable} path=${`${path}/commits`} columns=${COMMITS} label="Commits" limit=${10} every=${10} keyOf=${(c) => c.number} empty=${NO_COMMITS} above=${(page) => html`<${Missing} missing=${page.missing} />`} /><//>
    <div class="columns">
      <${Card} title="CREATE TABLE" actions=${html`<${CopyButton} text=${t.ddl} />`}><pre class="code" tabindex="0" aria-label="CREATE TABLE">${t.ddl}</pre><//>
      <div class="stack">
        <${Card} title="Settings">${t.settings.length
          ? html`<${Facts} all facts=${t.settings.map((s) => [html`<span class="mono">${s.key}</span>`, html`<span class="mono">${s.value || UNKNOWN}</span>`])} />`
          : html`<${Empty} title="No settings" />`}<//>
        <${Card} title="History of the schema"><${List} columns=${HISTORY} items=${t.history} label="History of the schema" keyOf=${(v) => v.schema_id} /><//>
      </div>
    </div>`}<//></div>`;
}
