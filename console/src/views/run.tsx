// One run: its messages and log as they come, usage against limits, and its trace.
import { useEffect, useState } from "preact/hooks";

import { ask, events, get, send, type Run } from "../api";
import { duration, time } from "../format";
import { Action, Panel, Status, Tail, useLoaded, Words } from "../parts";
import { go, href } from "../router";
import { Traced } from "../traced";
import { Again, Children, Usage } from "./run_parts";

const LEVELS = ["debug", "info", "warning", "error"];
const FINAL = new Set(["exited", "trapped", "killed", "failed"]);
const KEPT_CHARACTERS = 400_000; // of a long run's messages

type Message = string | { base64: string };

function text(message: Message): string {
  return typeof message === "string" ? message : `[base64 ${message.base64}]`;
}

/** Follow a run's events until it ends. */
function useEvents(id: string) {
  const [messages, setMessages] = useState("");
  const [log, setLog] = useState("");
  const [status, setStatus] = useState("");
  const [error, setError] = useState<unknown>();
  useEffect(() => {
    const control = new AbortController();
    const follow = async () => {
      const answer = await ask(`v1/runs/${id}/events`, { signal: control.signal });
      let pending = "";
      let frame = 0;
      const show = () => {
        frame = 0;
        const added = pending;
        pending = "";
        setMessages((before) => (before + added).slice(-KEPT_CHARACTERS));
      };
      for await (const event of events(answer)) {
        const data = JSON.parse(event.data) as Record<string, unknown>;
        if (event.event === "message") {
          pending += text(data["message"] as Message);
          frame ||= requestAnimationFrame(show);
        } else if (event.event === "log") {
          setLog((before) => `${before}${LEVELS[Number(data["level"])] ?? data["level"]}  ${data["text"]}\n`.slice(-KEPT_CHARACTERS));
        } else if (event.event === "status") setStatus(String(data["status"]));
      }
      if (pending) show();
    };
    follow().catch((problem: unknown) => {
      if (!control.signal.aborted) setError(problem);
    });
    return () => control.abort();
  }, [id]);
  return { messages, log, status, error };
}

function SendMessage({ id }: { id: string }) {
  const [message, setMessage] = useState("");
  const post = (close: boolean) => async () => {
    await ask(`v1/runs/${id}/messages${close ? "?close=1" : ""}`, { method: "POST", body: message });
    setMessage("");
  };
  return (
    <div class="filters">
      <label>
        Message to the program
        <input value={message} onInput={(event) => setMessage(event.currentTarget.value)} />
      </label>
      <Action label="Send" run={post(false)} />
      <Action label="Send as the last" run={post(true)} />
    </div>
  );
}

export function RunView({ id }: { id: string }) {
  const followed = useEvents(id);
  const ended = FINAL.has(followed.status);
  const loaded = useLoaded(
    (signal) => get<Run>(`v1/runs/${id}?brief=1`, signal), [id, followed.status], ended ? 0 : 2);
  const run = loaded.value;
  const live = run !== undefined && run.ended_ms === null;
  return (
    <>
      <p><a href={href("runs")}>Runs</a></p>
      <h1>{run?.program_name ?? "Run"} <small>{id}</small></h1>
      <Words error={loaded.error ?? followed.error} />
      {run
        ? (
          <>
            <p>
              <Status value={run.status} /> {run.reason} began {time(run.created_ms)}, took{" "}
              {duration((run.ended_ms ?? Date.now()) - run.created_ms)}
              {run.exit_code === null ? "" : `, exit code ${run.exit_code}`}
            </p>
            <div class="actions">
              {live
                ? <Action label="Cancel" run={() => send("POST", `v1/runs/${id}/cancel`)} />
                : (
                  <Action label="Delete" sure="Delete the run with its messages and its log?"
                    run={async () => {
                      await send("DELETE", `v1/runs/${id}`);
                      go("runs");
                    }} />
                )}
              <Again run={run} />
            </div>
          </>
        )
        : null}
      {live ? <SendMessage id={id} /> : null}
      <div class="columns">
        <Panel title="Messages"><Tail label="messages" text={followed.messages} /></Panel>
        <Panel title="Log"><Tail label="log" text={followed.log} /></Panel>
        {run ? <Panel title="Usage and limits"><Usage run={run} /></Panel> : null}
        {run ? <Children id={id} live={live} /> : null}
      </div>
      {run && !live ? <Traced run={id} /> : null}
    </>
  );
}
