"""Runs modules in Triton's interpreter, each in a fork of this process, which has imported PyTorch and Triton.

A line of standard input is a module and a file, as JSON: the module writes its output and errors to the file. The
answer is its exit code.
"""

from __future__ import annotations

import gc

gc.disable()  # nothing that is imported is garbage

import json  # noqa: E402
import os  # noqa: E402
import runpy  # noqa: E402
import sys  # noqa: E402
import traceback  # noqa: E402

from tests.ops import interpreter  # noqa: E402, F401 (sets up Triton's interpreter)

import normplace.ops  # noqa: E402, F401


def run(module: str, output: str) -> None:
    """Run a module as a program, and exit."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    code = 1
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)  # as in the processes of pytest
    gc.enable()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            run(*json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
