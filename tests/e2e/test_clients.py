"""Agents' frameworks over a real server: langchain-openai, litellm and pydantic-ai, unchanged.

The tiny model cannot choose a tool: forced calls and constraints make its answers certain. So this
shows that the clients and the server understand each other, not that a model solves a task.
"""

import asyncio
import os
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import SecretStr
from pydantic_ai import Agent, ModelSettings, NativeOutput
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

from tests.support.gateway.forecast import QUESTION, Forecast
from tests.support.gateway.openai_client import MODEL
from tests.support.pages import ROOT
from tests.support.server.server import RunningServer


@tool
def get_weather(city: Literal["Paris", "Rome"]) -> str:
    """Tell the weather of a city."""
    return f"It is warm in {city}."


# --- LangChain -----------------------------------------------------------------------------------
def langchain(server: RunningServer, **settings: Any) -> ChatOpenAI:
    settings = {"temperature": 1.0, "seed": 3, "max_tokens": 100, **settings}
    return ChatOpenAI(
        model=MODEL,
        base_url=f"{server.url}/v1",
        api_key=SecretStr(server.key),
        max_retries=0,
        **settings,
    )


@pytest.mark.parametrize("responses", [False, True])
def test_langchain_calls_a_tool_and_continues_with_its_result(
    server: RunningServer, responses: bool
) -> None:
    settings: dict[str, Any] = {"seed": None} if responses else {}
    model = langchain(server, use_responses_api=responses, **settings)
    forced = model.bind_tools([get_weather], tool_choice="get_weather", strict=True)
    asked = [HumanMessage(QUESTION)]
    answer = forced.invoke(asked)
    (call,) = answer.tool_calls
    assert call["name"] == "get_weather"
    assert call["args"]["city"] in ("Paris", "Rome")
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] > 0
    told = get_weather.invoke(call)
    assert isinstance(told, ToolMessage)
    last = model.bind_tools([get_weather], tool_choice="none").invoke([*asked, answer, told])
    assert last.tool_calls == []
    assert last.text


