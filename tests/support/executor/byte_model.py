"""A simulated model whose tokens are bytes, so that a guest's text can be followed by hand."""

from dataclasses import replace

from symphony_kernel.executor.models.assets import ModelAssets
from symphony_kernel.executor.simulated import simulated_model
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

END, USER = "<|end|>", "<|user|>"
TEMPLATE = "{% for m in messages %}<|user|>{{ m.content }}{{ eos_token }}{% endfor %}"


def byte_assets(ends: bool = True) -> ModelAssets:
    """Return a model of 258 tokens: 0 ends a text, 257 begins a turn, the others are bytes.

    Without `ends` no token ends a text, so that all generations have the length asked for.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {END: 0, **{c: i + 1 for i, c in enumerate(alphabet)}, USER: 257}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in (END, USER)])
    special = {"bos_token": "", "eos_token": END}
    model = replace(simulated_model(vocab_size=258), eos=(0,) if ends else ())
    return ModelAssets(model, tokenizer.to_str().encode(), TEMPLATE, special)
