"""Restarts and changes of roles, as samples show them."""

from symphony_runtime.gateway.metrics.roles import RoleHistory


def test_new_process_of_a_role_is_a_restart() -> None:
    roles = RoleHistory()
    for at, state in enumerate(((7, "ready"), (7, "ready"), (0, "away"), (8, "ready"))):
        roles.add(at, {"kernel": state, "gateway": (1, "ready")})
    view = roles.view()
    assert view["restarts"] == {"kernel": 1, "gateway": 0}
    assert [(each["at_ms"], each["pid"], each["state"]) for each in view["changes"]
            if each["role"] == "kernel"] == [
        (0, 7, "ready"), (2, None, "away"), (3, 8, "ready"),
    ]  # fmt: skip


def test_hang_and_return_of_one_process_is_no_restart() -> None:
    roles = RoleHistory()
    for at, state in enumerate(((7, "ready"), (7, "hangs"), (0, "away"), (7, "ready"))):
        roles.add(at, {"kernel": state})
    assert roles.view()["restarts"] == {"kernel": 0}
    assert len(roles.view()["changes"]) == 4


def test_changes_are_bounded() -> None:
    roles = RoleHistory()
    for at in range(1_000):
        roles.add(at, {"worker-0": (at + 1, "ready")})
    assert roles.view()["restarts"] == {"worker-0": 999}
    assert [each["at_ms"] for each in roles.view()["changes"]] == list(range(900, 1_000))
