"""Guesses: preds that have not come, computed as soon as their tokens are known.

A program that decodes by itself makes one pred a token: the token that its last pred on the file
gave, at the file's end, with the same options. So the next one is known before the program has
seen the last one's result. The device computes it as part of a draft (`lookahead`), and nobody
hears of it until a pred comes that says the very same.

    pred at entry 7 computes     guess: entry 8, with whatever token comes of it
    it has ended: token 42       the guess is open: "42 at entry 8"; its row computes already
    pred of [42] comes           the row is its own: charged, reserved and ended as any pred's
    anything else comes          what was computed lies behind the file's end, and is written over

A guess changes nothing that a program, a quota or the journal could see: no page, no entry, no
service. An entry that begins a page is computed into a spare frame (`PagePool.take_spare`), which
whoever wants frames gets as if it were free. A file that is edited is guessed about no more.

Who is guessed about is learned: each pred that is what would have been guessed earns its LIP
credit, and each row that was computed for nothing costs many times that. A LIP begins with a
little where guessing has paid for its tenant's last ones, and with debts where it has not.
"""

from collections.abc import Container
from dataclasses import dataclass, field
from typing import Final, TypeAlias, cast

import numpy as np

from symphony_kernel.executor.base import Batch, Executor, Int32, Row
from symphony_kernel.executor.chained_batch import BLANK, Follow
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.kvfs.filesystem import KVFS
from symphony_kernel.kvfs.pages.pool import PagePool
from symphony_kernel.protocol.errno import SyscallError
from symphony_kernel.protocol.limits import FILE_ENTRIES_MAX, PAGE_TOKENS
from symphony_kernel.protocol.pred_options import DEFAULT, Get, PredOptions
from symphony_kernel.request import Work
from symphony_kernel.scheduler.batcher import ONLY, Step

_BLANK: Final = BLANK  # a constant of this module's is found at once
_BEST_FIRST: Final = (Get.ARGMAX, Get.SAMPLE, Get.TOP)  # results that begin with a token
_AHEAD_MAX: Final = 2  # guesses of a file that nobody has claimed
_CREDIT_MAX: Final = 64
_CREDIT_FIRST: Final = 8  # of a LIP that begins where it has paid for the tenant's others
_CREDIT_LEAST: Final = -24
_TENANT_GAIN: Final = 1 / 4


@dataclass(frozen=True, slots=True)
class Caution:
    """What LIPs' preds are guessed from: credit, of which each that could be guessed earns one."""

    least: int = 2  # to be guessed about
    odd: int = 4  # what a pred costs that would not have been guessed
    vain: int = 24  # and a row that was computed for nothing: about 4% of rows may be


class Guess:
    """One pred that may come: of one token, at entry `start` of its line's file."""

    __slots__ = (
        "draft", "dropped", "frame", "line", "moved", "open", "result", "row", "start", "token",
        "work",
    )  # fmt: skip

    def __init__(self, line: "Line", start: int) -> None:
        self.line = line
        self.start = start
        self.token = -1  # known when it is open
        self.open = False  # the pred before it has ended well, and the file is as it left it
        self.draft: Draft | None = None  # that computes it; None: nothing does
        self.row = 0  # of the draft
        self.frame = -1  # of its entry's page
        self.moved = 0  # the pool's count when its row was made
        self.work: Work | None = None  # that has claimed it
        self.result: bytes | SyscallError | None = None  # while nobody has claimed it
        self.dropped = False


Head: TypeAlias = Work | Guess  # whose row it is


class Draft:
    """A step that may be; `heads[i]` has row i of the batch."""

    __slots__ = ("alive", "batch", "follow", "heads", "step")

    def __init__(self, heads: list[Head], batch: Batch, follow: Follow) -> None:
        self.heads = heads
        self.batch = batch
        self.follow = follow
        self.alive = list(range(len(heads)))  # rows behind rows computed for their works
        self.step: Step | None = None  # what it has become

    @property
    def guesses(self) -> list[tuple[int, Guess]]:
        """Its rows that are guesses'."""
        return [(row, head) for row, head in enumerate(self.heads) if isinstance(head, Guess)]


@dataclass(slots=True, eq=False)
class Line:
    """What the next preds on a file are expected to be: one entry behind the other."""

    file: KVFile
    root: int
    instance: int
    past: "Past"
    options: PredOptions
    seed: int
    guesses: list[Guess] = field(default_factory=list)
    spare: int = -1  # the frame of the page that the file will take next


@dataclass(slots=True)
class Past:
    """How well a LIP's preds could be guessed."""

    tenant: str
    credit: int
    sum: int = 0  # of all that it would have earned and cost if all of it had been guessed
    lines: "dict[KVFile, Line]" = field(default_factory=dict)

    def add(self, credit: int) -> None:
        """Add what a pred, or the lack of one, has shown."""
        self.sum += credit
        now = self.credit + credit
        if now > _CREDIT_MAX:
            now = _CREDIT_MAX
        self.credit = now if now > _CREDIT_LEAST else _CREDIT_LEAST


