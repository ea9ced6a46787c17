"""Where tests put their files."""

import os
import shutil
from pathlib import Path


def in_memory():
    """A folder in memory, if there is one with room: a sync costs nothing there, and no test cuts the power. Or None."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or os.statvfs(memory).f_flag & os.ST_NOEXEC:  # tests make environments and run them
        return None
    return memory if shutil.disk_usage(memory).free > 4 << 30 else None
