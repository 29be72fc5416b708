"""Text: tokenizing, detokenizing and chat templates.

tokenizer   the model's tokenizer and chat template, from the kernel's `Welcome`
pool        threads for long texts, shared by tenants
splits      where a long text may be cut without changing its tokens
"""
