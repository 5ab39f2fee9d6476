"""Measures as a table in Markdown."""
import statistics

HEAD = (
    "| | time | until on disk | CPU | read | written | peak memory | of it private | time, mergekit = 1 "
    "| memory, mergekit = 1 (private alone) | time, fio = 1 |"
)
COLUMNS = HEAD.count("|") - 1


def gigabytes(count):
    return f"{count / 1e9:.2f} GB"


def memory(count):
    return f"{count / 2**20:.0f} MiB" if count < 2**30 else f"{count / 2**30:.2f} GiB"


def median(runs, key):
    return statistics.median(run[key] for run in runs)


def seconds(runs):
    times = [run["seconds"] for run in runs]
    spread = f" ({min(times):.2f} to {max(times):.2f})" if len(times) > 1 else " (one run)"
    return f"{statistics.median(times):.2f} s{spread}"


def times(value, reference):
    """How many times smaller, or larger, than the reference."""
    if not value or not reference:
        return ""
    ratio = value / reference
    return f"1/{1 / ratio:.1f}" if ratio < 0.95 else f"{ratio:.2f}"


def row(name, runs, mergekit, fio):
    cpu = statistics.median(run["user_seconds"] + run["system_seconds"] for run in runs)
    taken = median(runs, "seconds")
    peak = median(runs, "peak_bytes")
    private = median(runs, "peak_private_bytes")
    beside_mergekit = ["", ""]
    if mergekit:
        least = times(private, median(mergekit, "peak_private_bytes"))
        beside_mergekit = [
            times(taken, median(mergekit, "seconds")),
            f"{times(peak, median(mergekit, 'peak_bytes'))} ({least})",
        ]
    cells = [
        *[name, seconds(runs), f"{median(runs, 'durable_seconds'):.2f} s", f"{cpu:.1f} s"],
        *[gigabytes(median(runs, "read_bytes")), gigabytes(median(runs, "write_bytes"))],
        *[memory(peak), memory(private), *beside_mergekit],
        f"{taken / median(fio, 'seconds'):.2f}" if fio else "",
    ]
    return "| " + " | ".join(cells) + " |"


def render(results, method):
    """`results` maps (contender, method or None) to runs; the rows without a method belong to every table."""
    mergekit = next((runs for (name, m), runs in results.items() if m == method and "mergekit" in name), None)
    fio = next((runs for (name, _), runs in results.items() if name.startswith("fio")), None)
    lines = [HEAD, "|---|" + "---:|" * (COLUMNS - 1)]
    for (name, merged_by), runs in results.items():
        if merged_by == method:
            lines.append(row(name, runs, mergekit, fio))
    for (name, merged_by), runs in results.items():
        if merged_by is None:
            lines.append(row(name, runs, None, fio))
    return "\n".join(lines)


def disturbance(results):
    """The largest load before a run, and the median and the largest number of cores that others used during one."""
    runs = [run for each in results.values() for run in each]
    others = [run["cores_used_by_others"] for run in runs]
    return max(run["load_before"] for run in runs), statistics.median(others), max(others)
