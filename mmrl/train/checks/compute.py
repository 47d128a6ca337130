"""Checks of `[compute]`, before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from mmrl.algorithms.presets import Algorithm
from mmrl.api.errors import UserError
from mmrl.compute.bitsandbytes import check_installed
from mmrl.compute.ray import import_ray
from mmrl.config.sections import ComputeConfig, HgDaggerStage, OffPolicyStage, RecapStage, RlStage, RunConfig
from mmrl.config.training import EIGHT_BIT
from mmrl.policies.load import policy_class
from mmrl.registry import plugins
from mmrl.rollout.simulators.wire.handshake import token_of_environment


def check_compute(config: RunConfig, acts: bool, algorithms: Sequence[Algorithm | None]) -> None:
    """Raise UserError if the run can't run as `[compute]` says, or if a key would have no effect. acts: the policy acts in
    simulators. algorithms: one per stage."""
    check_unused(config.compute)
    check_batch_invariant(config)
    check_sampler(config, acts)
    check_placement(config, acts)
    check_learners(config)
    check_quantized(config)
    check_dora(config)
    check_compile(config)
    check_float16(config)
    check_sequence_parallel(config)
    check_staleness(config, acts, algorithms)
    check_interrupt(config, acts)


def check_unused(compute: ComputeConfig) -> None:
    """Refuse settings of engines and of vLLM where there are none."""
    if compute.engines > 1 and compute.placement == "colocated":
        raise UserError(
            f'compute.engines = {compute.engines}, but compute.placement = "colocated" has no engines: use "separate" or "hybrid"'
        )
    if compute.weight_transfer != "store" and compute.placement == "colocated":
        raise UserError(
            f'compute.weight_transfer = "{compute.weight_transfer}", but compute.placement = "colocated" has no engines: use '
            '"separate" or "hybrid"'
        )
    if compute.tensor_parallel > 1 and compute.sampler != "vllm":
        raise UserError(
            f"compute.tensor_parallel = {compute.tensor_parallel} needs vLLM, but compute.sampler = {compute.sampler!r}: "
            "use 'vllm'"
        )
    if compute.model_runner != "auto" and compute.sampler != "vllm":
        raise UserError(
            f"compute.model_runner = {compute.model_runner!r} is vLLM's, but compute.sampler = {compute.sampler!r}: use 'vllm', "
            "or leave it out"
        )
    if compute.vllm and compute.sampler != "vllm":
        raise UserError(f"compute.vllm has settings, but compute.sampler = {compute.sampler!r}: use 'vllm', or leave them out")


def check_sampler(config: RunConfig, acts: bool) -> None:
    """Refuse settings that the sampler doesn't support."""
    if config.generate.cuda_graphs:
        check_graphs(config, acts)
    if config.compute.sampler != "vllm":
        return
    generate = config.generate
    for wrong, why in (
        (acts, f"samples text, but policy.kind = {config.policy.kind!r} acts:"),
        (
            generate.top_p != 1 or generate.top_k,
            "gives log-probabilities after generate.top_p and top_k, not before: drop them, or",
        ),
        (config.evaluate.steer, "can't be steered (evaluate.steer):"),
    ):
        if wrong:
            raise UserError(f'compute.sampler = "vllm" {why} use "local"')
    from mmrl.rollout.generate.vllm_engine import check_installed

    check_installed()


def check_graphs(config: RunConfig, acts: bool) -> None:
    """Refuse CUDA graphs where nothing could be captured."""
    compute, policy = config.compute, config.policy
    if not acts:
        if compute.sampler != "local":
            raise UserError(
                'generate.cuda_graphs is for mmrl\'s own sampler, but compute.sampler = "vllm" has its own (compute.vllm): leave '
                "it out"
            )
        return
    kind = policy_class(plugins.registry().get("policies", policy.kind))
    if not getattr(kind, "replays", False) and not policy.options.get("base"):
        raise UserError(
            f"generate.cuda_graphs: policy.kind = {policy.kind!r} acts in one pass, of which nothing is captured: leave it out"
        )
    own_copy = compute.staleness or config.simulate.policy_device != "auto"
    if compute.learners > 1 and compute.weights == "sharded" and not own_copy:
        raise UserError(
            "generate.cuda_graphs: sharded weights lie elsewhere whenever a policy acts, and a graph would read the old ones: "
            'set compute.weights = "replicated", or leave it out'
        )


