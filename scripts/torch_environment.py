"""Create a virtual environment with any version of PyTorch, without CUDA: ``torch_environment.py .venv-2.6.0 2.6.0``.

PyPI's builds for Linux need NVIDIA's libraries, which are gigabytes and of no use without a GPU. So PyTorch is
installed without its dependencies, the pure Python ones are added, and each missing library is replaced by a stand-in
with its symbols, whose functions all return CUDA's code for "no device". Triton is installed in the version that this
version of PyTorch asks for.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# Dependencies that are only there for GPUs.
GPU_PACKAGES = re.compile(r"Requires-Dist: (nvidia-|cuda-)")

# Symbols of NVIDIA's libraries that have no version.
GPU_SYMBOLS = re.compile(r"_*(cu|nccl|nvrtc|nvtx|nvshmem|Cu)")


def main() -> None:
    """Create the environment; the packages after the version are installed beside PyTorch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the environment, which is created if it is missing")
    parser.add_argument("version", help="the version of PyTorch, or 'newest'")
    parser.add_argument("packages", nargs=argparse.REMAINDER, help="arguments for pip install, after PyTorch is there")
    options = parser.parse_args()
    python = options.folder / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", options.folder)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    torch = "torch" if options.version == "newest" else f"torch=={options.version}"
    run(*pip, "--no-deps", torch)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    version = drop_gpu_requirements(site)
    missing = replace_libraries(site / "torch" / "lib")
    # The interpreters of the Triton versions that older PyTorch versions ask for do not run with NumPy 2.4.
    numpy = ["numpy<2.4"] if tuple(map(int, version.split(".")[:2])) < (2, 13) else []
    run(*pip, f"torch=={version}", *numpy, *options.packages)
    found = run(python, "-c", "import torch; torch.ones(2, 2).mm(torch.ones(2, 2)); print(torch.__version__)").strip()
    print(f"{options.folder}: PyTorch {found}, stand-ins for {len(missing)} libraries")


def run(*command: object) -> str:
    """Run a command and return what it prints; what it says about errors is shown."""
    return subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout


def drop_gpu_requirements(site: Path) -> str:
    """Remove requirements for GPUs from PyTorch's metadata, so that pip does not install them; return the version."""
    (metadata,) = site.glob("torch-*.dist-info/METADATA")
    lines = metadata.read_text(encoding="utf-8").split("\n")
    metadata.write_text("\n".join(line for line in lines if not GPU_PACKAGES.match(line)), encoding="utf-8")
    return next(line.removeprefix("Version: ") for line in lines if line.startswith("Version: "))


def replace_libraries(folder: Path) -> list[str]:
    """Write stand-ins for the libraries that those in a folder need and the system lacks; return their names."""
    libraries = sorted(folder.glob("*.so*"))
    needed = {name for library in libraries for name in re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-d", library))}
    missing = sorted(name for name in needed if not (folder / name).exists() and not loads(name))
    symbols: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    defined: set[str] = set()
    undefined: set[str] = set()
    for library in libraries:
        sources = versions_needed(library)
        for kind, name, version in symbols_of(library):
            if kind != "UND":
                defined.add(name)
            elif version in sources and sources[version] in missing:
                symbols[sources[version]][version].add(name)
            elif not version:
                undefined.add(name)
    # Which library a symbol without a version comes from is not recorded, and does not matter to the loader.
    if missing:
        symbols[missing[0]][""] |= set(filter(GPU_SYMBOLS.match, undefined - defined))
    for name in missing:
        build(folder / name, symbols[name])
    return missing


def versions_needed(library: Path) -> dict[str, str]:
    """Return the library that each version of a symbol is expected in."""
    sources: dict[str, str] = {}
    file = ""
    for line in readelf("-V", library).split("\n"):
        if match := re.search(r"File: (\S+)", line):
            file = match[1]
        elif file and (match := re.search(r"Name: (\S+)", line)):
            sources[match[1]] = file
    return sources


def symbols_of(library: Path) -> list[tuple[str, str, str]]:
    """Return section, name and version of each dynamic symbol."""
    found = []
    for line in readelf("--dyn-syms", library).split("\n"):
        words = line.split()
        if len(words) >= 8 and words[0].rstrip(":").isdigit():
            name, _, version = words[7].partition("@")
            found.append((words[6], name, version.lstrip("@")))
    return found


def build(path: Path, symbols: dict[str, set[str]]) -> None:
    """Compile a library whose functions return cudaErrorNoDevice, or a text; PyTorch calls some when it is loaded."""
    names = sorted(set().union(*symbols.values()))
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "source.c"), Path(folder, "script.map")
        values = (
            '(long)"no device"' if re.search("(String|Name|ncclGetLastError)$", name) else "100" for name in names
        )
        source.write_text(
            "".join(f"long {name}(void) {{ return {value}; }}\n" for name, value in zip(names, values, strict=True))
        )
        versions = {version: sorted(members) for version, members in symbols.items() if version and members}
        script.write_text(
            "".join(f"{version} {{ global: {'; '.join(members)}; }};\n" for version, members in versions.items())
        )
        options = [f"-Wl,--version-script={script}"] if versions else []
        run("cc", "-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{path.name}", *options, source, "-o", path)


def loads(name: str) -> bool:
    """Return whether the system's loader finds a library."""
    code = f"import ctypes; ctypes.CDLL({json.dumps(name)})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def readelf(*arguments: object) -> str:
    """Return what readelf prints."""
    return run("readelf", "--wide", *arguments)


if __name__ == "__main__":
    main()
