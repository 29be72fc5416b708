// A traced run: its timeline, what it generated, and the trace as a file.
import { useEffect, useState } from "preact/hooks";

import { Problem } from "./api";
import { Explorer } from "./explorer";
import { Action, Panel, Words } from "./parts";
import { Timeline } from "./timeline";
import { fetchTrace, readTrace, type Trace } from "./trace";

export function Traced({ run }: { run: string }) {
  const [file, setFile] = useState<Blob>();
  const [trace, setTrace] = useState<Trace>();
  const [error, setError] = useState<unknown>();
  useEffect(() => {
    performance.clearMarks("timeline");
    fetchTrace(run)
      .then(async (blob) => {
        setTrace(readTrace(JSON.parse(await blob.text())));
        setFile(blob);
      })
      .catch((problem: unknown) => setError(problem));
  }, [run]);
  if (error instanceof Problem && error.status === 404) {
    return <p class="hint">The run was not traced: start it with <code>trace</code>.</p>;
  }
  if (!trace) return error ? <Words error={error} /> : <p class="hint" role="status">The trace is on its way.</p>;
  return (
    <>
      <Panel title="Timeline" actions={
        <Action label="Download for Perfetto" run={async () => {
          const link = document.createElement("a");
          link.href = URL.createObjectURL(file!);
          link.download = `${run}.json`;
          link.click();
          setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
        }} />
      }>
        <Timeline trace={trace} />
      </Panel>
      <Panel title="Generation"><Explorer trace={trace} /></Panel>
    </>
  );
}