@pytest.mark.parametrize("responses", [False, True])
def test_langchain_streams_text_and_calls(server: RunningServer, responses: bool) -> None:
    settings: dict[str, Any] = {"seed": None} if responses else {}
    model = langchain(server, temperature=0, use_responses_api=responses, **settings)
    whole = model.invoke(QUESTION)
    chunks = list(model.stream(QUESTION))
    assert "".join(chunk.text for chunk in chunks) == whole.text != ""
    assert len(chunks) > 3
    forced = model.bind_tools([get_weather], tool_choice="get_weather")
    message: Any = None
    for chunk in forced.stream(QUESTION):
        message = chunk if message is None else message + chunk
    (call,) = message.tool_calls
    assert call["args"] == forced.invoke(QUESTION).tool_calls[0]["args"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_langchain_parses_structured_output(server: RunningServer, method: Any) -> None:
    model = langchain(server, max_tokens=200)
    if method == "json_mode":
        answer: Any = model.with_structured_output(None, method=method).invoke(QUESTION + " JSON")
        assert isinstance(answer, dict)
        return
    answer = model.with_structured_output(Forecast, method=method).invoke(QUESTION)
    assert isinstance(answer, Forecast)


def test_langchain_embeds_texts(server: RunningServer) -> None:
    # With the check it would split texts by a tokenizer of OpenAI's, which it downloads.
    embeddings = OpenAIEmbeddings(
        model=MODEL,
        base_url=f"{server.url}/v1",
        api_key=SecretStr(server.key),
        check_embedding_ctx_length=False,
    )
    first, second, third = embeddings.embed_documents(["import os", "import os", "def f():"])
    assert first == second != third
    assert sum(number * number for number in first) == pytest.approx(1, abs=1e-3)


# --- LiteLLM -------------------------------------------------------------------------------------
# In a process of its own: it leaves an event loop and sockets open.
LITELLM = """
import litellm
from tests.support.gateway.forecast import QUESTION, Forecast
def ask(**fields):
    asked = {"messages": [{"role": "user", "content": QUESTION}], **fields}
    return litellm.completion(model="openai/" + MODEL, api_base=BASE, api_key=KEY, **asked)
SAMPLED = {"temperature": 1.0, "seed": 3, "max_tokens": 200}
TOOLS = [{"type": "function",
    "function": {"name": "forecast", "parameters": Forecast.model_json_schema()}}]
"""


def run_litellm(server: RunningServer, code: str) -> str:
    """Run statements in which `ask` asks the server, and return what they print."""
    named = {"MODEL": MODEL, "BASE": f"{server.url}/v1", "KEY": server.key}
    given = "".join(f"{name} = {value!r}\n" for name, value in named.items())
    # Without the switch it asks another host for prices while it is imported.
    done = subprocess.run(
        [sys.executable, "-c", given + LITELLM + textwrap.dedent(code)],
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_litellm_completes_streams_calls_and_raises(server: RunningServer) -> None:
    printed = run_litellm(
        server,
        """
        plain = {"temperature": 0, "max_tokens": 24}
        whole = ask(**plain)
        text = whole.choices[0].message.content
        assert text and whole.usage.completion_tokens == 24, whole
        chunks = list(ask(**plain, stream=True))
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
        answer = ask(**SAMPLED, tools=TOOLS, tool_choice="required", parallel_tool_calls=False)
        (call,) = answer.choices[0].message.tool_calls
        assert answer.choices[0].finish_reason == "tool_calls"
        Forecast.model_validate_json(call.function.arguments)
        answer = ask(**SAMPLED, response_format=Forecast)
        Forecast.model_validate_json(answer.choices[0].message.content)
        try:
            ask(temperature=-1)
        except litellm.BadRequestError as error:
            print(error)
        """,
    )
    assert "temperature" in printed


# --- Pydantic AI ---------------------------------------------------------------------------------
@asynccontextmanager
async def pydantic_ai_model(
    server: RunningServer, kind: type[OpenAIChatModel] | type[OpenAIResponsesModel]
) -> AsyncIterator[Any]:
    url = f"{server.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key=server.key, max_retries=0) as client:
        yield kind(MODEL, provider=OpenAIProvider(openai_client=client))


KINDS = [OpenAIChatModel, OpenAIResponsesModel]
SAMPLED = ModelSettings(max_tokens=200, temperature=1.0, parallel_tool_calls=False)
GREEDY = ModelSettings(max_tokens=24, temperature=0)


async def ask_pydantic_ai(server: RunningServer, kind: Any, output: Any) -> Any:
    async with pydantic_ai_model(server, kind) as model:
        return await Agent(model, output_type=output).run(QUESTION, model_settings=SAMPLED)


@pytest.mark.parametrize("kind", KINDS)
def test_pydantic_ai_agent_returns_an_object_by_a_tool(server: RunningServer, kind: Any) -> None:
    result = asyncio.run(ask_pydantic_ai(server, kind, Forecast))
    assert isinstance(result.output, Forecast)
    called = [
        part.tool_name
        for message in result.all_messages()
        if isinstance(message, ModelResponse)
        for part in message.parts
        if isinstance(part, ToolCallPart)
    ]
    assert called == ["final_result"]


@pytest.mark.parametrize("kind", KINDS)
def test_pydantic_ai_agent_returns_an_object_by_its_schema(
    server: RunningServer, kind: Any
) -> None:
    result = asyncio.run(ask_pydantic_ai(server, kind, NativeOutput(Forecast)))
    assert isinstance(result.output, Forecast)


@pytest.mark.parametrize("kind", KINDS)
def test_pydantic_ai_agent_streams_the_text_of_the_whole(server: RunningServer, kind: Any) -> None:
    async def ask() -> tuple[str, list[str]]:
        async with pydantic_ai_model(server, kind) as model:
            agent = Agent(model)
            whole = await agent.run(QUESTION, model_settings=GREEDY)
            async with agent.run_stream(QUESTION, model_settings=GREEDY) as stream:
                deltas = stream.stream_text(delta=True, debounce_by=None)
                return whole.output, [piece async for piece in deltas]

    whole, pieces = asyncio.run(ask())
    assert "".join(pieces) == whole
    assert len(pieces) > 1
