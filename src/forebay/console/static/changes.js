// Buttons that change something: each asks for confirmation, and says what went wrong.
import { ErrorBox, html, post, useEffect, useRef, useState } from "./lib.js";

/**
 * A button that opens a question. `fields` are [{name, label, placeholder, required}] to fill in; `send(values)` returns
 * the promise of the change; `done(answer)` is called when it succeeded. What is destructive is `danger`.
 */
export function ChangeButton({ label, question, children, action, fields = [], send, done, danger = false, quiet = false }) {
  const [open, setOpen] = useState(false);
  return html`
    <button class=${danger ? "danger" : quiet ? "quiet" : ""} onClick=${() => setOpen(true)}>${label}</button>
    ${open && html`<${Question} ...${{ question, action: action ?? label, fields, send, danger, detail: children }} close=${() => setOpen(false)} done=${done} />`}`;
}

function Question({ question, action, fields, send, danger, detail, close, done }) {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const dialog = useRef();
  useEffect(() => dialog.current.showModal(), []);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      const answer = await send(Object.fromEntries(new FormData(event.target)));
      close();
      done?.(answer);
    } catch (e) {
      setError(e);
      setBusy(false);
    }
  };
  return html`<dialog ref=${dialog} onClose=${close} aria-labelledby="question">
    <form class="stack" onSubmit=${submit}>
      <h2 id="question">${question}</h2>
      ${detail && html`<div class="small">${detail}</div>`}
      ${fields.map((f) => html`<label class="field" key=${f.name}>${f.label}<input name=${f.name} placeholder=${f.placeholder} required=${f.required} defaultValue=${f.value ?? ""} autocomplete="off" spellcheck="false" /></label>`)}
      ${error && html`<${ErrorBox} error=${error} />`}
      <div class="row">
        <button type="submit" class=${danger ? "danger" : "primary"} disabled=${busy}>${busy ? "Working…" : action}</button>
        <button type="button" onClick=${close}>Leave it</button>
      </div>
    </form>
  </dialog>`;
}

/** A task of the console: its state and progress, with a button that cancels it. */
export function TaskState({ task, changed }) {
  const [error, setError] = useState(null);
  const cancel = () => post("tasks/cancel", { task_id: task.task_id }).then(() => changed?.(), setError);
  const share = task.to_do ? task.done / task.to_do : 0;
  const running = task.state === "running" || task.state === "waiting";
  return html`<div class="task">
    <span class="badge ${{ done: "good", failed: "bad", cancelled: "warn" }[task.state] ?? "info"}">${task.is_ending ? "being cancelled" : task.state}</span>
    ${running && html`<span class="grow">
      <progress value=${task.to_do ? task.done : undefined} max=${task.to_do ?? undefined} aria-label="Progress"></progress>
      <span class="small muted">${task.to_do ? `${Math.floor(share * 100)} %, ${task.done.toLocaleString("en")} of ${task.to_do.toLocaleString("en")}` : task.done ? task.done.toLocaleString("en") : ""}</span>
    </span>
    <button class="quiet" disabled=${task.is_ending} onClick=${cancel}>Cancel</button>`}
    ${(task.error || error) && html`<span class="small bad-text">${task.error ?? error.message}</span>`}
  </div>`;
}
