"""Writes tests/golden/pa-rl.jsonl: what PA-RL's released code makes of candidates, and the losses of its critics. Needs jax,
flax, distrax and chex.

    git clone https://github.com/MaxSobolMark/PolicyAgnosticRL && git -C PolicyAgnosticRL checkout a26a192
    python tests/support/golden_pa_rl.py PolicyAgnosticRL

Of `action_optimization_sample_actions`: the candidates that it keeps and moves, and the chances with which it draws one, for a Q
that is the mean of concave functions. Of `iql_value_loss`: the loss and its gradient by the values. Of `_get_cql_q_diff`:
Cal-QL's penalty without importance weights.
"""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

OUT = Path(__file__).parents[1] / "golden" / "pa-rl.jsonl"
COMMIT = "a26a192"
N, M, K, A, F, E = 4, 6, 3, 2, 3, 2


def defined(file: Path, names: Sequence[str], known: dict[str, Any]) -> dict[str, Any]:
    """Definitions of a file, at its top or in a class, that are run without the imports of the file."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.FunctionDef | ast.Assign):
            name = node.name if isinstance(node, ast.FunctionDef) else getattr(node.targets[0], "id", "")
            if name in names:
                exec(compile(ast.Module([node], []), str(file), "exec"), known)
    return known


def main() -> None:
    import typing
    from collections import namedtuple

    import chex
    import distrax
    import flax
    import jax
    import jax.numpy as jnp
    import numpy as np

    agents = Path(sys.argv[1]) / "jaxrl_m" / "agents" / "continuous"
    known: dict[str, Any] = vars(typing) | {"chex": chex, "distrax": distrax, "flax": flax, "jax": jax, "jnp": jnp}
    known |= {"partial": partial, "namedtuple": namedtuple, "make_dict_kwargs_hashable_decorator": lambda given: given}
    known |= {"Data": Any, "PRNGKey": Any, "Params": Any}
    best = defined(
        agents / "action_optimization.py",
        ("LocalOptimizationState", "local_optimization_steps", "action_optimization_sample_actions"),
        dict(known),
    )
    iql = defined(agents / "iql.py", ("expectile_loss", "iql_value_loss"), dict(known))
    cql = defined(agents / "cql.py", ("_get_cql_q_diff",), dict(known))

    def q_of(params: Any, seen: Any, actions: Any) -> Any:
        """[E, n] or [E, n, M]."""
        seen = seen[:, None] if actions.ndim == 3 else seen
        slope = jnp.einsum("...f,efa->e...a", seen, params["slopes"])
        return (slope * actions).sum(-1) - jnp.square(actions - params["peaks"].reshape(E, *[1] * (actions.ndim - 1), A)).sum(-1)

    class State(flax.struct.PyTreeNode):  # type: ignore[name-defined]
        params: Any
        apply_fn: Any = flax.struct.field(pytree_node=False)

    class Critic:
        config = {"critic_ensemble_size": E}

        def forward_critic(self, seen: Any, actions: Any, **_: Any) -> Any:
            return q_of(_["grad_params"], seen["state"], actions)

    def applied(given: Any, seen: Any, actions: Any, name: str) -> Any:
        return q_of(given["params"], seen["state"], actions)

    draw, rows = np.random.default_rng(0), []
    for case in range(24):
        size = lambda *shape: draw.uniform(-1, 1, shape).round(3)  # noqa: E731
        given = {"slopes": size(E, F, A), "peaks": size(E, A), "seen": size(N, F)}
        given |= {"candidates": size(N, M, A), "data": size(N, A)}
        params = {name: jnp.array(given[name]) for name in ("slopes", "peaks")}
        how = {"num_base_policy_actions": M, "num_actions_to_keep": K, "num_steps": 5, "step_size": 0.02}
        found, _ = best["action_optimization_sample_actions"](
            {"state": jnp.array(given["seen"]), "base_policy_actions": jnp.array(given["candidates"])},
            Critic(),
            State(params=params, apply_fn=applied),
            **how,
            optimize_critic_ensemble_min=False,
            rng=jax.random.PRNGKey(0),
            action_space_low=-jnp.ones(A),
            action_space_high=jnp.ones(A),
            dataset_actions_to_consider=jnp.array(given["data"]) if case % 2 else None,
        )
        row: dict[str, Any] = {"with_data": bool(case % 2), "step_size": 0.02, "steps": 5, "keep": K}
        row |= {"actions": found.components_distribution.distribution.loc, "chances": found.mixture_distribution.probs}

        q, v, expectile = size(N), size(N), float(draw.uniform(0.5, 0.95).__round__(2))
        loss, slope = jax.value_and_grad(lambda v: iql["iql_value_loss"](q, v, expectile)[0])(jnp.array(v))  # noqa: B023
        row |= {"expectile": expectile, "q": q, "v": v, "expectile_loss": loss, "expectile_slope": slope}

        paid = size(N) * 3
        anywhere = jax.random.uniform(jax.random.split(jax.random.PRNGKey(case))[1], shape=(N, 2, A), minval=-1.0, maxval=1.0)
        chosen = {"observations": size(N, A), "next_observations": size(N, A)}
        agent = SimpleNamespace(
            config={
                "use_calql": True,
                "critic_ensemble_size": E,
                "cql_n_actions": 2,
                "cql_action_sample_method": "uniform",
                "only_use_next_actions_for_cql": False,
                "critic_subsample_size": None,
                "use_calql_on_random_actions": False,
                "cql_importance_sample": False,
                "cql_temp": 1.0,
            },
            forward_critic=lambda seen, actions, rng, **_: q_of(params, jnp.array(given["seen"]), actions),  # noqa: B023
            _include_goals_in_obs=lambda batch, name: name,
            # the best action, as often as it is asked for: the published agent is a distribution that is certain
            forward_policy_and_sample=lambda name, rng, repeat: (
                jnp.repeat(jnp.array(chosen[name])[:, None], repeat, 1),  # noqa: B023
                jnp.zeros((N, repeat)),
            ),
        )
        batch = {"rewards": np.zeros(N), "actions": jnp.array(given["data"]), "mc_returns": jnp.array(paid)}
        penalty, _ = cql["_get_cql_q_diff"](agent, batch, jax.random.PRNGKey(case))
        row |= {"paid": paid, "anywhere": anywhere, "here": chosen["observations"], "there": chosen["next_observations"]}
        row |= {"penalty": penalty.mean(1).sum()}
        for name, x in (given | row).items():
            row[name] = x if isinstance(x, bool | int | float) else np.asarray(x, float).round(6).tolist()
        rows.append(json.dumps(row | {"how": f"ran MaxSobolMark/PolicyAgnosticRL @{COMMIT}"}, sort_keys=True))
    OUT.write_text("\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
