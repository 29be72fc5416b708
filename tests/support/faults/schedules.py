"""Random schedules of work, faults of storage and crashes, against the journal and durable names.

    python -m tests.support.faults.schedules FOLDER FIRST COUNT [PLANTED]

in a process that `Faults.environment` was given to, for FOLDER. Schedule n is made of seed n alone;
what is wrong is printed with its seed, and ends the process with 1. A crash is storage that refuses
everything from some call on, whose process is then forgotten. `PLANTED` switches on a bug of ours,
which the checker has to find: "early" acknowledges before the disk has answered, "stale" forgets
the records behind an image before the image is there.
"""

import asyncio
import errno
import random
import shutil
import struct
import sys
from collections import defaultdict
from contextlib import suppress
from functools import partial
from pathlib import Path

from symphony_kernel.journal import store as journal_store
from symphony_kernel.journal.log import Log
from symphony_kernel.journal.store import Store
from symphony_kernel.kvfs.durable.directory import Directory
from symphony_kernel.kvfs.file import KVFile
from symphony_kernel.protocol.errno import Errno, SyscallError

from tests.support.faults.faults import Faults, Mode
from tests.support.kernel.durable_names import DurableRig
from tests.support.kernel.page_device import extend, make_account, make_kvfs

IDENTITY = bytes(32)
_RECORD = struct.Struct("<I")
_NUMBERS = errno.EIO, errno.ENOSPC, errno.EDQUOT
LIVES = 4
NAMES = "a", "b", "c"


class Schedule:
    """One seed's: `wrong` is what the checker found."""

    def __init__(self, folder: Path, faults: Faults, seed: int) -> None:
        self.folder, self.faults, self.chance = folder, faults, random.Random(seed)
        self.wrong: list[str] = []
        self.met = 0
        folder.mkdir()

    def misfortune(self) -> bool:
        """Let storage fail soon, perhaps; return whether the process is gone with it."""
        if self.chance.random() < 0.5:
            return False
        mode = self.chance.choice([Mode.ONCE, Mode.ON, Mode.SHORT, Mode.ON])
        self.faults.arm(self.chance.randint(1, 12), self.chance.choice(_NUMBERS), mode)
        return mode is Mode.ON and self.chance.random() < 0.7

    def well(self) -> None:
        """Storage is well again."""
        self.met += self.faults.disarm()


class JournalSchedule(Schedule):
    """A state of which each step is a record, and now and then all an image."""

    def run(self) -> None:
        """Live some lives; each continues with exactly what the one before has written."""
        state: list[int] = []
        kept = False  # there is a journal
        for life in range(LIVES):
            store = Store(self.folder, IDENTITY)
            found = store.find(100.0 * life, -9)
            if found is not None:
                state_found = list(struct.iter_unpack("<I", found.snapshot))
                records = list(found.records)
                read = [n for (n,) in state_found] + [_RECORD.unpack(r)[0] for r in records]
                if read != state:
                    self.wrong.append(f"life {life}: {read} came back of {state}")
                sequence = found.sequence + len(records)
            elif kept:
                self.wrong.append(f"life {life}: nothing came back of {state}")
                return
            else:
                state, sequence = [], 1
            kept = self._live(store, sequence, state, kept)

    def _live(self, store: Store, sequence: int, state: list[int], kept: bool) -> bool:
        """Write records and images, until storage ends it; return whether there is a journal."""
        crash = self.misfortune()
        log: Log | None = None
        try:
            log = store.begin(sequence, _packed(state))
            kept = True
            store.recovered(sequence)
            for _ in range(self.chance.randint(1, 30)):
                if self.chance.random() < 0.15:
                    at = log.sequence
                    log.rotate()
                    store.write_snapshot(at, _packed(state))
                    log.drop_before(at)
                else:
                    record = self.chance.getrandbits(32)
                    log.append(_RECORD.pack(record))
                    state.append(record)
        except OSError:
            if not crash:
                kept = False
                self._give_up(store)
        self.well()
        if log is not None:
            log.close()
        return kept

    def _give_up(self, store: Store) -> None:
        """As the keeper: a journal that lacks something is worth nothing."""
        if self.chance.random() < 0.5:
            self.well()
        elif self.chance.random() < 0.5:
            self.well()
            self.faults.arm(self.chance.randint(1, 4), mode=Mode.ON)
        with suppress(OSError):  # the kernel dies of it before it sends anything more
            store.remove()


