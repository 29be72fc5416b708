// A form from a JSON schema: a field for each property, JSON text where no field fits.
import { useId, useState } from "preact/hooks";

import type { Schema } from "../api";
import { initial, kindOf, resolve } from "./schema";

interface Field {
  schema: Schema;
  root: Schema;
  name: string; // shown
  value: unknown; // undefined: left out
  required: boolean;
  depth: number;
  change: (value: unknown) => void;
}

function numeric(schema: Schema): Record<string, number | "any"> {
  const found: Record<string, number | "any"> = { step: schema["type"] === "integer" ? 1 : "any" };
  if (typeof schema["minimum"] === "number") found["min"] = schema["minimum"];
  if (typeof schema["maximum"] === "number") found["max"] = schema["maximum"];
  return found;
}

function lengths(schema: Schema): Record<string, number> {
  const found: Record<string, number> = {};
  if (typeof schema["minLength"] === "number") found["minLength"] = schema["minLength"];
  if (typeof schema["maxLength"] === "number") found["maxLength"] = schema["maxLength"];
  return found;
}

function Labelled({ field, id, children }: {
  field: Field; id: string; children: preact.ComponentChildren;
}) {
  const hint = field.schema["description"];
  return (
    <div class="field">
      <label for={id}>{field.name}{field.required ? "" : " (optional)"}</label>
      {children}
      {typeof hint === "string" ? <p class="hint" id={`${id}-hint`}>{hint}</p> : null}
    </div>
  );
}

/** A value as JSON text; the browser refuses to send what is no JSON. */
export function JsonField({ id, value, required, change }: {
  id: string; value: unknown; required: boolean; change: (value: unknown) => void;
}) {
  const [text, setText] = useState(value === undefined ? "" : JSON.stringify(value, null, 2));
  return (
    <textarea id={id} rows={4} value={text} required={required} spellcheck={false}
      onInput={(event) => {
        const field = event.currentTarget;
        setText(field.value);
        try {
          change(field.value.trim() ? JSON.parse(field.value) : undefined);
          field.setCustomValidity("");
        } catch (error) {
          field.setCustomValidity(`This is no JSON: ${(error as Error).message}`);
        }
      }} />
  );
}

function Items({ field }: { field: Field }) {
  const items = (field.value ?? []) as unknown[];
  const schema = resolve(field.schema["items"] as Schema, field.root);
  const set = (at: number, value: unknown) => field.change(items.map((old, n) => (n === at ? value : old)));
  const empty = (): unknown => initial(schema, field.root) ?? (schema["type"] === "string" ? "" : null);
  const most = field.schema["maxItems"];
  return (
    <fieldset>
      <legend>{field.name}{field.required ? "" : " (optional)"}</legend>
      {items.map((value, at) => (
        <div class="item" key={`${at} of ${items.length}`}>
          <AnyField schema={schema} root={field.root} name={`${field.name} ${at + 1}`} value={value ?? undefined}
            required depth={field.depth + 1} change={(inner) => set(at, inner)} />
          <button type="button" class="quiet" aria-label={`Remove ${field.name} ${at + 1}`}
            onClick={() => field.change(items.filter((_, n) => n !== at))}>Remove</button>
        </div>
      ))}
      <button type="button" disabled={typeof most === "number" && items.length >= most}
        onClick={() => field.change([...items, empty()])}>Add to {field.name}</button>
    </fieldset>
  );
}

function Properties({ field }: { field: Field }) {
  const value = (field.value ?? {}) as Record<string, unknown>;
  const needed = (field.schema["required"] ?? []) as string[];
  const set = (name: string, inner: unknown) => {
    const { [name]: _, ...others } = value;
    field.change(inner === undefined ? others : { ...others, [name]: inner });
  };
  const fields = Object.entries(field.schema["properties"] as Record<string, Schema>).map(([name, schema]) => (
    <AnyField key={name} schema={schema} root={field.root} name={name} value={value[name]}
      required={needed.includes(name)} depth={field.depth + 1} change={(inner) => set(name, inner)} />
  ));
  if (!field.depth) return <>{fields}</>;
  return <fieldset><legend>{field.name}{field.required ? "" : " (optional)"}</legend>{fields}</fieldset>;
}

function Choice({ field, id }: { field: Field; id: string }) {
  const choices = field.schema["enum"] as unknown[];
  const chosen = choices.findIndex((each) => JSON.stringify(each) === JSON.stringify(field.value));
  return (
    <select id={id} value={chosen < 0 ? "" : String(chosen)} required={field.required}
      onChange={(event) => {
        const at = event.currentTarget.value;
        field.change(at === "" ? undefined : choices[Number(at)]);
      }}>
      <option value="">–</option>
      {choices.map((each, at) => (
        <option value={String(at)}>{typeof each === "string" ? each : JSON.stringify(each)}</option>
      ))}
    </select>
  );
}

function Simple({ field, id }: { field: Field; id: string }) {
  const { schema, value, required, change } = field;
  switch (kindOf(schema)) {
    case "string": {
      const given = { id, required, ...lengths(schema), value: (value as string | undefined) ?? "" };
      const told = (text: string) => change(text || required ? text : undefined);
      return schema["format"] || (Number(schema["maxLength"]) || 1e9) <= 80
        ? <input {...given} onInput={(event) => told(event.currentTarget.value)} />
        : <textarea rows={2} {...given} onInput={(event) => told(event.currentTarget.value)} />;
    }
    case "integer":
    case "number":
      return (
        <input id={id} type="number" required={required} {...numeric(schema)} value={value === undefined ? "" : String(value)}
          onInput={(event) => {
            const text = event.currentTarget.value;
            change(text === "" ? undefined : Number(text));
          }} />
      );
    default:
      return <JsonField id={id} value={value} required={required} change={change} />;
  }
}

function AnyField(given: Field) {
  const id = useId();
  const field = { ...given, schema: resolve(given.schema, given.root) };
  switch (kindOf(field.schema, field.depth)) {
    case "object":
      return <Properties field={field} />;
    case "array":
      return <Items field={field} />;
    case "enum":
      return <Labelled field={field} id={id}><Choice field={field} id={id} /></Labelled>;
    case "boolean":
      return (
        <label class="check" title={String(field.schema["description"] ?? "")}>
          <input type="checkbox" checked={field.value === true}
            onChange={(event) => field.change(event.currentTarget.checked)} />
          {field.name}
        </label>
      );
    default:
      return <Labelled field={field} id={id}><Simple field={field} id={id} /></Labelled>;
  }
}

/** The fields of a program's input. */
export function SchemaForm({ schema, value, change }: {
  schema: Schema; value: unknown; change: (value: unknown) => void;
}) {
  return (
    <AnyField schema={schema} root={schema} name="input" value={value} required depth={0} change={change} />
  );
}
