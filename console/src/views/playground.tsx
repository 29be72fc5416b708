// Try a program or the model: an input, its output as it comes, one beside another.
import { useEffect, useRef, useState } from "preact/hooks";

import { ask, events, get, key, type Page, type Program } from "../api";
import { duration } from "../format";
import { Panel, Tail, useLoaded, Words } from "../parts";
import { href } from "../router";

interface Model {
  id: string;
  owned_by: string;
}

interface Wanted {
  target: string; // a program's name or id; "" for a chat with the model
  input: string;
  trace: boolean;
}

interface Outcome {
  text: string;
  log: string;
  run: string;
  status: string;
  first: number | null; // ms to the first piece
  took: number | null;
}

const NOTHING: Outcome = { text: "", log: "", run: "", status: "", first: null, took: null };

function request(wanted: Wanted, model: string): { path: string; body: unknown } {
  if (!wanted.target) {
    const messages = [{ role: "user", content: wanted.input }];
    return {
      path: "v1/chat/completions",
      body: { model, messages, max_tokens: 256, stream: true },
    };
  }
  let input: unknown = wanted.input;
  try {
    input = JSON.parse(wanted.input);
  } catch {
    // A text that is no JSON is the input as it stands.
  }
  return {
    path: `v1/programs/${encodeURIComponent(wanted.target)}/runs`,
    body: { input, stream: true, ...(wanted.trace ? { trace: true } : {}) },
  };
}

/** The same request for a terminal or a program. */
function copies(wanted: Wanted, model: string): Record<string, string> {
  const { path, body } = request(wanted, model);
  const json = JSON.stringify(body);
  const url = new URL(path, document.baseURI).href;
  const quoted = `'${json.replaceAll("'", String.raw`'\''`)}'`;
  const python = [
    "import json, os, urllib.request",
    `request = urllib.request.Request(${JSON.stringify(url)}, json.dumps(json.loads(r'''${json}''')).encode(),`,
    "    {'Authorization': 'Bearer ' + os.environ['SYMPHONY_KEY'], 'Content-Type': 'application/json'})",
    "for line in urllib.request.urlopen(request): print(line.decode(), end='')",
  ].join("\n");
  const copied: Record<string, string> = {
    curl: `curl -N ${url} -H "Authorization: Bearer $SYMPHONY_KEY" -H 'Content-Type: application/json' -d ${quoted}`,
    Python: python,
  };
  if (wanted.target) copied["symphony run"] = `symphony run ${wanted.target} '${wanted.input.replaceAll("'", String.raw`'\''`)}'`;
  return copied;
}

/** Start what is wanted; tell the outcome each time that it grows. */
async function run(
  wanted: Wanted, model: string, tell: (outcome: Outcome) => void, control: AbortSignal,
): Promise<void> {
  const began = performance.now();
  const { path, body } = request(wanted, model);
  const answer = await ask(path, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
    signal: control,
  });
  let outcome: Outcome = { ...NOTHING, run: answer.headers.get("X-Run-Id") ?? "", status: "running" };
  const add = (text: string) => {
    outcome = { ...outcome, text: outcome.text + text, first: outcome.first ?? performance.now() - began };
  };
  for await (const event of events(answer)) {
    if (event.data === "[DONE]") break;
    const data = JSON.parse(event.data);
    if (!wanted.target) {
      if (data.error) throw new Error(data.error.message);
      const delta = data.choices?.[0]?.delta;
      if (delta?.content) add(delta.content);
      const finish = data.choices?.[0]?.finish_reason;
      if (finish) outcome = { ...outcome, status: finish };
    } else if (event.event === "message") {
      add(typeof data.message === "string" ? data.message : `[base64 ${data.message.base64}]`);
    } else if (event.event === "log") {
      outcome = { ...outcome, log: `${outcome.log}${data.level}  ${data.text}\n` };
    } else if (event.event === "status") {
      outcome = { ...outcome, status: data.status + (data.reason ? `: ${data.reason}` : "") };
    }
    tell(outcome);
  }
  tell({ ...outcome, took: performance.now() - began });
}

