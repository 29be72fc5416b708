// What a form needs to know of a JSON schema.
import type { Schema } from "../api";

export type Kind = "string" | "integer" | "number" | "boolean" | "object" | "array" | "enum" | "json";

/** A schema behind its `$ref`s, which are to definitions at the top. */
export function resolve(schema: Schema, root: Schema): Schema {
  for (let hops = 0; typeof schema["$ref"] === "string" && hops < 8; hops += 1) {
    const parts = schema["$ref"].replace(/^#\//, "").split("/");
    let found: unknown = root;
    for (const part of parts) found = (found as Schema | undefined)?.[part];
    if (typeof found !== "object" || found === null) return schema;
    schema = found as Schema;
  }
  return schema;
}

const COMBINED = ["anyOf", "oneOf", "allOf", "not", "$ref", "prefixItems"];

/** What field a schema needs; "json" where none fits. */
export function kindOf(schema: Schema, depth = 0): Kind {
  if (Array.isArray(schema["enum"])) return "enum";
  if (depth > 6 || COMBINED.some((keyword) => keyword in schema)) return "json";
  const types = [schema["type"]].flat().filter((type) => type !== "null");
  const type = types.length === 1 ? types[0] : undefined;
  switch (type) {
    case "object":
      return schema["properties"] ? "object" : "json";
    case "array":
      return schema["items"] && typeof schema["items"] === "object" ? "array" : "json";
    case "string":
    case "integer":
    case "number":
    case "boolean":
      return type;
    default:
      return "json";
  }
}

/** The value that a form begins with: the schema's defaults; undefined is left out. */
export function initial(schema: Schema, root: Schema, required = true, depth = 0): unknown {
  schema = resolve(schema, root);
  if ("default" in schema) return schema["default"];
  if ("const" in schema) return required ? schema["const"] : undefined;
  if (kindOf(schema, depth) !== "object") return required && kindOf(schema, depth) === "array" ? [] : undefined;
  if (!required) return undefined;
  const needed = (schema["required"] ?? []) as string[];
  const value: Record<string, unknown> = {};
  for (const [name, each] of Object.entries(schema["properties"] as Record<string, Schema>)) {
    const inner = initial(each, root, needed.includes(name), depth + 1);
    if (inner !== undefined) value[name] = inner;
  }
  return value;
}
