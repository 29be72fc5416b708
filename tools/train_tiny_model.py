"""Trains the embedded tiny model: a small Llama on Python's standard library.

Run it as ``python tools/train_tiny_model.py --out DIR [--minutes 55]``. It needs only the
interpreter's own sources, ``torch``, ``transformers`` and ``tokenizers``. Training ends after the
given minutes; a last evaluation and export follow. The learning rate follows the larger of the
share of steps and the share of time that have passed, so the schedule always completes. Every few
minutes it measures the held-out loss, rewrites the model in DIR and adds a line to
``training_log.jsonl`` there.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import logging
import math
import os
import random
import sysconfig
import tempfile
import textwrap
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as functional
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

LOG = logging.getLogger(__name__)

END_OF_TEXT = "<|endoftext|>"
VOCAB_SIZE = 4096
MAX_POSITIONS = 2048
ROPE_THETA = 10000.0
SEED = 20

# Identifiers, numbers and punctuation each take one space before them. Line ends are separate. Any
# longer run of blanks, hence every indentation, is one piece.
SPLIT_PATTERN = r" ?[\p{L}_]+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}_]+|\n+|[^\S\n]+"

# A conversation is rendered as Python: the system message is a module docstring, a user's message
# is a comment, an assistant's message is code.
CHAT_TEMPLATE = (
    "{{- bos_token }}"
    "{%- for message in messages %}"
    "{%- if message['content'] is string %}{%- set text = message['content'] | trim %}"
    "{%- else %}{%- set parts = namespace(text='') %}"
    "{%- for part in (message['content'] or []) %}"
    "{%- if part['type'] == 'text' %}{%- set parts.text = parts.text + part['text'] %}{%- endif %}"
    "{%- endfor %}{%- set text = parts.text | trim %}{%- endif %}"
    "{%- if message['role'] == 'system' or message['role'] == 'developer' %}"
    '{{- \'"""\' + text + \'"""\\n\\n\' }}'
    "{%- elif message['role'] == 'assistant' %}"
    "{{- text }}"
    "{%- if not loop.last %}{{- '\\n\\n\\n' }}{%- else %}{{- eos_token }}{%- endif %}"
    "{%- else %}"
    "{{- '# ' + (text | replace('\\n', '\\n# ')) }}"
    "{%- if not loop.last %}{{- '\\n' }}{%- endif %}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt and messages and messages[-1]['role'] not in"
    " ['system', 'developer', 'assistant'] %}{{- '\\n' }}{%- endif %}"
)

# Folders of generated tables, of files for other versions of Python, and of copies.
SKIPPED_FOLDERS = frozenset(
    {
        "site-packages", "dist-packages", "__pycache__", "encodings", "pydoc_data", "Icons",
        "lib-dynload", "crashers", "encoded_modules", "cjkencodings", "tracedmodules",
        "bundled", "tokenizedata", "certdata", "data",
    }
)  # fmt: skip
TEST_FOLDERS = frozenset({"test", "tests", "idle_test", "testmock"})
MAX_FILE_CHARS = 350_000


@dataclass(frozen=True)
class Source:
    """One file of the corpus."""

    text: str
    is_test: bool
    held_out: bool


@dataclass
class Recipe:
    """The sizes and rates of a training run."""

    minutes: float = 55.0
    max_steps: int = 11_000
    rows: int = 8
    length: int = 512
    peak_rate: float = 2.5e-3
    final_share: float = 0.02
    warmup_steps: int = 150
    weight_decay: float = 0.1
    clip: float = 1.0
    test_share: float = 0.4
    whole_share: float = 0.5
    report_seconds: float = 300.0
    compile: bool = True
    started: float = field(default_factory=time.monotonic)

    def progress(self, step: int) -> float:
        """Return the larger share of steps or of time that has passed, at most 1."""
        passed = (time.monotonic() - self.started) / (self.minutes * 60.0)
        return min(1.0, max(step / self.max_steps, passed))

    def rate(self, step: int) -> float:
        """Return the learning rate: a linear warm-up, then half a cosine."""
        if step < self.warmup_steps:
            return self.peak_rate * (step + 1) / self.warmup_steps
        cosine = 0.5 * (1.0 + math.cos(math.pi * self.progress(step)))
        return self.peak_rate * (self.final_share + (1.0 - self.final_share) * cosine)


