"""Between the learners and the terminal: an actor on the head node that starts the learners and hands on what they say."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

from mmrl.api.errors import shorten


class Relay:
    """A Ray actor, with threads of its own for those who call."""

    def __init__(self) -> None:
        self._told: queue.SimpleQueue[tuple[str, tuple[Any, ...]]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._began: list[str] = []

    def fit(self, relay: Any, job: Mapping[str, Any]) -> str:
        """Run the learners to their end, with Ray's retries; what the last of them died of, or empty. relay: this actor."""
        import ray.train
        from ray.train.torch import TorchConfig, TorchTrainer

        with tempfile.TemporaryDirectory(prefix="mmrl-ray-") as folder:  # checkpoints are the run folder's, none go through Ray
            trainer = TorchTrainer(
                job["learn"],
                train_loop_config={**job, "relay": relay},
                torch_config=TorchConfig("cpu:gloo,cuda:nccl" if job["use_gpu"] else "gloo"),
                scaling_config=ray.train.ScalingConfig(num_workers=job["learners"], use_gpu=job["use_gpu"]),
                run_config=ray.train.RunConfig(
                    name="mmrl", storage_path=folder, failure_config=ray.train.FailureConfig(max_failures=job["retries"])
                ),
            )
            try:
                trainer.fit()
            except Exception as error:  # noqa: BLE001  whatever it is, the person is told
                return describe_failure(error)
        return ""

    def begin(self, mark: str) -> tuple[int, str]:
        """(how many attempts there were before this one, what the first of them gave as its mark)."""
        self._began.append(mark)
        return len(self._began) - 1, self._began[0]

    def send(self, name: str, arguments: tuple[Any, ...]) -> bool:
        """Hand something on to the terminal; whether the person wants the run to end."""
        self._told.put((name, arguments))
        return self._stop.is_set()

    def receive(self, seconds: float) -> list[tuple[str, tuple[Any, ...]]]:
        """What was told since the last time; waits so long for the first of it."""
        found = []
        try:
            found.append(self._told.get(timeout=seconds) if seconds else self._told.get_nowait())
            while True:
                found.append(self._told.get_nowait())
        except queue.Empty:
            return found

    def ask_to_stop(self) -> None:
        self._stop.set()


def describe_failure(error: BaseException) -> str:
    """Which learner a failure of Ray Train is from, and what it was, in one line."""
    failures = getattr(error, "worker_failures", None) or {}
    where = f"learner {min(failures)}: " if failures else ""
    inner: BaseException | None = failures[min(failures)] if failures else error
    while inner is not None:  # to what was raised first, through what Ray wrapped it in
        error = inner
        inner = next((e for name in ("controller_failure", "_base_exc", "cause") if (e := getattr(error, name, None))), None)
    return f"{where}{type(error).__name__}: {shorten(error)[:300]}"
