"""`symphony admin`: tenants, keys, gateways, usage and the audit log. For operators."""

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any

from symphony import AsyncClient, ServerError
from symphony.client.views import NewKey

from symphony_runtime.cli.arguments import LIMITED, LISTING, SERVER, Command, add_command
from symphony_runtime.cli.output import (
    CommandError,
    first,
    local_time,
    print_json,
    print_listing,
    time_of,
)

_DAY_MS = 86_400_000


# --- Tenants -------------------------------------------------------------------------------------
async def list_tenants(client: AsyncClient, options: argparse.Namespace) -> None:
    print_listing(options, await first(client.admin.tenants(), options.limit), {
        "TENANT": "id",
        "STATE": lambda tenant: "suspended" if tenant["suspended"] else "",
        "WEIGHT": lambda tenant: "" if tenant["weight"] is None else tenant["weight"],
        "KEYS": "keys",
        "LIVE": "live_runs",
        "QUOTAS": lambda tenant: _pairs(tenant["quotas"]),
        "MADE": time_of("created_ms"),
    })  # fmt: skip


async def show_tenant(client: AsyncClient, options: argparse.Namespace) -> None:
    _show(options, await client.admin.tenant(options.tenant))


async def create_tenant(client: AsyncClient, options: argparse.Namespace) -> None:
    _show(options, await client.admin.create_tenant(options.tenant, **_change(options)))


async def set_tenant(client: AsyncClient, options: argparse.Namespace) -> None:
    change = _change(options)
    if not change:
        raise CommandError("nothing to change: give --weight or --quota")
    _show(options, await client.admin.change_tenant(options.tenant, **change))


async def suspend_tenant(client: AsyncClient, options: argparse.Namespace) -> None:
    _show(options, await client.admin.change_tenant(options.tenant, suspended=True))


async def resume_tenant(client: AsyncClient, options: argparse.Namespace) -> None:
    _show(options, await client.admin.change_tenant(options.tenant, suspended=False))


async def delete_tenant(client: AsyncClient, options: argparse.Namespace) -> None:
    try:
        await client.admin.delete_tenant(options.tenant, everything=options.everything)
    except ServerError as error:
        if "left" not in error.problem:
            raise
        raise CommandError(f"{error}; --everything deletes all that it has") from error


def _change(options: argparse.Namespace) -> dict[str, Any]:
    change: dict[str, Any] = {}
    if "weight" in options:
        change["weight"] = options.weight
    if options.quota:
        change["quotas"] = dict(options.quota)
    return change


def _show(options: argparse.Namespace, shown: Mapping[str, Any]) -> None:
    if options.json:
        print_json(shown)
        return
    for name, value in shown.items():
        if name.endswith("_ms"):
            value = local_time(value) if value is not None else "-"
        elif isinstance(value, dict):
            value = _pairs(value)
        elif value is None:
            value = "-"
        print(f"{name:14}{value}")


