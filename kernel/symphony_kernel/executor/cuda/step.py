"""A step of a network on a GPU: prepared on one thread, launched on another.

   the loop's thread   prepare N+1 ──────────── prepare N+2 ────────────
   the device's        launch N+1 ── collect N ── launch N+2 ── collect N+1
   the GPU             N computes ───────┴── N+1 computes ──────┴── ...

A step that follows another is launched before that has ended, with tokens that never leave the GPU.
From then on it cannot be revoked (`chained_batch.Chain`). It has no effect until it begins: it
writes entries after the ends of its rows' files, which are not read. If it does not begin, its
results are dropped.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from symphony_kernel.executor.base import Int32, Results, UInt32
from symphony_kernel.executor.chained_batch import Chain
from symphony_kernel.executor.cuda.inputs import Inputs
from symphony_kernel.executor.cuda.plan import StepPlan
from symphony_kernel.executor.cuda.sampler import SampledTokens, SamplingChoices
from symphony_kernel.executor.cuda.staging import StagedArrays, to_device
from symphony_kernel.executor.sampling import answer

_RECORD_BYTES = 8  # of a place: token and log-probability
_DECIDED = 2  # the column of a record that says whether it is valid


@dataclass(slots=True)
class Launched:
    """What a launched step has on the device."""

    inputs: Inputs
    logits: Tensor | None  # [w, vocab_size] float32 or of the model's dtype, if there are places
    chosen: SampledTokens | None = None
    record: Tensor | None = None  # of `chosen`, on its way to the host
    done: "torch.cuda.Event | None" = None  # None: done already, on a CPU

    def wait(self) -> None:
        if self.done is not None:
            self.done.synchronize()


@dataclass(eq=False, slots=True)
class PreparedStep:
    """A step that can be launched: its arrays on the host, and its results.

    `plan` may be padded for a graph. The loop's thread sets `following` while the device's thread
    uses the step; everything else belongs to the device's thread after `prepare`.
    """

    count: int  # of the batch's rows
    plan: StepPlan
    packed: StagedArrays
    choices: SamplingChoices
    graph: bool
    launched: Launched | None = None
    tokens_final: bool = True  # the tokens chosen on the device are the step's final tokens
    before: "PreparedStep | None" = None  # the step whose tokens it takes,
    sources: Int32 = field(default_factory=lambda: np.empty(0, np.int32))  # at these places
    chain: Chain | None = None
    following: "PreparedStep | None" = None

    def take(self) -> bool:
        """Take the step for a launch ahead of its turn, after which nothing revokes it."""
        return self.chain is None or self.chain.launch()

    def set_tokens(self, tokens: list[int]) -> None:
        """Set the tokens of the rows that follow others, the step's first, when it begins."""
        assert len(tokens) <= self.plan.decodes
        if self.launched is not None:
            assert self.before is not None
            if self.before.tokens_final:
                return  # launched with these tokens
            self.launched.wait()
            self.launched = None
        self.packed.put("tokens", tokens)

    def follow(self, before: "PreparedStep", chain: Chain | None) -> bool:
        """Follow a step on the device, with tokens from there; return whether that is possible.

        The rows that take tokens come first, and have one token each. So `plan_step` keeps them
        first. Without a chain no row takes one.
        """
        if not (self.choices.whole and before.choices.whole):
            return False
        if chain is None:
            self.before = before
            return True
        if len(chain.rows) > self.plan.decodes:
            return False
        owners, mine = np.array(before.plan.owners, np.int32), np.array(chain.rows, np.int32)
        found = np.searchsorted(owners, mine)  # ascending
        if (found == len(owners)).any():
            return False
        if not np.array_equal(owners[found], mine):
            return False
        self.sources = before.choices.begins[found]
        self.before, self.chain = before, chain
        return True

    def copy_tokens(self, inputs: Inputs) -> None:
        """Copy the tokens that the step before chooses, on the device."""
        assert self.before is not None
        assert self.before.launched is not None
        chosen = self.before.launched.chosen
        count = len(self.sources)
        if not count:
            return
        assert chosen is not None
        tokens = chosen.tokens
        if count != len(tokens) or not np.array_equal(self.sources, np.arange(count)):
            tokens = tokens.index_select(0, to_device(self.sources, tokens.device))
        inputs.tokens[:count].copy_(tokens)

    def clear(self) -> None:
        """Release the device work, and the references to neighbouring steps."""
        self.launched = self.before = self.following = None

    # -- Results ---------------------------------------------------------------------------------
    def results(self, masks: Mapping[int, UInt32]) -> Results:
        """Return each row's result, after the step has ended."""
        results: Results = [b""] * self.count
        launched, owners = self.launched, self.plan.owners
        assert launched is not None
        left = list(self.choices.left)
        if launched.record is not None:
            record = launched.record.numpy()
            left += self._undecided(record)
            self._put_chosen(record, results)
        if left:
            answers = self._answers(left, masks)
            for number, result in zip(left, answers, strict=True):
                results[owners[number]] = result
        return results

    def _put_chosen(self, record: npt.NDArray[np.int32], results: Results) -> None:
        choices, owners = self.choices, self.plan.owners
        data = np.ascontiguousarray(record[:, :_DECIDED]).tobytes()
        places = int(choices.begins[-1])
        if not choices.left and len(owners) == places == len(results):
            ends = range(_RECORD_BYTES, len(data) + 1, _RECORD_BYTES)  # most steps: one a row
            results[:] = [data[end - _RECORD_BYTES : end] for end in ends]
            return
        begin = 0
        left = set(choices.left)
        for number, owner in enumerate(owners):
            if number in left:
                continue
            place = choices.place(number)
            end = begin + (place.stop - place.start) * _RECORD_BYTES
            results[owner] = data[begin:end]
            begin = end

    def _undecided(self, record: npt.NDArray[np.int32]) -> list[int]:
        """Return the requests with places whose truncation reaches further."""
        open_places = np.flatnonzero(record[:, _DECIDED] == 0)
        self.tokens_final = not len(open_places)
        if self.tokens_final:
            return []
        places = self.choices.chosen[open_places]
        found = np.searchsorted(self.choices.begins, places, side="right") - 1
        return [int(number) for number in np.unique(found)]

    def _answers(self, numbers: list[int], masks: Mapping[int, UInt32]) -> Results:
        """Compute results from the logits, with `sampling.answer`."""
        assert self.launched is not None
        logits = self.launched.logits
        assert logits is not None
        choices = self.choices
        owners = self.plan.owners
        requests = [choices.request(number, masks.get(owners[number])) for number in numbers]
        places = np.concatenate([np.arange(len(logits))[choices.place(n)] for n in numbers])
        chosen = logits.index_select(0, to_device(places, logits.device))
        return answer(chosen.float(), requests)
