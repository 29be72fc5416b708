// The view that is shown, from the address behind `#`.
import { signal } from "@preact/signals";

function read(): string[] {
  return location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
}

/** The parts of the address: a view's name, then what it shows. */
export const route = signal(read());
addEventListener("hashchange", () => {
  route.value = read();
});

export function href(...parts: string[]): string {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export function go(...parts: string[]): void {
  location.hash = href(...parts);
}
