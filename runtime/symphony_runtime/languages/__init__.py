"""Languages whose programs are uploaded as source, and run by a module that ships with the server.

A *language module* is an interpreter, compiled to core WebAssembly with the calls of `lip` bound in
it. The gateway stores a source program as one body: the language's name, then the source.

    language   what the gateway, the compiler and the CLI know of a language
    source     a stored source program, and the manifest in its first comment
"""
