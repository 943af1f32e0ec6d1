// The plan of a union read as a picture: for each bucket the lake files, and the range of the log that overrides them.
import { Answer, Card, Empty, Facts, Tile, apiPath, html, number, short, useApi, useEffect, useQuery, useRef, useState } from "../lib.js";

const PAGE = 50;

export default function Explain({ database, table }) {
  const [query, setQuery] = useQuery();
  const asked = { columns: query.get("columns"), where: query.get("where"), rows: query.get("rows") };
  const key = JSON.stringify(asked);
  const [place, setPlace] = useState({ key, tokens: [null] });
  const tokens = place.key === key ? place.tokens : [null];
  const answer = useApi(`explain/${apiPath(database, table)}`, { ...asked, page_token: tokens[tokens.length - 1], limit: PAGE });
  const submit = (event) => {
    event.preventDefault();
    setQuery(Object.fromEntries([...new FormData(event.target)].map(([name, value]) => [name, value.trim()])));
    answer.reload();
  };
  const turn = (next) => setPlace({ key, tokens: next });
  return html`<div class="stack">
    <${Card}><form class="controls body" style=${{ padding: "12px" }} onSubmit=${submit}>
      <label class="field grow">SELECT<input key=${asked.columns} name="columns" class="wide" placeholder="all columns, or names with commas" defaultValue=${asked.columns ?? ""} spellcheck="false" autocomplete="off" /></label>
      <label class="field grow">WHERE<input key=${asked.where} name="where" class="wide" data-key="/" placeholder="a condition, such as id > 5" defaultValue=${asked.where ?? ""} spellcheck="false" autocomplete="off" /></label>
      <label class="field">LIMIT<input key=${asked.rows} name="rows" type="number" min="0" size="6" defaultValue=${asked.rows ?? ""} /></label>
      <button class="primary" disabled=${answer.loading}>Explain</button>
    </form><//>
    <${Answer} of=${answer}>${(plan) => html`<${Plan} plan=${plan} first=${(tokens.length - 1) * PAGE}
      previous=${tokens.length > 1 ? () => turn(tokens.slice(0, -1)) : null} next=${plan.next ? () => turn([...tokens, plan.next]) : null} />`}<//>
  </div>`;
}

function Plan({ plan, first, previous, next }) {
  const { totals } = plan;
  const source = plan.lake_snapshot !== null ? `snapshot ${plan.lake_snapshot}` : plan.lake_enabled ? "no readable snapshot yet" : "the table has no lake";
  return html`
    <div class="tiles">
      <${Tile} label="From the lake" value=${totals.lake_rows === null ? number(totals.lake_splits) : short(totals.lake_rows)} sub=${`${totals.lake_rows === null ? "splits" : "rows"} of files; ${source}`} />
      <${Tile} label="From the log" value=${short(totals.log_records)} sub=${`records of ${number(totals.log_buckets)} buckets`} />
      <${Tile} label="Reads" value=${number(plan.total)} sub=${plan.chosen ?? (plan.partitioned ? "splits, of all partitions" : `splits, of ${number(plan.buckets)} buckets`)} />
      ${totals.keys > 0 && html`<${Tile} label="Lookups" value=${number(totals.keys)} sub="keys, on the servers" />`}
    </div>
    ${plan.expired_snapshot !== null && html`<div class="box warn">Snapshot ${plan.expired_snapshot} was expired by another process: ${plan.lake_snapshot === null ? "only the stream is read, which has all rows." : `snapshot ${plan.lake_snapshot} is read instead.`}</div>`}
    ${plan.filters.length > 0 && html`<${Card} title="Filter"><${Facts} facts=${plan.filters.map((f) => [
      html`<code>${f.text}</code>`,
      f.skips_lake_rows === null ? "no lake in which files could be skipped" : f.skips_lake_rows ? "the lake uses it to skip files and rows" : "the lake cannot use it: it is applied to the rows that are read",
    ])} all=${true} /><//>`}
    <${Card} title="Bucket by bucket">
      ${plan.items.length === 0
        ? html`<${Empty} title="Nothing to read"><span>${plan.chosen ?? "No row can match."}</span><//>`
        : html`<${Picture} plan=${plan} /><${Legend} plan=${plan} />`}
      ${(previous || next) && html`<div class="pager"><span role="status">${number(first + 1)}–${number(first + plan.items.length)} of ${number(plan.total)}</span>
        <span class="row"><button data-key="[" disabled=${!previous} onClick=${previous}>Previous</button><button data-key="]" disabled=${!next} onClick=${next}>Next</button></span></div>`}
    <//>
    ${plan.pruned_partitions.length > 0 && html`<p class="small muted">Pruned by the filter: partitions ${plan.pruned_partitions.join(", ")}.</p>`}
    ${plan.lake_only_partitions.length > 0 && html`<p class="small muted">Only the lake has partitions ${plan.lake_only_partitions.join(", ")}.</p>`}
    <${Card}><details><summary>In words, as forebay explain prints it</summary><pre class="code" tabindex="0">${plan.text}</pre></details><//>`;
}

