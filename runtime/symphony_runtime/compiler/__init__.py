"""The compiler: checks and compiles uploaded modules, each in a limited process.

compiler        the processes; `python -m symphony_runtime.compiler.compiler` is one
validation      the rules for a module: imports, exports, counts, memory
module_outline  counts of a module's sections, read before it is parsed
cpu_reporting   charges a compiler's processor time to its tenant
"""
