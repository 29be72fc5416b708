// What programs send: JSON that is written piece by piece, and texts with places to fill.

import { quote } from "./json";

/** The text of a JSON object, in the making. */
export class JsonObject {
  private written: string = "{";

  /** A member whose value is JSON already. */
  raw(name: string, json: string): JsonObject {
    this.written += (this.written.length > 1 ? "," : "") + quote(name) + ":" + json;
    return this;
  }

  /** A text. */
  text(name: string, text: string): JsonObject {
    return this.raw(name, quote(text));
  }

  /** A whole number. */
  whole(name: string, number: i64): JsonObject {
    return this.raw(name, number.toString());
  }

  /** A number; null where JSON has none. */
  number(name: string, number: f64): JsonObject {
    return this.raw(name, isFinite(number) ? number.toString() : "null");
  }

  /** True or false. */
  flag(name: string, truth: bool): JsonObject {
    return this.raw(name, truth ? "true" : "false");
  }

  /** The text. */
  finish(): string {
    return this.written + "}";
  }
}

/**
 * The template with each `{name}` of these replaced by its text. Other braces stay, and what was put in
 * is not looked at again.
 */
export function fill(template: string, names: Array<string>, texts: Array<string>): string {
  let filled = "";
  let at = 0;
  for (let open = template.indexOf("{"); open >= 0; open = template.indexOf("{", at)) {
    const close = template.indexOf("}", open);
    const known = close < 0 ? -1 : names.indexOf(template.substring(open + 1, close));
    filled += template.substring(at, open) + (known < 0 ? "{" : texts[known]);
    at = known < 0 ? open + 1 : close + 1;
  }
  return filled + template.substring(at);
}
