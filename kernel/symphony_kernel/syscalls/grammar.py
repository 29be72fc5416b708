"""Calls on constraints: grammars are compiled outside the event loop.

    constraint -> waiting -> `GrammarCompiler` -> "compiled" (journaled) -> handle, or an error text

A compiled grammar is journaled as text. A recovered kernel compiles it again when it is used, and
compiles what was waiting.
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
from symphony_kernel.syscalls.validation import integer

_HANDLE_MAX: Final = (1 << 31) - 1


@dataclass(slots=True, eq=False)
class WaitingCall:
    """A call whose grammar is being compiled."""

    caller: Instance
    seq: int
    kind: int
    text: str


class ConstraintCalls:
    """Constraints of all instances. `happen` records and applies compiled results."""

    # Fields that belong to the process and are not in a snapshot.
    OWN: ClassVar = ("grammars", "_happen", "_live", "_context")

    def __init__(
        self,
        grammars: GrammarCompiler,
        context: CallContext,
        happen: Callable[[str, list[Any]], None],
    ) -> None:
        self.grammars = grammars
        self._context = context
        self._happen = happen
        self._live = True  # False while a journal is replayed: it has the compiler's results
        self.waiting: dict[int, WaitingCall] = {}  # by number
        self.made = 0  # numbers of calls and constraints

    # -- Calls of programs ----------------------------------------------------------------------
    def begin(self, call: Call, kind: Any, text: Any) -> Result | None:
        """Compile a grammar; the reply is a handle, or msgpack of an errno and a text.

        Raises SyscallError: EINVAL, EFBIG, EDQUOT.
        """
        caller = call.caller
        language = integer(kind, 0, max(GrammarKind))
        if not isinstance(text, bytes):
            raise SyscallError(Errno.EINVAL, "a grammar must be text")
        if len(text) > CONSTRAINT_BYTES_MAX:
            raise SyscallError(Errno.EFBIG, f"a grammar has at most {CONSTRAINT_BYTES_MAX} bytes")
        under_way = sum(each.caller is caller for each in self.waiting.values())
        if len(caller.constraints) + under_way >= INSTANCE_CONSTRAINTS_MAX:
            raise SyscallError(Errno.EDQUOT, f"{INSTANCE_CONSTRAINTS_MAX} constraints")
        try:
            decoded = text.decode()
        except UnicodeDecodeError as error:
            raise SyscallError(Errno.EINVAL, "a grammar must be UTF-8") from error
        self.made += 1
        self.waiting[self.made] = WaitingCall(caller, call.seq, language, decoded)
        if self._live:
            self._ask(self.made)
        return None

    def close(self, call: Call, handle: Any) -> Result:
        """Close a handle; what uses its constraint continues. SyscallError EBADF."""
        if type(handle) is not int or call.caller.constraints.pop(handle, None) is None:
            raise SyscallError(Errno.EBADF)
        return 0

    def compiled(self, number: int, errno: int, words: str) -> None:
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
        ends = frozenset(self.grammars.vocabulary.eos)
        constraint = Constraint(self.made, tenant, words, ends)
        self._look_up(constraint)
        handle = caller.constraints_made = caller.constraints_made % _HANDLE_MAX + 1
        caller.constraints[handle] = constraint
        self._context.answer(caller, asked.seq, handle)

    # -- Recovery -------------------------------------------------------------------------------
    def pause(self) -> None:
        """Compile nothing until `resume`: a journal is being replayed."""
        self._live = False

    def resume(self, processes: ProcessTable) -> None:
        """Compile the grammars in use and those that were waiting."""
        self._live = True
        for constraint in processes.constraints():
            self._look_up(constraint)
        for operation in processes.operations():
            if isinstance(operation, Pred) and operation.constraint is not None:
                self._look_up(operation.constraint)
        for number in self.waiting:
            self._ask(number)

    def end(self) -> None:
        self._live = False
        self.grammars.close()

    # -- Internal -------------------------------------------------------------------------------
    def _ask(self, number: int) -> None:
        asked = self.waiting[number]

        def done(errno: int, words: str) -> None:
            if self._live:
                self._happen("compiled", [number, errno, words])

        self.grammars.compile(asked.caller.tenant.name, asked.kind, asked.text, done)

    def _look_up(self, constraint: Constraint) -> None:
        constraint.grammar = self.grammars.grammar(constraint.tenant, constraint.source)
