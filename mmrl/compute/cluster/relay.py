"""An actor on the head node that starts the learners and passes messages between them and the terminal."""

from __future__ import annotations

import queue
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

from mmrl.api.errors import shorten


class Relay:
    """A Ray actor with several threads for concurrent calls."""

    def __init__(self) -> None:
        self._messages: queue.SimpleQueue[tuple[str, tuple[Any, ...]]] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._began: list[str] = []

    def fit(self, relay: Any, job: Mapping[str, Any]) -> str:
        """Run the learners to their end, with Ray's retries. Returns the last failure, or "". relay: the handle of this actor."""
        import ray.train
        from ray.train.torch import TorchConfig, TorchTrainer

        workers: dict[str, Any] = {"num_workers": job["learners"], "use_gpu": job["use_gpu"]}
        if job["use_gpu"]:
            workers["resources_per_worker"] = {"GPU": job["gpus_per_learner"]}
        with tempfile.TemporaryDirectory(prefix="mmrl-ray-") as folder:  # checkpoints go to the run folder, not through Ray
            trainer = TorchTrainer(
                job["learn"],
                train_loop_config={**job, "relay": relay},
                torch_config=TorchConfig("cpu:gloo,cuda:nccl" if job["use_gpu"] else "gloo"),
                scaling_config=ray.train.ScalingConfig(**workers),
                run_config=ray.train.RunConfig(
                    name="mmrl", storage_path=folder, failure_config=ray.train.FailureConfig(max_failures=job["retries"])
                ),
            )
            try:
                trainer.fit()
            except Exception as error:  # noqa: BLE001  the terminal reports it
                return describe_failure(error)
        return ""

    def begin(self, mark: str) -> tuple[int, str]:
        """Register an attempt of the learners. Returns (number of earlier attempts, the mark of the first attempt)."""
        self._began.append(mark)
        return len(self._began) - 1, self._began[0]

    def send(self, name: str, arguments: tuple[Any, ...]) -> bool:
        """Send a message to the terminal. Returns whether the user wants the run to end."""
        self._messages.put((name, arguments))
        return self._stop.is_set()

    def receive(self, seconds: float) -> list[tuple[str, tuple[Any, ...]]]:
        """The new messages. Waits at most `seconds` for the first one."""
        messages = []
        try:
            messages.append(self._messages.get(timeout=seconds) if seconds else self._messages.get_nowait())
            while True:
                messages.append(self._messages.get_nowait())
        except queue.Empty:
            return messages

    def ask_to_stop(self) -> None:
        self._stop.set()


def describe_failure(error: BaseException) -> str:
    """One line for a failure of Ray Train: the learner and its exception."""
    failures = getattr(error, "worker_failures", None) or {}
    where = f"learner {min(failures)}: " if failures else ""
    inner: BaseException | None = failures[min(failures)] if failures else error
    while inner is not None:  # down to the original exception, through Ray's wrappers
        error = inner
        inner = next((e for name in ("controller_failure", "_base_exc", "cause") if (e := getattr(error, name, None))), None)
    return f"{where}{type(error).__name__}: {shorten(error, 300)}"
