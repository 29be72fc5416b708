// Uploading a module or a source: by drop or by choice, under a name.
import { useState } from "preact/hooks";

import { ask } from "../api";
import { Words } from "../parts";

const NAMES = "[A-Za-z0-9][A-Za-z0-9._\\-]*";

/** The type of a module, or of its language's source. */
const contentType = (file: File) =>
  /\.m?js$/.test(file.name) ? "text/javascript" : "application/wasm";

/** Upload files one after another; each makes a version of its name. */
export function Upload({ name, done }: { name?: string; done: () => void }) {
  const [over, setOver] = useState(false);
  const [error, setError] = useState<unknown>();
  const [told, setTold] = useState("");
  const [wanted, setWanted] = useState(name ?? "");
  const upload = async (files: FileList | null | undefined) => {
    setError(undefined);
    for (const file of files ?? []) {
      const under = wanted || file.name.replace(/\.(wasm|m?js)$/, "");
      setTold(`${file.name} is checked and compiled …`);
      try {
        const answer = await ask(`v1/programs?name=${encodeURIComponent(under)}`, {
          method: "POST",
          headers: { "Content-Type": contentType(file) },
          body: file,
        });
        const { id } = (await answer.json()) as { id: string };
        const words = answer.status === 201 ? "is there" : "was there already";
        setTold(`${under}@${id.slice(7, 19)} ${words}, and ${under} points at it.`);
        done();
      } catch (problem) {
        setTold("");
        setError(problem);
        return;
      }
    }
  };
  return (
    <div class={`drop${over ? " over" : ""}`}
      onDragOver={(event) => {
        event.preventDefault();
        setOver(true);
      }}
      onDragLeave={() => setOver(false)}
      onDrop={(event) => {
        event.preventDefault();
        setOver(false);
        void upload(event.dataTransfer?.files);
      }}>
      <div class="filters">
        <label>
          Drop a .wasm or .js file here, or choose one
          <input type="file" accept=".wasm,.js,.mjs" multiple={!name}
            onChange={(event) => {
              void upload(event.currentTarget.files);
              event.currentTarget.value = ""; // the same file may come again
            }} />
        </label>
        {name ? null : (
          <label>
            Name, if not the file's
            <input value={wanted} pattern={NAMES}
              onInput={(event) => setWanted(event.currentTarget.value)} />
          </label>
        )}
      </div>
      <p role="status">{told}</p>
      <Words error={error} />
    </div>
  );
}
