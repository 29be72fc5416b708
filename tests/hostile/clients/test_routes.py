"""Which callers may use each route, for every route that there is.

A route that is not in the table fails the suite: a new one needs its rule here. The requests name
things that do not exist and have nonsense for bodies: a caller that is admitted changes nothing.
"""

import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from symphony import AsyncClient
from symphony_runtime.gateway.api.routes import ROUTES

from tests.e2e import programs as guests
from tests.support.gateway.batches import create, upload
from tests.support.gateway.routes import filled
from tests.support.gateway.system import Answer, SystemRig

# The callers that a rule lets in; all others are refused.
OPEN = frozenset({"nobody", "a guess", "revoked", "operator", "operator's reader", "tenant",
                  "tenant's reader", "suspended"})  # fmt: skip
ANY = frozenset({"operator", "operator's reader", "tenant", "tenant's reader"})
READ = frozenset({"tenant", "tenant's reader"})
WRITE = frozenset({"tenant"})
LOOK = frozenset({"operator", "operator's reader"})
MANAGE = frozenset({"operator"})

# Each route, by who may use it.
ROUTES_OF: dict[frozenset[str], tuple[str, ...]] = {
    OPEN: ("console", "consoleFile", "healthz", "readyz", "health", "version"),
    ANY: ("metrics", "getOwnKey", "history", "followRuns"),
    READ: (
        "openapi", "listPrograms", "getProgram", "listSecrets", "getLimits", "listRuns", "getRun",
        "getRunInput", "listChildren", "getEvents", "getTrace", "listKv", "getKv", "listModels",
        "getModel", "getResponse",
        "listInputItems", "listFiles", "getFile", "getFileContent", "listBatches", "getBatch",
        "listAdapters", "getAdapter", "getKvPages", "getKvTokens", "listPrefixes",
        "listVersions",
        "mcp",
    ),
    WRITE: (
        "uploadProgram", "deleteProgram", "putSecret", "deleteSecret", "startRun", "deleteRun",
        "sendMessage", "cancelRun", "websocket", "attach", "putKv", "deleteKv", "createCompletion",
        "createChatCompletion", "createResponse", "createEmbedding", "createScore", "createRerank",
        "tokenize", "detokenize", "createMessage", "countMessageTokens", "deleteResponse",
        "cancelResponse", "createFile", "deleteFile", "createBatch", "cancelBatch",
        "putAdapter", "deleteAdapter", "putAlias", "deleteName", "deleteVersion",
    ),
    LOOK: (
        "statistics", "listTenants", "getTenant", "listTenantKeys", "listAdminKeys", "listGateways",
        "getUsage", "getAudit",
    ),
    MANAGE: (
        "createTenant", "changeTenant", "deleteTenant", "createTenantKey", "revokeTenantKey",
        "rotateTenantKey", "createAdminKey", "revokeAdminKey", "rotateAdminKey", "dropGateway",
    ),
}  # fmt: skip
RULES = {name: who for who, names in ROUTES_OF.items() for name in names}


@dataclass
class Callers:
    """A system with keys of every kind; `keys` by the callers' names."""

    system: SystemRig
    session: aiohttp.ClientSession
    keys: dict[str, str | None]

    async def ask(self, method: str, path: str, caller: str, body: bytes = b"[]") -> Answer:
        key = self.keys[caller]
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        sent = body if method in ("POST", "PUT", "PATCH") else None
        async with self.session.request(
            method, self.system.url + path, headers=headers, data=sent
        ) as response:
            known = {k: v for k, v in response.headers.items() if k not in ("Date", "Server")}
            return Answer(response.status, known, await response.read())


def about(told: Answer, name: str) -> tuple[int, dict[str, str], bytes]:
    """All of an answer, with NAME for what was asked about, and no sizes, rates and own ids."""
    kept = {k: v for k, v in told.headers.items()
            if k not in ("Content-Length", "request-id")
            and not k.lower().startswith("x-ratelimit")}  # fmt: skip
    body = re.sub(rb"req_[0-9a-f]{24}", b"ID", told.body)
    return told.status, kept, body.replace(name.encode(), b"NAME")


