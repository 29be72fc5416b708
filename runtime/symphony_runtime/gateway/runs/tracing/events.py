"""A run's whole trace in the JSON object format of Chrome and Perfetto.

The picture has one process per role: the gateway's with the run from admission to end, and its
egress calls; the worker's with a track per instance, its calls inside its life; the kernel's with a
track of the steps, and tracks of preds, each with its waits and its steps inside. Every event is
complete ("X").
"""

from collections.abc import Sequence
from typing import Any

import msgpack

from symphony_runtime.gateway.runs.record import Record
from symphony_runtime.gateway.runs.tracing.picture import JsonObject, Picture, Tracks
from symphony_runtime.gateway.runs.tracing.preds import Pred, draw_preds, read_pred
from symphony_runtime.gateway.runs.tracing.waits import InstanceWaits

_GATEWAY, _WORKER = 1, 2  # processes of the picture; 3 is the kernel
_EGRESS_TRACK = 2  # the first one, after the run's track


def trace_events(record: Record, packed: bytes, texts: Sequence[str] = ()) -> JsonObject:
    """Return a trace, times in us. `texts` are the tokens' (see `token_texts`)."""
    trace = msgpack.unpackb(packed)
    calls = _unpack(trace["calls"])
    preds = [read_pred(event) for event in _unpack(trace["preds"])]
    picture = Picture(trace["admitted"])
    for process, name in enumerate(("gateway", trace["worker"], "kernel"), _GATEWAY):
        picture.track(process, 0, name, "process_name")
    _draw_run(picture, record, trace)
    _draw_egress(picture, _unpack(trace.get("outside", [])))
    _draw_calls(picture, record, calls, preds)
    draw_preds(picture, preds, calls, texts)
    return {
        "traceEvents": picture.events,
        "displayTimeUnit": "ms",
        "otherData": {
            "run": record.id,
            "program": record.program_name or record.program,
            "status": record.status,
            "lost_events": trace["lost"],
        },
    }


def _unpack(bundles: list[bytes]) -> list[Any]:
    return [event for bundle in bundles for event in msgpack.unpackb(bundle)[1]]


def _draw_run(picture: Picture, record: Record, trace: JsonObject) -> None:
    where = (_GATEWAY, 1)
    picture.track(*where, f"run {record.id}")
    admitted, ended = trace["admitted"], trace["ended"]
    started = ended if trace["started"] is None else trace["started"]
    picture.span(where, "run", "starting", (admitted, started))
    if trace["started"] is not None:
        picture.span(where, "run", "running", (started, ended), {"status": record.status})


def _draw_egress(picture: Picture, calls: list[Any]) -> None:
    tracks = Tracks(picture, _GATEWAY, _EGRESS_TRACK, "outside")
    for instance, name, began, ended, result in sorted(calls, key=lambda call: call[2]):
        args = {"instance": instance, "result": result}
        picture.span(tracks.take(began, ended), "outside", name, (began, ended), args)


def _draw_calls(picture: Picture, record: Record, calls: list[Any], preds: list[Pred]) -> None:
    tracks: dict[int, int] = {}
    for instance in sorted({call[0] for call in calls}):
        tracks[instance] = len(tracks) + 1
        own = instance == record.seq
        name = record.entry if own else f"child {instance - record.seq}"
        picture.track(_WORKER, tracks[instance], name, instance=instance)
    own_preds: dict[int, list[Pred]] = {instance: [] for instance in tracks}
    for pred in preds:
        own_preds.setdefault(pred.instance, []).append(pred)
    waits = {instance: InstanceWaits(given) for instance, given in own_preds.items()}
    for instance, name, began, ended, result, suspended in calls:
        kind = "wait" if suspended else "syscall" if name else "instance"
        shown = name or ("program" if instance == record.seq else "child")
        args: JsonObject = {} if result is None else {"result": result}
        if suspended and (split := waits[instance].split(began, ended)):
            args["waits_us"] = split
        picture.span((_WORKER, tracks[instance]), kind, shown, (began, ended), args)
