"""The optional C extensions; everything else is in pyproject.toml.

Where no compiler is there the build goes on without them, and NumPy and Python do their work. Set
INDKNN_BUILD_NATIVE=0 to leave them out on purpose.
"""

import os
import sys

from setuptools import Extension, setup

FOLDER = "src/indknn/records/indexes/"
LEVELS = "src/indknn/core/_levels.h"

native = Extension(
    "indknn.records.indexes._native",
    sources=[FOLDER + "_native.c"],
    depends=[LEVELS, *(FOLDER + name for name in ("_scan.h", "_simd.h", "_simd_x86.h"))],
    # No -march: the newer instruction sets are compiled function by function and chosen at run time. With partial
    # redundancy elimination, GCC copies every sum of an inner loop from register to register.
    extra_compile_args=[] if sys.platform == "win32" else ["-O3", "-std=c11", "-fno-tree-pre", "-pthread"],
    extra_link_args=[] if sys.platform == "win32" else ["-pthread"],
    optional=True,
)

sampler = Extension(
    "indknn.core._sampler",
    sources=["src/indknn/core/_sampler.c"],
    extra_compile_args=[] if sys.platform == "win32" else ["-O2", "-std=c11"],
    optional=True,
)

votes = Extension(
    "indknn.core._votes",
    sources=["src/indknn/core/_votes.c"],
    # Equal to NumPy to the bit: a fused multiply-add would round once where NumPy rounds twice. Nobody looks at errno or
    # traps, so roots and roundings may be vectorised.
    extra_compile_args=[]
    if sys.platform == "win32"
    else ["-O3", "-std=c11", *"-ffp-contract=off -fno-math-errno -fno-trapping-math".split()],
    optional=True,
)

training = Extension(
    "indknn.core._training",
    sources=["src/indknn/core/_training.c"],
    depends=[LEVELS, "src/indknn/core/_training_simd.h", "src/indknn/core/_training_x86.h"],
    # Equal to NumPy to the bit, as above. Nobody looks at errno or traps, so roots and roundings may be vectorised.
    # With partial redundancy elimination, GCC keeps sums in memory that fit into registers. Python's own -fwrapv keeps
    # loops from being vectorised; `_training.c` says why no sum overflows, and the sanitised tests look for it.
    extra_compile_args=[]
    if sys.platform == "win32"
    else ["-O3", "-std=c11", *"-ffp-contract=off -fno-math-errno -fno-trapping-math -fno-tree-pre -fno-wrapv".split()],
    optional=True,
)

setup(ext_modules=[] if os.environ.get("INDKNN_BUILD_NATIVE") == "0" else [native, sampler, votes, training])
