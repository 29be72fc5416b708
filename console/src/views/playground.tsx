// Try a program or the model: an input, its output as it comes, two side by side.
import { useState } from "preact/hooks";

import { get, key, type Page } from "../api";
import { useLoaded, Words } from "../parts";
import { chosenOf, Side, type Chosen } from "../playground/side";
import { route } from "../router";
import { listPrograms } from "./programs";

export interface Model {
  id: string;
  owned_by: string;
}

function Halves({ first, second, model, programs }: {
  first: string; second: string | undefined; model: string;
  programs: Awaited<ReturnType<typeof listPrograms>>;
}) {
  const [two, setTwo] = useState(second !== undefined);
  const [same, setSame] = useState(true);
  const [turn, setTurn] = useState(0);
  const [one, setOne] = useState<Chosen>(() => chosenOf(first));
  const [other, setOther] = useState<Chosen>(() => chosenOf(second ?? first));
  const given = { programs, model, turn };
  return (
    <>
      <div class="actions">
        <label class="check">
          <input type="checkbox" checked={two} onChange={(event) => setTwo(event.currentTarget.checked)} />
          compare two
        </label>
        {two ? (
          <>
            <label class="check">
              <input type="checkbox" checked={same} onChange={(event) => setSame(event.currentTarget.checked)} />
              the same input for both
            </label>
            <button type="button" onClick={() => setTurn(turn + 1)}>Run both</button>
          </>
        ) : null}
      </div>
      <div class={two ? "halves" : ""}>
        <Side label={two ? "First" : "Run"} chosen={one} change={setOne} given={undefined}
          {...given} />
        {two ? (
          <Side label="Second" chosen={other} change={setOther} {...given}
            given={same ? one.typed : undefined} />
        ) : null}
      </div>
    </>
  );
}

/** `#/playground/WHAT` begins with a program, and `#/playground/WHAT/OTHER` with two. */
export function Playground({ chosen }: { chosen: string }) {
  const second = route.value[2];
  const programs = useLoaded((signal) => listPrograms(true, signal), [key.value]);
  const models = useLoaded((signal) => get<Page<Model>>("v1/models", signal), [key.value]);
  const model = models.value?.data.find((each) => each.owned_by === "symphony")?.id ?? "";
  return (
    <>
      <h1>Playground</h1>
      <Words error={programs.error ?? models.error} />
      {programs.value && models.value ? (
        <Halves key={`${chosen} ${second}`} first={chosen} second={second} model={model}
          programs={programs.value} />
      ) : null}
    </>
  );
}