def is_held_out(name: str) -> bool:
    """Return whether the file of this relative path is held out: about one in fifty."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big") % 50 == 7


def read_corpus(root: Path) -> list[Source]:
    """Read the Python files below ``root`` that parse and are not mostly tables."""
    sources = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in SKIPPED_FOLDERS)
        for file in sorted(files):
            if not file.endswith(".py"):
                continue
            path = Path(folder, file)
            relative = path.relative_to(root)
            if "lib2to3" in relative.parts and "tests" in relative.parts:
                continue
            text = usable_text(path)
            if text is not None:
                name = relative.as_posix()
                is_test = bool(TEST_FOLDERS.intersection(relative.parts[:-1]))
                sources.append(Source(text, is_test, is_held_out(name)))
    return sources


def usable_text(path: Path) -> str | None:
    """Return the file's text with plain line ends; None: do not train on it."""
    try:
        text = path.read_text(encoding="utf-8").replace("\r\n", "\n").expandtabs(8)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    odd = sum(c.isdigit() or ord(c) > 126 for c in text)
    if not 100 <= len(text) <= MAX_FILE_CHARS or odd > 0.12 * len(text):
        return None
    return text.strip("\n") + "\n"


def top_level_pieces(text: str) -> list[str]:
    """Cut a file before each top-level definition; the pieces join to the text again."""
    pieces: list[str] = []
    current: list[str] = []
    for line in text.splitlines(keepends=True):
        opens = line.startswith(("def ", "class ", "async def ", "@"))
        if opens and current and current[-1] == "\n":
            pieces.append("".join(current))
            current = []
        current.append(line)
    pieces.append("".join(current))
    return pieces


def described_functions(text: str) -> list[str]:
    """Return each documented function below a comment with its docstring's first line.

    The chat template renders a request and its reply in this form.
    """
    lines = text.split("\n")
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(text)
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        summary = (ast.get_docstring(node) or "").strip().split("\n")[0]
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        last = node.end_lineno or first
        if len(summary) > 12 and 3 <= last - first <= 70:
            body = textwrap.dedent("\n".join(lines[first - 1 : last])).rstrip()
            found.append(f"# {summary}\n{body}\n")
    return found


def train_tokenizer(sources: list[Source]) -> Tokenizer:
    """Train the byte-level BPE vocabulary on the files that are not held out."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    chosen = [s for s in sources if not s.held_out]
    # The library counts twice, so that the tests' habits do not fill the vocabulary.
    texts = [s.text for s in chosen if not s.is_test] * 2 + [s.text for s in chosen if s.is_test]
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A",
        pair=f"{END_OF_TEXT} $A {END_OF_TEXT} $B",
        special_tokens=[(END_OF_TEXT, tokenizer.token_to_id(END_OF_TEXT))],
    )
    return tokenizer


def encode(tokenizer: Tokenizer, texts: list[str]) -> list[torch.Tensor]:
    """Return the token numbers of each text, without the document mark."""
    batch = tokenizer.encode_batch(texts, add_special_tokens=False)
    return [torch.tensor(e.ids, dtype=torch.int32) for e in batch]


class Stream:
    """An endless, reproducible stream of training rows, mixed again in each round.

    A round holds every library file, a share of the tests and the described functions. A file comes
    either whole or cut into groups of top-level definitions, each a document, so that the model
    also sees documents that begin and end at single definitions.
    """

    def __init__(self, tokenizer: Tokenizer, sources: list[Source], recipe: Recipe) -> None:
        self.recipe = recipe
        self.random = random.Random(SEED)  # noqa: S311 (a shuffle, no secret)
        self.mark = torch.tensor([tokenizer.token_to_id(END_OF_TEXT)], dtype=torch.int32)
        chosen = [s for s in sources if not s.held_out]
        self.files = [(s.is_test, encode(tokenizer, top_level_pieces(s.text))) for s in chosen]
        described = [d for s in chosen if not s.is_test for d in described_functions(s.text)]
        self.described = encode(tokenizer, described)
        self.rounds = 0

    def documents(self) -> list[torch.Tensor]:
        """Return one round's documents in a random order."""
        result = list(self.described)
        for is_test, pieces in self.files:
            if is_test and self.random.random() > self.recipe.test_share:
                continue
            if self.random.random() < self.recipe.whole_share:
                result.append(torch.cat(pieces))
                continue
            start = 0
            while start < len(pieces):
                stop = start + self.random.randint(1, 4)
                result.append(torch.cat(pieces[start:stop]))
                start = stop
        self.random.shuffle(result)
        return result

    def batches(self) -> Iterator[torch.Tensor]:
        """Yield batches of ``rows`` rows of ``length`` + 1 tokens."""
        rows, length = self.recipe.rows, self.recipe.length
        while True:
            parts = [t for document in self.documents() for t in (self.mark, document)]
            tokens = torch.cat(parts).long()[self.random.randrange(length) :]
            starts = list(range(0, len(tokens) - length - 1, length))
            self.random.shuffle(starts)
            self.rounds += 1
            for i in range(0, len(starts) - rows + 1, rows):
                yield torch.stack([tokens[s : s + length + 1] for s in starts[i : i + rows]])


