"""The headers of C and Zig equal what the table gives, and C's writer is MessagePack."""

import shutil
import subprocess
from pathlib import Path

import msgpack
from symphony_runtime.abi import table

from tests.support.requirements import requires
from tools.lip_header import HEADER, ZIG, header, zig

needs_cc = requires("cc", shutil.which("cc") is not None, "no C compiler is installed here")

WRITES = r"""
#include <stdio.h>
#include "lip_msgpack.h"
static uint8_t bytes[200000];
static char text[70000];
int main(void) {
  struct lip_writer w = lip_write_to(bytes, sizeof bytes);
  static const int64_t numbers[] = {0, 127, 128, -32, -33, 65536, 4294967295, 4294967296,
    INT64_MIN, INT64_MAX};
  static const uint32_t lengths[] = {0, 31, 32, 255, 256, 65535, 65536};
  for (int i = 0; i < 70000; i++) text[i] = 'a';
  lip_write_map(&w, 2);
  lip_write_key(&w, "numbers");
  lip_write_list(&w, 14);
  for (int i = 0; i < 10; i++) lip_write_int(&w, numbers[i]);
  lip_write_nil(&w), lip_write_bool(&w, 1), lip_write_bool(&w, 0), lip_write_float(&w, 0.25);
  lip_write_key(&w, "texts");
  lip_write_list(&w, 16);
  for (int i = 0; i < 7; i++) lip_write_text_of(&w, text, lengths[i] / 2);
  for (int i = 0; i < 7; i++) lip_write_binary(&w, text, lengths[i] / 2);
  lip_write_text(&w, "\xc3\xa4"), lip_write_binary(&w, text, 256);
  fwrite(bytes, 1, lip_written(&w), stdout);
  w = lip_write_to(bytes, 3);
  lip_write_text(&w, "abc");
  return lip_written(&w) != 0 || w.length > 3;
}
"""


def test_headers_equal_the_abis_table() -> None:
    words = "run `python -m tools.lip_header --write`"
    assert HEADER.read_text() == header(table()), words
    assert ZIG.read_text() == zig(table()), words
    assert all(f"lip_{call.name}(" in HEADER.read_text() for call in table().calls)


@needs_cc
def test_writer_of_c_writes_messagepack(tmp_path: Path) -> None:
    (tmp_path / "writes.c").write_text(WRITES)
    options = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined", "-I"]
    command = ["cc", *options, str(HEADER.parent), "-o", str(tmp_path / "writes"), "writes.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    done = subprocess.run([tmp_path / "writes"], capture_output=True, check=True)
    told = msgpack.unpackb(done.stdout)
    numbers = [0, 127, 128, -32, -33, 65536, 2**32 - 1, 2**32, -(2**63), 2**63 - 1]
    assert told["numbers"] == [*numbers, None, True, False, 0.25]
    lengths = [0, 15, 16, 127, 128, 32767]
    assert [len(text) for text in told["texts"][:6]] == lengths
    assert [len(text) for text in told["texts"][7:13]] == lengths
    assert told["texts"][14:] == ["ä", b"a" * 256]
