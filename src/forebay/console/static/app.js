// The shell: navigation, screens by address, login, theme, keys.
import { ErrorBox, Loading, Head, Empty, apiPath, followLinks, get, html, navigate, onLoginNeeded, post, remove, render, tableUrl, useEffect, useLocation, useRef, useState } from "./lib.js";

// A screen: the path of its address (":name" is a part), its title in the navigation (none: it is reached by links), the
// key that follows "g", and its module, whose default export is a component with the parts of the path as properties.
export const SCREENS = [
  { path: "/overview", title: "Overview", key: "o", load: () => import("./screens/overview.js") },
  { path: "/tables", title: "Tables", key: "t", load: () => import("./screens/tables.js") },
  { path: "/tiering", title: "Tiering and lag", key: "l", load: () => import("./screens/tiering.js") },
  { path: "/lakes", title: "Lakes", key: "k", load: () => import("./screens/lakes.js") },
  { path: "/lakes/:database/:table", load: () => import("./screens/lake.js") },
  { path: "/jobs", title: "Jobs", key: "j", load: () => import("./screens/jobs.js") },
  { path: "/activity", title: "Activity", key: "a", load: () => import("./screens/activity.js") },
  { path: "/sql", title: "SQL", key: "s", load: () => import("./screens/sql.js") },
];

// The tabs of one table: the last part of the address, and the module of the screen, as above.
export const TABLE_TABS = [
  { tab: "", title: "Table", load: () => import("./screens/table.js") },
  { tab: "rows", title: "Rows", load: () => import("./screens/rows.js") },
  { tab: "live", title: "Live", load: () => import("./screens/live.js") },
  { tab: "key", title: "Key", load: () => import("./screens/key.js") },
  { tab: "union", title: "Union read", load: () => import("./screens/explain.js") },
  { tab: "lake", title: "Lake", load: () => import("./screens/table_lake.js") },
];

function matched(pathname) {
  let parts;
  try {
    parts = pathname.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    return null; // a % that is no escape
  }
  const candidates = [
    ...SCREENS,
    ...TABLE_TABS.map((tab) => ({ ...tab, path: `/tables/:database/:table${tab.tab ? `/${tab.tab}` : ""}` })),
  ];
  for (const screen of candidates) {
    const wanted = screen.path.split("/").filter(Boolean);
    if (wanted.length !== parts.length) continue;
    const params = {};
    if (wanted.every((part, i) => (part.startsWith(":") ? ((params[part.slice(1)] = parts[i]), true) : part === parts[i]))) {
      return { screen, params };
    }
  }
  return null;
}

function Screen({ screen, params, session }) {
  const [state, setState] = useState({ screen: null, module: null, error: null });
  useEffect(() => {
    let gone = false;
    screen.load().then(
      (module) => gone || setState({ screen: screen.path, module, error: null }),
      (error) => gone || setState({ screen: screen.path, module: null, error }),
    );
    return () => {
      gone = true;
    };
  }, [screen.path]);
  let content = html`<${Loading} />`;
  if (state.screen === screen.path && state.error) content = html`<${ErrorBox} error=${state.error} retry=${() => location.reload()} />`;
  else if (state.screen === screen.path) content = html`<${state.module.default} key=${JSON.stringify(params)} ...${params} session=${session} />`;
  return screen.tab === undefined ? content : html`<${TableFrame} ...${params} tab=${screen.tab} session=${session}>${content}<//>`;
}

/** The title and tabs of one table. */
function TableFrame({ database, table, tab, children }) {
  return html`
    <${Head} title=${`${database}.${table}`} crumbs=${[["Tables", "/tables"], [database, `/tables?database=${encodeURIComponent(database)}`]]} />
    <nav class="tabs" aria-label="Views of this table">
      ${TABLE_TABS.map((each) => html`<a key=${each.tab} href=${tableUrl(database, table, each.tab)} aria-current=${each.tab === tab ? "page" : undefined}>${each.title}</a>`)}
    </nav>
    ${children}`;
}

function Navigation({ current, session, onHelp, onLogout }) {
  const [theme, setTheme] = useState(storedTheme());
  const [open, setOpen] = useState(false); // on small screens, where the list is a menu
  useEffect(() => setOpen(false), [current]);
  const isCurrent = (screen) => current === screen.path || current?.startsWith(`${screen.path}/`);
  const turn = () => setTheme(applyTheme(isDark() ? "light" : "dark"));
  return html`<aside class="side">
    <a class="brand" href="/"><img src="/icon.svg" alt="" />Forebay</a>
    <button class="menu" aria-expanded=${open} aria-controls="screens" onClick=${() => setOpen(!open)}>${SCREENS.find((screen) => screen.title && isCurrent(screen))?.title ?? "Screens"}</button>
    <nav aria-label="Screens" id="screens" class=${open ? "is-open" : ""}><ul>
      ${SCREENS.filter((screen) => screen.title).map((screen) => html`<li key=${screen.path}><a href=${screen.path} aria-current=${isCurrent(screen) ? "page" : undefined} onClick=${() => setOpen(false)}>${screen.title}</a></li>`)}
    </ul></nav>
    <footer>
      <span class="server" title="The server that this console shows">${session.bootstrap_servers}</span>
      ${session.user && html`<span class="version">as ${session.user}</span>`}
      <span class="version">Forebay ${session.version}, ${session.allow_changes ? "changes allowed" : "read only"}</span>
      <span class="buttons">
        <button class="quiet" onClick=${turn} aria-label="Change between light and dark" data-theme-now=${theme}>${isDark() ? "Light" : "Dark"}</button>
        <button class="quiet" onClick=${onHelp} aria-label="Keys">Keys</button>
        ${session.has_login && html`<button class="quiet" onClick=${onLogout}>Log out</button>`}
      </span>
    </footer>
  </aside>`;
}