@dataclass
class HeldOut:
    """The held-out files as rows of the training shape, and their bytes a token."""

    batches: list[torch.Tensor]
    bytes_per_token: float

    @classmethod
    def build(cls, tokenizer: Tokenizer, sources: list[Source], recipe: Recipe) -> HeldOut:
        """Pack whole files, each behind the document mark, into rows; padding is ignored."""
        mark = torch.tensor([tokenizer.token_to_id(END_OF_TEXT)], dtype=torch.int32)
        encoded = encode(tokenizer, [s.text for s in sources])
        tokens = torch.cat([t for e in encoded for t in (mark, e)]).long()
        size = sum(len(s.text.encode()) for s in sources)
        rows, length = recipe.rows, recipe.length
        # Each row's first token is context only, and the last row is filled with token -100,
        # which the loss ignores.
        count = math.ceil((len(tokens) - 1) / (length * rows)) * rows
        padded = torch.full((count * length + 1,), -100, dtype=torch.long)
        padded[: len(tokens)] = tokens
        table = torch.stack([padded[i * length : (i + 1) * length + 1] for i in range(count)])
        return cls([table[i : i + rows] for i in range(0, count, rows)], size / (len(tokens) - 1))

    def loss(self, step: Callable[[torch.Tensor], torch.Tensor]) -> float:
        """Return the mean loss in nats per token."""
        total, count = 0.0, 0
        for batch in self.batches:
            targets = int((batch[:, 1:] != -100).sum())
            if targets:
                total += float(step(batch).detach()) * targets
                count += targets
        return total / count

    def bits_per_byte(self, loss: float) -> float:
        """Convert nats per token into bits per byte of the text."""
        return loss / math.log(2.0) / self.bytes_per_token


def build_model() -> LlamaForCausalLM:
    """Return the untrained model, its parameters in single precision."""
    torch.manual_seed(SEED)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
        use_cache=True,
    )
    model = LlamaForCausalLM(config)
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            parameter.data.mul_(1.0 / math.sqrt(2 * config.num_hidden_layers))
    return model


class Master:
    """AdamW over a single-precision copy of the model's bfloat16 parameters."""

    def __init__(self, model: torch.nn.Module, recipe: Recipe) -> None:
        self.recipe = recipe
        self.low = list(model.parameters())
        self.high = [p.detach().clone().float() for p in self.low]
        for low in self.low:
            # Only the parameters: the rotary frequencies stay in single precision.
            low.data = low.data.to(torch.bfloat16)
        matrices = [p for p in self.high if p.dim() > 1]
        vectors = [p for p in self.high if p.dim() <= 1]
        self.optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": recipe.weight_decay},
                {"params": vectors, "weight_decay": 0.0},
            ],
            lr=recipe.peak_rate,
            betas=(0.9, 0.98),
            eps=1e-8,
            fused=True,
        )

    def update(self, rate: float) -> None:
        """Apply the gradients of the low-precision parameters, then clear them."""
        for low, high in zip(self.low, self.high, strict=True):
            assert low.grad is not None
            high.grad = low.grad.float()
            low.grad = None
        torch.nn.utils.clip_grad_norm_(self.high, self.recipe.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        with torch.no_grad():
            for low, high in zip(self.low, self.high, strict=True):
                low.copy_(high)


def loss_function(model: LlamaForCausalLM, recipe: Recipe) -> Callable[..., torch.Tensor]:
    """Return batch -> mean loss, compiled if a compiler is available."""

    def step(batch: torch.Tensor) -> torch.Tensor:
        inputs = batch[:, :-1].clamp(min=0)
        hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
        logits = functional.linear(hidden, model.lm_head.weight)
        targets = batch[:, 1:].reshape(-1)
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets)

    if not recipe.compile:
        return step
    compiled: Callable[..., torch.Tensor] = torch.compile(step, dynamic=False)
    try:
        torch.autograd.backward(compiled(torch.zeros(recipe.rows, recipe.length + 1).long()))
    except Exception as error:  # a missing compiler may raise any exception
        LOG.warning("not compiled: %s", type(error).__name__)
        compiled = step
    model.zero_grad(set_to_none=True)
    return compiled


