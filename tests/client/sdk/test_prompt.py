from symphony.sdk.prompt import Turns, fill


def test_named_braces_are_filled_and_others_stay() -> None:
    values = {"a": "1", "": "none"}
    assert fill("{a}{a}-{b}-{", values) == "11-{b}-{"
    assert fill("{ {a} }}{{a}}", values) == "{ 1 }}{1}"
    assert fill("{}é{é}", values) == "noneé{é}"
    assert fill("{who}: {what} {else}", {"who": "Ada", "what": "see {who}"}) == (
        "Ada: see {who} {else}"
    )


def test_turns_of_a_copy_are_its_own() -> None:
    turns = Turns().system("Be kind.").user("hi")
    turns.copy().assistant("hello")
    assert [message.role for message in turns.messages] == ["system", "user"]
