// Bundles the console into the gateway's package: node build.mjs [FOLDER]
import { build } from "esbuild";
import { copyFile, mkdir } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const folder = process.argv[2] ?? join(here, "../runtime/symphony_runtime/gateway/console/files");

await mkdir(folder, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: { console: "src/main.tsx" },
  outdir: folder,
  bundle: true,
  minify: true,
  format: "esm",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "linked",
  charset: "utf8",
});
await copyFile(join(here, "src/index.html"), join(folder, "index.html"));
