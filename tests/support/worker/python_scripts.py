"""Python programs that go wrong, and what their runs say of it."""

HOSTILE = {
    "loop": ("while True: pass", "cpu time limit"),
    "loop_in_a_task": (
        "import asyncio\nasync def main():\n while True: await asyncio.sleep(0)\n"
        "asyncio.run(main())",
        "cpu time limit",
    ),
    "memory": ("a = []\nwhile True: a.append(bytearray(4 << 20))", "MemoryError"),
    "one_allocation": ("bytearray(1 << 30)", "MemoryError"),
    "text": ("t = 'x'\nwhile True: t += t", "MemoryError"),
    "recursion": ("def f(): return f()\nf()", "maximum recursion depth"),
    "nested_list": (
        "a = []\nfor i in range(100000): a = [a]\nprint(len(repr(a)))",
        "maximum recursion depth",
    ),
    "nested_json": ("import json\njson.loads('[' * 100000)", "ValueError"),
    "nested_source": ("eval('[' * 3000)", "SyntaxError"),
    "regex": ("import re\nre.match('(a*)*b', 'a' * 40)", ""),
    "integers": ("x = 3\nwhile True: x = x * x", ""),
    "bad_handles": (
        "import _lip\nfor n in range(-3, 100):\n for f in (_lip.kv_len, _lip.kv_fork):\n"
        "  try: f(n)\n  except Exception as e: pass\nprint('done')\nraise ValueError('end')",
        "ValueError: end",
    ),
    "bad_tickets": ("import _lip\n_lip.wait([1, 2, 3 << 28], 10)", "EBADF"),
    "sort_that_changes_the_list": (
        "a = list(range(100))\ndef key(x):\n a.clear()\n return x\na.sort(key=key)",
        "list modified during sort",
    ),
    "exception_in_eq": (
        "class A:\n def __eq__(s, o): raise KeyError('eq')\n def __hash__(s): return 1\n"
        "{A(): 1, A(): 2}",
        "KeyError: eq",
    ),
    "generator_of_itself": (
        "def g():\n yield from x\nx = g()\nnext(x)",
        "ValueError: generator already executing",
    ),
    "deadlock": (
        "import asyncio\nasyncio.run(asyncio.Event().wait())",
        "nothing can come any more",
    ),
    "no_coroutine": ("import asyncio\nasyncio.run(asyncio.gather(1))", "Error"),
    "output": ("import _lip\nwhile True: _lip.send('x' * 100000)", "output"),
    "no_files": ("open('/etc/passwd')", "a program has no files"),
    "no_modules": ("import os", "no module named 'os'"),
}

# It collects whenever 64 bytes were allocated, inside of callbacks of C functions too.
COLLECTING = """
import gc, json, re, symphony
gc.threshold(64)
def tree(n): return (tree(n - 1), [n], tree(n - 1)) if n else "leaf%d" % n
def count(t): return 1 if isinstance(t, str) else count(t[0]) + count(t[2]) + len(t[1])
async def deep(n): return [n] + await deep(n - 1) if n else []
def end(coroutine):
    try:
        while True: coroutine.send(None)
    except StopIteration as ended: return ended.value
texts = sorted(["%d" % (i * 7919 % 101) for i in range(101)], key=lambda s: [int(s)])[:3]
parsed = json.loads(json.dumps({"a": [{"b": str(i) * 5} for i in range(50)]}))
sub = re.sub("a(b)", lambda m: m.group(1) + "".join(["z"]), "abab")
size = sum([len(each["b"]) for each in parsed["a"]]) + sum([len(str(2 ** i)) for i in range(97)])
symphony.send("%d %r %s %d %r" % (count(tree(8)), texts, sub, size, end(deep(3))))
"""