@asynccontextmanager
async def callers(tmp_path: Path) -> AsyncIterator[Callers]:
    """A system with an owner, a stranger, readers, and keys that are good no more."""
    async with SystemRig(tmp_path) as system, aiohttp.ClientSession() as session:
        async with system.admin() as admin:

            async def reader(tenant: str | None) -> str:
                return str((await admin.admin.create_key(tenant, role="read-only"))["key"])

            revoked = await admin.admin.create_key("default", role="tenant")
            await admin.admin.revoke_key("default", revoked["id"])
            keys: dict[str, str | None] = {
                "nobody": None,
                "a guess": "sym_000000000000_" + "A" * 43,
                "revoked": revoked["key"],
                "operator": system.admin_key,
                "operator's reader": await reader(None),
                "tenant": system.key,
                "tenant's reader": await reader("default"),
                "stranger": await system.add_tenant("stranger"),
                "suspended": await system.add_tenant("gone"),
            }
            await admin.admin.change_tenant("gone", suspended=True)
        yield Callers(system, session, keys)


@pytest.fixture
def them(tmp_path: Path) -> AbstractAsyncContextManager[Callers]:
    return callers(tmp_path)


def test_route_without_an_access_rule_does_not_exist() -> None:
    ruled = [name for names in ROUTES_OF.values() for name in names]
    assert sorted(route.name for route in ROUTES) == sorted(ruled)


async def test_route_admits_only_callers_of_its_rule(them: Callers) -> None:
    for route in ROUTES:
        for caller in OPEN:
            told = await them.ask(route.method, filled(route.path), caller)
            where = (route.name, caller, told)
            assert told.status < 500, where
            if caller in RULES[route.name]:
                assert told.status not in (401, 403), where
            elif caller == "suspended" and route.access.value in ("tenant", "any"):
                assert (told.status, b"suspended" in told.body) == (403, True), where
            elif caller.endswith("reader") and RULES[route.name] & {caller.split("'")[0]}:
                assert (told.status, b"may only read" in told.body) == (403, True), where
            else:
                assert told.status == 401, where
                assert told.headers["WWW-Authenticate"].startswith("Bearer"), where


async def test_route_answers_every_missing_or_wrong_key_alike(them: Callers) -> None:
    """Keys that never were, that are malformed, that were revoked, that are the operator's.

    Who shows no key at all is told that one is missing, which is no news.
    """
    good = str(them.keys["tenant"])
    them.keys |= {
        "wrong": good[:-1] + ("A" if good[-1] != "A" else "B"),
        "longer": good + "A",
        "short": "sym",
        "nothing": "",
        "bytes": "sym_\xff_\xfe",
        "long": "sym_" + "a" * 4_000,
        "operator's": them.keys["operator"],
    }
    unlike = {"tenant", "tenant's reader", "stranger", "suspended", "nobody"}
    for path in ("/v1/runs", "/v1/kv/x", "/v1/models"):
        answers = [about(await them.ask("GET", path, caller), "none")
                   for caller in them.keys if caller not in unlike]  # fmt: skip
        assert len(answers) == 11
        assert answers[0][0] == 401
        assert all(answer == answers[0] for answer in answers)
        assert b"this key is not valid: it is unknown, revoked or expired" in answers[0][2]
        missing = about(await them.ask("GET", path, "nobody"), "none")
        assert missing[:2] == answers[0][:2], "but for its words it is the same"
        assert b"this route needs the header `Authorization: Bearer <key>`" in missing[2]