// ---- theme ----------------------------------------------------------------------------------------------------------

const storedTheme = () => localStorage.getItem("theme");
const isDark = () => (storedTheme() ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function applyTheme(theme) {
  if (theme) {
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("theme", theme);
  }
  return theme;
}

// ---- login ----------------------------------------------------------------------------------------------------------

function Login({ session, onDone }) {
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(false);
  const byToken = session.needs === "token";
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      onDone(await post("session", Object.fromEntries(new FormData(event.target))));
    } catch (e) {
      setError(e);
    }
    setBusy(false);
  };
  return html`<main class="login"><form class="card" onSubmit=${submit}>
    <h1>Forebay console</h1>
    <p class="muted small">${byToken ? "Enter the token that the console printed at startup." : "The server asks for a login. The console shows what this user may see."}</p>
    ${byToken
      ? html`<label class="field">Token<input name="token" type="password" autocomplete="off" required autofocus /></label>`
      : html`<label class="field">User<input name="user" autocomplete="username" required autofocus spellcheck="false" /></label>
          <label class="field">Password<input name="password" type="password" autocomplete="current-password" required /></label>`}
    ${error && html`<${ErrorBox} error=${error} />`}
    <button class="primary" disabled=${busy}>${busy ? "Logging in…" : "Log in"}</button>
  </form></main>`;
}

// ---- keys -----------------------------------------------------------------------------------------------------------

const KEYS = [
  ["/", "Go to the search field, or the first field"],
  ["[ and ]", "Previous and next page of a list"],
  ["g, then a letter", () => SCREENS.filter((s) => s.key).map((s) => html`<div><kbd>${s.key}</kbd> ${s.title}</div>`)],
  ["Ctrl Enter", "Run the statement in the SQL box"],
  ["Esc", "Leave a field, close this"],
  ["?", "Show this"],
];

function Help({ onClose }) {
  const dialog = useRef();
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} onClose=${onClose} aria-labelledby="keys-title">
    <div class="stack">
      <h2 id="keys-title">Keys</h2>
      <dl class="facts">${KEYS.map(([key, what]) => html`<div key=${key}><dt><kbd>${key}</kbd></dt><dd>${typeof what === "function" ? what() : what}</dd></div>`)}</dl>
      <div><button onClick=${() => dialog.current.close()}>Close</button></div>
    </div>
  </dialog>`;
}

function useKeys(onHelp) {
  const pending = useRef(0);
  useEffect(() => {
    const pressed = (event) => {
      const field = event.target.closest?.("input, textarea, select, [contenteditable]");
      if (event.key === "Escape" && field) field.blur();
      if (field || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      if (Date.now() - pending.current < 1200) {
        pending.current = 0;
        const screen = SCREENS.find((each) => each.key === event.key);
        if (screen) {
          event.preventDefault();
          navigate(screen.path);
          return;
        }
      }
      if (event.key === "g") pending.current = Date.now();
      else if (event.key === "?") onHelp();
      else if (["/", "[", "]"].includes(event.key)) {
        const found = document.querySelector(`[data-key="${event.key}"]`) ?? (event.key === "/" ? document.querySelector("main input, main textarea") : null);
        if (!found) return;
        event.preventDefault();
        if (event.key === "/") found.focus();
        else found.click();
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
}

// ---- the whole ------------------------------------------------------------------------------------------------------

function App() {
  const url = useLocation();
  const [session, setSession] = useState(null);
  const [error, setError] = useState(null);
  const [help, setHelp] = useState(false);
  const main = useRef();
  useKeys(() => setHelp(true));
  const ask = () => begin().then((found) => (setError(null), setSession(found)), setError);
  useEffect(() => {
    ask();
    onLoginNeeded(ask);
  }, []);
  useEffect(() => {
    main.current?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [url.pathname]);
  if (error) return html`<main><${ErrorBox} error=${error} retry=${ask} /></main>`;
  if (session === null) return html`<main><${Loading} /></main>`;
  if (session.needs) return html`<${Login} session=${session} onDone=${setSession} />`;
  const path = url.pathname === "/" ? SCREENS[0].path : url.pathname;
  const found = matched(path);
  const logOut = () => remove("session").then(setSession, setError);
  return html`<div class="shell" onClick=${followLinks}>
    <a class="skip" href="#main" onClick=${(e) => (e.preventDefault(), main.current.focus())}>Skip to the content</a>
    <${Navigation} current=${path} session=${session} onHelp=${() => setHelp(true)} onLogout=${logOut} />
    <main id="main" ref=${main} tabindex="-1">
      ${found
        ? html`<${Screen} ...${found} session=${session} />`
        : html`<${Head} title="Not found" /><${Empty} title="This page does not exist"><a href="/">Go to the overview</a><//>`}
    </main>
    ${help && html`<${Help} onClose=${() => setHelp(false)} />`}
  </div>`;
}

/** The session. The address that the console printed has the token behind "#", which browsers send to no server. */
async function begin() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token !== null) history.replaceState(null, "", location.pathname + location.search);
  const session = await get("session");
  if (session.needs === "token" && token !== null) {
    try {
      return await post("session", { token });
    } catch {
      return session; // it asks for another one
    }
  }
  return session;
}

applyTheme(storedTheme());
render(html`<${App} />`, document.getElementById("app"));
