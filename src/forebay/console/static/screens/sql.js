// One statement over all tables. It stops when the page goes, or when it is told to.
import { Card, Empty, ErrorBox, Head, Rows, duration, html, number, post, useEffect, useQuery, useRef, useState } from "../lib.js";

const KEPT = 20;
const kept = () => JSON.parse(localStorage.getItem("statements") ?? "[]");

export default function Sql({ session }) {
  const [query, setQuery] = useQuery();
  const [text, setText] = useState(query.get("q") ?? kept()[0] ?? "");
  const [state, setState] = useState({ data: null, error: null, running: null });
  const [earlier, setEarlier] = useState(kept);
  const running = useRef(null);
  const box = useRef();
  useEffect(() => {
    box.current.focus();
    return () => running.current?.abort();
  }, []);
  const run = async (event) => {
    event?.preventDefault();
    const statement = text.trim();
    if (!statement || running.current) return;
    running.current = new AbortController();
    setState({ data: null, error: null, running: Date.now() });
    const next = [statement, ...kept().filter((other) => other !== statement)].slice(0, KEPT);
    localStorage.setItem("statements", JSON.stringify(next));
    setEarlier(next);
    if (query.get("q")) setQuery({ q: null });
    try {
      setState({ data: await post("sql", { statement }, running.current.signal), error: null, running: null });
    } catch (error) {
      setState({ data: null, error: error.name === "AbortError" ? { kind: "stopped", message: "The statement was stopped." } : error, running: null });
    }
    running.current = null;
  };
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(event);
  };
  const { data, error } = state;
  const example = session.lakes.length ? `${session.lakes[0]}.database.table` : 'database."table$lake"';
  return html`
    <${Head} title="SQL" sub="One DuckDB statement over live tables and their lakes" />
    <div class="stack">
      <form onSubmit=${run} class="stack" aria-label="SQL">
        <textarea ref=${box} data-key="/" aria-label="Statement" rows="7" value=${text} onInput=${(e) => setText(e.target.value)} onKeyDown=${keys} spellcheck="false"
          placeholder="SELECT status, count(*), sum(amount) FROM sales.orders GROUP BY status"></textarea>
        <div class="row">
          <button class="primary" disabled=${state.running !== null || !text.trim()}>Run</button>
          <button type="button" disabled=${state.running === null} onClick=${() => running.current?.abort()}>Stop</button>
          <span class="small muted"><kbd>Ctrl</kbd> <kbd>Enter</kbd> runs it</span>
          ${earlier.length > 1 && html`<select aria-label="Earlier statements" class="grow" onChange=${(e) => e.target.value && setText(e.target.value)}>
            <option value="">Earlier statements</option>
            ${earlier.map((statement) => html`<option key=${statement} value=${statement}>${statement.replace(/\s+/g, " ").slice(0, 120)}</option>`)}
          </select>`}
        </div>
      </form>
      ${state.running !== null && html`<div class="progress" role="status" aria-label="The statement is running"></div>`}
      ${error && html`<${ErrorBox} error=${error} />`}
      ${data && html`<${Card} title="Result" actions=${html`<span class="small muted" role="status">${number(data.rows.length)} rows${data.truncated ? ", and more" : ""}, ${duration(data.seconds)}</span>`}
        note=${data.is_one_instant ? null : "The tables were written to during the query: each table was read at a single instant, but at different instants."}>
        ${data.rows.length ? html`<${Rows} columns=${data.columns} rows=${data.rows} label="Result" />` : html`<${Empty} title="No rows" />`}
      <//>`}
      ${!data && !error && state.running === null && html`<${Card} pad><div class="stack small">
        <p>A table is called <code>database.table</code>: lake and stream as one. <code>${example}</code> reads a lake alone, <code>database."table$changelog"</code> its changes, and <code>FROM t AT (TIMESTAMP => '2026-01-31 12:00+00')</code> an earlier state. <code>SHOW TABLES</code> lists all.</p>
        <p class="muted">${session.allow_changes ? "INSERT INTO … SELECT adds rows. " : "This console is read-only. "}A result has at most 1,000 rows here, and a statement a minute.</p>
      </div><//>`}
    </div>`;
}
