"""What the comparisons ask of this machine: where things are, and what the processor is."""

import os
import platform
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOME = Path(os.environ.get("PEERS_HOME", ROOT / "target/peers")).resolve()
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
PROGRAM = TARGET / "release/page-by-page"


def python_of(name: str) -> Path:
    """The interpreter of an environment that `lab/setup` makes."""
    python = HOME / name / "bin/python"
    if not python.exists():
        raise RuntimeError(f"{name} is not in {HOME}: run lab/setup {name}, or set PEERS_HOME to the folder that has it")
    return python


def answer_of(*command) -> str:
    """What a command prints."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout.strip()


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
