// One lake table: files by size, level and partition, snapshots, tags, what a compaction would do, orphans.
import {
  Ago, Answer, Badge, Bar, Card, Empty, ErrorBox, Facts, Head, List, PagedTable, Tile, UNKNOWN, apiPath, bytes, duration,
  html, number, post, short, time, useApi, useEffect, useQuery, useState,
} from "../lib.js";
import { ChangeButton, TaskState } from "../changes.js";

export const lakeUrl = (t, view) => {
  const query = new URLSearchParams();
  if (t.lake) query.set("lake", t.lake);
  if (view) query.set("view", view);
  return `/lakes/${encodeURIComponent(t.database)}/${encodeURIComponent(t.table)}${query.size ? `?${query}` : ""}`;
};

const VIEWS = { "": "Overview", files: "Files", snapshots: "Snapshots", tags: "Tags", upkeep: "Compaction and orphans" };

/** The screen of a table of a lake; the tab of a live table has no head. */
export default function LakeScreen({ database, table, session }) {
  const [query] = useQuery();
  const lake = query.get("lake");
  return html`<${Head} title=${`${database}.${table}`} crumbs=${[["Lakes", "/lakes"], ...(lake ? [[lake, `/lakes?search=${encodeURIComponent(lake)}`]] : [])]} />
    <${LakeTable} ...${{ database, table, lake, session }} />`;
}

export function LakeTable({ database, table, lake = null, session }) {
  const [query, setQuery] = useQuery();
  const view = Object.hasOwn(VIEWS, query.get("view") ?? "") ? query.get("view") ?? "" : "";
  const of = { path: `lake/${apiPath(database, table)}`, params: { lake }, allow: session.allow_changes, show: (changes) => setQuery(changes) };
  const Shown = { "": Overview, files: Files, snapshots: Snapshots, tags: Tags, upkeep: Upkeep }[view];
  return html`<div class="subtabs" role="group" aria-label="Parts of this lake table">
      ${Object.entries(VIEWS).map(([name, label]) => html`<button key=${name} aria-pressed=${name === view ? "true" : "false"} onClick=${() => setQuery({ view: name, partition: null, sort: null })}>${label}</button>`)}
    </div>
    <${Shown} of=${of} query=${query} />`;
}

// ---- overview -------------------------------------------------------------------------------------------------------

function Overview({ of }) {
  const answer = useApi(of.path, of.params, { every: 10 });
  return html`<${Answer} of=${answer}>${(data) => (data.files ? html`<${Whole} data=${data} of=${of} />` : html`<${Nothing} data=${data} />`)}<//>`;
}

const Nothing = ({ data }) => html`<${Card}><${Empty} title="This lake table is empty"><code>${data.location}</code><//><//>`;

