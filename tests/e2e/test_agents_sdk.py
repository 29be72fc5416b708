"""Agents of the package `openai-agents` over responses and chat, with a function tool.

The tiny model knows nothing of tools: it has to call the one there is, with one of two cities. Then
the tool is gone, and its answer has to be the one that the output's type allows.
"""

from typing import Any, Literal

import openai
import pytest
from agents import (
    Agent,
    FunctionTool,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    function_tool,
)
from pydantic import BaseModel

from tests.support.gateway.openai_client import MODEL
from tests.support.server.server import RunningServer

CONFIG = RunConfig(tracing_disabled=True)
ASKED = "Is it warm in Rome?"


class Weather(BaseModel):
    degrees: Literal[18]


MODELS = pytest.mark.parametrize("kind", [OpenAIResponsesModel, OpenAIChatCompletionsModel])


def connect(server: RunningServer) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0)


def make_agent(model: Model, asked: list[str], **settings: Any) -> Agent:
    """Return an agent that calls its tool once; `asked` gets the city."""

    def weather(city: Literal["Paris", "Rome"]) -> str:
        """Tell the weather of a city."""
        asked.append(city)
        return f"18 degrees in {city}"

    tool: FunctionTool = function_tool(weather, is_enabled=lambda *_: not asked)
    usual = ModelSettings(
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
        max_tokens=200,
        include_usage=True,
        **settings,
    )
    return Agent(
        name="weatherman", instructions="Ask the tool.", model=model, tools=[tool],
        model_settings=usual, output_type=Weather,
    )  # fmt: skip


def check(result: Any, asked: list[str]) -> None:
    (city,) = asked
    assert city in ("Paris", "Rome")
    assert result.final_output == Weather(degrees=18)
    kinds = [item.type for item in result.new_items]
    assert kinds == ["tool_call_item", "tool_call_output_item", "message_output_item"]
    assert result.new_items[1].output == f"18 degrees in {city}"
    usage = result.context_wrapper.usage
    assert usage.requests == 2
    assert usage.output_tokens > 10


@MODELS
async def test_agent_calls_its_tool_and_answers_in_its_type(
    server: RunningServer, kind: Any
) -> None:
    asked: list[str] = []
    async with connect(server) as client:
        agent = make_agent(kind(model=MODEL, openai_client=client), asked)
        check(await Runner.run(agent, ASKED, run_config=CONFIG), asked)


@MODELS
async def test_streamed_agent_tells_each_item_as_it_is_complete(
    server: RunningServer, kind: Any
) -> None:
    asked: list[str] = []
    async with connect(server) as client:
        agent = make_agent(kind(model=MODEL, openai_client=client), asked)
        result = Runner.run_streamed(agent, ASKED, run_config=CONFIG)
        events = [event async for event in result.stream_events()]
    check(result, asked)
    names = [event.name for event in events if event.type == "run_item_stream_event"]
    assert names == ["tool_called", "tool_output", "message_output_created"]
    raw = [event.data.type for event in events if event.type == "raw_response_event"]
    assert raw.count("response.completed") == 2
    assert "response.function_call_arguments.delta" in raw
    assert "response.output_text.delta" in raw


@pytest.mark.parametrize("streamed", [False, True])
async def test_agent_that_sends_only_what_is_new_gets_the_same(
    server: RunningServer, *, streamed: bool
) -> None:
    answers: list[Any] = []
    async with connect(server) as client:
        for chained in (False, True):
            asked: list[str] = []
            agent = make_agent(OpenAIResponsesModel(model=MODEL, openai_client=client), asked)
            more: Any = {"auto_previous_response_id": chained, "run_config": CONFIG}
            if streamed:
                result: Any = Runner.run_streamed(agent, ASKED, **more)
                _ = [event async for event in result.stream_events()]
            else:
                result = await Runner.run(agent, ASKED, **more)
            check(result, asked)
            answers.append(result)
        whole, chain = answers
        last = await client.responses.retrieve(chain.last_response_id)
        assert last.previous_response_id == chain.raw_responses[0].response_id
        last = await client.responses.retrieve(whole.last_response_id)
        assert last.previous_response_id is None
    # The instructions are sent with each request, so both conversations are the same.
    first, second = (result.raw_responses[-1].usage.input_tokens for result in answers)
    assert first == second


async def test_agent_reads_log_probabilities(server: RunningServer) -> None:
    async with connect(server) as client:
        model = OpenAIResponsesModel(model=MODEL, openai_client=client)
        agent = make_agent(model, [], top_logprobs=2)
        result = await Runner.run(agent, ASKED, run_config=CONFIG)
    message: Any = result.raw_responses[-1].output[0]
    assert "".join(token.token for token in message.content[0].logprobs) == result_text(result)


def result_text(result: Any) -> str:
    """Return the text of the last answer."""
    text: str = result.raw_responses[-1].output[0].content[0].text
    return text
