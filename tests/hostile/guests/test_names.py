"""Names of KV files that try to be more than names."""

import msgpack
import pytest
from symphony_kernel.protocol.errno import Errno
from symphony_kernel.protocol.limits import PATH_BYTES_MAX

from tests.support.worker.guests import Step, data, result
from tests.support.worker.rig import TENANT, WorkerRig

AT = 10_000  # where a name lies
EINVAL, ENAMETOOLONG, EACCES, ENOENT = (
    -Errno.EINVAL, -Errno.ENAMETOOLONG, -Errno.EACCES, -Errno.ENOENT,
)  # fmt: skip

# Name -> what opening, saving and removing it answers.
REFUSED: dict[str, tuple[bytes, int, int, int]] = {
    "upwards": (b"..", EINVAL, EINVAL, EINVAL),
    "upwards from within": (b"a/../../b", EINVAL, EINVAL, EINVAL),
    "upwards from the root": (b"/../etc/passwd", EINVAL, EINVAL, EINVAL),
    "upwards at the end": (b"a/..", EINVAL, EINVAL, EINVAL),
    "here": (b".", EINVAL, EINVAL, EINVAL),
    "here within": (b"a/./b", EINVAL, EINVAL, EINVAL),
    "the root": (b"/", EINVAL, EINVAL, EINVAL),
    "two slashes": (b"//a", EINVAL, EINVAL, EINVAL),
    "two slashes within": (b"a//b", EINVAL, EINVAL, EINVAL),
    "a slash at the end": (b"a/", EINVAL, EINVAL, EINVAL),
    "an end within": (b"a\0b", EINVAL, EINVAL, EINVAL),
    "an end behind": (b"a\0", EINVAL, EINVAL, EINVAL),
    "no text": (b"\xff\xfe", EINVAL, EINVAL, EINVAL),
    "half a character": (b"\xc3", EINVAL, EINVAL, EINVAL),
    "a surrogate": (b"\xed\xa0\x80", EINVAL, EINVAL, EINVAL),
    "a slash in two bytes": (b"..\xc0\xaf..", EINVAL, EINVAL, EINVAL),
    "one byte too many": (b"x" * (PATH_BYTES_MAX + 1), ENAMETOOLONG, ENAMETOOLONG, ENAMETOOLONG),
    "four kibibytes": (b"x" * 4096, ENAMETOOLONG, ENAMETOOLONG, ENAMETOOLONG),
    "four kibibytes upwards": (b"../" * 1365, ENAMETOOLONG, ENAMETOOLONG, ENAMETOOLONG),
    "what is public": (b"public", ENOENT, EACCES, EACCES),
    "another tenant's public file": (b"public/other/secret", ENOENT, EACCES, EACCES),
    "its own public file": (b"public/tenant/mine", ENOENT, EACCES, EACCES),
    "a public file from the root": (b"/public/other/x", ENOENT, EACCES, EACCES),
    "a public file of no tenant": (b"public//x", EINVAL, EINVAL, EINVAL),
    "upwards out of what is public": (b"public/../mine", EINVAL, EINVAL, EINVAL),
}

# These are names like any other: they mean nothing but themselves.
TAKEN = [
    b"...", b"a..b", b" ", b"%2e%2e/x", b"..\\..\\x", b"~root", b"$(reboot)", b"a\nb", b"-rf",
    b"con", b"publicity/x", b"Public/other/x", b".hidden", "naïve".encode(),
    "nai\u0308ve".encode(),
    "\u202egnp".encode(), "\ufeffx".encode(), "\u2215etc\u2215passwd".encode(),
    b"x" * PATH_BYTES_MAX, b"d/" * 500 + b"x", b"' OR 1=1 --",
]  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
async def test_kv_path_that_is_invalid_names_nothing(rig: WorkerRig, what: str) -> None:
    path, opened, saved, removed = REFUSED[what]
    found = await rig.play(
        ("kv_create",),
        ("kv_open", AT, len(path), 31),
        ("kv_save", result(0), AT, len(path), 1),
        ("kv_remove", AT, len(path)),
        ("kv_list", 0, 0, 5000, 1000),
        parts=(data(AT, path),),
    )
    assert found[1:] == [opened, saved, removed, 1]  # an empty list


async def test_kv_path_that_looks_like_a_trick_is_a_plain_name(rig: WorkerRig) -> None:
    """Saved, listed byte for byte, opened, removed; no two of them are one."""
    steps: list[Step] = [("kv_create",)]
    parts, at = [], AT
    for path in TAKEN:
        parts.append(data(at, path))
        steps.append(("kv_save", result(0), at, len(path), 0))
        at += len(path)
    await rig.play(*steps, parts=tuple(parts))
    listed = await rig.gateway.ask("kv_list", tenant=TENANT)
    assert sorted(each["path"].encode() for each in listed) == sorted(TAKEN)
    assert await rig.gateway.ask("kv_list", tenant="other") == []
    again: list[Step] = []
    at = AT
    for path in TAKEN:
        again += [("kv_open", at, len(path), 1), ("kv_remove", at, len(path))]
        at += len(path)
    found = await rig.play(*again, ("kv_list", 0, 0, 5000, 1000), parts=tuple(parts))
    assert all(isinstance(handle, int) and handle > 0 for handle in found[:-1:2])
    assert found[1:-1:2] == [0] * len(TAKEN)
    assert found[-1] == 1


async def test_kv_list_prefix_finds_only_what_begins_with_it(rig: WorkerRig) -> None:
    tricks = [b"..", b"/..", b"public", b"public/", b"public/other", b"public/other/", b"\0",
              b"mine\0", b"min", b"/mine", b"mine/", b"\xf4\x8f\xbf\xbf"]  # fmt: skip
    steps: list[Step] = [("kv_create",), ("kv_save", result(0), AT, 4, 0)]
    parts = [data(AT, b"mine")]
    for index, trick in enumerate(tricks):
        at = AT + 100 * (index + 1)
        parts.append(data(at, trick))
        steps += [
            ("kv_list", at, len(trick), 5000, 1000),
            ("show", 5000, 1),
            ("kv_list_after", at, len(trick), at, len(trick), 10, 5000, 1000),
            ("show", 5000, 1),
        ]
    found = await rig.play(*steps, parts=tuple(parts))
    listed = dict(zip(tricks, found[3::4], strict=True))
    one, none = msgpack.packb([0])[:1], msgpack.packb([])
    assert {trick for trick, first in listed.items() if first == one} == {b"min", b"/mine"}
    assert set(listed.values()) == {one, none}
    assert set(found[5::4]) == {one, none}