function Whole({ data, of }) {
  const { files, snapshot } = data;
  const average = files.count ? files.bytes / files.count : null;
  return html`<div class="stack">
    ${data.warnings.map((sentence) => html`<div class="box warn" key=${sentence}>${sentence}</div>`)}
    <div class="tiles narrow">
      <${Tile} label="Files" value=${number(files.count)} sub=${`${bytes(average)} on average`} />
      <${Tile} label="Size" value=${bytes(files.bytes)} sub=${data.format === "paimon" ? "Paimon" : "Iceberg"} />
      <${Tile} label="Rows in files" value=${short(files.rows)} sub="before merging" />
      <${Tile} label="Partitions" value=${number(data.partition_count)} sub=${data.partition_keys.length ? `by ${data.partition_keys.join(", ")}` : "not partitioned"} />
      <${Tile} label="Files with deletes" value=${number(files.with_deletes)} sub=${files.with_deletes ? "rewritten by compaction" : "none"} />
      <${Tile} label="Snapshot" value=${shortId(snapshot.snapshot_id)} sub=${html`${snapshot.kind.toLowerCase()}, <${Ago} at=${snapshot.at} />`} />
    </div>
    <div class="columns">
      <${Card} title="Files by size">${bars(files.by_size, "Files by size", { name: "size", label: "Up to", cell: (c) => (c.up_to === null ? "larger" : bytes(c.up_to)) }, files)}<//>
      ${files.by_level.length > 0 && html`<${Card} title="Files by level" note="Level 0 has the files written since the last compaction; reads merge it with the levels below.">
        ${bars(files.by_level, "Files by level", { name: "level", label: "Level", cell: (c) => number(c.level) }, files)}<//>`}
    </div>
    ${data.partition_keys.length > 0 && html`<${Card} title="Partitions by number of files">
      <${PagedTable} path=${`${of.path}/partitions`} params=${of.params} limit=${20} label="Partitions" keyOf=${(p) => p.partition} columns=${[
        { name: "partition", label: "Partition", class: "name", cell: (p) => html`<a href="" onClick=${(e) => (e.preventDefault(), of.show({ view: "files", partition: p.partition }))}>${p.partition}</a>` },
        { name: "buckets", label: "Buckets", num: true, cell: (p) => number(p.buckets) },
        { name: "files", label: "Files", num: true, cell: (p) => number(p.files) },
        { name: "bytes", label: "Size", num: true, cell: (p) => bytes(p.bytes) },
        { name: "average", label: "Average file", num: true, cell: (p) => bytes(p.bytes / p.files) },
        { name: "rows", label: "Rows", num: true, cell: (p) => short(p.rows) },
      ]} /><//>`}
    ${data.readers.length > 0 && html`<${Card} title="Consumers" note="Streaming readers. Snapshots that they have not read are retained.">
      <${List} label="Consumers" items=${data.readers} columns=${[
        { name: "name", label: "Consumer", class: "name" },
        { name: "next_snapshot", label: "Next snapshot", num: true },
      ]} /><//>`}
    <${Card}><details><summary>Location and options (${number(Object.keys(data.options).length)})</summary>
      <${Facts} facts=${[["location", html`<code>${data.location}</code>`], ...Object.entries(data.options).sort().map(([k, v]) => [k, html`<code>${v}</code>`])]} all=${true} />
    </details><//>
  </div>`;
}

function bars(classes, label, first, files) {
  const most = Math.max(...classes.map((c) => c.files), 1);
  return html`<${List} label=${label} items=${classes} columns=${[
    { ...first, num: true },
    { name: "bar", label: "Share", class: "bar-cell wide", cell: (c) => html`<${Bar} share=${c.files / most} label=${`${c.files} of ${files.count} files`} />` },
    { name: "files", label: "Files", num: true, cell: (c) => number(c.files) },
    { name: "bytes", label: "Size", num: true, cell: (c) => bytes(c.bytes) },
  ]} />`;
}

/** The ids of Iceberg have 19 digits: the last ones distinguish them. */
const shortId = (id) => html`<span title=${id}>${id.length > 10 ? `…${id.slice(-6)}` : id}</span>`;

// ---- files ----------------------------------------------------------------------------------------------------------

const ORDERS = { size: "smallest first", "-size": "largest first", rows: "fewest rows first", "-rows": "most rows first", partition: "by partition and bucket" };

function Files({ of, query }) {
  const [sort, partition] = [query.get("sort") ?? "size", query.get("partition")];
  return html`<${Card}>
    <${PagedTable} path=${`${of.path}/files`} params=${{ ...of.params, sort, partition }} label="Files" limit=${100} keyOf=${(f) => f.path}
      above=${() => html`<div class="tools">
        <select aria-label="Order" value=${sort} onChange=${(e) => of.show({ sort: e.target.value })}>
          ${Object.entries(ORDERS).map(([name, label]) => html`<option key=${name} value=${name}>${label}</option>`)}
        </select>
        ${partition !== null && html`<span>in <code>${partition}</code></span><button class="quiet" onClick=${() => of.show({ partition: null })}>All partitions</button>`}
      </div>`}
      empty=${html`<${Empty} title="The current snapshot has no files" />`}
      columns=${[
        { name: "path", label: "File", class: "name", cell: (f) => html`<code>${f.path}</code>` },
        { name: "bucket", label: "Bucket", num: true, cell: (f) => (f.bucket < 0 ? "all" : number(f.bucket)) },
        { name: "level", label: "Level", num: true, cell: (f) => number(f.level) },
        { name: "bytes", label: "Size", num: true, cell: (f) => html`<span title=${number(f.bytes)}>${bytes(f.bytes)}</span>` },
        { name: "rows", label: "Rows", num: true, cell: (f) => number(f.rows) },
        { name: "deletes", label: "Deletes", num: true, cell: (f) => (f.deletes ? html`<${Badge} kind="warn">${number(f.deletes)}<//>` : "0") },
        { name: "created", label: "Written", num: true, cell: (f) => html`<${Ago} at=${f.created} />` },
      ]} />
  <//>`;
}

// ---- snapshots and tags ---------------------------------------------------------------------------------------------

const KINDS = { COMPACT: "accent", OVERWRITE: "warn", replace: "accent", delete: "bad", overwrite: "warn" };

