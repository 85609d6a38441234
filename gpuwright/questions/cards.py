"""Runs inside an engine's environment, as its service: whether it can serve the plan's cards.

Called with a file of JSON: `kernels` (shared objects below site-packages that must hold code for
every card), `capabilities` (of the cards), `cuda` (of the build's torch), `programs` (that must be
on PATH), `compiles` (whether a kernel must compile). The last line of stdout is a JSON object,
`wrong`: a sentence for each thing that is not as it must be.
"""

import ctypes
import json
import mmap
import os
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Asked = dict[str, Any]
PTX, CODE = 1, 2
_MAGIC = 0xBA55ED50
# Magic, version, size of this header, size of what follows.
_CONTAINER = struct.Struct("<IHHQ")
# Kind, version, size of this header, size of what follows; the capability is at _CAPABILITY.
_ENTRY = struct.Struct("<HHIQ")
_CAPABILITY = 28
_SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")
_COMPILE_SECONDS = 120

# What kernels of engines need: the headers, both libraries, and a host compiler that links.
KERNEL = """
#include <cuda.h>
#include <cuda_runtime.h>
extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }
extern "C" int versions(int *driver) { return cuDriverGetVersion(driver) + cudaGetLastError(); }
"""


def entries(path: Path) -> Iterator[tuple[int, str]]:
    """Kind and capability of each entry of a file's fat binaries; none where it has none."""
    with path.open("rb") as file:
        if file.read(5) != b"\x7fELF\x02":
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for begin, end in _sections(data):
                yield from _entries(data, begin, end)


def _sections(data: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Begin and end of each section that holds fat binaries."""
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count, names = struct.unpack_from("<HHH", data, 58)
    if not offset or not count:
        return
    headers = [struct.unpack_from("<IIQQQQ", data, offset + n * size) for n in range(count)]
    strings = headers[names][4]
    for name, _, _, _, begin, length in headers:
        end = data.find(b"\0", strings + name)
        if data[strings + name : end] in _SECTIONS:
            yield begin, begin + length


def _entries(data: mmap.mmap, begin: int, end: int) -> Iterator[tuple[int, str]]:
    position = begin
    while position + _CONTAINER.size <= end:
        magic, _, header, length = _CONTAINER.unpack_from(data, position)
        if magic != _MAGIC:
            position += 8  # containers are aligned, and padded with zeros
            continue
        entry, position = position + header, position + header + length
        while entry + _CAPABILITY + 4 <= min(position, end):
            kind, _, size, content = _ENTRY.unpack_from(data, entry)
            if kind not in (PTX, CODE) or not size:
                break
            (number,) = struct.unpack_from("<I", data, entry + _CAPABILITY)
            yield kind, f"{number // 10}.{number % 10}"
            entry += size + content


def _numbers(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split("."))


def lacking(path: Path, capabilities: list[str]) -> tuple[list[str], str]:
    """Capabilities that the machine code of a file does not run on, and those that it is for: code
    runs on the same major with an equal or higher minor, no other."""
    found = Counter(capability for kind, capability in entries(path) if kind == CODE)
    carried = sorted(map(_numbers, found))
    missing = [
        each
        for each in capabilities
        if not any(one[0] == _numbers(each)[0] and one <= _numbers(each) for one in carried)
    ]
    return missing, ", ".join(f"{major}.{minor}" for major, minor in carried) or "none"


def codes(asked: Asked, site: Path) -> Iterator[str]:
    """Whether the engine's own binaries hold code for the cards."""
    for name in asked["kernels"]:
        if not (site / name).is_file():
            yield f"{name}: needed in the environment, found nowhere"
            continue
        missing, carried = lacking(site / name, asked["capabilities"])
        if missing:
            cards = ", ".join(missing)
            yield f"{name}: needs code for compute capability {cards}, found code for {carried}"


def runtime(asked: Asked, site: Path) -> Iterator[str]:
    """Whether torch is of the CUDA that the row says, and the driver takes that."""
    text = (site / "torch/version.py").read_text(encoding="utf-8")
    found = re.search(r"^cuda\b[^=]*= '([\d.]+)'", text, re.MULTILINE)
    if found is None or found[1] != asked["cuda"]:
        yield f"torch: needs CUDA {asked['cuda']}, found {found[1] if found else 'none'}"
        return
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except OSError as error:
        yield f"libcuda.so.1: needed of the driver, found: {error}"
        return
    driver = f"{version.value // 1000}.{version.value % 1000 // 10}"
    # Within a major version an older driver runs a newer runtime's binaries.
    if failed or _numbers(driver)[0] < _numbers(found[1])[0]:
        yield f"driver: needs CUDA {found[1].split('.')[0]}.0 or later, found {driver}"


def programs(asked: Asked) -> Iterator[str]:
    for name in asked["programs"]:
        if shutil.which(name) is None:
            yield f"{name}: needed on the service's PATH, found nowhere on it"


def compiled(asked: Asked) -> Iterator[str]:
    """Whether a kernel compiles for the cards, and is linked with both libraries of CUDA."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return
    home = os.environ.get("CUDA_HOME") or str(Path(nvcc).resolve().parents[1])
    numbers = sorted({each.replace(".", "") for each in asked["capabilities"]})
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernel.cu"), Path(folder, "kernel.so")
        source.write_text(KERNEL, encoding="utf-8")
        words = [nvcc, "-shared", "-Xcompiler", "-fPIC", "-o", str(library), str(source)]
        words += [f"-gencode=arch=compute_{each},code=sm_{each}" for each in numbers]
        words += [f"-L{home}/lib64", f"-L{home}/lib64/stubs", "-lcudart", "-lcuda"]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=_COMPILE_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            yield f"nvcc: needs to compile a kernel, found no end of it in {_COMPILE_SECONDS} s"
            return
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()]
        if done.returncode != 0:
            told = next(
                (line for line in said if re.search("error|cannot find", line, re.I)),
                (said or ["nothing"])[-1],
            )
            yield f"nvcc: needs to compile a kernel for {', '.join(numbers)}, said: {told.strip()}"
            return
        missing, carried = lacking(library, asked["capabilities"])
        if missing:
            yield f"nvcc: needs to compile for {', '.join(missing)}, found code for {carried}"


def main() -> None:
    asked = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    site = Path(sysconfig.get_path("purelib"))
    wrong = [*codes(asked, site), *runtime(asked, site), *programs(asked)]
    if asked["compiles"]:
        wrong += compiled(asked)
    sys.stdout.write("\n" + json.dumps({"wrong": wrong}) + "\n")


if __name__ == "__main__":
    main()
