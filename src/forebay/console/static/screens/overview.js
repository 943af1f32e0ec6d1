// What the server does now.
import { Ago, Answer, Badge, Bar, Card, Empty, Facts, Head, List, Missing, Spark, Tile, bytes, duration, html, number, short, tableUrl, useApi, useState } from "../lib.js";

const HEALTH = { green: ["good", "healthy"], yellow: ["warn", "degraded"], red: ["bad", "broken"], unknown: ["", "health unknown"] };

const Health = ({ health, isStale }) => {
  if (isStale) return html`<${Badge} kind="bad">no answer<//>`;
  if (!health) return html`<${Badge}>health not reported<//>`;
  const [kind, text] = HEALTH[health.status] ?? HEALTH.unknown;
  return html`<${Badge} kind=${kind}>${text}<//> <span>${number(health.serving)} of ${number(health.buckets)} buckets serve</span>`;
};

const Standby = ({ standby }) => html`<${Badge} kind=${standby.staleness > 10 ? "bad" : ""}>standby<//> <span>as of ${standby.as_of.slice(0, 19).replace("T", " ")}, journal seen ${duration(standby.staleness)} ago</span>`;

const perSecond = (value) => `${short(value)}/s`;

function Rates({ data }) {
  const { rates, history } = data;
  const tiles = [
    ["Requests", perSecond(rates.requests), rates.errors ? `${perSecond(rates.errors)} failed` : "none failed", history.requests],
    ["Records written", perSecond(rates.records_in), null, history.records_in],
    ["Written", `${bytes(rates.bytes_in)}/s`, null, history.bytes_in],
    ["Read from logs", `${bytes(rates.bytes_out)}/s`, null, history.bytes_out],
    ["99th percentile latency", rates.p99 === null ? "–" : `≤ ${duration(rates.p99)}`, rates.sync_p99 === null ? null : `syncs ≤ ${duration(rates.sync_p99)}`, history.p99],
  ];
  return html`<section class="tiles" aria-label="Rates">
    ${tiles.map(([label, value, sub, values]) => html`<${Tile} key=${label} label=${label} value=${value} sub=${sub ?? `in the last ${duration(rates.seconds)}`}><${Spark} values=${values} label=${label} /><//>`)}
  </section>`;
}

function Places({ server, lag }) {
  const used = server.disk_bytes ? 1 - server.disk_free_bytes / server.disk_bytes : null;
  const kind = !server.accepts_writes || used > 0.95 ? "bad" : used > 0.85 ? "warn" : "";
  return html`<section class="tiles" aria-label="Disk, memory and lakes">
    <${Tile} label="Disk" value=${used === null ? "–" : `${Math.round(used * 100)} %`} sub=${server.accepts_writes ? `${bytes(server.disk_free_bytes)} of ${bytes(server.disk_bytes)} free` : "full: writes are refused"}>
      ${used !== null && html`<${Bar} share=${used} kind=${kind} label="Used share of the disk" />`}
    <//>
    <${Tile} label="Memory" value=${bytes(server.resident_bytes)} sub=${`requests ${bytes(server.request_bytes)}, answers ${bytes(server.answer_bytes)}`}>
      <${Bar} share=${server.request_bytes / server.request_bytes_max} label="Share of the memory for requests" />
    <//>
    <${Tile} label="Tables" value=${number(server.tables)} sub=${`${number(server.buckets)} buckets, ${number(server.open_buckets)} open${server.offline_buckets ? `, ${number(server.offline_buckets)} offline` : ""}`} />
    <${Tile} label="Connections" value=${number(server.connections)} sub=${`${number(server.scans)} scans, ${number(server.table_snapshots)} snapshots, ${number(server.open_transactions)} transactions`} />
    <${Tile} label="Lake lag" value=${lag.tables ? short(lag.records) : "–"} sub=${lag.tables ? `records, of ${number(lag.tables)} ${lag.tables === 1 ? "table" : "tables"}` : "no table has a lake"} />
  </section>`;
}

const API_COLUMNS = [
  { name: "name", label: "Request", class: "name", cell: (a) => html`<span class="mono">${a.name}</span>` },
  { name: "requests", label: "Per second", num: true, cell: (a) => short(a.requests) },
  { name: "p50", label: "Median", num: true, cell: (a) => `≤ ${duration(a.p50)}` },
  { name: "p99", label: "99th percentile", num: true, cell: (a) => `≤ ${duration(a.p99)}` },
  { name: "bytes_in", label: "Received per second", num: true, cell: (a) => bytes(a.bytes_in) },
  { name: "errors", label: "Failed", num: true, cell: (a) => a.errors ? html`<${Badge} kind="bad">${number(a.errors)}<//>` : "0" },
];

