// The console: a sign-in, then one view by the address behind `#`.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";

import { get, key, Problem, setKey } from "./api";
import { Words } from "./parts";
import { href, route } from "./router";
import { Chat } from "./views/chat";
import { Files } from "./views/files";
import { Operators } from "./views/operators";
import { Overview } from "./views/overview";
import { Playground } from "./views/playground";
import { Programs } from "./views/programs";
import { RunView } from "./views/run";
import { Runs } from "./views/runs";
import "uplot/dist/uPlot.min.css";
import "./style.css";

/** Whose key it is: an operator's has no runs of its own. */
type Owner = "tenant" | "operator";

async function ownerOf(): Promise<Owner> {
  return (await get<{ tenant: string | null }>("v1/key")).tenant === null ? "operator" : "tenant";
}

const VIEWS: [string, string, Owner | "both"][] = [
  ["overview", "Overview", "both"],
  ["playground", "Playground", "tenant"],
  ["chat", "Chat", "tenant"],
  ["runs", "Runs", "tenant"],
  ["programs", "Programs", "tenant"],
  ["files", "KV files", "tenant"],
  ["operators", "Operators", "operator"],
];

function SignIn({ error }: { error: unknown }) {
  const [text, setText] = useState("");
  return (
    <main class="sign-in">
      <h1>Symphony</h1>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          setKey(text.trim());
        }}
      >
        <label for="key">Key of a tenant or an operator</label>
        <input
          id="key"
          type="password"
          autocomplete="off"
          value={text}
          required
          onInput={(event) => setText(event.currentTarget.value)}
        />
        <button type="submit">Open</button>
      </form>
      <Words error={error} />
      <p class="hint">It stays in this tab, and goes to this server only.</p>
    </main>
  );
}

function View({ owner }: { owner: Owner }) {
  const [name, ...rest] = route.value;
  if (name === "operators" && owner === "operator") return <Operators tab={rest[0] ?? "tenants"} />;
  if (owner === "tenant") {
    if (name === "playground") return <Playground chosen={rest[0] ?? ""} />;
    if (name === "chat") return <Chat />;
    if (name === "runs" && rest[0]) return <RunView id={rest[0]} key={rest[0]} />;
    if (name === "runs") return <Runs />;
    if (name === "programs") return <Programs />;
    if (name === "files") return <Files path={rest.join("/")} />;
  }
  return <Overview owner={owner} />;
}

function Console() {
  const [owner, setOwner] = useState<Owner>();
  const [error, setError] = useState<unknown>();
  useEffect(() => {
    setOwner(undefined);
    if (!key.value) return; // what was wrong with the last one stays to be read
    setError(undefined);
    ownerOf().then(setOwner, (problem: unknown) => {
      setError(problem);
      if (problem instanceof Problem && problem.status === 401) setKey("");
    });
  }, [key.value]);
  if (!key.value) return <SignIn error={error} />;
  if (!owner) return <main><Words error={error} /></main>;
  const shown = VIEWS.filter(([, , whose]) => whose === "both" || whose === owner);
  const current = shown.some(([name]) => name === route.value[0]) ? route.value[0] : "overview";
  return (
    <>
      <a class="skip" href="#main">Skip to the view</a>
      <nav aria-label="views">
        <strong>Symphony</strong>
        <ul>
          {shown.map(([name, title]) => (
            <li>
              <a href={href(name)} aria-current={name === current ? "page" : undefined}>{title}</a>
            </li>
          ))}
        </ul>
        <button type="button" onClick={() => setKey("")}>Sign out</button>
      </nav>
      <main id="main" tabIndex={-1}>
        <View owner={owner} />
      </main>
    </>
  );
}

render(<Console />, document.getElementById("console")!);