function Snapshots({ of }) {
  const [round, setRound] = useState(0);
  return html`<${Card}>
    <${PagedTable} key=${round} path=${`${of.path}/snapshots`} params=${of.params} label="Snapshots" keyOf=${(s) => s.snapshot_id} every=${10}
      empty=${html`<${Empty} title="There are no snapshots yet" />`}
      columns=${[
        { name: "snapshot_id", label: "Snapshot", class: "name", cell: (s) => html`<span class="mono">${s.snapshot_id}</span> ${s.tags.map((t) => html`<${Badge} kind="info" key=${t}>${t}<//> `)}` },
        { name: "kind", label: "Kind", cell: (s) => html`<${Badge} kind=${KINDS[s.kind] ?? ""}>${s.kind.toLowerCase()}<//>` },
        { name: "at", label: "Committed", cell: (s) => html`<${Ago} at=${s.at} /><div class="sub nowrap">${time(s.at)}</div>` },
        { name: "added_rows", label: "Records added", num: true, cell: (s) => number(s.added_rows) },
        { name: "rows", label: "Records", num: true, cell: (s) => number(s.rows) },
        { name: "schema_id", label: "Schema", num: true, cell: (s) => number(s.schema_id) },
        { name: "user", label: "By", cell: (s) => html`<span class="small mono nowrap" title=${s.user}>${s.user === null ? UNKNOWN : s.user.length > 16 ? `${s.user.slice(0, 15)}…` : s.user}</span>` },
        ...(of.allow ? [{ name: "do", label: "", cell: (s) => html`<${NewTag} of=${of} snapshot=${s.snapshot_id} done=${() => setRound(round + 1)} />` }] : []),
      ]} />
  <//>`;
}

const NewTag = ({ of, snapshot, done, label = "Tag" }) => html`<${ChangeButton} quiet=${snapshot !== undefined} label=${label} action="Create the tag" question=${snapshot ? `Tag snapshot ${snapshot}?` : "Tag the current snapshot?"}
  fields=${[{ name: "name", label: "Name of the tag", required: true }, { name: "retain", label: "Retention (a duration; empty: forever)", placeholder: "30 d" }]}
  send=${(values) => post(`${of.path}/tags/create`, { lake: of.params.lake, name: values.name, retain: values.retain || null, snapshot_id: snapshot ?? null })}
  done=${done}>A tagged snapshot does not expire, and its files are kept.<//>`;

function Tags({ of }) {
  const [round, setRound] = useState(0);
  const changed = () => setRound(round + 1);
  return html`<${Card} title="Tags" actions=${of.allow && html`<${NewTag} of=${of} label="New tag" done=${changed} />`}>
    <${PagedTable} key=${round} path=${`${of.path}/tags`} params=${of.params} label="Tags" keyOf=${(t) => t.name}
      empty=${html`<${Empty} title="There are no tags"><span>A tag names a snapshot, and keeps it: <code>forebay paimon tag</code></span><//>`}
      columns=${[
        { name: "name", label: "Tag", class: "name", cell: (t) => html`<strong>${t.name}</strong>` },
        { name: "snapshot_id", label: "Snapshot", num: true, cell: (t) => html`<span class="mono">${t.snapshot_id}</span>` },
        { name: "at", label: "Committed", cell: (t) => html`<${Ago} at=${t.at} />` },
        { name: "created", label: "Tagged", cell: (t) => html`<${Ago} at=${t.created} />` },
        { name: "retained", label: "Kept", num: true, cell: (t) => (t.retained_seconds === null ? "for good" : duration(t.retained_seconds)) },
        { name: "rows", label: "Records", num: true, cell: (t) => number(t.rows) },
        ...(of.allow
          ? [{
              name: "do", label: "",
              cell: (t) => html`<${ChangeButton} danger=${true} label="Delete" action="Delete the tag" question=${`Delete tag ${t.name}?`}
                send=${() => post(`${of.path}/tags/delete`, { lake: of.params.lake, name: t.name })} done=${changed}>
                The files of its snapshot that no other snapshot or tag needs are deleted.<//>`,
            }]
          : []),
      ]} />
  <//>`;
}

// ---- compaction and orphans -----------------------------------------------------------------------------------------

function Upkeep({ of }) {
  return html`<div class="stack"><${Compaction} of=${of} /><${Orphans} of=${of} /></div>`;
}

