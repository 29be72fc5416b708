"""`symphony test` runs each function test_...() on a server with the tiny model."""

from main import main


async def test_the_answer_has_the_schemas_form():
    person = await main("Ada Lovelace was 36 years old.")
    assert len(person["name"]) <= 24, person
    assert person["age"] <= 150, person


async def test_what_is_cut_off_is_an_error():
    said = ""
    try:
        await main("Ada", max_tokens=3)
    except ValueError as error:
        said = str(error)
    assert "has cut the answer off" in said, said
