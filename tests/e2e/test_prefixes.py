"""What one run computed and offered, another run of its tenant need not compute again."""

from pathlib import Path

from symphony import AsyncClient, message_bytes
from symphony.client.views import RunResult

from tests.e2e.programs import wasm
from tests.support.server.server import running_server
from tests.support.usage import used
from tests.support.worker.guests import call, drop, main, say
from tests.support.worker.snippets import CREATE, KV

# Input: u32 tokens. Computes what no run has offered and offers it all; sends how many tokens were
# known, and the most probable next one.
FIRST = "(i32.shl (local.get $known) (i32.const 2))"
COUNT = "(i32.sub (local.get $n) (local.get $known))"
COMPLETE = wasm(
    main(
        f"""(local.set $n (i32.shr_u {call("input_read", 0, 4096)} (i32.const 2)))
           (local.set $kv {call("kv_match", 0, "(local.get $n)")})
           (if (i32.lt_s {KV} (i32.const 0))
             (then {CREATE})
             (else (local.set $known {call("kv_len", KV)})))
           {say("(local.get $known)")}
           {drop("claim", call("pred", KV, FIRST, COUNT, 0, 0, 0), 5000, 8)}
           {say("(i32.load (i32.const 5000))")}
           (i32.lt_s {call("kv_offer", KV)} (i32.const 0))""",
        locals_="(local $n i32) (local $kv i32) (local $known i32)",
    )
)


def numbers(result: RunResult) -> list[int]:
    assert (result["status"], result["exit_code"]) == ("exited", 0), result["reason"]
    return [int.from_bytes(message_bytes(each), "little") for each in result["messages"]]


async def test_prefix_of_an_earlier_run_is_not_computed_again(tmp_path: Path) -> None:
    text = "".join(chr(5 + i % 100) + "\0\0\0" for i in range(100))
    longer = text + "\x07\0\0\0" * 10
    with running_server(tmp_path, executor="torch") as server:
        other = await server.add_tenant("acme")
        async with server.client() as client, AsyncClient(server.url, other, retries=0) as stranger:
            for each in (client, stranger):
                await each.programs.upload(COMPLETE, name="complete")
            first = await client.run("complete", input=text)
            assert (used(first)["prompt_tokens"], used(first)["cached_tokens"]) == (100, 0)
            before = await server.wait_until_idle()
            second = await client.run("complete", input=text)
            after = await server.wait_until_idle()
            assert (used(second)["prompt_tokens"], used(second)["cached_tokens"]) == (4, 96)
            assert after["prefill_tokens"] - before["prefill_tokens"] == 4
            assert after["prefix_cache_hit_tokens"] - before["prefix_cache_hit_tokens"] == 96
            assert numbers(second) == [96, numbers(first)[1]]
            third = await client.run("complete", input=longer)
            assert used(third)["cached_tokens"] == 96
            fourth = await client.run("complete", input=longer)
            assert used(fourth)["cached_tokens"] == 96
            assert numbers(fourth) == numbers(third)
            tree = server.symphony("kv", "prefixes").stdout.splitlines()
            assert [line.split("  ")[0] for line in tree[:1]] == ["3 hits"]
            foreign = await stranger.run("complete", input=text)
            assert used(foreign)["cached_tokens"] == 0
            assert numbers(foreign) == numbers(first)
            idle = await server.wait_until_idle()
            assert idle["pages_free"] + idle["prefix_cache_idle_pages"] == idle["pages"]