const DAMAGE_COLUMNS = [
  { name: "table", label: "Table", class: "name", cell: (d) => html`<a href=${tableUrl(d.database, d.table)}>${d.database}.${d.table}</a>` },
  { name: "bucket", label: "Bucket", cell: (d) => html`<span class="mono">${d.bucket}</span>` },
  { name: "message", label: "Damage and loss", cell: (d) => d.message },
];

const LAG_COLUMNS = [
  { name: "table", label: "Table", class: "name", cell: (t) => html`<a href=${tableUrl(t.database, t.table)}>${t.database}.${t.table}</a>` },
  { name: "records", label: "Records behind", num: true, cell: (t) => number(t.records) },
  { name: "state", label: "Tiering", cell: (t) => html`<${Badge}>${t.state}<//>` },
];

function Settings() {
  const [open, setOpen] = useState(false);
  const answer = useApi(open ? "settings" : null);
  return html`<${Card} title="Settings of the cluster" actions=${html`<button aria-expanded=${open} onClick=${() => setOpen(!open)}>${open ? "Hide" : "Show"}</button>`}>
    ${open && html`<${Answer} of=${answer}>${(data) => data.items.length
      ? html`<${Facts} all facts=${data.items.map((s) => [html`<span class="mono">${s.key}</span>`, html`<span class="mono">${s.value ?? "not set"}</span>`])} />`
      : html`<${Empty} title="The cluster shows no settings" />`}<//>`}
  <//>`;
}

export default function Overview({ session }) {
  const answer = useApi("overview", {}, { every: 2 });
  const data = answer.data;
  return html`
    <${Head} title="Overview" sub=${data && html`<${Health} health=${data.health} isStale=${answer.isStale} />${data.server?.standby && html`<${Standby} standby=${data.server.standby} />`}${data.server && html`<span>started <${Ago} at=${data.server.started} /></span><span>version ${data.server.version ?? "unknown"}</span>`}`} />
    <div class="stack">
      <${Answer} of=${answer} lines=${8}>${(data) => html`
        ${data.server?.damaged.length > 0 && html`<${Card} title="Damaged buckets, which are offline"><${List} columns=${DAMAGE_COLUMNS} items=${data.server.damaged} label="Damaged buckets" /><//>`}
        ${data.rates && html`<${Rates} data=${data} />`}
        ${data.server && html`<${Places} server=${data.server} lag=${data.lag} />`}
        <${Missing} missing=${data.missing} />
        ${data.lag?.worst.length > 0 && html`<${Card} title="Lakes with the largest lag"><${List} columns=${LAG_COLUMNS} items=${data.lag.worst} label="Lakes with the largest lag" /><//>`}
        ${data.server && html`<${Card} title="Requests by total time" note=${`Of the last ${duration(data.rates.seconds)}. Fetches wait for rows to be written, and are not part of the figure above.`}>
          ${data.apis.length ? html`<${List} columns=${API_COLUMNS} items=${data.apis} label="Requests" keyOf=${(a) => a.name} />` : html`<${Empty} title="No requests yet" />`}
        <//>`}
        <div class="columns">
          <${Card} title="Servers"><${List} label="Servers" items=${data.nodes} columns=${[
            { name: "role", label: "Server", class: "name" }, { name: "id", label: "Id", num: true }, { name: "address", label: "Address", cell: (n) => html`<span class="mono">${n.address}</span>` },
          ]} /><//>
          <${Card} title="Databases"><${List} label="Databases" items=${data.databases} columns=${[
            { name: "name", label: "Database", class: "name", cell: (d) => html`<a href=${`/tables?database=${encodeURIComponent(d.name)}`}>${d.name}</a>` },
            { name: "tables", label: "Tables", num: true, cell: (d) => number(d.tables) },
          ]} /><//>
        </div>
        <${Settings} />`}<//>
    </div>`;
}
