"""How long the steps of the shared model take, beside a plain read of their features, NumPy, and Opacus.

python benchmarks/training.py [--n 50000] [--d 384] [--classes 10] [--owners 50000] [--large] [--opacus]

`--large` takes 1,000,000 records. `--opacus` adds ten epochs of its linear model at batch 256, if it is installed.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from indknn.core import training
from indknn.core.training import Weights, gradient, step_scale
from indknn.records.indexes import scan
from indknn.types import IntArray
from measure import features, machine, medians

STEPS, CLIP, EPOCHS, BATCH = 32, 0.25, 10, 256


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in (("n", 50_000), ("d", 384), ("classes", 10)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--owners", type=int, help="how many people the records belong to; default: one record each")
    parser.add_argument("--large", action="store_true", help="1,000,000 records")
    parser.add_argument("--opacus", action="store_true", help="minutes")
    args = parser.parse_args()
    n, d, classes = 1_000_000 if args.large else args.n, args.d, args.classes
    print(", ".join(f"{key}: {value}" for key, value in machine().items()))
    rng = np.random.default_rng(0)
    values = np.concatenate([features(min(n - at, 100_000), d, at).values for at in range(0, n, 100_000)])
    labels, owners = rng.integers(classes, size=n), np.arange(n) * (args.owners or n) // n
    weights, scale = Weights.of(rng.normal(size=(d + 1, classes))), step_scale(CLIP, STEPS, 0.02)
    people = labels, owners, np.full(n, 1 << 45), weights, CLIP, scale

    def twin() -> None:
        native, training._training = training._training, None
        try:
            gradient(values, *people)
        finally:
            training._training = native

    contestants: dict[str, Callable[[], object]] = {
        "plain read": lambda: scan._native.read(values, n, d, scan.cores()),
        "step": partial(gradient, values, *people, scan.cores()),
        "step, one core": partial(gradient, values, *people, 1),
    }
    times = medians(contestants, 5 if args.large else 15)
    times["step, NumPy"], times.best["step, NumPy"] = (medians({"twin": twin}, 1)["twin"],) * 2
    print(f"{n:,} records x {d} features x {classes} classes, {owners[-1] + 1:,} people")
    print(f"  {'':16}{'median ms':>11}{'best':>9}{'CPU':>9}   of a read: best{'CPU':>8}")
    cpu = {name: least_cpu(call) for name, call in (*contestants.items(), ("step, NumPy", twin))}
    for name, seconds in times.items():
        best, ratios = times.best[name], (times.best[name] / times.best["plain read"], cpu[name] / cpu["plain read"])
        print(
            f"  {name:16}{seconds * 1e3:11.2f}{best * 1e3:9.2f}{cpu[name] * 1e3:9.2f}{ratios[0]:18.1f}{ratios[1]:8.1f}"
        )
    step = times["step"]
    shown = [f"{STEPS * seconds:.2f} s" for seconds in (step, times.best["step"], cpu["step"])]
    print(f"  {STEPS} steps: median {shown[0]}, best {shown[1]}, CPU {shown[2]}")
    if args.opacus:
        theirs, spent = opacus(values.astype(np.float32) / 127.0, labels, classes)
        ratios = f"{theirs / (STEPS * step):.1f} times {STEPS} steps (CPU {spent / (STEPS * cpu['step']):.1f} times)"
        print(f"  Opacus, {EPOCHS} epochs: {theirs:.2f} s, CPU {spent:.2f} s: {ratios}")


def least_cpu(call: Callable[[], object]) -> float:
    """CPU seconds of a call on all cores, the least of five."""
    found = []
    for _ in range(5):
        start = time.process_time()
        call()
        found.append(time.process_time() - start)
    return min(found)


def opacus(rows: np.ndarray, labels: IntArray, classes: int) -> tuple[float, float]:
    """Seconds and CPU seconds of ten epochs of DP-SGD for a linear model, as its users run it."""
    import torch
    from opacus import PrivacyEngine
    from torch.utils.data import DataLoader, TensorDataset

    model = torch.nn.Linear(rows.shape[1], classes)
    loader = DataLoader(TensorDataset(torch.from_numpy(rows), torch.from_numpy(labels)), batch_size=BATCH)
    model, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        data_loader=loader,
        epochs=EPOCHS,
        target_epsilon=1.0,
        target_delta=1e-5,
        max_grad_norm=1.0,
    )
    start = time.perf_counter(), time.process_time()
    for _ in range(EPOCHS):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
    return time.perf_counter() - start[0], time.process_time() - start[1]


if __name__ == "__main__":
    main()
