"""Items of kept responses have ids, which say whose they are."""

from typing import Any

import pytest
from symphony_runtime.gateway.openai.errors import OpenAIError
from symphony_runtime.gateway.openai.stored.items import check_items, list_input, owner_of

NUMBER = "0123456789abcdef01234567"


def test_text_is_listed_as_a_message_with_a_part() -> None:
    (item,) = list_input(NUMBER, "hi")
    assert item == {
        "id": f"msg_{NUMBER}i0", "type": "message", "role": "user", "status": "completed",
        "content": [{"type": "input_text", "text": "hi"}],
    }  # fmt: skip


def test_items_keep_their_ids_or_get_one_by_their_place() -> None:
    asked: list[dict[str, Any]] = [
        {"role": "assistant", "content": "a", "id": "msg_own"},
        {"type": "function_call_output", "call_id": "c", "output": "x", "id": None},
        {"type": "reasoning", "summary": []},
    ]
    said, output, thought = list_input(NUMBER, asked)
    assert said["id"] == "msg_own"
    assert said["content"] == [{"type": "output_text", "text": "a", "annotations": []}]
    assert (output["id"], output["status"]) == (f"fco_{NUMBER}i1", "completed")
    assert thought == {"id": f"rs_{NUMBER}i2", "type": "reasoning", "summary": []}


@pytest.mark.parametrize("item", [f"msg_{NUMBER}", f"fc_{NUMBER}_2", f"ctco_{NUMBER}i13"])
def test_id_of_an_item_names_its_response(item: str) -> None:
    assert owner_of(item) == f"resp_{NUMBER}"


@pytest.mark.parametrize("item", ["", "msg_own", f"msg_{NUMBER}x", f"msg_{NUMBER}i", NUMBER])
def test_id_of_a_clients_own_names_none(item: str) -> None:
    assert owner_of(item) is None


@pytest.mark.parametrize("asked", ["", [], [{}, {"id": None, "type": "message"}]])
def test_input_that_can_be_listed_passes(asked: Any) -> None:
    check_items(asked)


@pytest.mark.parametrize(
    ("asked", "param"),
    [(None, "input"), (5, "input"), ({"a": 1}, "input"), (["x"], "input[0]"),
     ([{}, {"id": {}}], "input[1]"), ([{"type": ["message"]}], "input[0]")],
)  # fmt: skip
def test_input_that_cannot_be_listed_is_refused(asked: Any, param: str) -> None:
    with pytest.raises(OpenAIError) as refusal:
        check_items(asked)
    assert (refusal.value.status, refusal.value.param) == (400, param)
