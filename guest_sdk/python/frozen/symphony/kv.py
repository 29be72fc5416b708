"""KV files: the model's memory of a text, as a thing to open, fork, cut and name."""

import _lip
import gc
from asyncio import Done, Ticket

from symphony.errors import ENOENT
from symphony.packing import Record
from symphony.pred import Pred, pass_options
from symphony.sampling import Sampling
from symphony.stream import Generation, Stream

_COLLECT_EVERY = 64  # files that are made: those that nothing refers to are closed
_NONE = _lip.options({"get": "none"})
_made = 0


class Rights:
    """What a handle may be used for. No call adds a right."""

    READ = 1
    APPEND = 2
    TRUNCATE = 4
    SAVE = 8
    GRANT = 16
    ALL = 31


class Save:
    """What to do about a name that is taken, and who may see the file."""

    NEW = 0
    REPLACE = 1
    DURABLE = 2
    PUBLIC = 4


class Advice(Record):
    """A wish about where a file's pages live."""

    def __init__(self, hint, argument=0):
        super().__init__(hint=hint, argument=argument)

    @classmethod
    def normal(cls):
        return cls(0)

    @classmethod
    def keep(cls, milliseconds):
        return cls(1, milliseconds)

    @classmethod
    def will_need(cls):
        return cls(2)

    @classmethod
    def do_not_need(cls):
        return cls(3)

    @classmethod
    def priority(cls, priority):
        """From 0 to 7: the higher, the longer it stays."""
        return cls(4, priority)


class Stat(Record):
    """What is known of a file. Times are in milliseconds since 1970."""


class Listed(Record):
    """A named file in a listing."""


def _nothing(_):
    return None


class KvFile:
    """A KV file: an ordered list of entries (token, position, and K and V of every layer).

    Leaving a `with` block closes the file. One that nothing refers to is closed when memory is
    collected.
    """

    def __init__(self, number):
        """Use `create`, `open` and their like."""
        global _made
        self.number, self._open = number, True
        _made += 1
        if _made % _COLLECT_EVERY == 0:
            gc.collect()

    # -- Files ---------------------------------------------------------------------------------
    @classmethod
    def create(cls):
        """Make an empty file without a name."""
        return cls(_lip.kv_create())

    @classmethod
    async def open(cls, path, rights=Rights.ALL):
        """Open a private view of a named file's content as it is now; ENOENT."""
        return cls(_lip.kv_open(path, rights))

    @classmethod
    async def granted(cls, name):
        """Return the file that was granted to this program under that name; ENOENT."""
        return cls(_lip.kv_granted(name))

    @classmethod
    async def matching(cls, tokens):
        """Return a file with the longest prefix of `tokens` that a run of the tenant has offered."""
        try:
            return cls(_lip.kv_match(tokens))
        except ENOENT:
            return None

    def fork(self):
        """Make a copy that shares pages until either side writes."""
        return KvFile(_lip.kv_fork(self.number))

    def extract(self, ranges):
        """Make a new file of the entries in the ranges; they keep their positions."""
        ends = []
        for each in ranges:
            ends += (each.start, each.stop) if isinstance(each, range) else each
        return KvFile(_lip.kv_extract(self.number, ends))

    def close(self):
        """Close the handle. A closed file may be closed again."""
        if self._open:
            self._open = False
            _lip.kv_close(self.number)

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        self.close()

    def __del__(self):
        self.close()

    def __repr__(self):
        return "KvFile(%d)" % self.number

    # -- Passes --------------------------------------------------------------------------------
    def pred(self, tokens, *, positions=None, **given):
        """Begin a forward pass over tokens that come after the entries so far.

        The options are `logit_bias`, `bias_mask`, `repetition_penalty`, `allowed_tokens`,
        `constraint`, `constraint_since`, `parents`, `keep`, `share` and `adapter`.
        """
        return Pred(self, list(tokens), positions, pass_options(given) if given else {})

    def prefill(self, tokens):
        """Append tokens: a pass of which nothing is asked."""
        return Ticket("pred", _lip.pred(self.number, tokens, None, _NONE), _nothing)

    def generate(self, prompt, sampling=None):
        """Start a text behind the entries so far and `prompt`, which has a token at least."""
        return Generation(self, prompt, sampling or Sampling())

    def stream(self, prompt, sampling=None):
        """Start the same as a stream of tokens; the texts of `Sampling.stop` do not end it."""
        return Stream(self, prompt, sampling or Sampling())

    # -- What it holds -------------------------------------------------------------------------
    def append(self, source, start, end):
        """Put entries of another file at the end of this one."""
        return Done(_lip.kv_append(self.number, source.number, start, end))

    def truncate(self, length):
        """Roll back to so many entries."""
        return Done(_lip.kv_truncate(self.number, length))

    def len(self):
        """Ask for the number of entries; it waits for the file's passes that are under way."""
        return Done(_lip.kv_len(self.number))

    def stat(self):
        """Ask what is known of the file."""
        return Done(Stat(**dict({"cached": 0}, **_lip.unpack(_lip.kv_stat(self.number)))))

    def tokens(self, start, end):
        """Ask for the tokens of a range of entries."""
        return Done(_lip.kv_tokens(self.number, start, max(end - start, 0)))

    def save(self, path, how=Save.NEW):
        """Name what the file holds now; EEXIST without `Save.REPLACE`."""
        return Done(_lip.kv_save(self.number, path, how))

    def offer(self):
        """Offer the file's whole pages to the tenant's other runs: how many entries these are."""
        return Done(_lip.kv_offer(self.number))

    def advise(self, advice):
        """Wish where the file's pages live."""
        return Done(_lip.kv_advise(self.number, advice.hint, advice.argument))

    def grant(self, pid, rights, name):
        """Give a child a handle of its own with at most these rights."""
        return Done(_lip.kv_grant(self.number, pid, rights, name))

    # -- Names ---------------------------------------------------------------------------------
    @staticmethod
    async def remove(path):
        """Take a name away; files that were opened by it stay as they are."""
        _lip.kv_remove(path)

    @staticmethod
    async def list(prefix=""):
        """Return the named files whose names begin with `prefix`; EFBIG for too many."""
        return [Listed(**each) for each in _lip.unpack(_lip.kv_list(prefix))]

    @staticmethod
    async def list_after(prefix, after, most):
        """Return at most so many of them, in order, from the first one behind `after`."""
        return [Listed(**each) for each in _lip.unpack(_lip.kv_list_after(prefix, after, most))]
