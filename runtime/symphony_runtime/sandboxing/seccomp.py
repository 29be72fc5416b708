"""A filter of system calls, through libseccomp: others than listed get EPERM."""

import ctypes
import errno
import os
import socket

_LIBRARY = "libseccomp.so.2"
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_TSYNC, _OPTIMIZE = 4, 8  # attributes: all threads at once; a tree instead of a list
_EQUAL, _MASKED_EQUAL = 4, 7

_CLONE_NAMESPACES, _CLONE_THREAD = 0x7E020080, 0x10000  # every CLONE_NEW*; no new process
_TERMINAL_REQUESTS = (0x5401, 0x5421, 0x5450, 0x5451)  # TCGETS, FIONBIO, FIONCLEX, FIOCLEX
PR_SET_PDEATHSIG = 1  # kill this process when its parent ends
_PRCTL_OPTIONS = (PR_SET_PDEATHSIG, 15, 16, 0x53564D41)  # PR_SET_NAME, PR_GET_NAME, PR_SET_VMA

# What an interpreter, an event loop, threads and compiled guests need once everything is loaded.
# Names that a processor does not have are skipped.
_CALLS = {
    # Including opens by name: Landlock refuses them, with an errno that callers expect.
    "descriptors": """read readv write writev close fstat newfstatat statx lseek pread64 pwrite64
        ftruncate fcntl dup dup2 dup3 pipe2 eventfd2 memfd_create getcwd openat open stat lstat
        readlink readlinkat access faccessat faccessat2 getdents64""",
    "memory": "mmap munmap mprotect mremap madvise brk membarrier",
    "threads": """futex set_robust_list get_robust_list rseq set_tid_address sched_yield
        sched_getaffinity sched_setaffinity sched_getparam sched_getscheduler exit exit_group
        restart_syscall gettid""",
    "signals": "rt_sigaction rt_sigprocmask rt_sigreturn rt_sigtimedwait sigaltstack setitimer",
    "sockets": """connect sendto recvfrom sendmsg recvmsg shutdown getsockname getpeername
        getsockopt setsockopt socketpair""",
    "waiting": """epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 poll ppoll select
        pselect6 timerfd_create timerfd_settime timerfd_gettime clock_nanosleep nanosleep""",
    "time": "clock_gettime clock_getres gettimeofday time times getrusage",
    "oneself": """getpid getppid getuid geteuid getgid getegid getgroups getrandom sysinfo uname
        arch_prctl""",
}


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


class Filter:
    """A list of allowed system calls; `load` applies it for good."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(_LIBRARY, use_errno=True)
        self._library.seccomp_init.restype = ctypes.c_void_p
        self._context = ctypes.c_void_p(self._library.seccomp_init(_ERRNO | errno.EPERM))
        if not self._context:
            raise OSError(errno.ENOMEM, "seccomp_init")

    def add(self, name: str, *given: tuple[int, int, int, int], action: int = _ALLOW) -> None:
        """Give a call an action if each (argument, operator, first, second) holds."""
        number = self._library.seccomp_syscall_resolve_name(name.encode())
        if number < 0:  # this processor does not have it
            return
        comparisons = (_Comparison * len(given))(*(_Comparison(*each) for each in given))
        self._check(
            self._library.seccomp_rule_add_array(
                self._context, ctypes.c_uint32(action), number, len(given), comparisons
            ),
            f"the rule for {name}",
        )

    def load(self) -> None:
        """Apply it to all threads of this process; requires no_new_privs. Raise OSError."""
        for attribute, value in ((_TSYNC, 1), (_OPTIMIZE, 2)):
            self._check(
                self._library.seccomp_attr_set(self._context, attribute, value), "seccomp_attr_set"
            )
        self._check(self._library.seccomp_load(self._context), "seccomp_load")
        self._library.seccomp_release(self._context)

    @staticmethod
    def _check(result: int, what: str) -> None:
        if result < 0:
            raise OSError(-result, f"seccomp: {what}")


def prepared() -> Filter:
    """Return a filter that allows the calls above, local sockets, and threads.

    Raise OSError if libseccomp is not installed.
    """
    rules = Filter()
    for names in _CALLS.values():
        for name in names.split():
            rules.add(name)
    rules.add("socket", (0, _EQUAL, socket.AF_UNIX, 0))
    for request in _TERMINAL_REQUESTS:
        rules.add("ioctl", (1, _EQUAL, request, 0))
    for option in _PRCTL_OPTIONS:
        rules.add("prctl", (0, _EQUAL, option, 0))
    rules.add("tgkill", (0, _EQUAL, os.getpid(), 0))  # abort() signals its own thread
    rules.add("prlimit64", (0, _EQUAL, 0, 0))
    thread = _CLONE_NAMESPACES | _CLONE_THREAD
    rules.add("clone", (0, _MASKED_EQUAL, thread, _CLONE_THREAD))
    # A filter cannot see clone3's flags; on ENOSYS callers try clone.
    rules.add("clone3", action=_ERRNO | errno.ENOSYS)
    return rules