function Compaction({ of }) {
  const [full, setFull] = useState(false);
  const answer = useApi(`${of.path}/compaction`, { ...of.params, full });
  const jobs = useApi("jobs", {}, { every: 3 });
  const task = jobs.data?.tasks.find((t) => t.kind === "compact" && of.path === `lake/${apiPath(t.database, t.table)}` && t.lake === of.params.lake);
  useEffect(() => {
    if (task?.state === "done") answer.reload();
  }, [task?.task_id, task?.state]);
  const start = () => post(`${of.path}/compact`, { lake: of.params.lake, full });
  return html`<${Card} title="Planned compaction" actions=${html`
      <label class="check"><input type="checkbox" checked=${full} onChange=${(e) => setFull(e.target.checked)} />everything, not only what is due</label>
      ${of.allow && html`<${ChangeButton} label="Compact" question=${full ? "Compact everything?" : "Run the due compaction?"} send=${start} done=${jobs.reload}>
        It reads and rewrites ${answer.data ? bytes(answer.data.bytes) : "files"} in this console. Readers and writers continue meanwhile.<//>`}`}>
    ${task && html`<div class="tools"><span class="small">Compaction ${task.result && (task.result.snapshot_id ? `made snapshot ${task.result.snapshot_id}` : "found nothing to do")}</span><${TaskState} task=${task} changed=${jobs.reload} /></div>`}
    <${Answer} of=${answer}>${(plan) =>
      plan.tasks === 0
        ? html`<${Empty} title=${full ? "There is nothing to compact" : "No compaction is due by the table's options"} />`
        : html`<div class="tiles inset">
            <${Tile} label="Buckets" value=${number(plan.tasks)} sub="rewritten one by one" />
            <${Tile} label="Files read" value=${number(plan.files)} sub=${`${bytes(plan.bytes / plan.files)} on average`} />
            <${Tile} label="Bytes read" value=${bytes(plan.bytes)} />
            <${Tile} label="Rows read" value=${short(plan.rows)} />
          </div>
          <${List} label="Buckets with the most files to compact" items=${plan.items} columns=${[
            { name: "partition", label: "Partition", class: "name", cell: (p) => p.partition || html`<span class="muted">the table</span>` },
            { name: "bucket", label: "Bucket", num: true, cell: (p) => (p.bucket < 0 ? "all" : number(p.bucket)) },
            { name: "files", label: "Files", num: true, cell: (p) => number(p.files) },
            { name: "bytes", label: "Size", num: true, cell: (p) => bytes(p.bytes) },
            { name: "rows", label: "Rows", num: true, cell: (p) => short(p.rows) },
          ]} />
          ${plan.tasks > plan.items.length && html`<p class="note small muted inset">The first ${plan.items.length} of ${number(plan.tasks)}.</p>`}`}<//>
  <//>`;
}

function Orphans({ of }) {
  const [every, setEvery] = useState(0);
  const [age, setAge] = useState("1 d");
  const [error, setError] = useState(null);
  const answer = useApi(`${of.path}/orphans`, of.params, { every });
  const task = answer.data?.task;
  const running = task && (task.state === "running" || task.state === "waiting");
  useEffect(() => setEvery(running ? 1 : 0), [running]);
  const start = async (event) => {
    event.preventDefault();
    setError(null);
    try {
      await post(`${of.path}/orphans`, { lake: of.params.lake, older_than: age });
      answer.reload();
    } catch (e) {
      setError(e);
    }
  };
  const found = task?.result;
  return html`<${Card} title="Orphans" note="Files that no snapshot, tag or branch refers to, left behind by crashed writers. The search deletes nothing; forebay paimon orphans --delete, or forebay iceberg orphans --delete, does.">
    <form class="tools" onSubmit=${start}>
      <label class="row small">older than <input value=${age} onInput=${(e) => setAge(e.target.value)} size="6" aria-label="Older than, as a duration" /></label>
      <button disabled=${running}>Search</button>
      ${task && html`<${TaskState} task=${task} changed=${answer.reload} />`}
    </form>
    ${(error ?? answer.error) && html`<div class="inset"><${ErrorBox} error=${error ?? answer.error} /></div>`}
    ${found && html`<p class="inset">${found.files === 0 ? "No orphans" : `${number(found.files)} ${found.files === 1 ? "file" : "files"}${found.bytes === null ? "" : ` of ${bytes(found.bytes)}`}`} older than ${found.older_than}, as of <${Ago} at=${task.ended} />.</p>
      ${found.paths.length > 0 && html`<ul class="paths" tabindex="0" aria-label="Orphans">${found.paths.map((path) => html`<li key=${path}>${path}</li>`)}</ul>`}
      ${found.files > found.paths.length && html`<p class="small muted inset">The first ${number(found.paths.length)}.</p>`}`}
  <//>`;
}
