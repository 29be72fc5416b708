"""Checks a model's folder or GGUF file before it is loaded: without torch, and bounded.

Strangers wrote the files: a tokenizer or a chat template may need any amount of memory, or never
end. So a child process checks them. It may use CHECK_BYTES_MAX of memory, and limited processor
seconds for steps without another bound. It prints what it checks, line by line; the last line is
the error.
"""

import gc
import logging
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

from symphony_kernel.executor.models.assets import ModelAssets, load_assets
from symphony_kernel.executor.models.config import load_config
from symphony_kernel.executor.models.file_reader import CheckpointError
from symphony_kernel.executor.models.model_files import open_model
from symphony_kernel.executor.models.tensor_headers import check_tensors
from symphony_kernel.platform.rlimits import lower_limit
from symphony_kernel.protocol.limits import CHAT_TEXT_MAX

CHECK_BYTES_MAX = 896 << 20
# Of processor time. A tokenizer of 262,144 tokens takes a second or two, and to read it from a GGUF
# file two or three.
SETTINGS_SECONDS_MAX = 40
TOKENIZER_SECONDS_MAX = 20
TEMPLATE_SECONDS_MAX = 1  # for one word
_REFUSED = 3  # an exit code: the last line is the reason
_TOKENS_MAX = 1 << 23  # ids of added tokens stay below: workers have a table of all

_log = logging.getLogger(__name__)


def check_model(directory: Path, dtype: str) -> None:
    """Check a model's folder or GGUF file: all but the tensors' values.

    Raises CheckpointError: the model cannot be used.
    """
    command = [sys.executable, "-m", __name__, str(directory), dtype]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(  # noqa: S603
        command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    said = done.stdout.decode("utf-8", "replace").splitlines()
    last = said[-1] if said else str(directory)
    if done.returncode == _REFUSED:
        raise CheckpointError(last)
    if done.returncode == -signal.SIGPROF:
        raise CheckpointError(
            f"{last} takes more processor time than is supported "
            f"({TEMPLATE_SECONDS_MAX} s for a chat template, {TOKENIZER_SECONDS_MAX} s for a "
            f"tokenizer, {SETTINGS_SECONDS_MAX} s for the rest)"
        )
    if done.returncode:
        _log.info(
            "the check of the model failed: %s", done.stderr.decode("utf-8", "replace")[-2000:]
        )
        raise CheckpointError(
            f"{last} cannot be checked: it takes more than {CHECK_BYTES_MAX >> 20} MiB of memory, "
            "or crashes the library that reads it"
        )


def _check(directory: Path, dtype: str) -> None:
    _say(f"{directory}: what describes the model")
    signal.setitimer(signal.ITIMER_PROF, SETTINGS_SECONDS_MAX)  # then SIGPROF ends the process
    assets = load_assets(directory, dtype)
    _say(f"{directory}: the head of the weights")
    check_tensors(directory, load_config(directory))
    path = open_model(directory).where("tokenizer.json")
    _say(str(path))
    _check_tokenizer(path, assets)
    if assets.chat_template is not None:
        _say(f"{directory}: the chat template")
        _check_template(directory, assets.chat_template, assets.special)


def _check_tokenizer(path: Path, assets: ModelAssets) -> None:
    from tokenizers import Tokenizer

    signal.setitimer(signal.ITIMER_PROF, TOKENIZER_SECONDS_MAX)
    try:
        tokenizer = Tokenizer.from_buffer(assets.tokenizer_json)
    except Exception as error:  # the library raises no other kind
        raise CheckpointError(f"the tokenizers library cannot read {path}: {error}") from error
    most = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
    if most < 0:
        raise CheckpointError(f"{path} has no tokens")
    if most >= _TOKENS_MAX:
        raise CheckpointError(f"{path} has a token {most}; all must be below {_TOKENS_MAX}")


def _check_template(directory: Path, source: str, special: dict[str, str]) -> None:
    """Compile a chat template and fill it once. It may refuse the text."""
    from symphony_kernel.protocol.chat_templates import chat_environment

    signal.setitimer(signal.ITIMER_PROF, TEMPLATE_SECONDS_MAX)
    try:
        template = chat_environment().from_string(source)
    # a wrong template fails in the parser, in the generator or in Python
    except Exception as error:
        line = f" (line {error.lineno})" if hasattr(error, "lineno") else ""
        raise CheckpointError(
            f"{directory}: the chat template cannot be compiled: {error}{line}"
        ) from error
    length, messages = 0, [{"role": "user", "content": "Hello"}]
    try:
        for part in template.generate(messages=messages, add_generation_prompt=True, **special):
            length += len(part)
            if length > CHAT_TEXT_MAX:
                raise CheckpointError(
                    f"{directory}: the chat template makes more than {CHAT_TEXT_MAX} characters "
                    "of one word"
                )
    except (CheckpointError, MemoryError):
        raise
    except Exception as error:
        _say(f"{directory}: the chat template ({type(error).__name__})")


def _say(words: str) -> None:
    """Write one line, also if a name has a line break."""
    sys.stdout.write(" ".join(words.split()).encode("utf-8", "replace").decode() + "\n")
    sys.stdout.flush()


def main() -> int:
    """Check a directory: `python -m ... DIRECTORY DTYPE`."""
    lower_limit(resource.RLIMIT_DATA, CHECK_BYTES_MAX)
    lower_limit(resource.RLIMIT_CORE, 0)
    gc.disable()  # it would traverse millions of lists again and again
    try:
        _check(Path(sys.argv[1]), sys.argv[2])
    except CheckpointError as error:
        _say(str(error))
        return _REFUSED
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # freeing the objects of a large file would take long