function Side({ chosen, programs, models, label }: {
  chosen: string; programs: Program[]; models: Model[]; label: string;
}) {
  const [wanted, setWanted] = useState<Wanted>({ target: chosen, input: "", trace: true });
  const [outcome, setOutcome] = useState<Outcome>(NOTHING);
  const [error, setError] = useState<unknown>();
  const [told, setTold] = useState("");
  const control = useRef<AbortController>(undefined);
  useEffect(() => () => control.current?.abort(), []);
  const model = models.find((each) => each.owned_by === "symphony")?.id ?? "";
  const start = async () => {
    control.current?.abort();
    const mine = new AbortController();
    control.current = mine;
    setOutcome({ ...NOTHING, status: "starting" });
    setError(undefined);
    try {
      await run(wanted, model, setOutcome, mine.signal);
    } catch (problem) {
      if (mine.signal.aborted) return;
      setError(problem);
      setOutcome({ ...NOTHING });
    }
  };
  return (
    <Panel title={label}>
      <form class="playground" onSubmit={(event) => {
        event.preventDefault();
        void start();
      }}>
        <label>
          What runs
          <select value={wanted.target}
            onChange={(event) => setWanted({ ...wanted, target: event.currentTarget.value })}>
            <option value="">chat with {model || "the model"}</option>
            {programs.map((each) => <option value={each.name ?? each.id}>{each.name ?? each.id}</option>)}
          </select>
        </label>
        <label>
          {wanted.target ? "Input: a text, or JSON" : "Message"}
          <textarea rows={5} value={wanted.input}
            onInput={(event) => setWanted({ ...wanted, input: event.currentTarget.value })} />
        </label>
        <div class="actions">
          <button type="submit">Run</button>
          <button type="button" onClick={() => {
            control.current?.abort();
            setOutcome((before) => ({ ...before, status: "stopped" }));
          }}>Stop</button>
          {wanted.target
            ? (
              <label class="check">
                <input type="checkbox" checked={wanted.trace}
                  onChange={(event) => setWanted({ ...wanted, trace: event.currentTarget.checked })} />
                trace
              </label>
            )
            : null}
          {Object.entries(copies(wanted, model)).map(([name, text]) => (
            <button type="button" class="quiet" onClick={async () => {
              await navigator.clipboard.writeText(text);
              setTold(`copied as ${name}`);
            }}>Copy as {name}</button>
          ))}
          <span role="status">{told}</span>
        </div>
      </form>
      <Words error={error} />
      <Tail label={`output of ${label}`} text={outcome.text} />
      {outcome.log ? <Tail label={`log of ${label}`} text={outcome.log} /> : null}
      <p class="hint">
        <span role="status">{outcome.status}</span>
        {outcome.first === null ? "" : ` · first piece after ${duration(outcome.first)}`}
        {outcome.took === null ? "" : ` · ${duration(outcome.took)} in all`}
        {outcome.run && wanted.target ? <> · <a href={href("runs", outcome.run)}>the run</a></> : null}
      </p>
    </Panel>
  );
}

export function Playground({ chosen }: { chosen: string }) {
  const [two, setTwo] = useState(false);
  const programs = useLoaded((signal) => get<Page<Program>>("v1/programs?limit=200", signal), [key.value]);
  const models = useLoaded((signal) => get<Page<Model>>("v1/models", signal), [key.value]);
  return (
    <>
      <h1>Playground</h1>
      <Words error={programs.error ?? models.error} />
      <label class="check">
        <input type="checkbox" checked={two} onChange={(event) => setTwo(event.currentTarget.checked)} />
        compare two
      </label>
      {programs.value && models.value
        ? (
          <div class={two ? "halves" : ""}>
            {(two ? ["First", "Second"] : ["Run"]).map((label) => (
              <Side key={label + chosen} label={label} chosen={chosen}
                programs={programs.value!.data} models={models.value!.data} />
            ))}
          </div>
        )
        : null}
    </>
  );
}
