"""Runs a program and tells its peak memory: measure.py REPORT PROGRAM ARGUMENT...

The kernel charges a child with the memory of the process that it was forked from. A test process with numpy loaded would
distort the figure, so this small one (python -S -E) stands in between. REPORT gets "STATUS PEAK_BYTES".
"""

import os
import sys

if __name__ == "__main__":
    child = os.posix_spawn(sys.argv[2], sys.argv[2:], os.environ)
    _, status, used = os.wait4(child, 0)
    with open(sys.argv[1], "w") as report:
        report.write(f"{os.waitstatus_to_exitcode(status)} {used.ru_maxrss * 1024}")
