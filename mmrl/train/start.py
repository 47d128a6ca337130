"""Start a run: make or open the run folder, load the policy, train, and close the folder."""

from __future__ import annotations

import contextlib
import fcntl
import platform
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch

from mmrl.api.errors import LimitReached, UserError, shorten
from mmrl.api.seeds import derive
from mmrl.api.signals import on_termination
from mmrl.compute import collectives, ranks
from mmrl.compute.devices import held_by_others, prepare_device
from mmrl.compute.flash_attention import use_flash_attention
from mmrl.compute.progress import Progress
from mmrl.compute.rank_errors import Stopped, shared_errors
from mmrl.config.load import to_dict
from mmrl.config.sections import OffPolicyStage, RunConfig, teacher_of
from mmrl.evaluation.pairs import evaluator_of
from mmrl.evaluation.results import Evaluation
from mmrl.judge import Judge, local_judge
from mmrl.judge.actors import ray_judge
from mmrl.policies.load import BASE, make_policy
from mmrl.policies.policy import Policy
from mmrl.policies.shard import end_passes
from mmrl.rollout.collector import make_collector
from mmrl.run_folder.files import disk_errors
from mmrl.run_folder.reader import check_removable, is_run, is_unstarted
from mmrl.run_folder.writer import ENDED, NullRunFolder, RunFolder, check_unused
from mmrl.train import checkpoint
from mmrl.train.checks.run_file import check_model, check_trainable, of_teacher
from mmrl.train.plan import check_fits, gib
from mmrl.train.plan.machines import current_machine
from mmrl.train.remarks import remarks
from mmrl.train.resolve import resolve
from mmrl.train.resume import find_checkpoint, newest_checkpoint, restore, stage_of
from mmrl.train.run import Run
from mmrl.train.sampling.condition import stage_condition
from mmrl.train.setup import Setup
from mmrl.train.update.packer import packer_of


def train(
    config: RunConfig,
    progress: Progress,
    *,
    resume: bool = False,
    overwrite: bool = False,
    begun: Callable[[Run], None] = lambda run: None,
) -> RunFolder:
    """Train as the run file says, into the folder `<runs_dir>/<name>`; see `docs/run-files.md`.

    All checks run before the run folder is made. If the run stops for any reason, a checkpoint keeps what the finished steps
    learned, and `resume=True` continues as if the run had not stopped. begun: is called with the run before its first step, so
    that the caller can stop it (`Run.stop`). Raises UserError for a run file that can't be trained.
    """
    with ranks.process_group(config.policy.device != "cpu"), out_of_memory_errors(config), contextlib.ExitStack() as held:
        setup = resolve(counted(config))
        check_trainable(setup.policy)
        config = setup.config
        path = Path(config.runs_dir) / config.name
        check_started(config.compute.learners)
        if config.train.threads:
            torch.set_num_threads(config.train.threads)
        folder, replaces = ranks.broadcast_from_first(lambda: open_run(config, path, held, resume, overwrite))
        if folder is not None and (path / "summary.json").exists():
            progress.note(f"{path} is finished: there is nothing to resume")
            return folder
        if folder is not None:
            ranks.run_on_all(lambda: check_shared(path))
        found = ranks.broadcast_from_first(lambda: newest_checkpoint(folder))
        if found is None:
            check_model(config, setup.policy, online=True)
        ranks.run_on_all(lambda: check_memory(setup, progress))
        judge = held.enter_context(_judge(setup))
        source = found / checkpoint.POLICY if found else None
        policy = ranks.run_on_all(lambda: load_policy(setup, source))  # while the judge's workers start
        if ranks.world_size() > 1 and config.compute.weights == "sharded":
            policy.spread()
        if remark := getattr(policy, "remark", ""):
            progress.note(remark)
        packer = packer_of(config, policy)
        if packer.remark:
            progress.note(packer.remark)
        elif packer.layout:
            progress.say(packer.layout)
        ranks.run_on_all(judge.ready)  # its models are on the GPU before vLLM measures what is free
        collector = make_collector(config, setup.tasks, policy)
        held.callback(collector.close)
        ranks.run_on_all(collector.ready)  # refuses a simulator that can't be made or doesn't fit, before anything is written
        folder = folder or ranks.broadcast_from_first(lambda: create_run(config, path, held, replaces))
        if not ranks.is_first():
            folder = NullRunFolder(path)
        ranks.run_on_all(lambda: check_shared(path))
        for remark in remarks(setup):
            progress.note(remark)
        run = Run(setup, folder, policy, judge, progress, lambda number: load_teacher(setup, number, policy), collector, packer)
        if resume:
            restore(run, found)
        begun(run)
        with stop_on_signals(run):
            finish(run)
        if run.stop:  # set after the last step
            raise Stopped
    return folder


