"""Constraints: JSON schemas, regular expressions and Lark grammars that say which token may follow.

    text of a grammar -> checker (another process, with limits) -> Grammar, cached by content
    Grammar + a text's tokens -> matcher -> a bitmask of the vocabulary, while the step runs

llguidance does the parsing. Only a grammar's text, and where in its file a constrained text begins,
outlive the kernel. Matchers are made again from these and from the file's tokens.
"""
