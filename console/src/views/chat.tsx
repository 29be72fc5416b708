// A chat with the model, or with a program that answers as one; all branches stay in view.
import { useEffect, useRef, useState } from "preact/hooks";

import { get, key, type Page } from "../api";
import { useLoaded, Words } from "../parts";
import { answer, bodyOf, childrenOf, pathTo, type Node, type Settings } from "../playground/conversation";
import type { Model } from "./playground";

const CHOICES_MAX = 8;

function Choose({ settings, models, change }: {
  settings: Settings; models: Model[]; change: (settings: Settings) => void;
}) {
  const numbers: [string, "choices" | "temperature" | "tokens", number, number, number | "any"][] = [
    ["Answers at once", "choices", 1, CHOICES_MAX, 1],
    ["Temperature", "temperature", 0, 2, "any"],
    ["Tokens at most", "tokens", 1, 32768, 1],
  ];
  return (
    <div class="filters">
      <label>
        Model or program
        <input list="models" value={settings.model}
          onInput={(event) => change({ ...settings, model: event.currentTarget.value })} />
      </label>
      <datalist id="models">{models.map((each) => <option value={each.id} />)}</datalist>
      {numbers.map(([label, name, min, max, step]) => (
        <label key={name}>
          {label}
          <input class="small" type="number" min={min} max={max} step={step} required
            value={String(settings[name])}
            onInput={(event) => change({ ...settings, [name]: Number(event.currentTarget.value) })} />
        </label>
      ))}
      <label class="wide">
        System message
        <input value={settings.system}
          onInput={(event) => change({ ...settings, system: event.currentTarget.value })} />
      </label>
    </div>
  );
}

function Card({ node, chosen, last, branches, choose }: {
  node: Node; chosen: boolean; last: boolean; branches: number; choose: () => void;
}) {
  const who = node.role === "user" ? "you" : "answer";
  const continued = branches > 1 ? `, continued in ${branches} branches` : branches ? ", continued" : "";
  return (
    <article class={`card ${node.role}${chosen ? " chosen" : ""}`} aria-current={chosen ? "true" : undefined}>
      <header>
        <span>{who}{node.role === "assistant" ? continued : ""}</span>
        <span role="status">{node.state}</span>
      </header>
      <pre tabIndex={0} role="region" aria-label={`text of ${who} ${node.id}`}>{node.text}</pre>
      {node.role === "assistant" && node.state !== "streaming" && !last ? (
        <button type="button" class="quiet" onClick={choose}>Continue from here</button>
      ) : null}
      {node.role === "user" && !chosen ? (
        <button type="button" class="quiet" onClick={choose}>Show its answers</button>
      ) : null}
    </article>
  );
}

/** Levels from the first message on; of each level all siblings, and which one is on the way. */
function Tree({ nodes, at, choose }: { nodes: Node[]; at: number; choose: (id: number) => void }) {
  const path = pathTo(nodes, at);
  const levels = [0, ...path.map((node) => node.id)]
    .map((parent) => childrenOf(nodes, parent)).filter((level) => level.length);
  return (
    <div class="conversation">
      {levels.map((level) => (
        <div class="answers" key={level[0]!.id}>
          {level.map((node) => (
            <Card key={node.id} node={node} chosen={path.includes(node)} last={node.id === at}
              branches={childrenOf(nodes, node.id).length} choose={() => choose(node.id)} />
          ))}
        </div>
      ))}
    </div>
  );
}

// Until the page is loaded again: a view that is left and opened again shows the same conversation to the same key.
const USUAL: Settings = { model: "", system: "", choices: 2, temperature: 0.8, tokens: 256 };
let kept = { key: "", nodes: [] as Node[], at: 0, settings: USUAL };

function keptNodes(): Node[] {
  if (kept.key !== key.value) kept = { key: key.value, nodes: [], at: 0, settings: USUAL };
  return kept.nodes.map((node) => (node.state === "streaming" ? { ...node, state: "stopped" } : node));
}