def counted(config: RunConfig) -> RunConfig:
    """The run file with `compute.learners` set to the actual number of learners, if there are several."""
    if ranks.world_size() == 1:
        return config
    return config.model_copy(update={"compute": config.compute.model_copy(update={"learners": ranks.world_size()})})


def check_started(learners: int) -> None:
    """Raise UserError if the run file asks for several learners and there is one process."""
    if ranks.world_size() == 1 and learners > 1:
        raise UserError(
            f"compute.learners = {learners}, but this is one process: start the run with `mmrl train`, which starts the others, "
            f"with torchrun --nproc-per-node {learners} -m mmrl train ..., or on a cluster"
        )


def open_run(
    config: RunConfig, path: Path, held: contextlib.ExitStack, resume: bool, overwrite: bool
) -> tuple[RunFolder | None, bool]:
    """(folder of a run to resume, None for a new run; whether the new run replaces an older one). Without `overwrite` it may only
    replace one that ended before its first figure. held: gets the lock of an existing run folder."""
    going_on = resume and is_run(path)
    overwrite = overwrite or is_unstarted(path)
    if not going_on:
        refuse_own_files(config, path)
    if not going_on and not (overwrite and is_run(path)):
        check_unused(path, asked="--resume" if resume else "--overwrite" if overwrite else "")
    there = is_run(path)
    if there:
        held.enter_context(lock_run_folder(path))
        if not going_on:
            check_removable(path)
    return (RunFolder.open(path, to_dict(config)), False) if going_on else (None, there)


def create_run(config: RunConfig, path: Path, held: contextlib.ExitStack, replaces: bool) -> RunFolder:
    """Make a new run folder. held: gets its lock. replaces: whether it replaces that of an older run, whose lock `held` has.
    Raises UserError for any other run in the folder."""
    if replaces:
        shutil.rmtree(path)
    elif is_run(path):  # another process made it while this one loaded its model
        held.enter_context(lock_run_folder(path))
    folder = RunFolder.create(path, to_dict(config), config.seed)
    held.enter_context(lock_run_folder(path))
    return folder


def check_shared(path: Path) -> None:
    """Raise UserError if this rank doesn't see the run folder that rank 0 made."""
    if not is_run(path):
        raise UserError(
            f"rank {ranks.rank()} on {platform.node()} doesn't see the run folder {path} that rank 0 made: set runs_dir to a "
            "folder that all machines share"
        )


def refuse_own_files(config: RunConfig, path: Path) -> None:
    """Raise UserError if a model, a memory or an evaluation that the run reads is in the folder that the run would replace."""
    teachers = [name for s in config.stages if (name := teacher_of(s))]
    memories = [s.offline for s in config.stages if isinstance(s, OffPolicyStage) and s.offline]
    for name in [config.policy.model, *teachers, *memories, *(s.select.path for s in config.stages if s.select)]:
        if is_run(path) and Path(name).exists() and Path(name).resolve().is_relative_to(path.resolve()):
            raise UserError(f"{name} is in {path}, which this run would replace: choose another name for the run")


