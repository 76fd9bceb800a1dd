"""A wall clock that the tests set, for a process and its children: a small library in C that answers in libc's place.

Steady clocks and sleeps stay as they are, as when an administrator or NTP sets the clock of a host.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")


@dataclass(frozen=True)
class ShiftedClock:
    """`environment`: for the processes whose clock is shifted."""

    library: Path
    file: Path

    @classmethod
    def made(cls, folder: Path) -> ShiftedClock:
        """Compile it.

        Raises:
            FileNotFoundError: there is no C compiler.
        """
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            raise FileNotFoundError("no C compiler (cc) is installed: install gcc to shift the clock of a process")
        clock = cls(folder / "shifted_clock.so", folder / "shifted_clock")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(clock.library), str(SOURCE), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        clock.set(0)
        return clock

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "SHIFTED_CLOCK": str(self.file)}

    def set(self, seconds: int) -> None:
        """Shift the clock by so many seconds. It takes effect at once."""
        with self.file.open("r+b" if self.file.exists() else "wb") as file:
            file.write(struct.pack("<q", seconds))
