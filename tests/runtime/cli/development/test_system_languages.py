"""Building C: real clang, with files whose names are no harmless words."""

import shutil
from pathlib import Path

from symphony_runtime.cli.development.system_languages import build_c
from symphony_runtime.cli.projects import run_compiler

from tests.support.requirements import requires

needs_clang = requires(
    "clang", all(map(shutil.which, ("clang", "wasm-ld"))), "no clang with wasm-ld is installed here"
)


@needs_clang
def test_source_with_the_name_of_an_option_is_a_source(tmp_path: Path) -> None:
    main = 'int odd(void);\nLIP_EXPORT("lip_main") int lip_main(void) { return odd(); }\n'
    (tmp_path / "main.c").write_text(f'#include "lip.h"\n{main}')
    (tmp_path / "@args.c").write_text("int odd(void) { return 1; }\n")
    (tmp_path / "-fsyntax-only.c").write_text("int odder(void) { return 1; }\n")
    assert build_c(tmp_path, lambda _: None, quick=True, run=run_compiler).is_file()
