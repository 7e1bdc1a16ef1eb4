"""A program, run as a file, that connects a process and its child: when either dies, so does the other."""

# The kernel can kill a process when the thread that started it dies. That helps only if the thread lives as
# long as its process, which threads of a pool do not. This process has one thread and checks who its parent
# is.

import ctypes
import os
import signal
import sys

LOOK = 0.5
"""Seconds between two checks."""
DIE_WITH_PARENT = 1
"""PR_SET_PDEATHSIG."""


def main() -> int:
    harness = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    guard_pid = os.getpid()
    child = os.fork()
    if not child:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        ctypes.CDLL(None).prctl(DIE_WITH_PARENT, signal.SIGKILL)
        if os.getppid() != guard_pid:  # killed before the call
            os._exit(1)
        os.execv(sys.argv[1], sys.argv[1:])
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1):  # The pipe ends belong to the program and close with it.
        os.dup2(nothing, stream)
    while os.getppid() == harness:
        signal.sigtimedwait([signal.SIGCHLD], LOOK)
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code < 0:
                os.kill(guard_pid, -code)
            return code
    os.kill(child, signal.SIGKILL)
    return 1


if __name__ == "__main__":
    sys.exit(main())
