"""Preds of a trace: what each waited for, its steps, and its tokens.

held ── throttle ──> submitted ── queue, pages, queue ──> step ── queue ──> step ──> ended
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from symphony_runtime.gateway.runs.tracing.picture import JsonObject, Picture, Tracks

_KERNEL = 3  # the process of the picture
_STEPS_TRACK = 1  # the tracks of preds follow
_MOVES = ("pages_from_host", "pages_from_disk", "tokens_rebuilt")  # for a pred, if any
_SHOWN = {"throttle": "throttled", "queue": "queued", "pages": "pages", "step": "step"}
_PAIR = np.dtype([("token", "<u4"), ("log", "<f4")])
_FORBIDDEN = np.dtype([("allowed", "<u4"), ("mass", "<f4"), ("token", "<u4"), ("log", "<f4")])
_DIGITS = 6  # of a probability

State = tuple[float, float, str]  # began, ended, what it was: a key of `_SHOWN`


@dataclass(frozen=True, slots=True)
class Pred:
    """An event of the kernel (see its `scheduler.trace.Traces`)."""

    instance: int
    ticket: int
    tokens: int
    submitted: float
    ended: float
    errno: int
    steps: list[list[Any]]
    about: dict[str, Any]

    @property
    def began(self) -> float:
        held: float = self.about.get("held", self.submitted)
        return min(held, self.submitted)

    def states(self) -> list[State]:
        """Return what it did from its beginning to its end, in order and without gaps."""
        found: list[State] = []
        if self.began < self.submitted:
            found.append((self.began, self.submitted, "throttle"))
        marks = [(began, ended, "pages") for began, ended in self.about.get("pages", ())]
        marks += [(began, done, "step") for began, done, *_ in self.steps]
        at = self.submitted
        for began, ended, state in sorted(marks):
            # A step that a prediction computed may have begun, or ended, before the pred came.
            first, last = max(began, at), min(ended, self.ended)
            if last <= first:
                continue
            if at < first:
                found.append((at, first, "queue"))
            found.append((first, last, state))
            at = last
        if at < self.ended:
            found.append((at, self.ended, "queue"))
        return found


def read_pred(event: list[Any]) -> Pred:
    """Return a stored event. Traces of version 0.1 have only the moves, or nothing, at its end."""
    instance, ticket, tokens, submitted, ended, errno, steps, *more = event
    about = more[0] if more else {}
    if not isinstance(about, dict):
        about = {"moved": about}
    return Pred(instance, ticket, tokens, submitted, ended, errno, steps, about)


def draw_preds(picture: Picture, preds: list[Pred], calls: list[Any], texts: Sequence[str]) -> None:
    names = {(call[0], call[4]): call[1] for call in calls if call[1] in ("pred", "generate")}
    picture.track(_KERNEL, _STEPS_TRACK, "steps")
    steps: dict[float, list[Any]] = {}  # by start: one step computes at a time
    tracks = Tracks(picture, _KERNEL, _STEPS_TRACK + 1, "preds")
    for pred in sorted(preds, key=lambda each: each.began):
        where = tracks.take(pred.began, pred.ended)
        states = pred.states()
        args = {
            "ticket": pred.ticket,
            "tokens": pred.tokens,
            "instance": pred.instance,
            "errno": pred.errno,
            "waits_us": total(states),
            **_tokens_of(pred.about, texts),
        }
        name = names.get((pred.instance, pred.ticket), "pred")
        picture.span(where, "pred", name, (pred.began, pred.ended), args)
        own = {min(done, pred.ended): tokens for _, done, _, _, tokens in pred.steps}
        for began, ended, state in states:
            kind = "step" if state == "step" else "wait"
            # Without a step's rows and tokens: they would reveal other tenants' work.
            shown = {"own": own[ended]} if state == "step" else None
            picture.span(where, kind, _SHOWN[state], (began, ended), shown)
        for began, done, _, _, tokens in pred.steps:
            step = steps.setdefault(began, [done, 0, 0])
            step[1] += 1
            step[2] += tokens
    for began, (done, own_rows, own_tokens) in sorted(steps.items()):
        args = {"own_rows": own_rows, "own_tokens": own_tokens}
        picture.span((_KERNEL, _STEPS_TRACK), "step", "step", (began, done), args)


def total(states: list[State]) -> dict[str, float]:
    """Return the microseconds of each kind of state."""
    found: dict[str, float] = {}
    for began, ended, state in states:
        found[state] = found.get(state, 0.0) + 1e6 * (ended - began)
    return {state: round(spent, 3) for state, spent in found.items()}


# --- Tokens --------------------------------------------------------------------------------------
def _tokens_of(about: dict[str, Any], texts: Sequence[str]) -> JsonObject:
    """Return a pred's tokens and result in words."""
    found: JsonObject = dict(zip(_MOVES, about.get("moved", ()), strict=False))
    if "file" not in about:
        return found
    found |= {"file": about["file"], "at": about["at"], "text": _read(about["tokens"], texts)}
    if "before" in about:
        found["before"] = _read(about["before"], texts)
    if "fork" in about:
        found["fork_of"], found["fork_at"] = about["fork"]
    if not about.get("kept", True):
        found["kept"] = False
    if "best" in about:
        (token, probability), *others = _pairs(np.frombuffer(about["best"], _PAIR), texts)
        found |= {"token": token, "probability": probability}
        if others:
            found["alternatives"] = others
    if "forbidden" in about:
        (mask,) = np.frombuffer(about["forbidden"], _FORBIDDEN)
        found["allowed"] = int(mask["allowed"])
        found["forbidden"] = round(float(mask["mass"]), _DIGITS)
        found["unmasked"] = [_text(int(mask["token"]), texts), _chance(float(mask["log"]))]
    return found


def _read(tokens: bytes, texts: Sequence[str]) -> list[str]:
    return [_text(token, texts) for token in np.frombuffer(tokens, "<u4").tolist()]


def _text(token: int, texts: Sequence[str]) -> str:
    return texts[token] if token < len(texts) else f"<{token}>"


def _pairs(pairs: "np.ndarray[Any, Any]", texts: Sequence[str]) -> list[list[Any]]:
    return [[_text(token, texts), _chance(log)] for token, log in pairs.tolist()]


def _chance(log: float) -> float:
    return round(math.exp(log), _DIGITS) if log <= 0.0 else 1.0