def check_placement(config: RunConfig, acts: bool) -> None:
    """Refuse settings that engines, judges and simulators in separate processes don't support."""
    compute = config.compute
    if config.simulate.address and compute.simulators != "local":
        raise UserError(
            f'simulate.address names servers of simulators, and compute.simulators = "{compute.simulators}" starts others: '
            "drop one of them"
        )
    if config.simulate.policy_device != "auto":
        check_policy_device(config, acts)
    if compute.simulators != "local" or config.simulate.address:
        where = "simulate.address" if config.simulate.address else f'compute.simulators = "{compute.simulators}"'
        if not acts:
            raise UserError(f"{where}, but policy.kind = {config.policy.kind!r} doesn't act: leave it out")
        if config.simulate.device.startswith("cuda"):
            raise UserError(f'{where} simulates on CPUs, but simulate.device = "{config.simulate.device}": drop one of them')
        if compute.simulators == "actors":
            import_ray(where)
        if config.simulate.address:
            token_of_environment()
    if compute.judges:
        import_ray(f"compute.judges = {compute.judges}")
    if compute.placement == "colocated":
        return
    where = f'compute.placement = "{compute.placement}"'
    if acts:
        raise UserError(f'{where} is for policies that write, but policy.kind = {config.policy.kind!r} acts: use "colocated"')
    if config.evaluate.steer:
        raise UserError(f'{where} can\'t be steered (evaluate.steer): use "colocated"')
    if compute.engines < compute.learners:
        raise UserError(
            f"compute.engines = {compute.engines} for compute.learners = {compute.learners}: each learner needs at least one"
        )
    import_ray(where)


def check_learners(config: RunConfig) -> None:
    """Refuse settings that several learners don't support."""
    compute = config.compute
    if compute.learners == 1:
        return
    several = f"compute.learners = {compute.learners}"
    if config.evaluate.steer:
        raise UserError(f"evaluate.steer works in one process, but {several}: leave it out, or use one learner")
    spread = compute.weights == "sharded"
    if config.train.offload_optimizer and spread:
        raise UserError(
            f"train.offload_optimizer doesn't support weights sharded over {several}, which spread the optimiser: leave it out"
        )
    for number, stage in enumerate(config.stages):
        if stage.optimizer in ("adafactor", *EIGHT_BIT) and spread:
            raise UserError(
                f'stages.{number}.optimizer = "{stage.optimizer}" doesn\'t support weights sharded over {several}: use another, '
                'or compute.weights = "replicated"'
            )


def check_quantized(config: RunConfig) -> None:
    """Refuse what needs bitsandbytes where it is not installed."""
    for number, stage in enumerate(config.stages):
        if stage.optimizer in EIGHT_BIT:
            check_installed(f'stages.{number}.optimizer = "{stage.optimizer}"', '"adamw"')
    if config.policy.lora is None or not config.policy.lora.nf4:
        return
    kinds = ("vlm", "vla")
    if config.policy.kind not in kinds:
        raise UserError(f"policy.lora.nf4 is for policies of kind {' or '.join(kinds)}, not {config.policy.kind!r}: leave it out")
    if config.compute.learners > 1 and config.compute.weights == "sharded":
        raise UserError(
            f"policy.lora.nf4 doesn't support weights sharded over compute.learners = {config.compute.learners}: set "
            'compute.weights = "replicated"'
        )
    check_installed("policy.lora.nf4", "leave it out")


