"""`tools/prose.py` measures sentences as a reader meets them; the documentation's are short."""

import pytest

from tools.prose import (
    MEAN_MAX,
    MEAN_MAX_TAUGHT,
    NOT_YET,
    ROOT,
    WORDS_MAX,
    faults_of,
    mean_of,
    run,
    scanned_files,
    sentences_of,
)

PAGE = """---
title: not a sentence
---
# A heading of five words

One two `three four` [five](six.md) seven. Is it
two lines? It is 3.5 times as long, e.g. here.

- An item of its own
- Another item. And a sentence

| term | what it is |
| --- | --- |
| Step | One forward pass over a batch. |

```
code is not a sentence
```

![a picture](x.svg)
"""


def words(count: int) -> str:
    return " ".join(["Word"] * count) + "."


def test_pages_of_this_repository_have_short_sentences() -> None:
    assert run([]) == 0


def test_pages_that_are_not_plain_yet_exist_and_are_not_plain() -> None:
    scanned = {str(path.relative_to(ROOT)): path.read_text() for path in scanned_files()}
    assert [name for name in NOT_YET if not list(faults_of(name, scanned[name]))] == []


def test_sentences_of_a_page_are_those_that_a_reader_sees() -> None:
    found = [(sentence.line, sentence.text, sentence.counts) for sentence in sentences_of(PAGE)]
    assert found == [
        (6, "One two Code five seven.", True),
        (6, "Is it two lines?", True),
        (6, "It is 3.5 times as long, e.g. here.", True),
        (9, "An item of its own", True),
        (10, "Another item.", True),
        (10, "And a sentence", True),
        (12, "term", False),
        (12, "what it is", False),
        (14, "Step", False),
        (14, "One forward pass over a batch.", False),
    ]


def test_mean_of_a_page_leaves_out_fragments_and_cells() -> None:
    page = f"{words(10)} {words(20)} Two words.\n\n| a | {words(39)} |\n| --- | --- |\n"
    assert mean_of(list(sentences_of(page))) == 15


@pytest.mark.parametrize("text", ["{}", "- {}", "> {}", "| a |\n| --- |\n| {} |", "1. {}\n2. two"])
def test_sentence_that_is_too_long_is_found_wherever_it_stands(text: str) -> None:
    short = ["Short and good sentences, all of them."] * 40
    page = " ".join(short) + "\n\n" + text.format(words(WORDS_MAX + 1))
    (fault,) = faults_of("docs/x.md", page)
    assert fault.startswith("docs/x.md:3:") or "| --- |" in text
    assert f"{WORDS_MAX + 1} words" in fault
    assert list(faults_of("docs/x.md", page.replace(words(WORDS_MAX + 1), words(WORDS_MAX)))) == []


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("docs/operate/x.md", MEAN_MAX),
        ("docs/guides/x.md", MEAN_MAX_TAUGHT),
        ("docs/get-started/x.md", MEAN_MAX_TAUGHT),
        ("README.md", MEAN_MAX_TAUGHT),
    ],
)
def test_page_whose_mean_is_too_long_is_found(name: str, most: int) -> None:
    assert list(faults_of(name, f"{words(most)} {words(most)}")) == []
    (fault,) = faults_of(name, f"{words(most)} {words(most + 1)}")
    assert f"at most {most} are allowed" in fault


@pytest.mark.parametrize("end", ["etc. Then it", "i.e. Two"])
def test_sentence_does_not_end_at_an_abbreviation(end: str) -> None:
    assert [each.text for each in sentences_of(f"One {end} goes.")] == [f"One {end} goes."]
