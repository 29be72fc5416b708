"""The compiler: checks uploaded modules and compiles them, each in a process with limits.

compiler        the processes; `python -m symphony_runtime.compiler.compiler` is one
validation      what a module must be: imports, exports, counts, memory
module_outline  a module's sections, counted before anything is parsed
cpu_reporting   its processor time, charged to the tenant while it runs
"""