// ---- the picture ----------------------------------------------------------------------------------------------------

const ROW = 46;
const BLOCK = 22;
const GAP = 26;

function useWidth(least) {
  const box = useRef();
  const [width, setWidth] = useState(least);
  useEffect(() => {
    const watcher = new ResizeObserver(([entry]) => setWidth(Math.max(Math.floor(entry.contentRect.width), least)));
    watcher.observe(box.current);
    return () => watcher.disconnect();
  }, []);
  return [box, width];
}

/** Texts are as long as there is room for: about 7 pixels a character. */
const fitted = (text, width) => {
  const most = Math.floor(width / 7);
  return text.length <= most ? text : most < 4 ? "" : `${text.slice(0, most - 1)}…`;
};

const nameOf = (item) => `${item.partition === null ? "" : `${item.partition} · `}${item.bucket === null ? "all buckets" : `bucket ${item.bucket}`}`;

function lakeText(item) {
  const splits = `${number(item.lake_splits)} ${item.lake_splits === 1 ? "split" : "splits"}`;
  return item.lake_rows === null ? splits : `${short(item.lake_rows)} rows, ${splits}`;
}

/**
 * One line a bucket. Left the lake, as wide as its rows are many; right of the offset at which it ends, the range of the
 * log that is read, as wide as it is long. Each side has a scale of its own, and every block can be seen.
 */