export function Chat() {
  const models = useLoaded((signal) => get<Page<Model>>("v1/models", signal), [key.value]);
  const [nodes, setNodes] = useState<Node[]>(keptNodes);
  const [at, setAt] = useState(kept.at); // the message that the next one continues
  const [settings, setSettings] = useState(kept.settings);
  const [text, setText] = useState("");
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const control = useRef<AbortController>(undefined);
  const ids = useRef(Math.max(0, ...nodes.map((node) => node.id)));
  useEffect(() => () => control.current?.abort(), []);
  useEffect(() => {
    kept = { key: key.value, nodes, at, settings };
  }, [nodes, at, settings]);
  useEffect(() => {
    const served = models.value?.data.find((each) => each.owned_by === "symphony");
    // Of the settings now: a name may have been typed since the last drawing.
    if (served) setSettings((now) => (now.model ? now : { ...now, model: served.id }));
  }, [models.value]);
  const update = (id: number, change: (node: Node) => Node) =>
    setNodes((before) => before.map((node) => (node.id === id ? change(node) : node)));

  /** Let a question be answered, by as many answers as are set. */
  const ask = async (known: Node[], question: number) => {
    const answers = Array.from({ length: settings.choices }, (): Node => (
      { id: (ids.current += 1), parent: question, role: "assistant", text: "", state: "streaming" }
    ));
    setNodes([...known, ...answers]);
    setAt(question);
    setBusy(true);
    setError(undefined);
    const mine = new AbortController();
    control.current = mine;
    try {
      await answer(bodyOf(known, question, settings), (choice, piece, state) => {
        const id = answers[choice]?.id ?? 0;
        update(id, (node) => ({ ...node, text: node.text + piece, state: state || node.state }));
      }, mine.signal);
      setAt((before) => (before === question ? answers[0]!.id : before));
    } catch (problem) {
      if (!mine.signal.aborted) setError(problem);
    }
    const ended = mine.signal.aborted ? "stopped" : "no answer";
    // A program may give fewer answers than were asked for.
    setNodes((before) => before.filter((node) => !answers.some((each) => each.id === node.id)
      || node.state !== "streaming" || node.text).map((node) => (
      answers.some((each) => each.id === node.id) && node.state === "streaming" ? { ...node, state: ended } : node
    )));
    setBusy(false);
  };
  const path = pathTo(nodes, at);
  const last = path.at(-1);
  const send = () => {
    const question: Node = { id: (ids.current += 1), parent: at, role: "user", text, state: "" };
    setText("");
    void ask([...nodes, question], question.id);
  };
  return (
    <>
      <h1>Chat</h1>
      <Words error={models.error} />
      <Tree nodes={nodes} at={at} choose={setAt} />
      <Words error={error} />
      <form class="playground panel" onSubmit={(event) => {
        event.preventDefault();
        if (!busy && last?.role !== "user") send();
      }}>
        <div class="field">
          <label for="message">{at ? "Message after the chosen answer" : "Message"}</label>
          <textarea id="message" rows={3} value={text} required={last?.role !== "user"}
            onInput={(event) => setText(event.currentTarget.value)} />
        </div>
        <div class="actions">
          <button type="submit" disabled={busy || !settings.model || last?.role === "user"}>Send</button>
          <button type="button" disabled={!busy} onClick={() => control.current?.abort()}>Stop</button>
          {last ? (
            <button type="button" disabled={busy || !settings.model} onClick={() => {
              const question = last.role === "user" ? last.id : last.parent;
              void ask(nodes, question);
            }}>More answers</button>
          ) : null}
          {nodes.length ? (
            <button type="button" disabled={busy} onClick={() => setAt(0)}>New conversation</button>
          ) : null}
        </div>
        <Choose settings={settings} models={models.value?.data ?? []} change={setSettings} />
      </form>
    </>
  );
}
