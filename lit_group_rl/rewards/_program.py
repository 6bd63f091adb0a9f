"""Runs one program within limits.  A script for ``python -I -S``; see ``code_execution.py``.

Arguments: backend, folder with program.py, seconds of processor time, bytes of memory, bytes of a file.
"""

from __future__ import annotations

import os
import resource
import runpy
import signal
import struct
import sys

PRIVATE = "/tmp/work"
MOUNT_SETATTR = 442
AT_FDCWD, AT_RECURSIVE, MOUNT_ATTR_RDONLY = -100, 0x8000, 1
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 0x4000, 1 << 18
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
CAPABILITIES_V3, LAST_CAPABILITY = 0x20080522, 63


def shut_in(size: int) -> None:
    """In fresh namespaces: nothing can be written but a private memory file system, and no way back out.

    Hidden are the temporary folders and /run with the sockets in them, and /proc with the other processes.
    """
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)

    def done(result: int, what: str) -> None:
        if result:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")

    done(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None), "making mounts private")
    read_only = struct.pack("<4Q", MOUNT_ATTR_RDONLY, 0, 0, 0)
    call = libc.syscall(MOUNT_SETATTR, AT_FDCWD, b"/", AT_RECURSIVE, read_only, ctypes.c_size_t(len(read_only)))
    done(call, "making the file system read-only")
    for hidden in (b"/proc", b"/run", b"/var/tmp", b"/tmp"):
        if os.path.isdir(hidden):
            options = b"size=%d,nr_inodes=1000" % (4 * size)
            done(libc.mount(b"tmpfs", hidden, b"tmpfs", MS_NOSUID | MS_NODEV, options), f"hiding {hidden.decode()}")
    os.mkdir(PRIVATE)
    for capability in range(LAST_CAPABILITY + 1):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    done(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "giving up new rights")
    done(libc.capset(struct.pack("<Ii", CAPABILITIES_V3, 0), bytes(24)), "giving up rights")


def die_with_parent() -> None:
    """Have the system kill this process when the one that started it is gone."""
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Take the limits, then become the program."""
    backend, folder = sys.argv[1:3]
    seconds, memory, size = map(int, sys.argv[3:])
    with open(os.path.join(folder, "program.py"), encoding="utf-8") as file:
        source = file.read()
    if backend == "namespace":
        shut_in(size)
        folder = PRIVATE
        with open(os.path.join(folder, "program.py"), "w", encoding="utf-8") as file:
            file.write(source)
    else:
        die_with_parent()
    os.chdir(folder)
    # the system counts processes per user, so 1 means that nothing can be started (root is exempt)
    for what, limit in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_FSIZE, size),
        (resource.RLIMIT_NPROC, 1),
        (resource.RLIMIT_NOFILE, 64),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (limit, limit))
    sys.argv[:] = ["program.py"]
    runpy.run_path("program.py", run_name="__main__")


if __name__ == "__main__":
    main()