async def test_route_answers_for_anothers_id_as_for_a_made_up_one(them: Callers) -> None:
    """Another tenant's ids in every route: byte for byte what made-up ones are answered with."""
    async with them.system.client() as owner:
        program = (await owner.programs.upload(guests.PARROT_WASM, name="parrot"))["id"]
        await owner.programs.upload(guests.SAVE_WASM, name="save")
        ended = (await owner.run("save"))["id"]
        live = await owner.start("parrot", trace=True)
        asked_for = b'{"model": "parrot", "input": "x", "background": true}'
        response = (await them.ask("POST", "/v1/responses", "tenant", asked_for)).json["id"]
        file = (await upload(them.system, b"{}\n")).json["id"]
        batch = (await create(them.system, file)).json["id"]
        secret = b'{"value": "not for you", "hosts": ["example.org"]}'
        assert (await them.ask("PUT", "/v1/secrets/real", "tenant", secret)).status == 201
        await owner.adapters.upload("tuned", "{}", b"weights")
        pairs = {
            "adapter": [("tuned", "other")],
            "name": [("real", "none")],
            "run": [(live, "run_" + "0" * 24), (ended, "run_" + "1" * 24)],
            "program": [("parrot", "nobody"), (program, "sha256:" + "0" * 64)],
            "version": [(program, "sha256:" + "0" * 64)],
            "model": [
                ("parrot", "nobody"),
                ("simulated:tuned", "simulated:other"),
                (program, "sha256:" + "0" * 64),
            ],
            "response": [(response, "resp_" + "0" * 24)],
            "file": [(file, "file-" + "0" * 24)],
            "batch": [(batch, "batch_" + "0" * 24)],
            "path": [("notes/first", "notes/other"), ("public/default/a", "public/nobody/a")],
        }
        asked, parts = 0, set[str]()
        for route in ROUTES:
            if "admin" in route.path:
                continue
            parts |= set(re.findall(r"{(\w+)}", route.path))
            for part, names in pairs.items():
                if f"{{{part}}}" not in route.path:
                    continue
                for real, made_up in names if route.name != "putKv" else names[1:]:
                    paths = (filled(route.path, **{part: each}) for each in (real, made_up))
                    one, other = [await them.ask(route.method, path, "stranger", b"{}")
                                  for path in paths]  # fmt: skip
                    assert about(one, real) == about(other, made_up), route.name
                    # One's own secret, name or adapter may be called so: what is wrong is the body.
                    own = route.name in ("putSecret", "putAlias", "putAdapter")
                    wanted = (400,) if own else (403, 404)
                    assert one.status in wanted, (route.name, one)
                    asked += 1
        assert parts == set(pairs), "a new kind of name is tried, too"
        assert asked > 25
        await owner.runs.cancel(live)
        await owner.runs.cancel(response.replace("resp", "run"))


async def test_anothers_names_in_bodies_and_cursors_reveal_nothing(them: Callers) -> None:
    async with them.system.client() as owner:
        await owner.programs.upload(guests.PARROT_WASM, name="parrot")
        await owner.programs.upload(guests.SAVE_WASM, name="save")
        ended = (await owner.run("save"))["id"]
        made_up = "run_" + "1" * 24
        for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages",
                     "/v1/messages/count_tokens"):  # fmt: skip
            one, other = [await them.ask("POST", path, "stranger", b'{"model": "%s"}' % name)
                          for name in (b"parrot", b"nobody")]  # fmt: skip
            assert about(one, "parrot") == about(other, "nobody")
            assert one.status == 404
        for query in ("/v1/runs?after={}", "/v1/runs?limit=1&after={}"):
            one, other = [await them.ask("GET", query.format(each), "stranger")
                          for each in (ended, made_up)]  # fmt: skip
            assert about(one, ended) == about(other, made_up)
            assert one.status == 400
        for path in ("/v1/kv", "/v1/kv?prefix=notes/", "/v1/kv?prefix=public/default/",
                     "/v1/runs?live=1", "/v1/runs", "/v1/programs"):  # fmt: skip
            told = await them.ask("GET", path, "stranger")
            assert (told.status, told.body) == (200, b'{"data":[],"next":null}'), path
        models = await them.ask("GET", "/v1/models", "stranger")
        assert b"parrot" not in models.body
        figures = await them.ask("GET", "/metrics", "stranger")
        assert b"default" not in figures.body
        async with AsyncClient(them.system.url, str(them.keys["stranger"]), retries=0) as stranger:
            mine = await stranger.programs.upload(guests.SAVE_WASM, name="parrot")
            assert (await stranger.run("parrot"))["exit_code"] == 0
            await stranger.kv.remove("notes/first")
            await stranger.programs.delete(mine["id"])
        assert (await owner.kv.stat("notes/first"))["len"] == 3
        assert (await owner.run("save"))["exit_code"] == 0
