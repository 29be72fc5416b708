"""Several suffixes after one prefix: it is computed once, and all are decoded side by side."""

import secrets

import symphony
from symphony import KvFile, Sampling, Save, Session, errors


@symphony.program
async def parallel_suffixes(prefix: str, suffixes: list[str], max_tokens: int = 16) -> list[str]:
    """Return what follows each suffix."""
    path = f"parallel_suffixes/{secrets.token_hex(8)}"
    session = await open_prefix(path, prefix)

    # Every branch makes its pass before the program waits, so a step computes all of them.
    async def branch(i: int, fork: Session) -> str:
        fork.append(suffixes[i])
        return (await fork.reply(Sampling(max_tokens=max_tokens))).text

    texts = await session.fan_out(len(suffixes), branch)
    await KvFile.remove(path)
    return texts


async def open_prefix(path: str, text: str) -> Session:
    """Return the file of that name, or a new one with the text in it."""
    try:
        return await Session.of(await KvFile.open(path))
    except errors.ENOENT:
        session = Session(text)
    await session.flush()
    await session.kv.save(path, Save.REPLACE)
    return session


if __name__ == "__main__":
    print(parallel_suffixes.run_sync("def ", ["add", "sub", "mul"]))
