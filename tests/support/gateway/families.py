"""Families of models that call tools: chat templates by their published conventions, small.

The tokenizers are the tiny model's, with the family's control strings in place of its last tokens.
"""

import json
from pathlib import Path
from typing import Any

from symphony_kernel import tiny_model
from transformers import PreTrainedTokenizerFast

HERMES = """\
{%- if tools %}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}

{% endif %}# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags.<|im_end|>
{% elif messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}<|im_start|>user
{{ message.content }}<|im_end|>
{% elif message.role == 'assistant' %}<|im_start|>assistant
{% if message.reasoning_content %}<think>
{{ message.reasoning_content }}
</think>

{% endif %}{{ message.content }}
{%- for call in message.tool_calls or [] %}
{%- if not loop.first or message.content %}{{ '\\n' }}{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% elif message.role == 'tool' %}<|im_start|>user
<tool_response>
{{ message.content }}
</tool_response><|im_end|>
{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}{% endif %}"""

LLAMA3 = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.tool_calls %}
{%- if message.tool_calls | length != 1 %}
{{- raise_exception("This model only supports single tool-calls at once!") }}{% endif %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- set call = message.tool_calls[0].function %}
{{- '{"name": "' + call.name + '", "parameters": ' }}{{ call.arguments | tojson }}
{{- "}<|eot_id|>" }}
{%- elif message.role == 'tool' %}
{{- '<|start_header_id|>ipython<|end_header_id|>\\n\\n' + message.content + '<|eot_id|>' }}
{%- else %}
{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' }}
{%- if tools and loop.first %}
{{- 'Respond in the format {"name": function name, "parameters": dictionary of argument name '
    'and its value}. Do not use variables.\\n\\n' }}
{%- for tool in tools %}{{ tool | tojson(indent=4) }}{{ '\\n\\n' }}{% endfor %}
{%- endif %}
{{- message.content | trim + '<|eot_id|>' }}
{%- endif %}{% endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"""

MISTRAL = """\
{{- bos_token }}
{%- for message in messages %}
{%- if message.role == 'user' %}
{%- if tools and loop.first %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{{- '[INST] ' + message.content + '[/INST]' }}
{%- elif message.tool_calls %}
{{- '[TOOL_CALLS] [' }}
{%- for call in message.tool_calls %}
{%- if call.id is not defined or call.id | length != 9 %}
{{- raise_exception("Tool call IDs should be alphanumeric strings with length 9!") }}{% endif %}
{{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}
{{- ', ' if not loop.last else ']' + eos_token }}{% endfor %}
{%- elif message.role == 'assistant' %}
{{- ' ' + message.content + eos_token }}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS] {"content": ' + (message.content | tojson) + ', "call_id": "' }}
{{- message.tool_call_id + '"}[/TOOL_RESULTS]' }}
{%- endif %}{% endfor %}"""

MISTRAL11 = """\
{{- bos_token }}
{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}
{{- '[INST]' + message.content + '[/INST]' }}
{%- elif message.role == 'assistant' %}
{{- message.content or '' }}
{%- for call in message.tool_calls or [] %}
{{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' }}{{ call.function.arguments | tojson }}
{%- endfor %}{{ eos_token }}
{%- elif message.role == 'tool' %}
{{- '[TOOL_RESULTS]' + message.content + '[/TOOL_RESULTS]' }}
{%- endif %}{% endfor %}"""

TEMPLATES = {"hermes": HERMES, "llama3": LLAMA3, "mistral": MISTRAL, "mistral11": MISTRAL11}
# Added tokens, and whether they are special; the first are the last tokens of the vocabulary.
ADDED = {
    "hermes": {"<|im_start|>": True, "<|im_end|>": True, "<tool_call>": False,
               "</tool_call>": False, "<think>": False, "</think>": False},
    "llama3": {"<|start_header_id|>": True, "<|end_header_id|>": True, "<|eot_id|>": True,
               "<|python_tag|>": True},
    "mistral": {"[INST]": True, "[/INST]": True, "[TOOL_CALLS]": True, "[AVAILABLE_TOOLS]": True,
                "[/AVAILABLE_TOOLS]": True, "[TOOL_RESULTS]": True, "[/TOOL_RESULTS]": True},
    "mistral11": {"[INST]": True, "[/INST]": True, "[TOOL_CALLS]": True, "[ARGS]": True,
                  "[AVAILABLE_TOOLS]": True, "[/AVAILABLE_TOOLS]": True, "[TOOL_RESULTS]": True,
                  "[/TOOL_RESULTS]": True},
}  # fmt: skip
ENDS = {"hermes": "<|im_end|>\n", "llama3": "<|eot_id|>", "mistral": "<|endoftext|>",
        "mistral11": "<|endoftext|>"}  # fmt: skip


def family_tokenizer(family: str) -> dict[str, Any]:
    """Return the tokenizer.json of a family."""
    source = json.loads((tiny_model.path() / "tokenizer.json").read_text())
    model, added = source["model"], ADDED[family]
    spelling = {number: text for text, number in model["vocab"].items()}
    numbers = range(len(spelling) - len(added), len(spelling))
    replaced = {spelling[number] for number in numbers}
    for number, (text, special) in zip(numbers, added.items(), strict=True):
        del model["vocab"][spelling[number]]
        model["vocab"][text] = number
        source["added_tokens"].append(
            {"id": number, "content": text, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": special}
        )  # fmt: skip
    model["merges"] = [
        merge for merge in model["merges"] if not replaced & {*merge, "".join(merge)}
    ]
    return dict(source)


def family_model(folder: Path, family: str) -> Path:
    """Make a folder with the tiny model as a model of a family."""
    folder.mkdir()
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        (folder / name).symlink_to(tiny_model.path() / name)
    settings = json.loads((tiny_model.path() / "tokenizer_config.json").read_text())
    settings["chat_template"] = TEMPLATES[family]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_text(json.dumps(family_tokenizer(family)))
    return folder


def family_about(family: str) -> dict[str, Any]:
    """Return a kernel's `Welcome` of a family's model."""
    model = {"name": family, "vocab_size": 4_096, "page_size": 16, "eos": [0], "max_context": 2_048}
    special = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    source = json.dumps(family_tokenizer(family)).encode()
    template = TEMPLATES[family]
    return {"model": model, "tokenizer": source, "chat_template": template, "special": special}


def reference_tokenizer(folder: Path, family: str) -> PreTrainedTokenizerFast:
    """Return transformers' own tokenizer of a family, with its chat template."""
    path = folder / f"{family}.json"
    path.write_text(json.dumps(family_tokenizer(family)))
    return PreTrainedTokenizerFast(
        tokenizer_file=str(path),
        chat_template=TEMPLATES[family],
        bos_token="<|endoftext|>",
        eos_token="<|endoftext|>",
    )