function Picture({ plan }) {
  const [box, width] = useWidth(320);
  const isNarrow = width < 560; // the name of a bucket then stands above its blocks
  const [line, top] = isNarrow ? [ROW + 20, 46] : [ROW, 26];
  const label = isNarrow ? 0 : Math.min(width * 0.3, Math.max(90, Math.max(...plan.items.map((i) => nameOf(i).length)) * 7.2 + 16));
  const room = width - label - GAP - 20;
  const [left, right] = [room * 0.5, room * 0.5];
  const most = (value) => Math.max(...plan.items.map(value), 1);
  const mostRows = most((i) => i.lake_rows ?? i.lake_splits);
  const mostLog = most((i) => (i.start === null ? 0 : i.stop - i.start));
  const wide = (value, top, space) => Math.max((value / top) * space, 8);
  const middle = label + left;
  const overrides = plan.kind === "primary key";
  const words = `For ${number(plan.items.length)} of ${number(plan.total)} splits: which lake files and log ranges are read. The list below describes the same splits.`;
  return html`<div class="picture" ref=${box} tabindex="0" role="region" aria-label="Diagram of the plan">
    <svg width=${width} height=${plan.items.length * line + top} role="img" aria-label=${words}>
      <defs><pattern id="overridden" width="7" height="7" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><line class="overridden" x1="0" y1="0" x2="0" y2="7" /></pattern></defs>
      <text class="quiet" x=${middle} y="14" text-anchor="end">${isNarrow ? "lake" : "lake, up to an offset of the log"}</text>
      <text class="quiet" x=${middle + GAP} y="14">log behind it</text>
      ${plan.items.map((item, i) => {
        const y = top + i * line;
        const base = y + BLOCK / 2 + 4;
        const hasLake = item.lake_splits > 0;
        const hasLog = item.start !== null;
        const lakeWidth = hasLake ? wide(item.lake_rows ?? item.lake_splits, mostRows, left - 8) : 0;
        const logWidth = hasLog ? wide(item.stop - item.start, mostLog, right - 96) : 0;
        const [x, from] = [middle - lakeWidth, middle + GAP];
        const records = hasLog ? `${number(item.start)} → ${number(item.stop)}` : "";
        const tip = tipOf(item, overrides);
        return html`<g key=${i}>
          <title>${tip}</title>
          ${i > 0 && html`<line class="rule" x1="0" x2=${width} y1=${y - (isNarrow ? 28 : 8)} y2=${y - (isNarrow ? 28 : 8)} />`}
          <text x="0" y=${isNarrow ? y - 8 : base}>${fitted(nameOf(item), isNarrow ? width : label - 8)}</text>
          ${hasLake && html`<rect class="lake" x=${x} y=${y} width=${lakeWidth} height=${BLOCK} rx="3" />
            ${item.kind === "overridden" && html`<rect x=${x} y=${y} width=${lakeWidth} height=${BLOCK} rx="3" fill="url(#overridden)" />`}
            <text class="quiet" x=${middle} y=${y + BLOCK + 13} text-anchor="end">${fitted(lakeText(item), left)}</text>`}
          ${hasLake && item.kind === "lake" && item.lake_end !== null && html`<text class="quiet" x=${from} y=${base}>${fitted(`nothing new from ${number(item.lake_end)} on`, right)}</text>`}
          ${hasLog && html`<rect class="log" x=${from} y=${y} width=${logWidth} height=${BLOCK} rx="3" />
            <text class="on-log" x=${from + logWidth + 6} y=${base}>${fitted(short(item.stop - item.start), 90)}</text>
            <text class="quiet" x=${from} y=${y + BLOCK + 13}>${fitted(records, right)}</text>
            ${overrides && hasLake && html`<path class="arrow" d=${`M${from},${y + BLOCK / 2} L${middle + 7},${y + BLOCK / 2}`} /><path class="head-of-arrow" d=${`M${middle + 2},${y + BLOCK / 2} l8,-4.5 v9 z`} />`}`}
          ${item.kind === "server" && html`<rect class="server" x=${from} y=${y} width=${right * 0.6} height=${BLOCK} rx="3" /><text x=${from + 8} y=${base}>${fitted("current rows, from the server", right * 0.6 - 12)}</text>`}
          ${item.kind === "lookup" && html`<rect class="lookup" x=${from} y=${y} width=${right * 0.6} height=${BLOCK} rx="3" /><text x=${from + 8} y=${base}>${fitted(`${number(item.keys)} ${item.keys === 1 ? "key" : "keys"} looked up on the server`, right * 0.6 - 12)}</text>`}
        </g>`;
      })}
    </svg>
  </div>`;
}

function tipOf(item, overrides) {
  const parts = [nameOf(item)];
  if (item.lake_splits) parts.push(`lake: ${lakeText(item)}${item.lake_end === null ? "" : `, the log up to offset ${number(item.lake_end)}`}`);
  if (item.start !== null) parts.push(`log: offsets ${number(item.start)} to ${number(item.stop)}, ${number(item.stop - item.start)} records${overrides && item.lake_splits ? ", which override rows of the lake with the same key" : ""}`);
  if (item.log_start !== null) parts.push(`the servers have the log from offset ${number(item.log_start)} on`);
  return parts.join("\n");
}

const Legend = ({ plan }) => {
  const kinds = new Set(plan.items.map((i) => i.kind));
  return html`<div class="legend">
    ${(kinds.has("lake") || kinds.has("overridden")) && html`<span><i class="is-lake"></i>lake files${kinds.has("overridden") ? "; hatched: rows are overridden by newer ones of the log" : ""}</span>`}
    ${(kinds.has("log") || kinds.has("overridden")) && html`<span><i class="is-log"></i>log, by offset, up to now</span>`}
    ${kinds.has("server") && html`<span><i class="is-server"></i>current rows of a bucket that is not in the lake</span>`}
    ${kinds.has("lookup") && html`<span><i class="is-lookup"></i>keys that the filter fixes</span>`}
    <span>Both sides have a scale of their own.</span>
  </div>`;
};