def _pairs(values: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


# --- Keys ----------------------------------------------------------------------------------------
async def list_keys(client: AsyncClient, options: argparse.Namespace) -> None:
    print_listing(options, await client.admin.keys(options.tenant), {
        "KEY": "id",
        "ROLE": "role",
        "NAME": "name",
        "MADE": time_of("created_ms"),
        "UNTIL": time_of("expires_ms"),
    })  # fmt: skip


async def create_key(client: AsyncClient, options: argparse.Namespace) -> None:
    wanted: dict[str, Any] = {"name": options.name}
    if options.role is not None:
        wanted["role"] = options.role
    if options.days is not None:
        wanted["expires_ms"] = int(1000 * time.time() + options.days * _DAY_MS)
    _show_key(options, await client.admin.create_key(options.tenant, **wanted))


async def rotate_key(client: AsyncClient, options: argparse.Namespace) -> None:
    made = await client.admin.rotate_key(options.tenant, options.key_id, options.grace_ms)
    _show_key(options, made)


async def revoke_key(client: AsyncClient, options: argparse.Namespace) -> None:
    await client.admin.revoke_key(options.tenant, options.key_id)


def _show_key(options: argparse.Namespace, made: NewKey) -> None:
    if options.json:
        print_json(made)
        return
    print(made["key"])  # alone on stdout, for a script or a file
    print(f"{made['id']}: {made['role']}; it is not shown again", file=sys.stderr)


# --- Gateways ------------------------------------------------------------------------------------
async def list_gateways(client: AsyncClient, options: argparse.Namespace) -> None:
    print_listing(options, await first(client.admin.gateways(), options.limit), {
        "GATEWAY": "id",
        "": lambda gateway: "here" if gateway["here"] else "",
        "SEEN": time_of("seen_ms"),
        "HAS YET TO FORGET": lambda gateway: " ".join(gateway["forgetting"]),
    })  # fmt: skip


async def drop_gateway(client: AsyncClient, options: argparse.Namespace) -> None:
    await client.admin.drop_gateway(options.gateway)


# --- Usage and the audit log ---------------------------------------------------------------------
async def show_usage(client: AsyncClient, options: argparse.Namespace) -> None:
    query = {"tenant": options.tenant, "from": options.first, "to": options.last}
    query = {name: value for name, value in query.items() if value is not None}
    if options.csv:
        sys.stdout.write(await client.admin.usage_csv(query))
        return
    days = [day async for day in client.admin.usage(query)]
    fields = ("day", "tenant", "runs", "prompt_tokens", "cached_tokens", "completion_tokens",
              "cpu_ms", "kv_token_ms")  # fmt: skip
    print_listing(options, days, {field.upper().replace("_", " "): field for field in fields})


async def show_audit(client: AsyncClient, options: argparse.Namespace) -> None:
    query = {"kind": options.kind, "tenant": options.tenant}
    query = {name: value for name, value in query.items() if value is not None}
    print_listing(options, await first(client.admin.audit(query), options.limit), {
        "WHEN": time_of("at_ms"),
        "KIND": "kind",
        "WHO": lambda note: note["key"] or note["address"],
        "WHAT": "action",
        "WHERE": "target",
        "STATUS": "status",
        "TIMES": "times",
        "WORDS": "detail",
    })  # fmt: skip


# --- Arguments -----------------------------------------------------------------------------------
def add_admin(commands: Any) -> None:
    words = "tenants, keys, usage, audit log (needs the admin key: --key, SYMPHONY_ADMIN_KEY)"
    admin = commands.add_parser("admin", help=words, description=words)
    things = admin.add_subparsers(title="things", required=True, metavar="THING")

    def group(name: str, words: str) -> Any:
        thing = things.add_parser(name, help=words, description=words)
        return thing.add_subparsers(title="actions", required=True, metavar="ACTION")

    _add_tenants(group("tenants", "who may use the server"))
    _add_keys(group("keys", "a tenant's keys, or without --tenant the operators'"))
    gateways = group("gateways", "the gateways that share a database")
    _add(gateways, "list", "list them, with deleted tenants that each still holds",
         list_gateways, LIMITED)  # fmt: skip
    dropped = _add(gateways, "drop", "remove one that will not come back", drop_gateway)
    dropped.add_argument("gateway", help="its id, as `list` shows it")
    used = _add(things, "usage", "usage of tenants, by day (UTC)", show_usage)
    used.add_argument("--tenant", help="only this one's")
    used.add_argument("--from", dest="first", metavar="DAY", help="the first day, as 2026-11-21")
    used.add_argument("--to", dest="last", metavar="DAY", help="the last day")
    used.add_argument("--csv", action="store_true", help="print CSV")
    log = _add(things, "audit", "operators' changes and denied requests", show_audit, LIMITED)
    log.add_argument("--kind", choices=("admin", "denied"))
    log.add_argument("--tenant", help="only requests with its keys")


def _add(
    group: Any, name: str, words: str, action: Command, *more: argparse.ArgumentParser
) -> argparse.ArgumentParser:
    command = add_command(group, name, words, action, SERVER, LISTING, *more)
    command.set_defaults(operator=True)
    return command


def _add_tenants(group: Any) -> None:
    _add(group, "list", "list tenants", list_tenants, LIMITED)
    made = _add(group, "create", "create a tenant; it has no key yet", create_tenant)
    changed = _add(group, "set", "change a tenant's share or quotas", set_tenant)
    for command in (made, changed):
        command.add_argument("tenant")
        command.add_argument(
            "--weight", type=_weight, default=argparse.SUPPRESS, metavar="N",
            help="share of the device; usual: as in the options",
        )  # fmt: skip
        command.add_argument(
            "--quota", type=_quota, action="append", metavar="NAME=NUMBER",
            help="a limit of the tenant (docs/reference/limits.md); NAME=usual resets it",
        )  # fmt: skip
    for name, words, action in (
        ("show", "show a tenant", show_tenant),
        ("suspend", "refuse a tenant's keys and end its runs", suspend_tenant),
        ("resume", "resume a suspended tenant", resume_tenant),
        ("delete", "delete a tenant that has nothing left", delete_tenant),
    ):
        command = _add(group, name, words, action)
        command.add_argument("tenant")
        if action is delete_tenant:
            command.add_argument(
                "--everything", action="store_true", help="first delete everything that it has"
            )


def _add_keys(group: Any) -> None:
    listed = _add(group, "list", "list keys", list_keys)
    made = _add(group, "create", "create a key and show it, only this once", create_key)
    made.add_argument("--role", choices=("admin", "tenant", "read-only"))
    made.add_argument("--name", default="", help="what it is for")
    made.add_argument("--days", type=float, help="how long it is valid; default for ever")
    rotated = _add(group, "rotate", "replace a key", rotate_key)
    rotated.add_argument("--grace-ms", type=int, default=0, help="how long the old key stays valid")
    revoked = _add(group, "revoke", "revoke a key at once", revoke_key)
    for command in (rotated, revoked):
        command.add_argument("key_id", metavar="KEY", help="its id, as `list` shows it")
    for command in (listed, made, rotated, revoked):
        command.add_argument("--tenant", help="whose key; without it the operators'")


def _weight(text: str) -> float | None:
    try:
        return None if text == "usual" else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError("a weight is a number, or usual") from None


def _quota(text: str) -> tuple[str, int | None]:
    name, _, value = text.partition("=")
    if not name or not (value.isdigit() or value == "usual"):
        raise argparse.ArgumentTypeError("a quota is NAME=NUMBER, for example live_runs=8")
    return name, int(value) if value != "usual" else None
