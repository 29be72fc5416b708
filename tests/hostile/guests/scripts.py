"""Hostile scripts for the language module of JavaScript: what each tries, and how it ends.

Each is the body of an async function that has the exports of "symphony". "any": it may end in each
way but `failed`, which is a fault of the server.
"""

from typing import NamedTuple


class Script(NamedTuple):
    """A script; `status` of its run, and words in its output or its reason."""

    tries: str
    body: str
    status: str = "exited"
    says: str = ""


CAUGHT = "try { %s } catch (e) { return e.name + ': ' + e.message }"
SCRIPTS = (
    # Loops and expressions without end.
    Script("an endless loop", "while (true) {}", "killed", "cpu time"),
    Script("a regex that backtracks", "/^(a+)+$/.test('a'.repeat(50) + 'b')", "killed", "cpu time"),
    Script("a regex of nested stars", "/^((a*)*)*b/.exec('a'.repeat(9999))", "any"),
    Script("a generator without end", "for (const x of (function*() { for (;;) yield 1 })());",
           "killed", "cpu time"),
    Script("microtasks without end", "const f = () => { queueMicrotask(f) }; f(); "
           "await new Promise(() => {})", "killed", "cpu time"),
    Script("promises that wait for promises", "const f = () => Promise.resolve().then(f); "
           "await f()", "any"),
    Script("a then that resolves to itself", "await { then(f) { f(this) } }", "killed", "cpu time"),
    Script("a promise without end", "await new Promise(() => {})", "trapped", "nothing is left"),
    Script("a sort that never agrees", "Array(99999).fill(0).map(Math.random).sort(() => "
           "Math.random() - .5)", "any"),
    Script("a toString without end", "String({ toString() { for (;;); } })", "killed", "cpu time"),
    Script("a proxy that loops", "new Proxy({}, { get(t, k, r) { for (;;); } }).x",
           "killed", "cpu time"),
    # Memory.
    Script("arrays without end", CAUGHT % "const a = []; for (;;) a.push(new Uint8Array(1 << 20))",
           says="out of memory"),
    Script("a string that doubles", CAUGHT % "let s = 'x'; for (;;) s += s", says="Error"),
    Script("a huge repeat", CAUGHT % "return 'x'.repeat(2 ** 30)", says="Error"),
    Script("a huge array", CAUGHT % "return new Array(2 ** 32)", says="RangeError"),
    Script("a huge typed array", CAUGHT % "return new Float64Array(2 ** 31)", says="Error"),
    Script("a sparse array", "const a = []; a[4294967294] = 1; return a.length", says="4294967295"),
    Script("a map without end", CAUGHT % "const m = new Map(); for (let i = 0;; i++) m.set(i, {})",
           "any"),
    Script("a BigInt without end", CAUGHT % "let n = 2n; for (;;) n *= n", "any"),
    Script("a huge pad", CAUGHT % "return ''.padStart(2 ** 30, 'ab')", says="Error"),
    Script("a cycle for the collector", "for (let i = 0; i < 20000; i++) { const a = {}; a.a = a }",
           says=""),
    Script("a join of itself", "const a = []; a[0] = a; return a.join()", "any"),
    # Recursion.
    Script("deep recursion", CAUGHT % "const f = () => f() + 1; f()", says="stack overflow"),
    Script("recursion of getters", CAUGHT % "const o = { get x() { return this.x } }; o.x",
           says="stack overflow"),
    Script("recursion of proxies", CAUGHT % "let p = {}; for (let i = 0; i < 9999; i++) "
           "p = new Proxy(p, {}); return p.x", "any"),
    Script("deep JSON", "JSON.parse('['.repeat(100000))", "any"),
    Script("deep JSON to write", "let a = []; for (let i = 0; i < 9999; i++) a = [a]; "
           "JSON.stringify(a)", "any"),
    Script("a deep regex", "new RegExp('('.repeat(100) + ')'.repeat(100)); "
           "new RegExp('(?:'.repeat(50000))", "any"),
    Script("deep source", "eval('('.repeat(100000))", "any"),
    Script("a deep promise chain", "let p = Promise.resolve(1); for (let i = 0; i < 20000; i++) "
           "p = p.then(x => x); await p"),
    # The bindings: handles, options, buffers.
    Script("a handle that is none", CAUGHT % "await new KvFile(77).pred([1])", says="EBADF"),
    Script("a negative handle", CAUGHT % "new KvFile(-1).fork()", says="EBADF"),
    Script("a handle as object", CAUGHT % "new KvFile({ valueOf() { throw new Error('x') } })",
           says="x"),
    Script("a closed file", CAUGHT % "const k = KvFile.create(); k.close(); await k.prefill([1])",
           says="EBADF"),
    Script("a file closed twice", CAUGHT % "const k = KvFile.create(); k.close(); k.close()",
           "any"),
    Script("thousands of files", "for (let i = 0; i < 3000; i++) KvFile.create()"),
    Script("files without end", CAUGHT % "const a = []; for (;;) a.push(KvFile.create())",
           says="EDQUOT"),
    Script("options that are deep", CAUGHT % "let o = {}; for (let i = 0; i < 99; i++) o = { o }; "
           "await KvFile.create().pred([1], { get: o })", says="RangeError"),
    Script("options that refer to themselves", CAUGHT % "const o = {}; o.o = o; "
           "await KvFile.create().pred([1], { get: o })", says="RangeError"),
    Script("options that are large", CAUGHT % "await KvFile.create().pred([1], "
           "{ get: 'x'.repeat(9e6) })", "any"),
    Script("a getter that throws", CAUGHT % "await spawn({ get input() { "
           "throw new Error('mine') } })", says="mine"),
    Script("a getter in arguments", CAUGHT % "await KvFile.create().pred([1], "
           "{ get: { get sample() { throw new Error('mine') } } })", says="mine"),
    Script("a proxy as options", CAUGHT % "await KvFile.create().pred([1], { get: new Proxy({}, "
           "{ ownKeys() { throw new Error('mine') } }) })", says="mine"),
    Script("a getter that shrinks the list", CAUGHT % "const t = [1, 2, 3]; "
           "Object.defineProperty(t, 0, { get() { t.length = 0; return 7 } }); "
           "await KvFile.create().prefill(t); return 'ran'", says=""),
    Script("tokens with a huge length", CAUGHT % "await KvFile.create().prefill({ "
           "length: 2 ** 40 })", says="RangeError"),
    Script("tokens that are none", CAUGHT % "await KvFile.create().prefill(7)", says="TypeError"),
    Script("too few positions", CAUGHT % "await KvFile.create().pred([1, 2, 3], "
           "{ positions: new Uint32Array(1) })", says="RangeError"),
    Script("a huge count of tokens", CAUGHT % "KvFile.create().tokens(0, 4e9)", says="RangeError"),
    Script("a lone surrogate", "send('a\\ud800b'); return 'ok'", says="ok"),
    Script("a message that is too long", CAUGHT % "send('x'.repeat(2 << 20))", says="EFBIG"),
    Script("tickets without end", CAUGHT % "for (;;) sleep(1e9)", "any"),
    Script("children without end", CAUGHT % "for (;;) await spawn({ input: 'await sleep(1e9)' })",
           says="EDQUOT"),
    Script("a call outside without a permission", CAUGHT % "await http({ url: 'http://a.test/' })",
           says="EACCES"),
    Script("a tool without a permission", CAUGHT % "await tool('a.b', {})", says="EACCES"),
    # The language itself.
    Script("a prototype that is changed", "Object.prototype.get = () => 1; Array.prototype.push = "
           "null; Promise.prototype.then = () => { throw new Error('gone') }; "
           "await KvFile.create().prefill([1])", "any"),
    Script("globals that are gone", "for (const k of Object.getOwnPropertyNames(globalThis)) "
           "delete globalThis[k]; await sleep(1)", "any"),
    Script("a comparator that throws", CAUGHT % "[3, 2, 1].sort(() => { throw new Error('mine') })",
           says="mine"),
    Script("an error whose message throws", "throw { get message() { throw 1 }, toString() "
           "{ throw 2 } }", "trapped"),
    Script("an error that is nothing", "throw undefined", "trapped", "undefined"),
    Script("an error that is lost", "Promise.reject(new Error('lost'))", "trapped", "lost"),
    Script("a long error", "throw new Error('x'.repeat(1e6))", "trapped", "xxx"),
    Script("an import that is none", CAUGHT % "await import('fs')", says="no module 'fs'"),
    Script("an exit in a getter", "JSON.stringify({ get x() { exit(3) } })", "exited"),
)  # fmt: skip