def wrap_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    """Return the tokenizer in Hugging Face form, with the chat template."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
        chat_template=CHAT_TEMPLATE,
    )


def export(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """Write the Hugging Face folder; each file is replaced in one step."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as scratch:
        folder = Path(scratch)
        model.save_pretrained(folder)
        GenerationConfig(
            bos_token_id=0, eos_token_id=0, pad_token_id=0, max_length=MAX_POSITIONS
        ).save_pretrained(folder)
        wrap_tokenizer(tokenizer).save_pretrained(folder)
        template = folder / "chat_template.jinja"
        settings_path = folder / "tokenizer_config.json"
        settings: dict[str, Any] = json.loads(settings_path.read_text())
        # The class name that every version of transformers knows.
        settings.update(tokenizer_class="PreTrainedTokenizerFast", chat_template=CHAT_TEMPLATE)
        template.unlink(missing_ok=True)
        settings_path.write_text(json.dumps(settings, indent=2) + "\n")
        config_path = folder / "config.json"
        config: dict[str, Any] = json.loads(config_path.read_text())
        # Older readers need these two names.
        config.update(rope_theta=ROPE_THETA, torch_dtype="bfloat16")
        config_path.write_text(json.dumps(config, indent=2) + "\n")
        for file in sorted(folder.iterdir()):
            file.chmod(0o644)
            file.replace(out / file.name)


def train(out: Path, recipe: Recipe) -> None:
    sources = read_corpus(Path(sysconfig.get_paths()["stdlib"]))
    kept = [s for s in sources if s.held_out]
    tokenizer = train_tokenizer(sources)
    stream = Stream(tokenizer, sources, recipe)
    held_out = {
        "all": HeldOut.build(tokenizer, kept, recipe),
        "library": HeldOut.build(tokenizer, [s for s in kept if not s.is_test], recipe),
    }
    model = build_model()
    master = Master(model, recipe)
    text = sum(len(s.text.encode()) for s in sources)
    LOG.info("%d files, %d bytes, %d held out", len(sources), text, len(kept))
    LOG.info("%d parameters", sum(p.numel() for p in model.parameters()))
    model.train()
    step_loss = loss_function(model, recipe)
    log = out / "training_log.jsonl"
    out.mkdir(parents=True, exist_ok=True)
    log.write_text("")

    def report(step: int, recent: list[float]) -> None:
        entry: dict[str, float] = {
            "minutes": round((time.monotonic() - recipe.started) / 60.0, 2),
            "step": step,
            "tokens": step * recipe.rows * recipe.length,
            "round": stream.rounds,
            "training_loss": round(sum(recent) / max(1, len(recent)), 4),
        }
        for name, part in held_out.items():
            loss = part.loss(step_loss)
            entry[f"{name}_held_out_loss"] = round(loss, 4)
            entry[f"{name}_bits_per_byte"] = round(part.bits_per_byte(loss), 4)
        export(model, tokenizer, out)
        with log.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        LOG.info("%s", json.dumps(entry))

    loop(stream, master, step_loss, recipe, report)


def loop(
    stream: Stream,
    master: Master,
    step_loss: Callable[..., torch.Tensor],
    recipe: Recipe,
    report: Callable[[int, list[float]], None],
) -> None:
    """Take steps until the schedule is over; report every few minutes and at the end."""
    recent: list[float] = []
    next_report = time.monotonic() + recipe.report_seconds
    for step, batch in enumerate(stream.batches()):
        if recipe.progress(step) >= 1.0:
            report(step, recent)
            return
        loss = step_loss(batch)
        torch.autograd.backward(loss)
        master.update(recipe.rate(step))
        recent = [*recent[-99:], float(loss.detach())]
        if step % 100 == 99:
            LOG.info("step %d loss %.4f", step + 1, sum(recent) / len(recent))
        if time.monotonic() >= next_report:
            report(step + 1, recent)
            next_report = time.monotonic() + recipe.report_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description="train the embedded tiny model")
    parser.add_argument("--out", type=Path, required=True, help="folder for the model")
    parser.add_argument("--minutes", type=float, default=55.0, help="wall-clock limit")
    parser.add_argument("--no-compile", action="store_true", help="do without torch.compile")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    train(arguments.out, Recipe(minutes=arguments.minutes, compile=not arguments.no_compile))


if __name__ == "__main__":
    main()
