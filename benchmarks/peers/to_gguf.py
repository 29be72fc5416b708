"""Converts a checkpoint of benchmarks/checkpoints.py to GGUF in bf16, with llama.cpp's converter.

    FOLDER/llama.cpp/venv/bin/python benchmarks/peers/to_gguf.py FOLDER/llama.cpp/source MODEL OUT

The converter knows a tokenizer by what it makes of one text, and ours, merged at random, is none
that it has seen. It splits words as GPT-2's does, so that is what it is told.
"""

import runpy
import sys
from pathlib import Path


def main(source: Path, model: Path, out: Path) -> None:
    """Write `out`, reading the checkpoint in `model` with the converter below `source`."""
    sys.path.insert(0, str(source))
    from conversion.base import TextModel  # type: ignore[import-not-found]

    TextModel.get_vocab_base_pre = lambda _self, _tokenizer: "gpt-2"
    sys.argv = ["convert_hf_to_gguf.py", str(model), "--outtype", "bf16", "--outfile", str(out)]
    runpy.run_path(str(source / "convert_hf_to_gguf.py"), run_name="__main__")


if __name__ == "__main__":
    main(*(Path(argument).resolve() for argument in sys.argv[1:4]))
