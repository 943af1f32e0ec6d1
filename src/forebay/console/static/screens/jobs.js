// What works now: rounds of tiering, tasks of this console, transactions under way, and what applications committed.
import { Ago, Answer, Badge, Card, Empty, Head, List, Missing, PagedTable, bytes, duration, html, number, post, short, tableUrl, useApi } from "../lib.js";
import { ChangeButton, TaskState } from "../changes.js";
import { lakeUrl } from "./lake.js";

const TASKS = { orphans: "search for orphans", compact: "compaction" };

const tableLink = (t, tab = "lake") => html`<a href=${t.lake ? lakeUrl(t, "upkeep") : tableUrl(t.database, t.table, tab)}>${t.database}.${t.table}</a>`;

export default function Jobs({ session }) {
  const answer = useApi("jobs", {}, { every: 2 });
  return html`
    <${Head} title="Jobs" sub="Tiering rounds, compactions and open transactions" />
    <${Answer} of=${answer}>${(data) => html`<div class="stack">
      ${data.rounds !== null && html`<${Rounds} data=${data} />`}
      <${Card} title="Tasks of this console" note="Searches and compactions that were started here; they end with the console.">
        ${data.tasks.length === 0
          ? html`<${Empty} title="No tasks yet"><span>Compactions and searches for orphans are started on the page of a lake table.</span><//>`
          : html`<${List} label="Tasks of this console" items=${data.tasks} keyOf=${(t) => t.task_id} columns=${[
              { name: "table", label: "Table", class: "name", cell: (t) => html`${tableLink(t)}${t.lake && html` <${Badge} kind="accent">${t.lake}<//>`}` },
              { name: "kind", label: "Task", cell: (t) => TASKS[t.kind] ?? t.kind },
              { name: "state", label: "State", class: "wide", cell: (t) => html`<${TaskState} task=${t} changed=${answer.reload} />` },
              { name: "asked", label: "Started", num: true, cell: (t) => html`<${Ago} at=${t.asked} />` },
            ]} />`}
      <//>
      ${data.transactions !== null && html`<${Transactions} data=${data} session=${session} reload=${answer.reload} />`}
      <${Card} title="Applications" note="Programs that write by transactions, including Spark's streaming queries: the open transaction, or the last committed version.">
        <${PagedTable} path="applications" columns=${APPLICATIONS} label="Applications" keyOf=${(t) => t.transaction_id} every=${5}
          empty=${html`<${Empty} title="No application has used transactions" />`} />
      <//>
      <${Missing} missing=${data.missing} />
    </div>`}<//>`;
}

const APPLICATIONS = [
  { name: "application", label: "Application", class: "name", cell: (t) => t.application || html`<span class="muted">without a name</span>` },
  { name: "version", label: "Version", num: true, cell: (t) => html`<span class="mono">${t.version}</span>` },
  { name: "state", label: "State", cell: (t) => html`<${Badge} kind=${{ open: "info", decided: "warn", committed: "good" }[t.state] ?? ""}>${t.state}<//>` },
  { name: "since", label: "Since", num: true, cell: (t) => html`<${Ago} at=${t.since} />` },
];

function Rounds({ data }) {
  const items = [...data.rounds, ...data.rounds_waiting];
  return html`<${Card} title="Tiering rounds" actions=${html`<span class="small muted">${number(data.rounds_tiering)} under way, ${number(data.rounds_pending)} waiting for a worker</span>`}>
    ${items.length === 0
      ? html`<${Empty} title="No round is running, and no table waits for one" />`
      : html`<${List} label="Tiering rounds" items=${items} keyOf=${(r) => `${r.database}.${r.table}`} columns=${[
          { name: "table", label: "Table", class: "name", cell: (r) => tableLink(r) },
          { name: "state", label: "State", cell: (r) => (r.state === "Tiering" ? html`<${Badge} kind="info">under way<//>` : html`<${Badge} kind="warn">waiting<//>`) },
          { name: "state_seconds", label: "For", num: true, cell: (r) => duration(r.state_seconds) },
          { name: "round_seconds", label: "Last duration", num: true, cell: (r) => duration(r.round_seconds) },
          { name: "lag_records", label: "Records behind", num: true, cell: (r) => short(r.lag_records) },
          { name: "failures", label: "Failures", num: true, cell: (r) => (r.failures ? html`<${Badge} kind="bad">${number(r.failures)}<//>` : "0") },
        ]} />`}
  <//>`;
}

function Transactions({ data, session, reload }) {
  const columns = [
    { name: "application", label: "Application", class: "name", cell: (t) => t.application || html`<span class="muted">without a name</span>` },
    { name: "version", label: "Version", num: true, cell: (t) => html`<span class="mono">${t.version}</span>` },
    { name: "state", label: "State", cell: (t) => html`<${Badge} kind=${t.state === "open" ? "info" : "warn"} title=${t.state === "decided" ? "it is committed, and its rows are being written" : ""}>${t.state}<//>` },
    { name: "since", label: "Since", num: true, cell: (t) => html`<${Ago} at=${t.since} />` },
    { name: "stages", label: "Attempts", num: true, cell: (t) => number(t.stages) },
    { name: "staged_bytes", label: "Staged", num: true, cell: (t) => bytes(t.staged_bytes) },
  ];
  if (session.allow_changes) {
    columns.push({
      name: "do", label: "",
      cell: (t) => t.state === "open" && html`<${ChangeButton} danger=${true} label="Abort" action="Abort the transaction" question=${`Abort version ${t.version} of ${t.application || "a transaction without a name"}?`}
        send=${() => post("transactions/abort", { transaction_id: t.transaction_id })} done=${reload}>
        Its ${bytes(t.staged_bytes)} of staged rows are dropped. Its program gets an error, and may begin again.<//>`,
    });
  }
  return html`<${Card} title="Open transactions" actions=${html`<span class="small muted">${number(data.transactions_open)}, ${bytes(data.staged_bytes)} staged</span>`}
    note=${data.transactions_open > data.transactions.length ? `The first ${data.transactions.length}; all of them are below.` : null}>
    ${data.transactions.length === 0 ? html`<${Empty} title="No transaction is open" />` : html`<${List} label="Open transactions" items=${data.transactions} keyOf=${(t) => t.transaction_id} columns=${columns} />`}
  <//>`;
}
