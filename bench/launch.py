"""Runs one command and writes what it cost: launch.py RESULT.json COMMAND [ARGUMENT...]

A process of its own, and a small one, because a child's peak memory as the kernel reports it begins with what
its parent had at the fork. Standard library only; start it with `python3 -I -S`.
"""
import json
import os
import select
import signal
import sys
import time

POLL_MILLISECONDS = 25


def private_bytes(pid):
    """Anonymous resident memory now: what stays when files mapped into memory are left out."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            for line in status:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def storage_bytes(pid):
    """Bytes that the process made storage read and write, its finished children included; None if hidden."""
    try:
        with open(f"/proc/{pid}/io", encoding="ascii") as counters:
            fields = dict(line.split(": ") for line in counters.read().splitlines())
    except OSError:
        return None
    return int(fields["read_bytes"]), int(fields["write_bytes"]) - int(fields["cancelled_write_bytes"])


def busy_seconds():
    """CPU seconds that the machine spent at work since it started, those stolen by its host included."""
    with open("/proc/stat", encoding="ascii") as stat:
        user, nice, system, _, _, irq, softirq, steal = map(int, stat.readline().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def main():
    result_path, command = sys.argv[1], sys.argv[2:]
    busy_before = busy_seconds()
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        try:
            os.execvp(command[0], command)
        except OSError as error:
            print(f"{command[0]}: {error.strerror}", file=sys.stderr)
            os._exit(127)
    # Whoever stops the launcher stops the command.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: os.kill(pid, got))
    poller = select.poll()
    poller.register(os.pidfd_open(pid), select.POLLIN)
    private = 0
    while not poller.poll(POLL_MILLISECONDS):
        private = max(private, private_bytes(pid))
    seconds = time.monotonic() - start
    io = storage_bytes(pid)  # still readable: the process has ended, but nobody has collected it
    _, status, usage = os.wait4(pid, 0)
    others = busy_seconds() - busy_before - usage.ru_utime - usage.ru_stime
    if io is None:
        io = usage.ru_inblock * 512, usage.ru_oublock * 512
    with open(result_path, "w", encoding="ascii") as result:
        json.dump(
            {
                "status": os.waitstatus_to_exitcode(status),
                "seconds": seconds,
                "user_seconds": usage.ru_utime,
                "system_seconds": usage.ru_stime,
                "read_bytes": io[0],
                "write_bytes": io[1],
                "peak_bytes": usage.ru_maxrss * 1024,
                "peak_private_bytes": private,
                "cores_used_by_others": max(0.0, others / seconds),
            },
            result,
        )


main()
