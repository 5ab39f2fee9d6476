"""What the benchmark needs to know of, and change on, the machine it runs on."""
import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import time

DROP_CACHES = pathlib.Path("/proc/sys/vm/drop_caches")
HUGE_PAGES = pathlib.Path("/proc/sys/vm/nr_hugepages")
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs", "rootfs")


def install(package, say):
    """Installs a Debian package that is missing; raises RuntimeError where that can not be done."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise RuntimeError(f"'{package}' is missing; install it (Debian: apt-get install {package})")
    say(f"installing the Debian package {package}")
    subprocess.run(["apt-get", "update", "-qq"], check=True, stdout=subprocess.DEVNULL)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)


# --- caches and pages


def make_cold():
    """Writes back and drops the page cache. False where that is not allowed."""
    os.sync()
    time.sleep(1.5)  # a disk that discards what was deleted is still busy with it
    try:
        DROP_CACHES.write_text("3\n", encoding="ascii")
    except OSError:
        return False
    return True


@contextlib.contextmanager
def huge_pages(count):
    """Reserves at least `count` huge pages for the duration; yields whether they could be had."""
    try:
        before = int(HUGE_PAGES.read_text(encoding="ascii"))
        HUGE_PAGES.write_text(f"{before + count}\n", encoding="ascii")
    except OSError:
        yield False
        return
    try:
        yield int(HUGE_PAGES.read_text(encoding="ascii")) >= before + count
    finally:
        HUGE_PAGES.write_text(f"{before}\n", encoding="ascii")


# --- description


def field(path, name, default="unknown"):
    with open(path, encoding="ascii", errors="replace") as file:
        found = re.search(rf"^{name}\s*:\s*(.*)$", file.read(), re.MULTILINE)
    return found.group(1).strip() if found else default


def memory_bytes(name="MemTotal"):
    return int(field("/proc/meminfo", name, "0 kB").split()[0]) * 1024


def load():
    return os.getloadavg()[0]


def mount_of(folder):
    """File system type and options of the mount that holds `folder`."""
    device = os.stat(folder).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8") as mounts:
        for line in mounts:
            mount, _, rest = line.partition(" - ")
            if mount.split()[2] == wanted:
                kind, _, options = rest.split()[:3]
                return kind, sorted({*mount.split()[5].split(","), *options.split(",")})
    return "unknown", []


def disk_of(folder):
    device = os.stat(folder).st_dev
    block = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not block.exists():
        return "unknown disk"
    block = block.resolve()
    if (block / "partition").exists():
        block = block.parent
    size = int((block / "size").read_text()) * 512
    model = block / "device" / "model"
    if block.name.startswith("vd"):
        kind = "virtual disk (virtio)"
    elif model.exists():
        kind = model.read_text().strip()
    else:
        kind = "disk"
    turning = (block / "queue" / "rotational").read_text().strip() == "1"
    return f"{kind}, {size / 2**30:.0f} GiB, {'reported as rotational' if turning else 'no rotation'}"


def describe(folder):
    """The machine in (what, value) pairs; nothing that tells which one it is."""
    flags = field("/proc/cpuinfo", "flags", "").split()
    vectors = "AVX-512" if "avx512bw" in flags else "AVX2" if "avx2" in flags else "neither AVX2 nor AVX-512"
    kind, options = mount_of(folder)
    shown = [option for option in options if option in ("discard", "compress", "noatime", "relatime")]
    return [
        ("CPU", f"{field('/proc/cpuinfo', 'model name')}, {os.cpu_count()} cores, {vectors}"),
        ("RAM", f"{memory_bytes() / 2**30:.1f} GiB"),
        ("kernel", "Linux " + ".".join(os.uname().release.split(".")[:2])),
        ("file system", " ".join([kind, *(f"({option})" for option in shown)])),
        ("disk", disk_of(folder)),
        ("virtual machine", "yes" if "hypervisor" in flags else "not that the CPU says"),
    ]
