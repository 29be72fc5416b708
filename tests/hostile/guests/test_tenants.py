"""A program that tries what another tenant has: none of it is there."""

import struct
from pathlib import Path

from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import TENANT_CHANNELS_MAX
from symphony_runtime.client import Client
from wasmtime import wat2wasm

from tests.support.gateway.system import SystemRig
from tests.support.worker.guests import data, main

PREFIX = b"\x81\xa7program\xd9\x47"  # {"program": and a text of 71 bytes, which the input is
TOKENS = 2000  # 32 of them, all zero

# Has a file (saved, and offered), an item in a channel, a handle; says so, and what is left of it.
OWNER = main(
    f"""(local.set $kv (call $kv_create))
    (drop (call $claim (call $pred (local.get $kv) (i32.const {TOKENS}) (i32.const 32)
      (i32.const 0) (i32.const 0) (i32.const 0)) (i32.const 0) (i32.const 8)))
    (call $say (call $kv_save (local.get $kv) (i32.const 100) (i32.const 6) (i32.const 0)))
    (call $say (call $kv_offer (local.get $kv)))
    (call $say (call $channel_send (i32.const 110) (i32.const 1) (i32.const 111) (i32.const 4)))
    (call $say (local.get $kv))
    (call $await (call $recv))
    (call $say (call $claim (call $channel_recv (i32.const 110) (i32.const 1)) (i32.const 200)
                            (i32.const 100)))
    (call $say (call $kv_len (local.get $kv))) (i32.const 0)""",
    data(100, "secret"),
    data(110, "citem"),
    locals_="(local $kv i32)",
)

# Tries the names, the channel, the handle, the prefix and the program, then takes all channels.
THIEF = main(
    f"""(drop (call $input_read (i32.const {1000 + len(PREFIX)}) (i32.const 100)))
    (call $say (call $kv_len (i32.const 65536)))
    (call $say (call $kv_open (i32.const 100) (i32.const 6) (i32.const 1)))
    (call $say (call $kv_open (i32.const 120) (i32.const 21) (i32.const 1)))
    (call $say (call $kv_list (i32.const 0) (i32.const 0) (i32.const 3000) (i32.const 100)))
    (call $say (call $kv_list (i32.const 120) (i32.const 15) (i32.const 3000) (i32.const 100)))
    (call $say (call $kv_remove (i32.const 100) (i32.const 6)))
    (call $say (call $kv_match (i32.const {TOKENS}) (i32.const 32)))
    (call $say (call $claim_within (call $channel_recv (i32.const 110) (i32.const 1))
                                   (i32.const 3000) (i32.const 100) (i64.const 200)))
    (call $say (call $claim (call $spawn (i32.const 1000) (i32.const {len(PREFIX) + 71}))
                            (i32.const 3000) (i32.const 4)))
    (call $say (call $claim (call $spawn (i32.const 150) (i32.const 15))
                            (i32.const 3000) (i32.const 4)))
    (loop $more
      (i32.store (i32.const 4000) (i32.add (i32.const 0x20202020) (i32.or
        (i32.and (local.get $n) (i32.const 63))
        (i32.shl (i32.and (local.get $n) (i32.const 0xfc0)) (i32.const 2)))))
      (local.set $n (i32.add (local.get $n) (i32.const 1)))
      (br_if $more (i32.eqz (local.tee $got (call $channel_send (i32.const 4000) (i32.const 4)
                                                                (i32.const 0) (i32.const 1))))))
    (call $say (i32.sub (local.get $n) (i32.const 1))) (call $say (local.get $got))
    (i32.const 0)""",
    data(100, "secret"),
    data(110, "c"),
    data(120, "public/default/secret"),
    data(150, b"\x81\xa7program\xa5owner"),
    data(1000, PREFIX),
    locals_="(local $n i32) (local $got i32)",
)


async def say(client: Client, run: str, count: int) -> list[int]:
    said: list[int] = []
    async for event in client.events(run):
        if event.kind == "message":
            said += struct.unpack("<i", event.message())
        if len(said) == count:
            break
    return said


async def test_program_of_another_tenant_finds_nothing(tmp_path: Path) -> None:
    """Names, public names, listings, offered prefixes, channels, handles, programs by name and by
    id; and taking all the channels that a tenant may have takes none of another's.
    """
    async with (
        SystemRig(tmp_path) as system,
        system.client() as owner,
        Client(system.url, system.admin_key) as admin,
    ):
        await admin.create_tenant("thieves")
        key = (await admin.create_key("thieves"))["key"]
        program = await owner.upload(bytes(wat2wasm(OWNER)), name="owner")
        victim = await owner.start("owner")
        assert await say(owner, victim, 4) == [0, 32, 0, 1 << 16]
        async with Client(system.url, key) as thief:
            await thief.upload(bytes(wat2wasm(THIEF)), name="thief")
            run = await thief.start("thief", program["id"])
            found = await say(thief, run, 12)
            events = [event async for event in thief.events(run)]
            assert events[-1].data["status"] == "exited", events[-1]
        assert found == [
            -Errno.EBADF, -Errno.ENOENT, -Errno.ENOENT, 1, 1, -Errno.ENOENT, -Errno.ENOENT,
            -Errno.ETIMEDOUT, -Errno.ENOENT, -Errno.ENOENT, TENANT_CHANNELS_MAX - 1,
            -Errno.EDQUOT,
        ]  # fmt: skip
        await owner.send(victim, b"go on", close=True)
        assert (await say(owner, victim, 6))[4:] == [4, 32]
