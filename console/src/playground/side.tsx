// One half of the playground: what runs, its input, and its output as it comes.
import { useEffect, useId, useRef, useState } from "preact/hooks";

import { get, type Program, type Schema, type Version } from "../api";
import { duration } from "../format";
import { Panel, Tail, useLoaded, Words } from "../parts";
import { digits, programPath, versionsOf } from "../programs/versions";
import { href } from "../router";
import { SchemaForm } from "./form";
import { Output } from "./output";
import { copies, inputOf, NOTHING, start, type Outcome, type Wanted } from "./request";
import { initial } from "./schema";

/** What is typed: fields where the program has a schema, else a text. */
export interface Typed {
  fields: unknown;
  text: string;
  asText: boolean; // although there are fields
}

export const UNTYPED: Typed = { fields: undefined, text: "", asText: false };

/** What is chosen and typed on a side. */
export interface Chosen {
  name: string; // a name or an id; "" for the model
  version: string; // digits; "" for what the name points at
  trace: boolean;
  typed: Typed;
}

export function chosenOf(reference: string): Chosen {
  const [name = "", version = ""] = reference.split("@");
  return { name, version, trace: true, typed: UNTYPED };
}

function targetOf(chosen: Chosen): string {
  return chosen.version ? `${chosen.name}@${chosen.version}` : chosen.name;
}

function Target({ chosen, programs, versions, model, change }: {
  chosen: Chosen; programs: Program[]; versions: Version[]; model: string;
  change: (chosen: Chosen) => void;
}) {
  const listed = !chosen.name || programs.some((each) => each.name === chosen.name);
  return (
    <div class="filters">
      <label>
        What runs
        <select value={chosen.name}
          onChange={(event) => {
            const name = event.currentTarget.value;
            change({ ...chosen, name, version: "", typed: { ...UNTYPED, text: chosen.typed.text } });
          }}>
          <option value="">chat with {model || "the model"}</option>
          {listed ? null : <option value={chosen.name}>{chosen.name.slice(0, 19)}</option>}
          {programs.map((each) => <option value={each.name!}>{each.name}</option>)}
        </select>
      </label>
      {versions.length > 1 || chosen.version ? (
        <label>
          Version
          <select value={chosen.version}
            onChange={(event) => change({ ...chosen, version: event.currentTarget.value })}>
            <option value="">what the name points at</option>
            {versions.map((each) => (
              <option value={digits(each)}>{digits(each)}{each.current ? " (current)" : ""}</option>
            ))}
          </select>
        </label>
      ) : null}
    </div>
  );
}

function Input({ chosen, schema, change }: {
  chosen: Chosen; schema: Schema | null; change: (chosen: Chosen) => void;
}) {
  const { typed } = chosen;
  const set = (part: Partial<Typed>) => change({ ...chosen, typed: { ...typed, ...part } });
  const id = useId();
  const isText = !schema || schema["type"] === "string" || typed.asText;
  return (
    <>
      {isText ? (
        <div class="field">
          <label for={id}>{chosen.name ? (schema ? "Input" : "Input: a text, or JSON") : "Message"}</label>
          <textarea id={id} rows={5} value={typed.text}
            onInput={(event) => {
              const field = event.currentTarget;
              const json = Boolean(schema) && schema?.["type"] !== "string";
              const wrong = json && typeof inputOf(field.value, null) === "string" && !field.value.trim().startsWith('"');
              field.setCustomValidity(wrong ? "The program takes JSON, and this is none." : "");
              set({ text: field.value });
            }} />
        </div>
      ) : <SchemaForm schema={schema} value={typed.fields} change={(fields) => set({ fields })} />}
      {schema && schema["type"] !== "string" ? (
        <label class="check">
          <input type="checkbox" checked={typed.asText}
            onChange={(event) => {
              const asText = event.currentTarget.checked;
              if (asText) set({ asText, text: JSON.stringify(typed.fields, null, 2) ?? "" });
              else {
                const fields = inputOf(typed.text, null);
                set({ asText, fields: typeof fields === "string" ? initial(schema, schema) : fields });
              }
            }} />
          as JSON
        </label>
      ) : null}
    </>
  );
}

