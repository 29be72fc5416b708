"""A tenant's life, by an operator's commands on a real server."""

import json
from typing import Any

from tests.e2e import programs as guests
from tests.support.server.server import RunningServer


def test_admin_tenant_is_created_suspended_and_deleted(
    server: RunningServer, tmp_path: Any
) -> None:
    def symphony(*arguments: str, key: str = "") -> tuple[int, str]:
        ended = server.symphony(*arguments, environment={"SYMPHONY_KEY": key} if key else {})
        return ended.returncode, ended.stdout or ended.stderr

    def admin(*arguments: str) -> Any:
        code, said = symphony("admin", *arguments, "--json", "--key", server.admin_key)
        assert code == 0, said
        return json.loads(said) if said.strip() else None

    program = tmp_path / "hello.wasm"
    program.write_bytes(guests.HELLO_WASM)
    made = admin("tenants", "create", "acme", "--weight", "2", "--quota", "live_runs=2")
    assert (made["weight"], made["quotas"]) == (2, {"live_runs": 2})
    key = admin("keys", "create", "--tenant", "acme", "--name", "site")
    code, said = symphony("run", str(program), "--json", key=key["key"])
    assert code == 0, said
    (used,) = admin("usage", "--tenant", "acme")
    assert used["runs"] == 1
    renewed = admin("keys", "rotate", key["id"], "--tenant", "acme")
    assert symphony("runs", key=key["key"])[0] == 1
    admin("tenants", "suspend", "acme")
    code, said = symphony("runs", key=renewed["key"])
    assert (code, said) == (1, "symphony: the tenant is suspended; ask the server's operator\n")
    admin("tenants", "resume", "acme")
    code, said = symphony("runs", "--json", key=renewed["key"])
    (run,) = json.loads(said)
    assert run["status"] == "exited"
    # A tenant's key is no operator's.
    code, said = symphony("admin", "tenants", "list", "--key", renewed["key"])
    assert code == 1
    actions = {note["action"] for note in admin("audit", "--kind", "admin")}
    assert {"createTenant", "createTenantKey", "rotateTenantKey", "changeTenant"} <= actions
    assert "listTenants" in {note["action"] for note in admin("audit", "--kind", "denied")}
    admin("keys", "revoke", renewed["id"], "--tenant", "acme")
    assert admin("keys", "list", "--tenant", "acme") == []
    (here,) = admin("gateways", "list")
    assert (here["here"], here["forgetting"]) == (True, [])
    admin("tenants", "delete", "acme", "--everything")
    assert "acme" not in {tenant["id"] for tenant in admin("tenants", "list")}
