"""Traces for operators, by OpenTelemetry: spans that are sent over OTLP/HTTP.

    requests ─ a span for each request, the parent of the runs that it starts
    runs ───── a span for each run, child and egress call, and for the steps of a traced run
    answers ── what a generating request asked, and why its answer ended
        │
        v
    pipeline ─ bounds by tenant ──> the SDK's queue and thread ──> a collector

`start` imports the rest only if traces are sent somewhere: the SDK is an optional dependency.
No span holds a prompt, an answer, an argument or a log line.
"""
