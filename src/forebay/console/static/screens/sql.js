// One statement over all tables. It stops when the page goes, or when it is told to.
import { Card, Empty, ErrorBox, Head, Rows, duration, get, html, number, post, useEffect, useQuery, useRef, useState } from "../lib.js";

const KEYWORDS = "SELECT FROM WHERE GROUP BY ORDER BY HAVING LIMIT JOIN LEFT JOIN USING DISTINCT count(*) DESCRIBE SHOW TABLES EXPLAIN BETWEEN CASE WHEN".split(/ (?!BY|JOIN|TABLES|WHEN)/);
const PAUSE_MS = 150;

/** The word that ends at the caret: a name with its dots and dollar signs. */
const wordBefore = (text, caret) => /[\w$.]*$/.exec(text.slice(0, caret))[0];

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
  const [proposals, setProposals] = useState([]);
  const asked = useRef({});
  const typed = (event) => {
    const { value, selectionStart } = event.target;
    setText(value);
    clearTimeout(asked.current.timer);
    asked.current.gone?.abort();
    const word = wordBefore(value, selectionStart);
    if (!word) return setProposals([]);
    const keywords = KEYWORDS.filter((k) => k.toLowerCase().startsWith(word.toLowerCase()) && k !== word).map((k) => ({ text: k, kind: "keyword" }));
    const gone = new AbortController();
    asked.current = {
      gone,
      timer: setTimeout(() => get("completions", { word, statement: value.slice(0, 20000) }, gone.signal).then(
        (answer) => setProposals([...answer.items, ...keywords].slice(0, 8)), () => gone.signal.aborted || setProposals([])), PAUSE_MS),
    };
    return undefined;
  };
  const accept = (proposal) => {
    const caret = box.current.selectionStart;
    const begin = caret - wordBefore(text, caret).length;
    setText(text.slice(0, begin) + proposal.text + text.slice(caret));
    setProposals([]);
    requestAnimationFrame(() => {
      box.current.focus();
      box.current.setSelectionRange(begin + proposal.text.length, begin + proposal.text.length);
    });
  };
  const keys = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(event);
    else if (event.key === "Tab" && !event.shiftKey && proposals.length) {
      event.preventDefault();
      accept(proposals[0]);
    } else if (event.key === "Escape" && proposals.length) {
      event.stopPropagation();
      setProposals([]);
    }
  };
  const { data, error } = state;
  const example = session.lakes.length ? `${session.lakes[0]}.database.table` : 'database."table$lake"';
  return html`
    <${Head} title="SQL" sub="One DuckDB statement over live tables and their lakes" />
    <div class="stack">
      <form onSubmit=${run} class="stack" aria-label="SQL">
        <textarea ref=${box} data-key="/" aria-label="Statement" rows="7" value=${text} onInput=${typed} onKeyDown=${keys} spellcheck="false"
          placeholder="SELECT status, count(*), sum(amount) FROM sales.orders GROUP BY status"></textarea>
        ${proposals.length > 0 && html`<div class="row small" role="group" aria-label="Completions">
          ${proposals.map((p, i) => html`<button type="button" key=${p.kind + p.text} class="quiet mono" title=${p.kind + (p.type ? `, ${p.type}` : "")} onClick=${() => accept(p)}>${p.text}${i === 0 && html` <kbd>Tab</kbd>`}</button>`)}
        </div>`}
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