class NamesSchedule(Schedule):
    """Three durable names of one tenant; each content is told by its first token."""

    def run(self) -> None:
        """Live some lives; each finds what was acknowledged, or what was asked for behind it."""
        self.possible: dict[str, set[int]] = defaultdict(lambda: {0})  # 0: there is none
        self.made = 0
        for life in range(LIVES):
            asyncio.run(self._live(life))

    async def _live(self, life: int) -> None:
        self.shop = DurableRig(make_kvfs(64, None), self.folder / "kv")
        if self.chance.random() < 0.5:  # else names that are not open are changed
            await self._check(f"life {life} begins")
        for step in range(self.chance.randint(1, 6)):
            crash = self.misfortune()
            await self._change()
            self.well()
            if crash:
                return
            await self._check(f"life {life}, step {step}")
        await self.shop.finish()

    async def _change(self) -> None:
        name = self.chance.choice(NAMES)
        self.made += 1
        wanted = 0
        answers = len(self.shop.answers.all)
        with suppress(SyscallError):  # there is no such name
            if self.chance.random() < 0.3:
                self.shop.remove("it", name)
            else:
                wanted = self.made
                self.shop.save("it", self._file(wanted), name)
            await self.shop.saving.close()
            self.possible[name].add(wanted)
            if self.shop.answers.all[answers:] == ["it: done"]:
                self.possible[name] = {wanted}

    def _file(self, number: int) -> KVFile:
        file = self.shop.kvfs.create("t", make_account(self.shop.kvfs, "t"))
        extend(file, *range(number, number + 1 + number % 40))
        self.shop.slots.compute(file)
        return file

    async def _check(self, when: str) -> None:
        listed = {stat.path for stat in self.shop.kvfs.listing("t")}
        for name in NAMES:
            held = await self._content(name) if name in listed else 0
            if held not in self.possible[name]:
                self.wrong.append(f"{when}: {name} is {held}, not of {self.possible[name]}")

    async def _content(self, name: str) -> int | str:
        try:
            file = await self.shop.opened(name)
        except SyscallError as error:
            return 0 if error.errno is Errno.ENOENT else f"{error}"
        tokens, kv = file.tokens.tolist(), self.shop.slots.of(file)
        self.shop.kvfs.release(file)
        first: int = tokens[0]
        whole = tokens == list(range(first, first + 1 + first % 40)) and kv == [
            7 * t for t in tokens
        ]
        return first if whole else f"half: {tokens[:3]}"


def _packed(state: list[int]) -> bytes:
    return struct.pack(f"<{len(state)}I", *state)


class _ForgetfulStore(Store):
    """A bug: the records before an image go first."""

    def write_snapshot(self, sequence: int, snapshot: bytes) -> None:
        for path in self._folder.glob("*.log"):
            if int(path.stem, 16) < sequence:
                path.unlink()
        super().write_snapshot(sequence, snapshot)


def _plant(bug: str) -> None:
    if bug == "early":
        put = Directory.put

        def early(self: Directory, *given: object) -> int:
            try:
                return put(self, *given)  # type: ignore[arg-type]
            except OSError:
                return 4_096

        Directory.put = early  # type: ignore[method-assign, assignment]
    elif bug == "stale":
        globals()["Store"] = _ForgetfulStore


def main(folder: Path, first: int, count: int, planted: str = "") -> int:
    _plant(planted)
    # Segments as short as they may be: with many of them, and one anew now and then.
    journal_store.__dict__["Log"] = partial(Log, segment_bytes=128)
    faults, wrong, met = Faults.here(), 0, 0
    for seed in range(first, first + count):
        kind = (JournalSchedule, NamesSchedule)[seed % 2]
        schedule = kind(folder / str(seed), faults, seed)
        try:
            schedule.run()
        finally:
            faults.disarm()
        met += schedule.met
        if schedule.wrong:
            wrong += 1
            print(f"schedule {seed}: {schedule.wrong[0]}")
        shutil.rmtree(folder / str(seed))
    print(f"{count} schedules, {met} calls met a fault, {wrong} wrong")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])))
