"""A program that tries what another tenant has: none of it is there."""

import struct
from pathlib import Path

from symphony import AsyncClient
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import TENANT_CHANNELS_MAX
from wasmtime import wat2wasm

from tests.support.gateway.system import SystemRig
from tests.support.worker.guests import call, data, drop, increased, main, say
from tests.support.worker.snippets import CREATE, KV

PREFIX = b"\x81\xa7program\xd9\x47"  # {"program": and a text of 71 bytes, which the input is
TOKENS = 2000  # 32 of them, all zero

# Has a file (saved, and offered), an item in a channel, a handle; says so, and what is left of it.
OWNER = main(
    f"""{CREATE} {drop("claim", call("pred", KV, TOKENS, 32, 0, 0, 0), 0, 8)}
    {say(call("kv_save", KV, 100, 6, 0))} {say(call("kv_offer", KV))}
    {say(call("channel_send", 110, 1, 111, 4))} {say(KV)}
    (call $await (call $recv))
    {say(call("claim", call("channel_recv", 110, 1), 200, 100))} {say(call("kv_len", KV))}
    (i32.const 0)""",
    data(100, "secret"),
    data(110, "citem"),
    locals_="(local $kv i32)",
)

# Tries the names, the channel, the handle, the prefix and the program, then takes all channels.
THIEF = main(
    f"""{drop("input_read", 1000 + len(PREFIX), 100)}
    {say(call("kv_len", 65536))}
    {say(call("kv_open", 100, 6, 1))} {say(call("kv_open", 120, 21, 1))}
    {say(call("kv_list", 0, 0, 3000, 100))} {say(call("kv_list", 120, 15, 3000, 100))}
    {say(call("kv_remove", 100, 6))}
    {say(call("kv_match", TOKENS, 32))}
    {say(call("claim_within", call("channel_recv", 110, 1), 3000, 100, 200))}
    {say(call("claim", call("spawn", 1000, len(PREFIX) + 71), 3000, 4))}
    {say(call("claim", call("spawn", 150, 15), 3000, 4))}
    (loop $more
      (i32.store (i32.const 4000) (i32.add (i32.const 0x20202020) (i32.or
        (i32.and (local.get $n) (i32.const 63))
        (i32.shl (i32.and (local.get $n) (i32.const 0xfc0)) (i32.const 2)))))
      (drop {increased("$n")})
      (br_if $more (i32.eqz (local.tee $got {call("channel_send", 4000, 4, 0, 1)}))))
    {say("(i32.sub (local.get $n) (i32.const 1))")} {say("(local.get $got)")}
    (i32.const 0)""",
    data(100, "secret"),
    data(110, "c"),
    data(120, "public/default/secret"),
    data(150, b"\x81\xa7program\xa5owner"),
    data(1000, PREFIX),
    locals_="(local $n i32) (local $got i32)",
)


async def heard(client: AsyncClient, run: str, count: int) -> list[int]:
    said: list[int] = []
    async for event in client.runs.events(run):
        if event.kind == "message":
            said += struct.unpack("<i", event.message())
        if len(said) == count:
            break
    return said


async def test_program_of_another_tenant_finds_nothing(tmp_path: Path) -> None:
    """Names, public names, listings, offered prefixes, channels, handles, programs by name and by
    id; and taking all the channels that a tenant may have takes none of another's.
    """
    async with SystemRig(tmp_path) as system, system.client() as owner:
        program = await owner.programs.upload(bytes(wat2wasm(OWNER)), name="owner")
        victim = await owner.start("owner")
        assert await heard(owner, victim, 4) == [0, 32, 0, 1 << 16]
        async with system.tenant("thieves") as thief:
            await thief.programs.upload(bytes(wat2wasm(THIEF)), name="thief")
            run = await thief.start("thief", program["id"])
            found = await heard(thief, run, 12)
            events = [event async for event in thief.runs.events(run)]
            assert events[-1].data["status"] == "exited", events[-1]
        assert found == [
            -Errno.EBADF, -Errno.ENOENT, -Errno.ENOENT, 1, 1, -Errno.ENOENT, -Errno.ENOENT,
            -Errno.ETIMEDOUT, -Errno.ENOENT, -Errno.ENOENT, TENANT_CHANNELS_MAX - 1,
            -Errno.EDQUOT,
        ]  # fmt: skip
        await owner.runs.send(victim, b"go on", close=True)
        assert (await heard(owner, victim, 6))[4:] == [4, 32]