function AsCode({ wanted, model, label }: { wanted: Wanted; model: string; label: string }) {
  const [told, setTold] = useState("");
  return (
    <details>
      <summary>As curl, Python and more</summary>
      {copies(wanted, model).map(([name, text]) => (
        <div class="code" key={name}>
          <button type="button" onClick={async () => {
            await navigator.clipboard.writeText(text);
            setTold(`copied as ${name}`);
          }}>Copy as {name}</button>
          <pre tabIndex={0} role="region" aria-label={`${label} as ${name}`}>{text}</pre>
        </div>
      ))}
      <p role="status">{told}</p>
    </details>
  );
}

function End({ outcome, ran }: { outcome: Outcome; ran: string }) {
  return (
    <p class="hint">
      <span role="status">{outcome.status}</span>
      {outcome.first === null ? "" : ` · first piece after ${duration(outcome.first)}`}
      {outcome.took === null ? "" : ` · ${duration(outcome.took)} in all`}
      {outcome.run && ran ? <> · <a href={href("runs", outcome.run)}>the run</a></> : null}
    </p>
  );
}

function wantedOf(chosen: Chosen, schema: Schema | null, typed: Typed): Wanted {
  const fields = schema && schema["type"] !== "string" && !typed.asText;
  const input = fields ? (typed.fields ?? {}) : chosen.name ? inputOf(typed.text, schema) : typed.text;
  return { target: targetOf(chosen), input, trace: chosen.trace };
}

/** `given`: what is typed on the other side, for both; `turn` grows when both are to run. */
export function Side({ chosen, change, programs, model, label, given, turn }: {
  chosen: Chosen; change: (chosen: Chosen) => void; programs: Program[]; model: string;
  label: string; given: Typed | undefined; turn: number;
}) {
  const [outcome, setOutcome] = useState<Outcome>(NOTHING);
  const [error, setError] = useState<unknown>();
  const control = useRef<AbortController>(undefined);
  useEffect(() => () => control.current?.abort(), []);
  const { name } = chosen;
  const versions = useLoaded(async (signal) => {
    return name && !name.startsWith("sha256:") ? versionsOf(name, signal) : [];
  }, [name]);
  const target = targetOf(chosen);
  const program = useLoaded(async (signal) => {
    return target ? { of: target, program: await get<Program>(programPath(target), signal) } : undefined;
  }, [target]);
  const known = program.value?.of === target ? program.value.program : undefined;
  const schema = known?.input_schema ?? null;
  useEffect(() => {
    if (schema && chosen.typed.fields === undefined) {
      change({ ...chosen, typed: { ...chosen.typed, fields: initial(schema, schema) } });
    }
  }, [schema]);
  const wanted = wantedOf(chosen, schema, given ?? chosen.typed);
  const run = async () => {
    control.current?.abort();
    const mine = new AbortController();
    control.current = mine;
    setOutcome({ ...NOTHING, status: "starting" });
    setError(undefined);
    try {
      await start(wanted, model, setOutcome, mine.signal);
    } catch (problem) {
      if (mine.signal.aborted) return;
      setError(problem);
      setOutcome({ ...NOTHING });
    }
  };
  const ran = useRef(turn);
  useEffect(() => {
    if (turn !== ran.current) void run();
    ran.current = turn;
  }, [turn]);
  return (
    <Panel title={label}>
      <form class="playground" onSubmit={(event) => {
        event.preventDefault();
        void run();
      }}>
        <Target chosen={chosen} programs={programs} versions={versions.value ?? []} model={model}
          change={change} />
        {known?.description ? <p class="hint">{known.description}</p> : null}
        {given || (target && !known) ? null : <Input key={target} chosen={chosen} schema={schema} change={change} />}
        <div class="actions">
          <button type="submit">Run</button>
          <button type="button" onClick={() => {
            control.current?.abort();
            setOutcome((before) => ({ ...before, status: "stopped" }));
          }}>Stop</button>
          {chosen.name ? (
            <label class="check">
              <input type="checkbox" checked={chosen.trace}
                onChange={(event) => change({ ...chosen, trace: event.currentTarget.checked })} />
              trace
            </label>
          ) : null}
        </div>
        <AsCode wanted={wanted} model={model} label={label} />
      </form>
      <Words error={versions.error ?? program.error ?? error} />
      <Output outcome={outcome} label={label} />
      {outcome.log ? <Tail label={`log of ${label}`} text={outcome.log} /> : null}
      <End outcome={outcome} ran={chosen.name} />
    </Panel>
  );
}
