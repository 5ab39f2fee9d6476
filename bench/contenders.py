"""Who takes part: how each is started, and one measured run of it."""
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import machine

BENCH = pathlib.Path(__file__).resolve().parent
WEIGHT = 0.3
DENSITY = 0.2
MERGEKIT_IMPORTS = "import mergekit.scripts.run_yaml, transformers.models.llama.configuration_llama"


@dataclasses.dataclass
class Family:
    folder: pathlib.Path
    experts: int

    @property
    def models(self):
        return [self.folder / "base"] + [self.folder / f"expert-{i + 1}" for i in range(self.experts)]

    @property
    def files(self):
        return [model / "model.safetensors" for model in self.models]

    def recipe(self, method, experts=None):
        """One recipe for mergepipe and mergekit, in the form that most recipes have; of the first `experts`, or all."""
        lines = [f"merge_method: {method}", f"base_model: {self.models[0]}", "dtype: bfloat16", "models:"]
        for expert in self.models[1:][:experts]:
            density = f", density: {DENSITY}" if method == "ties" else ""
            lines += [f"  - model: {expert}", f"    parameters: {{weight: {WEIGHT}{density}}}"]
        return "\n".join(lines) + "\n"


@dataclasses.dataclass
class Contender:
    name: str
    command: object  # (method, output path) -> list of arguments
    methods: tuple  # empty: it merges nothing, one run per round
    warm_up: tuple = ()  # a command that brings the program itself, not the data, into the page cache
    read_result: object = None  # (measures, output path) -> corrected measures
    setting: object = contextlib.nullcontext  # () -> context manager around each run


class Failed(Exception):
    pass


def mergepipe(program, recipes, memory):
    extra = ["--memory", memory] if memory else []
    return Contender(
        name=" ".join(["mergepipe", *extra]),
        command=lambda method, out: [program, "merge", recipes[method], out, "--quiet", *extra],
        methods=("task_arithmetic", "ties"),
        warm_up=(program, "merge", "--help"),
    )


def naive(python, family):
    def command(method, out):
        return [python, BENCH / "naive.py", method, str(WEIGHT), str(DENSITY), out, *family.models]

    warm_up = (python, "-c", "import safetensors.torch")
    return Contender("naive torch script", command, ("task_arithmetic", "ties"), warm_up)


def mergekit(venv, recipes):
    options = "--lazy-unpickle --async-write --no-copy-tokenizer --no-write-model-card --quiet".split()
    return Contender(
        name="mergekit 0.1.5",
        command=lambda method, out: [venv / "bin" / "mergekit-yaml", recipes[method], out, *options],
        methods=("task_arithmetic", "ties"),
        warm_up=(venv / "bin" / "python", "-c", MERGEKIT_IMPORTS),
    )


def copy(family):
    return Contender("cp -r of the base", lambda _, out: ["cp", "-r", family.models[0], out], (), ("cp", "--help"))


def fio(family, memory_kind):
    """The same bytes by fio, reading and writing side by side; its own clock, so that its start counts nothing."""

    def command(_, out):
        out.mkdir()
        names = ":".join(str(file).replace(":", "\\:") for file in family.files)
        size = family.files[0].stat().st_size >> 20 << 20
        common = f"--direct=1 --ioengine=io_uring --bs=1M --iodepth=16 --iomem={memory_kind}".split()
        read = ["--name=read", "--rw=read", "--allow_file_create=0", "--file_service_type=sequential"]
        write = ["--name=write", "--rw=write", f"--size={size}", "--end_fsync=1"]
        return [
            *["fio", "--output-format=json", f"--output={out / 'fio.json'}", *common],
            *[*read, f"--filename={names}", *write, f"--filename={str(out / 'written').replace(':', chr(92) + ':')}"],
        ]

    def read_result(measures, out):
        text = (out / "fio.json").read_text(encoding="utf-8")
        jobs = json.loads(text[text.index("{") :])["jobs"]
        measures["seconds"] = max(job["job_runtime"] for job in jobs) / 1000
        measures["read_bytes"] = sum(job["read"]["io_bytes"] for job in jobs)
        measures["write_bytes"] = sum(job["write"]["io_bytes"] for job in jobs)
        return measures

    huge = memory_kind == "shmhuge"
    return Contender(
        name=f"fio, direct, {'huge' if huge else '4 KiB'} pages",
        command=command,
        methods=(),
        warm_up=("fio", "--version"),
        read_result=read_result,
        setting=fio_buffers if huge else contextlib.nullcontext,
    )


def fio_buffers():
    """Huge pages for two jobs with 16 requests of 1 MiB each; yields whether they could be had."""
    return machine.huge_pages(2 * 16)


def sync_seconds(folder):
    """How long it takes until every file in `folder` is on the disk."""
    start = time.monotonic()
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)
    return time.monotonic() - start


def wait_for(launcher):
    """Waits; whatever interrupts the wait also ends the launcher, which passes it on to the command."""
    try:
        launcher.wait()
    except BaseException:
        launcher.terminate()
        launcher.wait()
        raise


def run(contender, method, out, log):
    """One run with cold data; what it wrote stays at `out`."""
    shutil.rmtree(out, ignore_errors=True)
    command = [str(part) for part in contender.command(method, out)]
    result = out.with_name(out.name + ".json")
    cold = machine.make_cold()
    subprocess.run([str(part) for part in contender.warm_up], stdout=subprocess.DEVNULL, check=True)
    load = machine.load()
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
    launcher = [sys.executable, "-I", "-S", str(BENCH / "launch.py"), str(result), *command]
    with contender.setting(), open(log, "w", encoding="utf-8") as output:
        wait_for(subprocess.Popen(launcher, stdout=output, stderr=subprocess.STDOUT, env=environment))
    measures = json.loads(result.read_text(encoding="ascii"))
    result.unlink()
    if measures["status"] != 0:
        tail = pathlib.Path(log).read_text(encoding="utf-8", errors="replace")[-2000:]
        raise Failed(f"{contender.name} ended with status {measures['status']}:\n{tail}")
    if contender.read_result:
        measures = contender.read_result(measures, out)
    measures["durable_seconds"] = measures["seconds"] + sync_seconds(out)
    return {**measures, "load_before": load, "cold": cold}
