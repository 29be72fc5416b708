"""Questions about documents on the tiny model: both languages compute, find and say the same."""

from tests.support.server.examples import EXAMPLES, answers, play, scenario
from tests.support.server.server import RunningServer


def test_both_languages_find_and_say_the_same(server: RunningServer) -> None:
    told = scenario("rag")
    given = told["input"] | {"parallel": 1}
    computed = []
    said = []
    for language in ("rust", "assemblyscript"):
        result, grown = play(server, EXAMPLES / "rag" / language, given, *told["messages"])
        said.append({each["id"]: each["text"] for each in answers(result)})
        computed.append(grown["prefill_tokens"])
    assert said[0] == said[1]
    assert sorted(said[0]) == [1, 2, 3, 4]
    # One that is kept answers as it did when it was computed.
    assert said[0][1] == said[0][4]
    assert computed[0] == computed[1] > 0
