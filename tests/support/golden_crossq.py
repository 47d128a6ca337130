"""Writes tests/golden/crossq.jsonl: what CrossQ's released code makes of a batch. Needs jax and flax.

    git clone https://github.com/adityab/CrossQ && git -C CrossQ checkout a318a26
    python tests/support/golden_crossq.py CrossQ

Of `SAC.update_critic` in its `crossq_style`, with batch renormalisation: the loss, its gradient by each weight, and the running
moments behind it, in its warm-up and after it. Of `SAC.update_actor`: the gradient of its loss by the actions. What the policy
draws is given.
"""

from __future__ import annotations

import ast
import json
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

OUT = Path(__file__).parents[1] / "golden" / "crossq.jsonl"
N, F, A, E, HIDDEN = 5, 3, 2, 2, (4, 3)


def defined(file: Path, names: tuple[str, ...], known: dict[str, Any]) -> None:
    """Classes and functions of a file, at its top or in a class, that are run without the file's imports and their decorators
    but for `compact`."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name in names:
            node.decorator_list = []
            exec(compile(ast.Module([node], []), str(file), "exec"), known)


class State(SimpleNamespace):
    """A flax TrainState that keeps the gradients."""

    def apply_gradients(self, grads: Any) -> State:
        return State(**{**vars(self), "grads": grads})

    def replace(self, **fields: Any) -> State:
        return State(**{**vars(self), **fields})


def plain(x: Any) -> Any:
    import numpy as np

    return {key: plain(value) for key, value in x.items()} if hasattr(x, "items") else np.asarray(x, float).round(6).tolist()


def row(seed: int, known: dict[str, Any], agent: dict[str, Any]) -> dict[str, Any]:
    import jax
    import jax.numpy as jnp
    import numpy as np

    draw = np.random.default_rng(seed)
    x = {name: draw.uniform(-1, 1, shape).round(3) for name, shape in {"seen": (N, F), "after": (N, F)}.items()}
    x |= {name: draw.uniform(-1, 1, (N, A)).round(3) for name in ("actions", "following", "chosen")}
    x |= {name: draw.uniform(-2, 1, N).round(3) for name in ("rewards", "logprobs")}
    done, temperature, gamma = jnp.array([0.0, 1.0, 0.0, 0.0, 1.0]), round(draw.uniform(0, 1), 3), 0.9
    critic = known["VectorCritic"](
        net_arch=HIDDEN, activation_fn=lambda: jax.nn.relu, batch_norm_momentum=0.9, use_batch_norm=True,
        batch_norm_mode="brn", n_critics=E,
    )  # fmt: skip
    given = {name: jnp.array(value, jnp.float32) for name, value in x.items()}
    made = critic.init({"params": jax.random.PRNGKey(seed), "batch_stats": jax.random.PRNGKey(0)}, given["seen"], given["actions"], train=False)  # noqa: E501  # fmt: skip
    shaken = lambda tree, low, high: jax.tree_util.tree_map(  # noqa: E731
        lambda leaf: jnp.array(draw.uniform(low, high, leaf.shape).round(3), jnp.float32), tree
    )
    params, stats = shaken(made["params"], -1, 1), made["batch_stats"]
    steps = 0 if seed % 2 else 100_000
    ((name, stats),) = stats.items()
    stats = {name: {
        key: value | {"mean": shaken(value["mean"], -1, 1), "var": shaken(value["var"], 0.02, 1), "steps": jnp.full(E, steps)}
        for key, value in stats.items()
    }}  # fmt: skip
    state = State(apply_fn=critic.apply, params=params, batch_stats=stats)
    drawn = SimpleNamespace(sample=lambda seed: given["following"], log_prob=lambda actions: given["logprobs"])
    actor = State(apply_fn=lambda variables, seen, train: drawn, params={}, batch_stats={})
    alpha = State(apply_fn=lambda variables: temperature, params={})
    key = jax.random.PRNGKey(0)
    after, metrics, _ = agent["update_critic"](
        True, False, False, gamma, actor, state, alpha,
        given["seen"], given["actions"], given["after"], given["rewards"], done, key,
    )  # fmt: skip
    acts = lambda variables, seen, mutable, train: (  # noqa: E731
        SimpleNamespace(sample=lambda seed: variables["params"], log_prob=lambda actions: jnp.zeros(N)), {"batch_stats": {}}
    )  # fmt: skip
    climbs, *_ = agent["update_actor"](State(apply_fn=acts, params=given["chosen"], batch_stats={}), state, alpha, given["seen"], key)  # noqa: E501  # fmt: skip
    found = {name: value.tolist() for name, value in x.items()} | {"terminated": done.tolist(), "gamma": gamma}
    found |= {"temperature": temperature, "steps": steps, "loss": float(metrics["critic_loss"])}
    found |= {"q": float(metrics["current_q_values"])}
    trees = {"weights": params, "moments": stats, "gradients": after.grads, "moved": after.batch_stats}
    for called, tree in trees.items():
        ((_, inner),) = tree.items()
        found[called] = plain(inner)
    return found | {"climbs": plain(climbs.grads)}


def main() -> None:
    import flax
    import flax.linen as nn
    import jax
    import jax.numpy as jnp
    import numpy as np
    from flax.linen.dtypes import canonicalize_dtype
    from flax.linen.module import Module, compact, merge_param
    from flax.linen.normalization import _canonicalize_axes, _compute_stats, _normalize
    from jax.nn import initializers

    folder = Path(sys.argv[1]) / "sbx" / "sac"
    known: dict[str, Any] = vars(typing) | {"jax": jax, "jnp": jnp, "np": np, "nn": nn, "flax": flax, "Module": Module}
    known |= {"compact": compact, "merge_param": merge_param, "initializers": initializers, "_normalize": _normalize}
    known |= {"_canonicalize_axes": _canonicalize_axes, "_compute_stats": _compute_stats, "lax": jax.lax}
    known |= {"canonicalize_dtype": canonicalize_dtype, "PRNGKey": Any, "Array": Any, "Shape": Any, "Dtype": Any, "Axes": Any}
    for name in ("BatchRenorm", "Critic", "VectorCritic"):
        defined(folder / "policies.py", (name,), known)
    agent = dict(known) | {"RLTrainState": Any, "ActorTrainState": Any, "TrainState": Any}
    defined(folder / "sac.py", ("update_critic", "update_actor"), agent)
    OUT.write_text("".join(json.dumps(row(seed, known, agent), sort_keys=True) + "\n" for seed in range(12)))


if __name__ == "__main__":
    main()