class Guesses:
    """All files' lines. `entries_max` is of any file; tokens of `ends` are not gone on behind."""

    def __init__(
        self,
        pool: PagePool,
        entries_max: int,
        ends: Container[int] = (),
        caution: Caution | None = None,
    ) -> None:
        self._pool = pool
        self._caution = caution or Caution()
        self._positions: Int32 = np.arange(entries_max, dtype=np.int32)
        self._positions.flags.writeable = False
        self.ends = ends
        self._lines: dict[KVFile, Line] = {}
        self._pasts: dict[int, Past] = {}  # of LIPs
        self._tenants: dict[str, float] = {}  # whether it paid for their last LIPs, in [-1, 1]
        self.hits = 0  # preds that were computed before they came
        self.misses = 0  # rows that were computed for none

    @classmethod
    def beside(cls, executor: Executor, kvfs: KVFS, caution: Caution | None) -> "Guesses | None":
        """Return what guesses preds on these files; None where the device goes from step to step
        on nobody's behalf, or without `caution`.
        """
        if caution is None or not getattr(executor, "follows", False):
            return None
        model = executor.model
        entries_max = min(FILE_ENTRIES_MAX, model.max_context)
        guesses = cls(kvfs.pool, entries_max, frozenset(model.eos), caution)
        kvfs.hear_of_edits(guesses.drop)
        return guesses

    # -- What preds show ------------------------------------------------------------------------
    def ended(self, work: Work, result: bytes) -> None:
        """A pred has ended well: what is expected behind it has its token now."""
        file = cast(KVFile, work.file)
        line = self._lines.get(file)
        if line is None:
            if not _is_of_a_course(work):
                return
            line = self._begin(work)
        if not line.guesses:
            line.guesses.append(Guess(line, file.length))
        guess = line.guesses[0]
        assert not guess.open
        guess.token = result[0] | result[1] << 8 | result[2] << 16 | result[3] << 24
        guess.open = True

    def claim(self, work: Work) -> Guess | None:
        """Return the guess that computes a pred which has just come, if there is one.

        Either way the pred is no longer expected.
        """
        line = self._lines.get(cast(KVFile, work.file))
        if line is None:
            return None
        guess = line.guesses[0] if line.guesses else None
        if guess is None or not (guess.open and _is_guessed(guess, work)):
            line.past.add(-self._caution.odd)
            self._drop(line)
            return None
        line.past.add(1)
        draft = guess.draft
        if draft is None:
            line.guesses.clear()
            self._tidy(line)
            return None
        if (draft.step is None and guess.result is None) or guess.moved != self._pool.moved:
            self._drop(line)
            return None
        del line.guesses[0]
        guess.work = work
        return guess

    def settle(self, guess: Guess) -> bool:
        """The file of a claimed guess has room for it: see that it lies where it was computed."""
        line, file = guess.line, guess.line.file
        if line.spare >= 0 and guess.frame == line.spare:
            line.spare = -1
            return file.use_spare(guess.frame, line)
        return file.frame_of(guess.start) == guess.frame

    def claimed(self) -> None:
        """A claimed guess is a pred's from now on: its line goes on when that has ended."""
        self.hits += 1

    def not_settled(self, guess: Guess) -> None:
        """A claimed guess was computed for nothing: the pred has to be computed as any."""
        guess.work = None
        guess.line.guesses.insert(0, guess)
        self._drop(guess.line)

    def _begin(self, work: Work) -> Line:
        file = cast(KVFile, work.file)
        past = self._past(work)
        line = Line(file, work.root, work.instance, past, work.options, work.seed)
        self._lines[file] = past.lines[file] = line
        return line

    # -- Rows -----------------------------------------------------------------------------------
    def may_follow(self, before: Work | Guess) -> bool:
        """Whether the pred behind another one, or behind a guess, is to be guessed."""
        if isinstance(before, Guess):
            line, start = before.line, before.start + 1
            past = line.past
        else:
            if not _is_of_a_course(before):
                return False
            past, start = self._past(before), before.file.length + before.count
        return past.credit >= self._caution.least and start < len(self._positions)

    def is_full(self, before: Work | Guess) -> bool:
        """Whether enough was guessed behind what has come."""
        return (
            isinstance(before, Guess)
            and before.work is None
            and len(before.line.guesses) >= (_AHEAD_MAX)
        )

    def behind(self, before: Work | Guess) -> tuple[Guess, Row] | None:
        """Return a guess behind another one or a pred in a step, and its row.

        None: its entry has no place.
        """
        if isinstance(before, Guess):
            start, seed, options = before.start + 1, before.line.seed, before.line.options
            file, work = before.line.file, before.work
        else:
            file, work = cast(KVFile, before.file), before
            start, seed, options = file.length + before.count, before.seed, before.options
        line = self._lines.get(file)
        if line is None:
            assert work is not None
            line = self._begin(work)
        table = self._table(line, start)
        if table is None:
            self._tidy(line)
            return None
        guess = line.guesses[-1] if line.guesses else None
        if guess is None or guess.start != start:
            guess = Guess(line, start)
            line.guesses.append(guess)
        guess.frame, guess.moved = table.item(-1), self._pool.moved
        position = self._positions[start : start + 1]
        return guess, Row(_BLANK, position, start, table, ONLY, options, None, seed)

    def _table(self, line: Line, start: int) -> Int32 | None:
        """Return the frames for the entries up to `start`, that one included."""
        file = line.file
        if self._pool.absent and len(file.absent_pages()):
            return None
        there = file._count  # noqa: SLF001 - of `pages`, of which no array is wanted
        if there > start // PAGE_TOKENS:
            return file.block_table(start + 1)
        if line.spare < 0:
            spare = self._pool.take_spare(line)
            if spare is None:
                return None
            line.spare = spare
        elif not self._pool.has_spare(line.spare, line):
            return None  # somebody wanted it, and what is behind this guess would be computed there
        frames = file.block_table(there * PAGE_TOKENS)
        return np.append(frames, np.int32(line.spare))

    # -- Drafts ---------------------------------------------------------------------------------
    def taken_back(self, guess: Guess) -> None:
        """The draft that was to compute a guess will not: the pred is expected all the same."""
        guess.draft = None
        line = guess.line
        if guess.dropped:
            line.past.add(self._caution.vain)
            return
        if line.guesses[0] is not guess:
            line.guesses.remove(guess)
        elif line.spare >= 0:
            self._pool.leave_spare(line.spare, line)
            line.spare = -1

    def computed(self, guess: Guess, result: bytes | SyscallError) -> None:
        """The draft of a guess that nobody has claimed has ended."""
        if guess.dropped:
            self.misses += 1
        else:
            guess.result = result

    def lost(self, guess: Guess) -> None:
        """The device has failed at the draft of a guess."""
        if guess.work is None and not guess.dropped:
            self._drop(guess.line)

    # -- Ends -----------------------------------------------------------------------------------
    def drop(self, file: object) -> None:
        """Nothing more is known of a file's next preds."""
        line = self._lines.get(cast(KVFile, file))
        if line is not None:
            self._drop(line)

    def forget(self, root: int, instance: int | None = None) -> None:
        """An instance, or a whole LIP, has ended."""
        past = self._pasts.get(root)
        if past is None:
            return
        for line in list(past.lines.values()):
            if instance in (None, line.instance):
                self._drop(line)
        if instance is not None:
            return
        del self._pasts[root]
        if past.sum:
            before = self._tenants.get(past.tenant, 0.0)
            paid = 1.0 if past.sum > 0 else -1.0
            self._tenants[past.tenant] = before + (paid - before) * _TENANT_GAIN

    def _past(self, work: Work) -> Past:
        past = self._pasts.get(work.root)
        if past is None:
            paid = self._tenants.get(work.tenant, 0.0)
            first = _CREDIT_FIRST if paid > 0 else _CREDIT_LEAST if paid < 0 else 0
            past = self._pasts[work.root] = Past(work.tenant, first)
        return past

    def _drop(self, line: Line) -> None:
        for guess in line.guesses:
            guess.dropped = True
            if guess.draft is not None:  # unless that is taken back
                line.past.add(-self._caution.vain)
            else:  # as it would have been
                line.past.sum -= self._caution.vain
            self.misses += guess.result is not None
        line.guesses.clear()
        self._tidy(line)

    def _tidy(self, line: Line) -> None:
        """Forget a line without guesses."""
        if not line.guesses:
            if line.spare >= 0:
                self._pool.leave_spare(line.spare, line)
                line.spare = -1
            self._lines.pop(line.file, None)
            line.past.lines.pop(line.file, None)


def _is_of_a_course(work: Work) -> bool:
    """Whether a pred could be one of a course: its token is the next one's, where it ends."""
    options = work.options
    if work.course is not None or work.rebuilds or work.guide is not None:
        return False
    if options is DEFAULT:  # as most
        return True
    if options.at != "last" or not options.keep:
        return False
    if options.get not in _BEST_FIRST or options.parents is not None:
        return False
    if options.get is Get.TOP and not options.top:
        return False
    sampling = options.sampling
    return not (options.get is Get.SAMPLE and sampling is not None and sampling.seed is None)


def _is_guessed(guess: Guess, work: Work) -> bool:
    """Whether a pred that has come is the one that was expected."""
    line = guess.line
    return (
        work.count == 1
        and work.course is None
        and work.file.length == guess.start
        and (work.token if work.token >= 0 else work.tokens.item()) == guess.token
        and (work.position if work.token >= 0 else work.positions.item()) == guess.start
        and (work.options is line.options or work.options == line.options)
        and work.seed == line.seed
    )


def others_wait(work: Work) -> bool:
    """Whether other calls wait behind a pred on its file: they come before any that is guessed."""
    queue = cast(KVFile, work.file).queue
    return queue is not None and len(queue) > 1
