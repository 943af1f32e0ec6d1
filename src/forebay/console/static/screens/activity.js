// Who is connected and what is open: clients, scans, table snapshots and their leases.
import { Ago, Answer, Bar, Card, Empty, Head, Missing, PagedTable, Tile, bytes, duration, html, number, post, tableUrl, useApi, useQuery, useState } from "../lib.js";
import { ChangeButton } from "../changes.js";

const VIEWS = { "": "Clients", scans: "Scans", snapshots: "Table snapshots" };

export default function Activity({ session }) {
  const [query, setQuery] = useQuery();
  const view = Object.hasOwn(VIEWS, query.get("view") ?? "") ? query.get("view") ?? "" : "";
  const counts = useApi("work", {}, { every: 3 });
  const Shown = { "": Clients, scans: Scans, snapshots: Snapshots }[view];
  return html`
    <${Head} title="Activity" sub="Clients, scans, and table snapshots with their leases" />
    <${Answer} of=${counts} lines=${2}>${(data) => html`<div class="stack">
      ${data.connections !== undefined && html`<div class="tiles narrow">
        <${Tile} label="Connections" value=${number(data.connections)} sub=${data.refused_connections ? `${number(data.refused_connections)} were refused` : "none refused"} />
        <${Tile} label="Scans" value=${number(data.scans)} sub="of buckets, page by page" />
        <${Tile} label="Table snapshots" value=${number(data.snapshots)} sub="held by leases" />
        <${Tile} label="Waiting reads" value=${number(data.waiting_fetches)} sub="for new records" />
        <${Tile} label="Queued" value=${number(data.queued_reads + data.queued_writes)} sub="for a thread" />
        <${Tile} label="Memory of requests" value=${bytes(data.request_bytes + data.answer_bytes)} sub=${`of ${bytes(data.request_bytes_max + data.answer_bytes_max)}, answers too`}><${Bar} share=${Math.max(data.request_bytes / data.request_bytes_max, data.answer_bytes / data.answer_bytes_max)} label="Share of request or response memory in use" /><//>
        ${data.failed_logins > 0 && html`<${Tile} label="Failed logins" value=${number(data.failed_logins)} sub="since the server started" />`}
      </div>`}
      ${data.missing.length > 0
        ? html`<${Card}><${Empty} title="Not available"><${Missing} missing=${data.missing} /><//><//>`
        : html`<div><div class="subtabs" role="group" aria-label="View">
            ${Object.entries(VIEWS).map(([name, label]) => html`<button key=${name} aria-pressed=${name === view ? "true" : "false"} onClick=${() => setQuery({ view: name })}>${label}</button>`)}
          </div><${Shown} session=${session} /></div>`}
    </div>`}<//>`;
}

const tableOf = (t) => (t.table === null ? html`<span class="muted">table ${t.table_id}, which was dropped</span>` : html`<a href=${tableUrl(t.database, t.table)}>${t.database}.${t.table}</a>`);

const Clients = () => html`<${Card} note="In order of connection. Clients choose their names.">
  <${PagedTable} path="work/connections" label="Clients" every=${3} limit=${100} empty=${html`<${Empty} title="No client is connected" />`}
    columns=${[
      { name: "address", label: "Address", class: "name", cell: (c) => html`<span class="mono">${c.address}</span>` },
      { name: "client", label: "Client", cell: (c) => html`<span class="breaks">${c.client ?? html`<span class="muted">unknown</span>`} ${c.client_version ?? ""}</span>` },
      { name: "user", label: "User", cell: (c) => html`<span class="breaks">${c.user ?? html`<span class="muted">no login</span>`}</span>` },
      { name: "role", label: "Connected to", cell: (c) => html`${c.role}<div class="sub">${c.listener}</div>` },
      { name: "open_requests", label: "Open requests", num: true, cell: (c) => html`<span title=${bytes(c.open_bytes)}>${number(c.open_requests)}</span>` },
      { name: "unsent_bytes", label: "Unread", num: true, cell: (c) => bytes(c.unsent_bytes) },
      { name: "opened", label: "Connected", num: true, cell: (c) => html`<${Ago} at=${c.opened} />` },
      { name: "idle", label: "Last active", num: true, cell: (c) => (c.idle_seconds < 1 ? "now" : `${duration(c.idle_seconds)} ago`) },
    ]} />
<//>`;

const Scans = () => html`<${Card} note="Full bucket scans that are read in pages, oldest first.">
  <${PagedTable} path="work/scans" label="Scans" every=${3} limit=${100} empty=${html`<${Empty} title="No scan is open" />`}
    columns=${[
      { name: "table", label: "Table", class: "name", cell: tableOf },
      { name: "bucket", label: "Bucket", num: true, cell: (s) => html`${number(s.bucket)}${s.partition_id !== null && html`<div class="sub">partition ${s.partition_id}</div>`}` },
      { name: "log_offset", label: "As of offset", num: true, cell: (s) => number(s.log_offset) },
      { name: "pages", label: "Pages read", num: true, cell: (s) => number(s.pages) },
      { name: "age", label: "Open for", num: true, cell: (s) => duration(s.age_seconds) },
      { name: "idle", label: "Idle for", num: true, cell: (s) => duration(s.idle_seconds) },
    ]} />
<//>`;

function Snapshots({ session }) {
  const [round, setRound] = useState(0);
  return html`<${Card} note="A table snapshot pins all buckets of a table at one instant, and ends with its lease. Leases on Apache Fluss's downloadable KV snapshots are not listed.">
    <${PagedTable} key=${round} path="work/snapshots" label="Table snapshots" every=${3} limit=${100} keyOf=${(s) => s.snapshot_id} empty=${html`<${Empty} title="No table snapshot is open" />`}
      columns=${[
        { name: "table", label: "Table", class: "name", cell: tableOf },
        { name: "name", label: "Name", cell: (s) => html`<span class="breaks">${s.name || html`<span class="muted">without a name</span>`}</span>` },
        { name: "buckets", label: "Buckets", num: true, cell: (s) => number(s.buckets) },
        { name: "age", label: "Open for", num: true, cell: (s) => duration(s.age_seconds) },
        { name: "lease", label: "Lease left", num: true, cell: (s) => duration(s.lease_left_seconds) },
        { name: "read_bytes", label: "Read", num: true, cell: (s) => html`${bytes(s.read_bytes)}<div class="sub">${number(s.pages)} pages</div>` },
        ...(session.allow_changes
          ? [{
              name: "do", label: "",
              cell: (s) => html`<${ChangeButton} danger=${true} label="Release" action="Release the lease" question=${`Release the snapshot ${s.name || ""}?`}
                send=${() => post("work/snapshots/release", { snapshot_id: s.snapshot_id })} done=${() => setRound(round + 1)}>
                Its lease ends now. Programs that read from it get an error.<//>`,
            }]
          : []),
      ]} />
  <//>`;
}