@contextlib.contextmanager
def out_of_memory_errors(config: RunConfig) -> Iterator[None]:
    """Turn out-of-memory errors into a UserError of one line that names the keys to lower."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is a RuntimeError; on a CPU torch raises a plain one
        if not isinstance(error, MemoryError | torch.OutOfMemoryError) and "can't allocate memory" not in str(error):
            raise
        held = held_by_others("cuda") if isinstance(error, torch.OutOfMemoryError) and torch.cuda.is_available() else 0
        others = f", of which other processes hold {gib(held)}" if held else ""
        raise UserError(
            f"out of memory ({shorten(error, 120) or type(error).__name__}{others}): lower train.micro_batch_tokens = "
            f"{config.train.micro_batch_tokens}, generate.batch_size = {config.generate.batch_size} or policy.max_pixels, or set "
            "train.gradient_checkpointing = true; continue a run that had begun with --resume"
        ) from error


@contextlib.contextmanager
def lock_run_folder(path: Path) -> Iterator[None]:
    """Lock a run folder against other processes. The system releases the lock when the process ends; the lock file has the name
    of this machine until then, for boards on others, which don't see its locks. Raises UserError if the folder is locked
    already, or can't be."""
    with open(path / ".lock", "ab", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"{path} is in use by another mmrl process: wait until it ends, or choose another name") from None
        except OSError as error:  # such as a network file system without locks
            raise UserError(f"{path} can't be locked: {error.strerror}: set runs_dir to a folder where files can be") from error
        with disk_errors(path / ".lock"):
            file.truncate(0)  # a killed run leaves the name
            file.write(platform.node().encode())
        try:
            yield
        finally:
            file.truncate(0)


@contextlib.contextmanager
def stop_on_signals(run: Run) -> Iterator[None]:
    """Stop the run after the current step on Ctrl-C, SIGTERM or SIGHUP; a second Ctrl-C stops it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int) -> None:
        run.stop = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        run.progress.stopping()

    with on_termination(stop):
        yield


def finish(run: Run) -> None:
    """Run all stages, then close the run folder; if the run fails or is stopped, save a checkpoint first."""
    run.observe("mmrl_run_started", run=run.folder, config=to_dict(run.config))
    status, told = "failed", False
    try:
        with shared_errors(), out_of_memory_errors(run.config):
            run.run_stages()
        status = "finished"
    except KeyboardInterrupt:
        status = "stopped"
        raise
    except UserError as error:
        told = True
        with contextlib.suppress(UserError):  # most likely a full disk, which the raised error reports
            limit = {"alarm": error.alarm, "task": error.task} if isinstance(error, LimitReached) else {}
            run.folder.error(run.at.step, ENDED, str(error), level="stop", **limit)
        raise
    finally:
        if hasattr(run, "steps"):
            run.steps.close()
        whole = saveable(run)
        if status != "finished" and (told or whole) and ranks.all_ranks_ending():
            with contextlib.suppress(UserError):  # the error that ended the run is being raised already
                save_last(run)
        if status == "finished":
            run.folder.summary(run.summary())
        run.trackers.finish(status)
        run.observe("mmrl_run_finished", run=run.folder, status=status)


def saveable(run: Run) -> bool:
    """Whether the learner is there and has the weights of a whole step."""
    # the learner isn't if a stage failed before it made it
    return run.consistent and bool(run.at.step) and hasattr(run, "steps") and hasattr(run.steps, "learner")


def save_last(run: Run) -> None:
    """Save the last whole step of a run that ends early, if all ranks have its weights and nobody has saved it."""
    ready = not collectives.instead() or end_passes()
    steps = {*ranks.all_gather_object(run.at.step if ready and saveable(run) else 0)}
    if len(steps) == 1 and steps != {0} and not ranks.broadcast_from_first(run.folder.checkpoint_dir(run.at.step).exists):
        run.save()


def load_policy(setup: Setup, source: Path | None, cure: str = "remove that folder to resume from an earlier one") -> Policy:
    """Load the policy. source: a checkpoint's policy folder, instead of `policy.model`. cure: what the error advises if the
    checkpoint can't be read."""
    policy, seed = setup.config.policy, derive(setup.config.seed, "weights")
    try:
        return make_policy(policy, device=setup.device, seed=seed, source=source)
    except UserError as error:
        beneath = error.key.startswith(BASE) or (policy.lora and error.key == "policy.model")  # what no checkpoint has
        if source is None or beneath:
            raise
        raise UserError(f"checkpoint {source.parent} can't be read: {error}: {cure}") from error


