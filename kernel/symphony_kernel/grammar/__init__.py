"""Constraints: JSON schemas, regular expressions and Lark grammars that say which token may follow.

    text of a grammar -> checker (a process of its own, with limits) -> Grammar, cached by content
    Grammar + a text's tokens -> matcher -> a mask of the vocabulary, while the model's step runs

llguidance does the parsing. What outlives the kernel is a grammar's text and where in its file a
constrained text begins; matchers are made of these and of the file's tokens when they are missing.
"""
