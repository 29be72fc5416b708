"""`symphony test` runs each function test_...() on a server with the tiny model."""

from main import best, document_file, main


def test_the_document_with_most_words_is_best():
    assert best("How long is the Lys?", ["Ghent is a city", "The Lys is long"]) == 1
    assert best("what?", ["a", "b"]) == 0


async def test_a_document_is_computed_once():
    first = await document_file("The Lys is long")
    again = await document_file("The Lys is long")
    assert await again.len() == await first.len()


async def test_it_answers():
    told = await main("long?", ["a", "long"], max_tokens=4)
    assert told["document"] == 1, told
