"""Calls on constraints: a grammar is compiled beside the loop, and its handle answered when it is.

    constraint -> waiting -> `GrammarCompiler` -> "compiled" (which the journal keeps) -> handle, or words

What is compiled outlives the kernel as text; a kernel that comes back compiles it again when it is
used, and asks again for what was waiting.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import msgpack

from symphony_kernel.grammar.compiler import GrammarCompiler
from symphony_kernel.grammar.matcher import Constraint
from symphony_kernel.grammar.source import GrammarKind
from symphony_kernel.processes.table import Instance, ProcessTable
from symphony_kernel.protocol.errno import Errno, SyscallError
from symphony_kernel.protocol.limits import (
    CONSTRAINT_BYTES_MAX,
    CONSTRAINT_WORDS_MAX,
    INSTANCE_CONSTRAINTS_MAX,
)
from symphony_kernel.syscalls.pending import Call, CallContext, Pred, Result

_HANDLE_MAX: Final = (1 << 31) - 1


@dataclass(slots=True, eq=False)
class WaitingCall:
    """A call whose grammar is being compiled."""

    caller: Instance
    seq: int
    kind: int
    text: str


class ConstraintCalls:
    """Constraints of all instances. `happen` notes and does what the compiler has said."""

    OWN: ClassVar = ("_grammars", "_happen", "_live", "_context")  # a process's own

    def __init__(
        self,
        grammars: GrammarCompiler,
        context: CallContext,
        happen: Callable[[str, list[Any]], None],
    ) -> None:
        self._grammars = grammars
        self._context = context
        self._happen = happen
        self._live = True  # the compiler is asked; else what it said is told again
        self.waiting: dict[int, WaitingCall] = {}  # by a number of their own
        self.made = 0  # numbers given out, of calls and of constraints

    # -- Programs' ------------------------------------------------------------------------------
    def begin(self, call: Call, kind: Any, text: Any) -> Result | None:
        """Compile a grammar; the answer is a handle, or msgpack of an errno and words.

        Raises:
            SyscallError: EINVAL, EFBIG, EDQUOT.
        """
        caller = call.caller
        if type(kind) is not int or kind not in tuple(GrammarKind):
            raise SyscallError(Errno.EINVAL, f"a constraint is of kind 0 to {max(GrammarKind)}")
        if not isinstance(text, bytes):
            raise SyscallError(Errno.EINVAL, "a grammar is text")
        if len(text) > CONSTRAINT_BYTES_MAX:
            raise SyscallError(Errno.EFBIG, f"a grammar has at most {CONSTRAINT_BYTES_MAX} bytes")
        under_way = sum(each.caller is caller for each in self.waiting.values())
        if len(caller.constraints) + under_way >= INSTANCE_CONSTRAINTS_MAX:
            raise SyscallError(Errno.EDQUOT, f"{INSTANCE_CONSTRAINTS_MAX} constraints")
        try:
            decoded = text.decode()
        except UnicodeDecodeError as error:
            raise SyscallError(Errno.EINVAL, "a grammar is UTF-8") from error
        self.made += 1
        self.waiting[self.made] = WaitingCall(caller, call.seq, int(kind), decoded)
        if self._live:
            self._ask(self.made)
        return None

    def close(self, call: Call, handle: Any) -> Result:
        """Close a handle; what uses it goes on. SyscallError EBADF."""
        if type(handle) is not int or call.caller.constraints.pop(handle, None) is None:
            raise SyscallError(Errno.EBADF)
        return 0

    def compiled(self, number: int, errno: int, words: str) -> None:
        """A grammar was compiled, or could not be: answer."""
        asked = self.waiting.pop(number)
        caller = asked.caller
        if caller.ended:
            return
        if errno:
            text = words.encode()[:CONSTRAINT_WORDS_MAX].decode(errors="ignore")
            answer: bytes = msgpack.packb([errno, text])
            self._context.answer(caller, asked.seq, answer)
            return
        self.made += 1
        tenant = caller.tenant.name
        ends = frozenset(self._grammars.vocabulary.eos)
        constraint = Constraint(self.made, tenant, words, ends)
        self._look_up(constraint)
        handle = caller.constraints_made = caller.constraints_made % _HANDLE_MAX + 1
        caller.constraints[handle] = constraint
        self._context.answer(caller, asked.seq, handle)

    # -- Kernels that come and go ---------------------------------------------------------------
    def pause(self) -> None:
        """A kernel before this one is being followed: ask nobody anything until `resume`."""
        self._live = False

    def resume(self, processes: ProcessTable) -> None:
        """Go on from what the kernel before this one had."""
        self._live = True
        for constraint in processes.constraints():
            self._look_up(constraint)
        for operation in processes.operations():
            if isinstance(operation, Pred) and operation.constraint is not None:
                self._look_up(operation.constraint)
        for number in self.waiting:
            self._ask(number)

    def prepare(self) -> None:
        """Do beforehand what takes long and holds the interpreter: before anybody calls.

        Raises:
            ValueError: the model's tokenizer is none that constraints work with.
        """
        self._grammars.prepare()

    def end(self) -> None:
        """Compile nothing more."""
        self._live = False
        self._grammars.close()

    def statistics(self) -> dict[str, Any]:
        """Return how many grammars there are."""
        return self._grammars.statistics()

    # -- Inside ---------------------------------------------------------------------------------
    def _ask(self, number: int) -> None:
        asked = self.waiting[number]

        def done(errno: int, words: str) -> None:
            if self._live:
                self._happen("compiled", [number, errno, words])

        self._grammars.compile(asked.caller.tenant.name, asked.kind, asked.text, done)

    def _look_up(self, constraint: Constraint) -> None:
        constraint.grammar = self._grammars.grammar(constraint.tenant, constraint.source)
