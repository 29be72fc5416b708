"""The compiler: checks and compiles uploaded modules, each in a limited process.

compiler        runs the processes; child: one of them
validation      the rules for a module: imports, exports, counts, memory
module_outline  counts of a module's sections, read before it is parsed
cpu_reporting   charges a compiler's processor time to its tenant
"""