def check_dora(config: RunConfig) -> None:
    """Refuse DoRA over weights of which a pass doesn't have whole rows at hand, as it measures them."""
    if config.policy.lora is None or not config.policy.lora.use_dora:
        return
    if config.policy.lora.nf4:
        raise UserError("policy.lora.use_dora doesn't support weights of 4 bits (policy.lora.nf4): leave one of them out")
    if config.compute.learners > 1 and config.compute.weights == "sharded":
        raise UserError(
            f"policy.lora.use_dora doesn't support weights sharded over compute.learners = {config.compute.learners}: set "
            'compute.weights = "replicated"'
        )
    if config.train.compile:
        raise UserError("train.compile doesn't support policy.lora.use_dora: leave one of them out")


def check_compile(config: RunConfig) -> None:
    """Refuse compiled layers of policies that don't call their layers, and what torch can't trace or wasn't tried so."""
    kinds = ("vlm", "reward", "vla")
    if not config.train.compile:
        return
    if config.policy.kind not in kinds:
        raise UserError(f"train.compile is for policies of kind {', '.join(kinds)}, not {config.policy.kind!r}: leave it out")
    if config.policy.lora is not None and config.policy.lora.nf4:
        raise UserError("train.compile doesn't support weights of 4 bits (policy.lora.nf4): leave one of them out")
    if config.compute.sequence_parallel > 1:
        raise UserError(
            f"train.compile doesn't support rows that compute.sequence_parallel = {config.compute.sequence_parallel} learners "
            "share: leave one of them out"
        )


def check_float16(config: RunConfig) -> None:
    """Refuse float16 where losses aren't scaled, and for policies that weren't tried in it."""
    if config.policy.dtype != "float16":
        return
    kinds, instead = ("vlm", "reward", "vla"), 'use "bfloat16"'
    if config.policy.kind not in kinds:
        raise UserError(
            f'policy.dtype = "float16" is for policies of kind {", ".join(kinds)}, not {config.policy.kind!r}: leave it out, or '
            f"{instead} where the policy has it"
        )
    for number, stage in enumerate(config.stages):
        beside = isinstance(stage, RlStage) and stage.turn_critic is not None
        if beside or isinstance(stage, RecapStage | HgDaggerStage | OffPolicyStage):
            what = "turn_critic" if beside else f"kind = {stage.kind!r}"
            raise UserError(f'policy.dtype = "float16" isn\'t for stages.{number}.{what}: {instead}')


def check_batch_invariant(config: RunConfig) -> None:
    """Refuse settings with which numbers of a token would depend on the other tokens of a pass all the same. What a model or a
    device can't do is found when the model is loaded."""
    policy, compute = config.policy, config.compute
    if not policy.batch_invariant:
        return
    lora = policy.lora
    against = {
        f'policy.kind = "{policy.kind}"': policy.kind != "vlm",
        f'policy.attn_implementation = "{policy.attn_implementation}"': policy.attn_implementation != "auto",
        "policy.lora.nf4": bool(lora and lora.nf4),
        "policy.lora.use_dora": bool(lora and lora.use_dora),
        f'compute.sampler = "{compute.sampler}"': compute.sampler != "local",
        f"compute.sequence_parallel = {compute.sequence_parallel}": compute.sequence_parallel > 1,
        "train.compile": config.train.compile,
        "evaluate.steer": config.evaluate.steer,  # it needs gradients through the cache
    }
    if found := [key for key, stands in against.items() if stands]:
        raise UserError(f"policy.batch_invariant doesn't go with {found[0]}: leave one of them out")


def check_sequence_parallel(config: RunConfig) -> None:
    """Refuse teams that don't divide the learners, and policies whose rows can't be shared; a model's own limits are checked with
    the model."""
    size, learners, policy = config.compute.sequence_parallel, config.compute.learners, config.policy
    if size == 1:
        return
    where = f"compute.sequence_parallel = {size}"
    if learners % size:
        raise UserError(f"{where} doesn't divide compute.learners = {learners}: change one of them")
    if policy.kind not in ("vlm", "reward"):
        raise UserError(f'{where} divides rows of text, but policy.kind = "{policy.kind}": leave it out, or use "vlm"')
    if policy.attn_implementation == "eager":
        raise UserError(f'{where} has no attention of policy.attn_implementation = "eager": use "auto"')


