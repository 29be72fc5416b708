from symphony.attached import errors
from symphony_kernel.protocol.errno import Errno


def test_every_errno_of_the_abi_has_an_exception_of_its_name() -> None:
    for errno in Errno:
        error = errors.call_error("kv_open", errno.value)
        assert (type(error).__name__, error.errno) == (errno.name, errno.value)


def test_errno_without_a_name_keeps_its_number() -> None:
    error = errors.call_error("pred", 77, "odd")
    assert (type(error), error.errno) == (errors.CallError, 77)
    assert str(error) == "pred: errno 77 (odd)"
