"""The calls of a program, by the names of the Rust SDK.

kv          KV files; `handle` has what passes need of one
pred        forward passes
sampling    how text is generated
stream      tokens and text that come as the server samples them
session     a text or a chat that grows
score       how likely answers are
constraint  JSON schemas, regular expressions and grammars that texts keep to
model       what the model is, tokens, chat template
process     time, children, queues
tool, http  the outside
prompt      templates, turns
packing     numbers as bytes, options as MessagePack

guest_sdk/python/frozen/symphony has the same names for Python on the server, as sources of its own.
MicroPython's `dataclass` takes no options and its generic types cannot be called. A call there is a
function of the module, which is made at once, and no frame to a server. All its bytes are shipped.
"""
