"""Forbid system calls in this process and all that it starts, by a filter of seccomp. Linux on x86-64 and 64-bit ARM.

In a sandbox without a network these are what still leads out: sockets in the file system, such as those of a desktop or of a
service for containers, the memory of other processes, and new name spaces.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping, Sequence

FORBIDDEN = {
    "connect": (42, 203),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "io_uring_setup": (425, 425),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "umount2": (166, 39),
    "move_mount": (429, 429),
    "open_tree": (428, 428),
    "fsopen": (430, 430),
    "mount_setattr": (442, 442),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
}
"""Name -> numbers on x86-64 and on 64-bit ARM, as in the kernel's tables of system calls."""
FILES_AND_PROCESSES = {
    "open": (2, None),
    "creat": (85, None),
    "openat": (257, 56),
    "openat2": (437, 437),
    "fork": (57, None),
    "vfork": (58, None),
    "clone": (56, 220),
    "clone3": (435, 435),
    "execve": (59, 221),
    "execveat": (322, 281),
    "memfd_create": (319, 279),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "memfd_secret": (447, 447),
}
"""What opens a file or a socket, starts a process or a thread, or takes memory beside a process's own, which its limit doesn't
count; None where a machine has no such call."""
MAKE_SOCKETS = {"socket": (41, 198), "socketpair": (53, 199)}
"""Forbidden for datagrams in the file system, which need no `connect`; browsers use other sockets within themselves."""
ARCHITECTURES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Machine -> (the kernel's AUDIT_ARCH, column of `FORBIDDEN`)."""
LOAD, EQUAL, AT_LEAST, AND, RETURN = 0x20, 0x15, 0x35, 0x54, 0x06
"""Instructions of the filter: load a word, jump if it is equal, jump if it is at least, keep these bits, return."""
ALLOW, FAIL, KILL = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x80000000
NUMBER, ARCHITECTURE, FIRST, SECOND = 0, 4, 16, 24
"""Offsets in the kernel's struct seccomp_data: of the call's number, the architecture, the low words of two arguments."""
UNIX, DATAGRAM, KINDS = 1, 2, 0xF
"""A socket's domain, its kind, and the bits of the kind."""
OTHER_ABI = 0x40000000
"""Numbers from here on are calls of x86-64's second ABI, under which the same calls have other numbers."""
NO_NEW_PRIVILEGES, SET_SECCOMP, FILTER_MODE = 38, 22, 2


def supported() -> bool:
    """Whether this machine's numbers are known."""
    return platform.system() == "Linux" and platform.machine() in ARCHITECTURES


def forbid(also: Mapping[str, tuple[int, int | None]] = {}) -> None:
    """Let the forbidden calls raise PermissionError from now on. also: further calls, such as `FILES_AND_PROCESSES`. Raises
    OSError if the kernel takes no filter."""
    architecture, column = ARCHITECTURES[platform.machine()]
    program = _program(architecture, column, [number for both in also.values() if (number := both[column]) is not None])
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    whole = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0) or libc.prctl(SET_SECCOMP, FILTER_MODE, ctypes.byref(whole), 0, 0):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _program(architecture: int, column: int, also: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """The filter's instructions: (what, steps to skip if it is so, if it isn't, operand). also: further forbidden numbers."""
    numbers = [both[column] for both in FORBIDDEN.values()] + [*also]
    sockets = [both[column] for both in MAKE_SOCKETS.values()]
    found = [(LOAD, 0, 0, ARCHITECTURE), (EQUAL, 1, 0, architecture), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    found += [(AT_LEAST, 0, 1, OTHER_ABI), (RETURN, 0, 0, FAIL)]
    for number in numbers:
        found += [(EQUAL, 0, 1, number), (RETURN, 0, 0, FAIL)]
    found += [(EQUAL, 2, 0, sockets[0]), (EQUAL, 1, 0, sockets[1]), (RETURN, 0, 0, ALLOW)]
    found += [(LOAD, 0, 0, FIRST), (EQUAL, 1, 0, UNIX), (RETURN, 0, 0, ALLOW)]
    found += [(LOAD, 0, 0, SECOND), (AND, 0, 0, KINDS), (EQUAL, 0, 1, DATAGRAM), (RETURN, 0, 0, FAIL), (RETURN, 0, 0, ALLOW)]
    return found