def check_policy_device(config: RunConfig, acts: bool) -> None:
    """Refuse a copy of the policy that nobody asks to act, and critics that it doesn't have."""
    where = f'simulate.policy_device = "{config.simulate.policy_device}"'
    if not acts:
        raise UserError(f"{where}, but policy.kind = {config.policy.kind!r} doesn't act: leave it out")
    for number, stage in enumerate(config.stages):
        if isinstance(stage, RlStage) and stage.critic and stage.critic.backbone == "separate":
            raise UserError(
                f'stages.{number}.critic.backbone = "separate" values episodes while they are played, and {where} plays them '
                'elsewhere: use "shared"'
            )


def check_staleness(config: RunConfig, acts: bool, algorithms: Sequence[Algorithm | None]) -> None:
    """Refuse settings that asynchronous sampling doesn't support."""
    k = config.compute.staleness
    for number, (stage, algorithm) in enumerate(zip(config.stages, algorithms, strict=True)):
        if not k or not isinstance(stage, RlStage) or algorithm is None:
            continue
        cure = "leave one of them out"
        if acts and stage.critic and stage.critic.backbone == "separate":
            raise UserError(
                f'stages.{number}.critic.backbone = "separate" values episodes while they are played, and '
                f'compute.staleness = {k} plays them while it learns: use "shared"'
            )
        if stage.importance_sampling == "off" and stage.ratio_to == "learner":
            raise UserError(
                f'stages.{number}.importance_sampling = "off" with compute.staleness = {k}: completions of older weights '
                'need importance sampling; use "truncate" or "mask", or ratio_to = "sampler"'
            )
        if "baselines_N" in algorithm.needs:
            raise UserError(
                f"stages.{number}.algorithm = {stage.algorithm!r} compares with greedy answers of the current weights, but "
                f"compute.staleness = {k} samples with older ones: {cure}"
            )
        if stage.curriculum:
            raise UserError(f"stages.{number}.curriculum measures prompts while compute.staleness = {k} samples others: {cure}")
        if stage.entropy_control:
            raise UserError(
                f"stages.{number}.entropy_control answers prompts again while compute.staleness = {k} samples others: {cure}"
            )
        if not {"told_logprobs_NT", "shown_logprobs_NT"}.isdisjoint(algorithm.needs):
            raise UserError(
                f"stages.{number}.algorithm = {stage.algorithm!r} reads prompts while compute.staleness = {k} samples others: "
                f"{cure}"
            )
        for key in ("imitation", "condition", "perception"):
            if getattr(stage, key):
                raise UserError(f"stages.{number}.{key} reads prompts while compute.staleness = {k} samples others: {cure}")


def check_interrupt(config: RunConfig, acts: bool) -> None:
    """Refuse settings with which answers can't be interrupted."""
    compute = config.compute
    if not compute.interrupt:
        return
    for wrong, why in (
        (
            not compute.staleness,
            "gives new weights to answers of later steps, and compute.staleness = 0 samples none: set it to 1",
        ),
        (acts, f"is for policies that write, but policy.kind = {config.policy.kind!r} acts: leave it out"),
        (compute.placement != "colocated", f'works with compute.placement = "colocated", not "{compute.placement}"'),
    ):
        if wrong:
            raise UserError(f"compute.interrupt {why}")
    for number, stage in enumerate(config.stages):
        if isinstance(stage, RlStage) and stage.reweight:
            raise UserError(
                f"stages.{number}.reweight weighs rewards anew between steps, and compute.interrupt leaves no time between them: "
                "leave one of them out"
            )