def check_memory(setup: Setup, progress: Progress) -> None:
    """Raise UserError if the GPU can't be used or is too small for the run, before anything is loaded onto it; see
    `mmrl.train.plan`. Memory that other processes hold doesn't count."""
    prepare_device(setup.device, setup.config.policy.dtype)
    if use_flash_attention(setup.device):
        progress.note("attention without a mask is computed by FlashAttention 3")
    if setup.device.startswith("cuda"):
        machine, held = current_machine(setup.device, measured=False)[0], held_by_others(setup.device)
        if held:
            progress.note(
                f"other processes hold {gib(held)} of the {gib(machine.memory)} of {machine.name}: nvidia-smi lists them"
            )
            machine = replace(machine, memory=machine.memory - held)
        if remark := check_fits(setup.config, machine, ranks.world_size()):
            progress.note(remark)


def load_teacher(setup: Setup, number: int, policy: Policy) -> Policy | None:
    """The teacher of a stage; None if it has none, or if it is the simulator's expert. number: the stage's index. policy: the
    student."""
    config, stage = setup.config, setup.config.stages[number]
    if not (name := teacher_of(stage)):
        return None
    # it reads the student's tokens, and no prompts of its own
    own: dict[str, object] = {"chat_template": None, "chat_template_kwargs": {}, "shown_tokens": []}
    whose = {"model": name, "lora": None, "batch_invariant": False, **own}
    other = config.policy.model_copy(update=whose)
    seed = derive(
        config.seed, "teacher" if config.smoke else "weights"
    )  # a tiny teacher like the tiny student would teach nothing
    try:
        teacher = make_policy(other, device=setup.device, seed=seed)
        policy.refuse_teacher(teacher, name)
    except UserError as error:
        raise of_teacher(error, number) from error
    teacher.model.requires_grad_(False)
    return teacher


def evaluate_only(config: RunConfig, folder: Path | None, which: str) -> list[Evaluation]:
    """Evaluate a run file's policy, or a checkpoint of a run folder. which: `best`, `last` or a step. Raises UserError if
    evaluation is switched off or the checkpoint doesn't exist."""
    if not config.evaluate.num_prompts:
        raise UserError("evaluate.num_prompts = 0 switches evaluation off: give -n")
    setup = resolve(config, train=False)
    config = setup.config
    found = find_checkpoint(RunFolder.open(folder), which) if folder else None
    if found is None:
        check_model(config, setup.policy)
    cure = "leave out the --set options of [policy], or give another --checkpoint"
    with out_of_memory_errors(config):
        prepare_device(setup.device, config.policy.dtype)
        policy = load_policy(setup, found / checkpoint.POLICY if found else None, cure)
        setup.set_image_processing(policy.image_processing)
        collector = make_collector(config, setup.tasks, policy)
        shown = stage_condition(config.stages[stage_of(found, len(config.stages)) if found else setup.opening])
        with _judge(setup) as judge, contextlib.closing(collector):
            judge.ready()  # as in `train`
            evaluator = evaluator_of(setup, collector, judge, policy, shown)
            return [evaluator(name)[0] for name in setup.tasks]


def _judge(setup: Setup) -> Judge:
    config, settings = setup.config, setup.config.judge
    if config.compute.judges:
        return ray_judge(config, setup.verifier_options, on_gpu=setup.device.startswith("cuda"))
    return local_judge(setup.verifier_options, settings.num_workers, settings.timeout_s, settings.memory_mb, settings.isolation)
